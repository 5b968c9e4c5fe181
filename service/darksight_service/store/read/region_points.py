"""Stored points inside a region of the map, among the newest ones.

There is no index on map points: it would cost more than the points. So a preview examines a number of the newest
points, which are one range of ids. The database compares them with the bounding box, and only points in it are read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Engine, and_, case, func, select

from darksight_core.map.regions import Region
from darksight_service.store.database import Database
from darksight_service.store.engine import reading
from darksight_service.store.ids import MINUTE_MS, first_id, id_ms
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.read.point_table import read_table, sql_columns
from darksight_service.store.read.search import ranges_of, span, weight, with_outcomes, within_box
from darksight_service.store.tables import point

__all__ = ["RegionPoints", "RegionQueries"]

_NAMES = ("id", "bundle_id", "x", "y", "is_accepted", "reason", "predicted", "odds", "label")
_SHORT_MS = 30 * MINUTE_MS


class RegionPoints(NamedTuple):
    """The newest points that were compared with a region, and those of them inside.

    `examined` is the number of rows that they stand for, `accepted` that of accepted ones among them, and `oldest_ms`
    when the oldest of them was received, 0 if there is none.
    """

    examined: int
    accepted: int
    oldest_ms: int
    inside: PointTable


class RegionQueries(Database):
    """Points inside regions of the map."""

    def newest_inside(
        self,
        model: str,
        version: str,
        region: Region,
        *,
        since_ms: int,
        until_ms: int,
        limit: int,
        seconds: float = math.inf,
    ) -> RegionPoints:
        """The points inside a region among the newest `limit` points of a version, or fewer when time is over."""
        wanted, bundles = PointFilter(model, version, since_ms, until_ms), self._names.known(model, version)
        end_at = time.monotonic() + seconds
        read = oldest_ms = 0
        examined = accepted = 0.0
        rows: list[Any] = []
        low, high = first_id(wanted.since_ms), first_id(wanted.until_ms)
        if bundles and low < high:
            mine = and_(point.c.bundle_id.in_(list(bundles)), point.c.is_shadow == wanted.is_shadow)
            with reading(self._engine) as connection:
                # One after the other: a join with all ranges compares every point with every range.
                ranges = map(_merged, ranges_of(connection, bundles, wanted, low, high, limit))
                for start, end in chain.from_iterable(ranges):
                    within = and_(span(start, end), mine)
                    found, *sums = _count(connection, within)
                    excess = read + found - limit
                    if excess > 0:
                        within = and_(span(connection.scalar(_oldest(within, excess)), end), mine)
                        found, *sums = _count(connection, within)
                    if found:
                        read, examined, accepted = read + found, examined + sums[0], accepted + sums[1]
                        oldest_ms = id_ms(connection.scalar(_oldest(within)) or start)
                        rows += connection.execute(_inside_box(self._engine, within, region)).all()
                    if read >= limit or time.monotonic() >= end_at:
                        break
        rows.sort(key=itemgetter(0), reverse=True)
        found_points = read_table(self._engine, rows, _NAMES, wanted.model, bundles)
        return RegionPoints(
            round(examined), round(accepted), oldest_ms, found_points.take(region.inside(found_points.points))
        )


def _merged(ranges: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Ranges of ids, newest first, where those with a short time between them are one.

    Traffic that leaves out every other minute has a range for each; that many queries take longer than to read past
    the points of others.
    """
    found: list[tuple[bytes, bytes]] = []
    for start, end in ranges:
        if found and id_ms(found[-1][0]) - id_ms(end) <= _SHORT_MS:
            found[-1] = start, found[-1][1]
        else:
            found.append((start, end))
    return found


def _count(connection: Connection, within: ColumnElement[bool]) -> tuple[int, float, float]:
    """Points, the rows that they stand for, and those of accepted ones."""
    accepted = func.sum(case((point.c.is_accepted, weight(point)), else_=0.0))
    found = connection.execute(select(func.count(), func.sum(weight(point)), accepted).where(within)).one()
    return int(found[0]), float(found[1] or 0.0), float(found[2] or 0.0)


def _oldest(within: ColumnElement[bool], skipped: int = 0) -> Any:
    """The id of the oldest point, or of the one after `skipped` others."""
    return select(point.c.id).where(within).order_by(point.c.id).offset(skipped).limit(1)


def _inside_box(engine: Engine, within: ColumnElement[bool], region: Region) -> Any:
    # Not sorted by the database: that would take longer than to read them.
    return (
        select(*sql_columns(engine, _NAMES))
        .select_from(with_outcomes(point))
        .where(within, within_box(point.c.x, point.c.y, region))
    )
