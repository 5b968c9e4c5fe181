"""Stored points, newest first, a page at a time.

Ids sort by time, so a page is a range of ids and the next one begins below the last id; what is inserted meanwhile is
newer, and each point is seen once. No index is kept for filters, which would cost more than the points: the counts
per minute say in which minutes there is something to find, and only those are read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Engine, Table, and_, column, func, select, values

from darksight_core.scored import Decision
from darksight_service.errors import RequestError
from darksight_service.ingest.records import MAX_ROWS, prediction_id, received_ms
from darksight_service.store.engine import reading
from darksight_service.store.partitions import first_id
from darksight_service.store.rollups import within
from darksight_service.store.rows import LAST_CLASS, MINUTE_MS, decode_probs
from darksight_service.store.tables import OTHER_CLASSES, PointId, outcome, outcome_point, point, rollup

__all__ = [
    "ALL_COLUMNS",
    "Page",
    "PointFilter",
    "StoredPoint",
    "conditions",
    "list_points",
    "newest_rows",
    "ranges_of",
    "read_point",
    "select_points",
    "span",
    "with_outcomes",
]

MAX_PAGE = 10_000
DEFAULT_PAGE = 100

ALL_COLUMNS = (point, outcome.c.label)
"""What `read_point` reads."""

_FIRST_LOOK_MINUTES = 60
_RANGES = 400
# Minutes without points that a range may have in it if there is no filter: every range is compared with every point.
_GAP_MINUTES = 4
_ACCEPT, _REJECT = int(Decision.ACCEPT), int(Decision.REJECT)


@dataclass(frozen=True, slots=True)
class PointFilter:
    """Which points; an empty tuple allows all.

    Parameters
    ----------
    model
        Name of the watched classifier.
    version
        Of the bundle, its sha256; None for all.
    since_ms, until_ms
        Received at or after, and before, in unix milliseconds.
    decisions, reasons, predicted
        Numbers of `Decision` and `Reason`, and classes.
    is_shadow
        What a shadow said, instead of what was answered.
    """

    model: str
    version: str | None = None
    since_ms: int = 0
    until_ms: int = (1 << 48) - 1
    decisions: tuple[int, ...] = ()
    reasons: tuple[int, ...] = ()
    predicted: tuple[int, ...] = ()
    is_shadow: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class StoredPoint:
    """One point; numbers that it lacks are NaN, `event_ms` is 0 and `label` -1 if not known."""

    id: str
    prediction_id: str
    model: str
    version: str
    is_shadow: bool
    received_ms: int
    event_ms: int
    x: float
    y: float
    log_density: float
    log_kde: float
    outlier_score: float
    p_value: float
    confidence: float
    top: float
    decision: int
    reason: int
    predicted: int
    label: int
    probs: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Page:
    """Points, and the token of the next page, empty on the last."""

    points: list[StoredPoint]
    next_token: str


def list_points(
    engine: Engine, bundles: dict[int, str], wanted: PointFilter, *, page_size: int = 0, page_token: str = ""
) -> Page:
    """One page; `bundles` has the versions of the model's bundles by number."""
    if not 0 <= page_size <= MAX_PAGE:
        raise RequestError(f"a page has up to {MAX_PAGE} points, not {page_size}", field="page_size")
    size = page_size or DEFAULT_PAGE
    before = _read_token(page_token, wanted) if page_token else b""
    found = newest_rows(engine, bundles, wanted, ALL_COLUMNS, limit=size + 1, before=before)
    points = [read_point(row, wanted.model, bundles) for row in found[:size]]
    return Page(points, _token(found[size - 1].id, wanted) if len(found) > size else "")


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
        Which points.
    columns
        Of points and their outcomes.
    limit
        How many at most.
    before, since
        Only ids below the first and from the second on, if given.
    where
        What else must hold.
    """
    low, high = max(first_id(wanted.since_ms), since), first_id(wanted.until_ms)
    if before:
        high = min(high, before)
    found: list[Any] = []
    if bundles and low < high:
        with reading(engine) as connection:
            for ranges in ranges_of(connection, bundles, wanted, low, high, limit):
                query = select_points(bundles, wanted, ranges, columns).where(*where)
                found += connection.execute(query.limit(limit - len(found))).all()
                if len(found) >= limit:
                    break
    return found


def span(low: Any, high: Any) -> ColumnElement[bool]:
    """Points from one id to below another."""
    return and_(point.c.id >= low, point.c.id < high)


def ranges_of(
    connection: Connection, bundles: dict[int, str], wanted: PointFilter, low: bytes, high: bytes, need: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Ranges of ids, newest first, in which there are points; after each yield more are given if they are needed."""
    # PostgreSQL has no least uuid, but it has a first one.
    first, last = (
        connection.scalar(select(point.c.id).order_by(order).limit(1)) for order in (point.c.id, point.c.id.desc())
    )
    if first is None or last is None:
        return
    bottom = max(received_ms(low), received_ms(first)) // MINUTE_MS
    top = min(received_ms(high), received_ms(last)) // MINUTE_MS
    look = _FIRST_LOOK_MINUTES
    allowed = conditions(rollup, wanted, OTHER_CLASSES)
    gap = 0 if allowed else _GAP_MINUTES
    while top >= bottom:
        start = max(bottom, top - look + 1)
        query = (
            select(rollup.c.minute, func.sum(rollup.c.points))
            .where(within(rollup, bundles, wanted.is_shadow, start * MINUTE_MS, (top + 1) * MINUTE_MS), *allowed)
            .group_by(rollup.c.minute)
            .order_by(rollup.c.minute.desc())
        )
        counts = [(int(minute), int(points)) for minute, points in connection.execute(query)]
        yield from _merged(counts, low, high, need, gap)
        top, look = start - 1, 4 * look


def _merged(
    counts: Sequence[tuple[int, int]], low: bytes, high: bytes, need: int, gap: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Minutes, newest first, as ranges of ids: so many at a time as should hold what is needed.

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


def with_outcomes(source: Any) -> Any:
    """Points with the outcome of each, if it has one."""
    return source.outerjoin(outcome_point, outcome_point.c.point_id == point.c.id).outerjoin(
        outcome, outcome.c.id == outcome_point.c.outcome_id
    )


def _source_of(ranges: Sequence[tuple[bytes, bytes]]) -> Any:
    """What to select points of these ranges from."""
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
    """What a filter says about points or their counts; classes from `last_class` on are one."""
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


def read_point(row: Sequence[Any], model: str, bundles: dict[int, str]) -> StoredPoint:
    """A point from a row of all columns of the table, and the label."""
    # In the order of the table: to ask a row for a column by its name costs more than all the rest.
    point_id, event_ms, *numbers, bundle_id, predicted, reason, is_accepted, is_shadow, name, probs, label = row
    if name is None:
        number = int.from_bytes(point_id, "big")
        name = prediction_id((number - number % MAX_ROWS).to_bytes(16, "big"), number % MAX_ROWS)
    if None in numbers:
        numbers = [math.nan if each is None else each for each in numbers]
    x, y, log_density, log_kde, outlier_score, p_value, confidence, top = numbers
    text = point_id.hex()
    return StoredPoint(
        id=f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}",
        prediction_id=name,
        model=model,
        version=bundles[bundle_id],
        is_shadow=is_shadow,
        received_ms=received_ms(point_id),
        event_ms=event_ms or 0,
        x=x,
        y=y,
        log_density=log_density,
        log_kde=log_kde,
        outlier_score=outlier_score,
        p_value=p_value,
        confidence=confidence,
        top=top,
        decision=_ACCEPT if is_accepted else _REJECT,
        reason=reason,
        predicted=predicted,
        label=-1 if label is None else label,
        probs=decode_probs(probs),
    )


def _digest(wanted: PointFilter) -> bytes:
    return hashlib.sha256(json.dumps(asdict(wanted), sort_keys=True).encode()).digest()[:8]


def _token(last: bytes, wanted: PointFilter) -> str:
    return base64.urlsafe_b64encode(last + _digest(wanted)).decode()


def _read_token(token: str, wanted: PointFilter) -> bytes:
    try:
        found = base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        found = b""
    if len(found) != 24 or found[16:] != _digest(wanted):
        raise RequestError("the page token is not one that the same request was given", field="page_token")
    return found[:16]
