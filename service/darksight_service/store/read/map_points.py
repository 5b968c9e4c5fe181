"""Stored points as columns, for the map: tens of thousands at a time, and no object for any of them.

The same minutes are read as for a page of points (`search`), newest first. For a window that has more than anybody can
look at, `sample_points` reads a few stretches that are spread over it evenly by count, so that its cost depends on how
many points are asked for and not on how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Engine, LargeBinary, func, select, type_coerce

from darksight_core.simplex import Floats
from darksight_service.errors import RequestError
from darksight_service.store.engine import reading
from darksight_service.store.partitions import first_id
from darksight_service.store.read.search import PointFilter, conditions, newest_rows, select_points
from darksight_service.store.rollups import within
from darksight_service.store.rows import MINUTE_MS, decode_probs
from darksight_service.store.tables import OTHER_CLASSES, outcome, point, rollup

__all__ = ["MAX_MAPPED", "MapPoints", "count_points", "newest_points", "sample_points"]

MAX_MAPPED = 100_000
"""Points that one call gives."""

_STRETCHES = 20
_LAST_MINUTE = (1 << 31) - 1
_COLUMNS = ("x", "y", "top", "p_value", "predicted", "reason", "is_accepted")
_IS_PLACED = point.c.x.is_not(None)


@dataclass(frozen=True, slots=True, eq=False)
class MapPoints:
    """n points as columns, newest first.

    Parameters
    ----------
    ids
        (n, 16) bytes; they sort by time.
    received_ms
        (n,) float64, unix milliseconds.
    points
        Places on the map, (n, 2).
    top, p_value
        Largest probability and p-value, (n,); NaN for none.
    predicted, label, reason
        (n,); the label is -1 where it is not known.
    is_accepted
        (n,).
    probs
        What is kept of the probabilities of each row, if that was asked for.
    """

    ids: NDArray[np.uint8]
    received_ms: Floats
    points: NDArray[np.float32]
    top: NDArray[np.float32]
    p_value: NDArray[np.float32]
    predicted: NDArray[np.int16]
    reason: NDArray[np.uint8]
    is_accepted: NDArray[np.bool_]
    label: NDArray[np.int32]
    probs: tuple[NDArray[np.float32], ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


def newest_points(
    engine: Engine,
    bundles: dict[int, str],
    wanted: PointFilter,
    *,
    limit: int = MAX_MAPPED,
    before: bytes = b"",
    after: bytes = b"",
    with_probs: bool = False,
) -> MapPoints:
    """The newest points that were placed, at most `limit`.

    Parameters
    ----------
    engine, bundles
        The database, and the versions of the model's bundles by number.
    wanted
        Which points.
    limit
        How many at most.
    before, after
        Only ids below the first and above the second, if given.
    with_probs
        Whether to read probabilities too.
    """
    _check_limit(limit)
    columns = _columns(engine) + [point.c.probs] * with_probs
    since = _next(after) if after else b""
    found = newest_rows(engine, bundles, wanted, columns, limit=limit, before=before, since=since, where=[_IS_PLACED])
    return _map_points(found, with_probs)


def sample_points(
    engine: Engine, bundles: dict[int, str], wanted: PointFilter, *, limit: int = MAX_MAPPED
) -> MapPoints:
    """About `limit` points of the whole window, in stretches that are spread evenly over them."""
    _check_limit(limit)
    found: list[Any] = []
    with reading(engine) as connection:
        counts = connection.execute(
            select(rollup.c.minute, func.sum(rollup.c.points))
            .where(*_counted(bundles, wanted))
            .group_by(rollup.c.minute)
            .order_by(rollup.c.minute)
        ).all()
        if not counts:
            return _map_points([], False)
        minutes = np.array([row[0] for row in counts])
        total = np.cumsum([float(row[1]) for row in counts])
        stretches = min(_STRETCHES, len(minutes))
        places = np.searchsorted(total, total[-1] * (np.arange(stretches) + 0.5) / stretches)
        low, high = first_id(wanted.since_ms), first_id(wanted.until_ms)
        # A minute with much of the traffic is met several times.
        for minute, times in reversed(list(zip(*np.unique(minutes[places], return_counts=True), strict=True))):
            ends = max(low, first_id(int(minute) * MINUTE_MS)), min(high, first_id((int(minute) + 1) * MINUTE_MS))
            query = select_points(bundles, wanted, [ends], _columns(engine)).where(_IS_PLACED)
            found += connection.execute(query.limit(max(1, int(times) * limit // stretches))).all()
    return _map_points(found, False)


def count_points(engine: Engine, bundles: dict[int, str], wanted: PointFilter) -> int:
    """How many points there are in the minutes of the window."""
    with reading(engine) as connection:
        return int(connection.scalar(select(func.sum(rollup.c.points)).where(*_counted(bundles, wanted))) or 0)


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_MAPPED:
        raise RequestError(f"limit: one call gives 1 to {MAX_MAPPED} points, not {limit}", field="limit")


def _next(point_id: bytes) -> bytes:
    return (int.from_bytes(point_id, "big") + 1).to_bytes(16, "big")


def _counted(bundles: dict[int, str], wanted: PointFilter) -> list[ColumnElement[bool]]:
    # "For ever" is more minutes than an integer of the database holds.
    until_ms = min(wanted.until_ms, _LAST_MINUTE * MINUTE_MS)
    minutes = within(rollup, bundles, wanted.is_shadow, wanted.since_ms, until_ms)
    return [minutes, *conditions(rollup, wanted, OTHER_CLASSES)]


def _columns(engine: Engine) -> list[Any]:
    # As bytes from the database on: a UUID object for each row would take as long as all the rest.
    is_postgresql = engine.dialect.name == "postgresql"
    point_id = func.uuid_send(point.c.id, type_=LargeBinary) if is_postgresql else type_coerce(point.c.id, LargeBinary)
    return [point_id, *(point.c[name] for name in _COLUMNS), func.coalesce(outcome.c.label, -1)]


def _map_points(rows: Sequence[Sequence[Any]], with_probs: bool) -> MapPoints:
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * (len(_COLUMNS) + 2 + with_probs)
    ids = np.frombuffer(b"".join(columns[0]), dtype=np.uint8).reshape(-1, 16)
    x, y, top, p_value = (np.array(column, dtype=np.float32) for column in columns[1:5])
    return MapPoints(
        ids=ids,
        # The first six bytes of an id are its time.
        received_ms=ids[:, :6].astype(np.float64) @ 256.0 ** np.arange(5, -1, -1),
        points=np.stack([x, y], axis=1),
        top=top,
        p_value=p_value,
        predicted=np.array(columns[5], dtype=np.int16),
        reason=np.array(columns[6], dtype=np.uint8),
        is_accepted=np.array(columns[7], dtype=np.bool_),
        label=np.array(columns[8], dtype=np.int32),
        probs=tuple(decode_probs(each) for each in columns[9]) if with_probs else (),
    )
