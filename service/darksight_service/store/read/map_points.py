"""Stored points for the map: tens of thousands at a time.

For a window that has more points than can be shown, `sample_map_points` reads a few stretches of them that are spread
evenly by count, so its cost depends on the limit and not on the number of stored points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import func, select

from darksight_service.errors import RequestError
from darksight_service.store.database import Database
from darksight_service.store.engine import reading
from darksight_service.store.ids import MINUTE_MS, first_id
from darksight_service.store.points import SCORE_COLUMNS, PointFilter, PointTable
from darksight_service.store.read.point_table import read_table, sql_columns
from darksight_service.store.read.search import has_tags, minute_counts, newest_rows, select_points, tag_numbers
from darksight_service.store.tables import point

__all__ = ["MAX_MAP_POINTS", "MapQueries"]

MAX_MAP_POINTS = 100_000
"""Points that one call returns."""

_STRETCHES = 20
_LAST_MINUTE = (1 << 31) - 1
_NAMES = ("id", "bundle_id", *(name for name, column in SCORE_COLUMNS.items() if column.browser), "label")
_HAS_POINT = point.c.x.is_not(None)


class MapQueries(Database):
    """Points for the map, with the columns that the explorer draws."""

    def map_points(
        self,
        wanted: PointFilter,
        *,
        limit: int = MAX_MAP_POINTS,
        before: bytes = b"",
        after: bytes = b"",
        with_probs: bool = False,
        with_tags: bool = False,
    ) -> PointTable:
        """The newest points that are on the map.

        Parameters
        ----------
        wanted
            Filter of the points.
        limit
            Largest number of points.
        before, after
            Only ids below the first and above the second, if given.
        with_probs, with_tags
            Whether to read probabilities and tags too.
        """
        bundles = self._names.known(wanted.model, wanted.version)
        _check_limit(limit)
        names = (*_NAMES, *(["probs"] if with_probs else []), *(["tags"] if with_tags else []))
        since = _next(after) if after else b""
        columns = sql_columns(self._engine, names)
        found = newest_rows(
            self._engine, bundles, wanted, columns, limit=limit, before=before, since=since, where=[_HAS_POINT]
        )
        return read_table(self._engine, found, names, wanted.model, bundles)

    def sample_map_points(self, wanted: PointFilter, *, limit: int = MAX_MAP_POINTS) -> PointTable:
        """About `limit` points of the whole window, in stretches that are spread evenly by count."""
        bundles = self._names.known(wanted.model, wanted.version)
        _check_limit(limit)
        found: list[Any] = []
        with reading(self._engine) as connection:
            tags = tag_numbers(connection, bundles, wanted)
            query = _minute_counts(bundles, wanted, tags)
            counts = connection.execute(query.order_by(query.selected_columns.minute)).all()
            minutes = np.array([row[0] for row in counts], dtype=np.int64)
            total = np.cumsum([float(row[1]) for row in counts])
            stretches = min(_STRETCHES, len(minutes))
            chosen = np.searchsorted(total, total[-1:] * (np.arange(stretches) + 0.5) / max(stretches, 1))
            low, high = first_id(wanted.since_ms), first_id(wanted.until_ms)
            # A minute with much of the traffic is chosen several times.
            for minute, times in reversed(list(zip(*np.unique(minutes[chosen], return_counts=True), strict=True))):
                ends = max(low, first_id(int(minute) * MINUTE_MS)), min(high, first_id((int(minute) + 1) * MINUTE_MS))
                query = select_points(bundles, wanted, [ends], sql_columns(self._engine, (*_NAMES, "odds")))
                query = query.where(_HAS_POINT, *has_tags(tags))
                found += connection.execute(query.limit(max(1, int(times) * limit // stretches))).all()
        return read_table(self._engine, found, (*_NAMES, "odds"), wanted.model, bundles).sample()

    def count_points(self, wanted: PointFilter) -> int:
        """Number of points in the minutes of a window; an upper bound with tags and other filters, or several tags."""
        bundles = self._names.known(wanted.model, wanted.version)
        with reading(self._engine) as connection:
            counts = _minute_counts(bundles, wanted, tag_numbers(connection, bundles, wanted)).subquery()
            return int(connection.scalar(select(func.sum(counts.c.points))) or 0)


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_MAP_POINTS:
        raise RequestError(f"limit: must be from 1 to {MAX_MAP_POINTS}, not {limit}", field="limit")


def _next(identifier: bytes) -> bytes:
    return (int.from_bytes(identifier, "big") + 1).to_bytes(16, "big")


def _minute_counts(bundles: dict[int, str], wanted: PointFilter, tags: Sequence[int] | None) -> Any:
    # The default `until_ms` is more minutes than an integer of the database holds.
    until_ms = min(wanted.until_ms, _LAST_MINUTE * MINUTE_MS)
    # Without one of the tags there are no points.
    return minute_counts(bundles if tags is not None else {}, wanted, tags or [], wanted.since_ms, until_ms)
