"""Queries for stored points, newest first.

Ids sort by time, so a query is a range of ids. There is no index for filters, which would cost more than the points:
the counts per minute, also those by tag, tell which minutes have points that pass a filter, and only those are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Float,
    FromClause,
    LargeBinary,
    Table,
    and_,
    cast,
    column,
    exists,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    values,
)

from darksight_core.map.regions import Region
from darksight_core.rows.schema import Decision
from darksight_core.rows.tags import MAX_TAGS
from darksight_service.store.engine import reading
from darksight_service.store.ids import MINUTE_MS, first_id, id_ms
from darksight_service.store.points import LAST_CLASS, PointFilter
from darksight_service.store.rollups import within
from darksight_service.store.tables import (
    OTHER_CLASSES,
    PointId,
    bundle,
    outcome,
    outcome_point,
    point,
    rollup,
    rollup_tag,
    tag,
)

__all__ = [
    "conditions",
    "has_tags",
    "labelled_points",
    "labelled_within",
    "minute_counts",
    "newest_rows",
    "points_with_ids",
    "ranges_of",
    "received_within",
    "select_points",
    "span",
    "tag_numbers",
    "weight",
    "with_outcomes",
    "within_box",
]


_FIRST_LOOK_MINUTES = 60
_RANGES = 400
# Minutes without points that a range may contain if there is no filter: every range is compared with every point.
_GAP_MINUTES = 4


def newest_rows(
    engine: Engine,
    bundles: dict[int, str],
    wanted: PointFilter,
    columns: Sequence[Any],
    *,
    limit: int,
    before: bytes = b"",
    since: bytes = b"",
    where: Sequence[ColumnElement[bool]] = (),
) -> list[Any]:
    """Columns of the newest points, at most `limit`.

    Parameters
    ----------
    engine, bundles
        The database, and the versions of the model's bundles by number.
    wanted
        Filter of the points.
    columns
        SQL columns of points and their outcomes.
    limit
        Largest number of rows.
    before, since
        Only ids below the first and from the second on, if given.
    where
        Further conditions.
    """
    low, high = max(first_id(wanted.since_ms), since), first_id(wanted.until_ms)
    if before:
        high = min(high, before)
    found: list[Any] = []
    if bundles and low < high:
        with reading(engine) as connection:
            tags = tag_numbers(connection, bundles, wanted)
            for ranges in ranges_of(connection, bundles, wanted, low, high, limit):
                query = select_points(bundles, wanted, ranges, columns).where(*where, *has_tags(tags))
                found += connection.execute(query.limit(limit - len(found))).all()
                if len(found) >= limit:
                    break
    return found


def span(low: Any, high: Any) -> ColumnElement[bool]:
    """Points from one id to below another."""
    return and_(point.c.id >= low, point.c.id < high)


def tag_numbers(connection: Connection, bundles: Iterable[int], wanted: PointFilter) -> list[int] | None:
    """Numbers of the tags of a filter; None if one of them is not stored, so that no point has it."""
    if not wanted.tags:
        return []
    models = select(bundle.c.model_id).where(bundle.c.id.in_(list(bundles)))
    pairs = tuple_(tag.c.key, tag.c.value).in_(list(wanted.tags))
    found = [int(each) for each in connection.scalars(select(tag.c.id).where(tag.c.model_id.in_(models), pairs))]
    return found if len(found) == len(wanted.tags) else None


def has_tags(numbers: Sequence[int] | None) -> list[ColumnElement[bool]]:
    """The conditions that points have all of these tags."""
    if numbers is None:
        return [false()]
    found = []
    for number in numbers:
        wanted = literal(number.to_bytes(4, "big"), LargeBinary)
        # Four bytes may also match across two numbers, so every number is compared.
        parts = [func.substr(point.c.tags, 4 * place + 1, 4, type_=LargeBinary) == wanted for place in range(MAX_TAGS)]
        found.append(or_(*parts))
    return found


def ranges_of(
    connection: Connection, bundles: dict[int, str], wanted: PointFilter, low: bytes, high: bytes, need: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Ranges of ids with points, newest first; the caller stops when it has enough."""
    # PostgreSQL has no min(uuid).
    first, last = (
        connection.scalar(select(point.c.id).order_by(order).limit(1)) for order in (point.c.id, point.c.id.desc())
    )
    if first is None or last is None:
        return
    bottom = max(id_ms(low), id_ms(first)) // MINUTE_MS
    top = min(id_ms(high), id_ms(last)) // MINUTE_MS
    look = _FIRST_LOOK_MINUTES
    tags = tag_numbers(connection, bundles, wanted)
    if tags is None:
        return
    gap = 0 if tags or conditions(rollup, wanted, OTHER_CLASSES) else _GAP_MINUTES
    while top >= bottom:
        start = max(bottom, top - look + 1)
        query = minute_counts(bundles, wanted, tags, start * MINUTE_MS, (top + 1) * MINUTE_MS)
        found = connection.execute(query.order_by(query.selected_columns.minute.desc()))
        counts = [(int(minute), int(points)) for minute, points in found]
        yield from _merged(counts, low, high, need, gap)
        top, look = start - 1, 4 * look


def minute_counts(
    bundles: Collection[int], wanted: PointFilter, tags: Sequence[int], since_ms: int, until_ms: int
) -> Any:
    """The query for minutes that may have points of a filter, and for at most how many each has.

    Parameters
    ----------
    bundles, wanted
        Numbers of the bundles, and the filter.
    tags
        Numbers of the tags of the filter.
    since_ms, until_ms
        The minutes that touch this span of time.
    """
    allowed = conditions(rollup, wanted, OTHER_CLASSES)
    if not tags:
        minutes = within(rollup, bundles, wanted.is_shadow, since_ms, until_ms)
        query = select(rollup.c.minute, func.sum(rollup.c.points).label("points")).where(minutes, *allowed)
        return query.group_by(rollup.c.minute)
    minutes = and_(within(rollup_tag, bundles, wanted.is_shadow, since_ms, until_ms), rollup_tag.c.tag_id.in_(tags))
    group = (rollup_tag.c.bundle_id, rollup_tag.c.minute)
    least = select(*group, func.min(rollup_tag.c.points).label("points")).where(minutes).group_by(*group)
    each = least.having(func.count() == len(tags)).subquery()
    found = select(each.c.minute, func.sum(each.c.points).label("points")).group_by(each.c.minute)
    if allowed:
        same = and_(rollup.c.bundle_id == each.c.bundle_id, rollup.c.minute == each.c.minute)
        found = found.where(exists().where(same, rollup.c.is_shadow == wanted.is_shadow, *allowed))
    return found


def _merged(
    counts: Sequence[tuple[int, int]], low: bytes, high: bytes, need: int, gap: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Minutes, newest first, as lists of ranges of ids that hold as many points as are needed.

    Minutes with at most `gap` others between them are one range.
    """
    ranges: list[list[int]] = []
    expected = 0
    for minute, points in counts:
        if ranges and ranges[-1][0] - minute <= gap + 1:
            ranges[-1][0] = minute
        else:
            ranges.append([minute, minute])
        expected += points
        if expected >= need or len(ranges) >= _RANGES:
            yield _ids(ranges, low, high)
            ranges, expected = [], 0
    if ranges:
        yield _ids(ranges, low, high)


def _ids(ranges: Sequence[Sequence[int]], low: bytes, high: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (max(low, first_id(start * MINUTE_MS)), min(high, first_id((end + 1) * MINUTE_MS))) for start, end in ranges
    ]


def with_outcomes(source: Any, points: FromClause = point) -> Any:
    """Points with their outcomes, where there is one."""
    return source.outerjoin(outcome_point, outcome_point.c.point_id == points.c.id).outerjoin(
        outcome, outcome.c.id == outcome_point.c.outcome_id
    )


def _source_of(ranges: Sequence[tuple[bytes, bytes]]) -> Any:
    """The FROM clause for points of these ranges."""
    if len(ranges) == 1:
        return point
    spans = values(column("low", PointId), column("high", PointId), name="spans").data(list(ranges)).cte()
    return spans.join(point, span(spans.c.low, spans.c.high))


def select_points(
    bundles: dict[int, str], wanted: PointFilter, ranges: list[tuple[bytes, bytes]], columns: Sequence[Any]
) -> Any:
    """The query for columns of points in ranges of ids, newest first."""
    query = (
        select(*columns)
        .select_from(with_outcomes(_source_of(ranges)))
        .where(span(ranges[-1][0], ranges[0][1]))
        .where(point.c.bundle_id.in_(list(bundles)), point.c.is_shadow == wanted.is_shadow)
    )
    return query.where(*conditions(point, wanted, LAST_CLASS)).order_by(point.c.id.desc())


def conditions(table: Table, wanted: PointFilter, last_class: int) -> list[ColumnElement[bool]]:
    """The conditions of a filter on points or on their counts; classes from `last_class` on are one."""
    columns: list[tuple[str, tuple[int, ...], list[Any]]] = [
        (
            "is_accepted",
            wanted.decisions,
            [each == Decision.ACCEPT for each in wanted.decisions if each in set(Decision)],
        ),
        ("reason", wanted.reasons, list(wanted.reasons)),
        ("predicted", wanted.predicted, [min(each, last_class) for each in wanted.predicted]),
    ]
    return [table.c[name].in_(values) for name, given, values in columns if given]


def received_within(bundles: Collection[int], since_ms: int, until_ms: int) -> ColumnElement[bool]:
    """Points received in a span of time, without those of shadow versions."""
    return and_(
        span(first_id(since_ms), first_id(until_ms)),
        point.c.bundle_id.in_(list(bundles)),
        point.c.is_shadow == literal(False),
    )


def labelled_points(engine: Engine) -> tuple[Any, Any]:
    """The FROM clause for points that have a label, and the points in it."""
    matches = outcome_point.join(outcome, outcome.c.id == outcome_point.c.outcome_id)
    return points_with_ids(engine, matches, outcome_point.c.point_id)


def points_with_ids(engine: Engine, source: Any, ids: ColumnElement[Any]) -> tuple[Any, Any]:
    """A FROM clause joined with the points of a column of ids, and the points in it.

    PostgreSQL looks up each point in the primary key. Without LATERAL it may read all points of the time instead, since
    it does not know how many ids there are.
    """
    if engine.dialect.name != "postgresql":
        return source.join(point, point.c.id == ids), point
    # OFFSET 0 keeps the planner from turning it into a plain join.
    one = select(point).where(point.c.id == ids).offset(literal_column("0")).lateral("found")
    return source.join(one, true()), one


def labelled_within(points: FromClause, bundles: Collection[int], since_ms: int, until_ms: int) -> ColumnElement[bool]:
    """Points of `labelled_points` received in a span of time, without those of shadow versions."""
    return and_(
        outcome_point.c.point_id >= first_id(since_ms),
        outcome_point.c.point_id < first_id(until_ms),
        points.c.bundle_id.in_(list(bundles)),
        points.c.is_shadow == literal(False),
    )


def weight(points: FromClause) -> ColumnElement[Any]:
    """The rows that a stored point stands for."""
    return 1.0 / func.coalesce(cast(points.c.odds, Float(53)), 1.0)


def within_box(x: ColumnElement[Any], y: ColumnElement[Any], region: Region) -> ColumnElement[bool]:
    """Whether a map point is in the bounding box of a region."""
    left, right, bottom, top = region.box
    return and_(x >= left, x < right, y >= bottom, y < top)
