"""Stored points by their place on the map: those of the newest that are inside a region.

There is no index on places: it would cost more than the points. So a preview looks at a number of the newest points,
which are one range of ids. The database compares them with the bounding box, and only what is in it comes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Engine, and_, case, func, select

from darksight_core.map.regions import Region
from darksight_service.ingest.records import received_ms
from darksight_service.store.engine import reading
from darksight_service.store.partitions import first_id
from darksight_service.store.read.search import (
    ALL_COLUMNS,
    PointFilter,
    StoredPoint,
    ranges_of,
    read_point,
    span,
    with_outcomes,
)
from darksight_service.store.rows import MINUTE_MS
from darksight_service.store.tables import outcome, point

__all__ = ["Places", "newest_inside", "points_by_id", "within_box"]

_COLUMNS = ("id", "x", "y", "is_accepted", "reason", "predicted")
_SHORT_MS = 30 * MINUTE_MS


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """n points that are inside a region, newest first, as columns.

    Parameters
    ----------
    looked_at, accepted_in_all
        The newest points that were compared with the region, and those of them that were accepted.
    oldest_ms
        When the oldest of them was received; 0 if there is none.
    ids, received_ms
        Of the points inside.
    is_accepted, reason, predicted
        What was decided, (n,).
    label
        The right class, (n,); -1 where it is not known.
    """

    looked_at: int
    accepted_in_all: int
    oldest_ms: int
    ids: list[bytes]
    received_ms: NDArray[np.int64]
    is_accepted: NDArray[np.bool_]
    reason: NDArray[np.int64]
    predicted: NDArray[np.int64]
    label: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)


def newest_inside(
    engine: Engine, bundles: dict[int, str], wanted: PointFilter, region: Region, *, limit: int
) -> Places:
    """Of the newest `limit` points that pass a filter those inside a region; see `search.list_points`."""
    looked_at = accepted = oldest_ms = 0
    rows: list[Any] = []
    low, high = first_id(wanted.since_ms), first_id(wanted.until_ms)
    if bundles and low < high:
        mine = and_(point.c.bundle_id.in_(list(bundles)), point.c.is_shadow == wanted.is_shadow)
        with reading(engine) as connection:
            # One after the other: a join with all ranges compares every point with every range.
            ranges = map(_fewer, ranges_of(connection, bundles, wanted, low, high, limit))
            for start, end in chain.from_iterable(ranges):
                within = and_(span(start, end), mine)
                found, found_accepted = _count(connection, within)
                excess = looked_at + found - limit
                if excess > 0:
                    within = and_(span(connection.scalar(_oldest(within, excess)), end), mine)
                    found, found_accepted = _count(connection, within)
                if found:
                    looked_at, accepted = looked_at + found, accepted + found_accepted
                    oldest_ms = received_ms(connection.scalar(_oldest(within)) or start)
                    rows += connection.execute(_inside_box(within, region)).all()
                if looked_at >= limit:
                    break
    rows.sort(key=itemgetter(0), reverse=True)
    points = np.array([(row[1], row[2]) for row in rows], dtype=np.float64).reshape(-1, 2)
    rows = [rows[number] for number in np.flatnonzero(region.inside(points)).tolist()]
    numbers = np.array([row[3:] for row in rows], dtype=np.int64).reshape(-1, 4).T
    return Places(
        looked_at=looked_at,
        accepted_in_all=accepted,
        oldest_ms=oldest_ms,
        ids=[row[0] for row in rows],
        received_ms=np.array([received_ms(row[0]) for row in rows], dtype=np.int64),
        is_accepted=numbers[0].astype(np.bool_),
        reason=numbers[1],
        predicted=numbers[2],
        label=numbers[3],
    )


def points_by_id(engine: Engine, bundles: dict[int, str], model: str, ids: Sequence[bytes]) -> list[StoredPoint]:
    """The points with these ids, in their order, as far as they are stored."""
    query = select(*ALL_COLUMNS).select_from(with_outcomes(point))
    query = query.where(point.c.id.in_(ids), point.c.bundle_id.in_(list(bundles)))
    with reading(engine) as connection:
        found = {row[0]: read_point(row, model, bundles) for row in connection.execute(query)} if ids else {}
    return [found[each] for each in ids if each in found]


def within_box(x: ColumnElement[Any], y: ColumnElement[Any], region: Region) -> ColumnElement[bool]:
    """Whether a place is in the bounding box of a region."""
    left, right, bottom, top = region.box
    return and_(x >= left, x < right, y >= bottom, y < top)


def _fewer(ranges: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Ranges of ids, newest first, with those in one that have a short time between them.

    Traffic that leaves out every other minute has a range for each; to ask for so many takes longer than to read past
    what others sent meanwhile.
    """
    found: list[tuple[bytes, bytes]] = []
    for start, end in ranges:
        if found and received_ms(found[-1][0]) - received_ms(end) <= _SHORT_MS:
            found[-1] = start, found[-1][1]
        else:
            found.append((start, end))
    return found


def _count(connection: Connection, within: ColumnElement[bool]) -> tuple[int, int]:
    """Points, and those of them that were accepted."""
    is_accepted = case((point.c.is_accepted, 1), else_=0)
    points, accepted = connection.execute(select(func.count(), func.sum(is_accepted)).where(within)).one()
    return int(points), int(accepted or 0)


def _oldest(within: ColumnElement[bool], skipped: int = 0) -> Any:
    """The id of the oldest point, or of the one after so many."""
    return select(point.c.id).where(within).order_by(point.c.id).offset(skipped).limit(1)


def _inside_box(within: ColumnElement[bool], region: Region) -> Any:
    # Not sorted by the database: that would take longer than to read them.
    return (
        select(*(point.c[name] for name in _COLUMNS), func.coalesce(outcome.c.label, -1))
        .select_from(with_outcomes(point))
        .where(within, within_box(point.c.x, point.c.y, region))
    )
