"""Many points as columns: what pages and curves are computed from.

A page that lists points wants objects; one that ranks, counts or draws thousands wants arrays. A frame is the newest
points of a filter, up to a limit, so that what it costs does not grow with the store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, and_, func, select, text

from darksight_core.simplex import Floats
from darksight_service.ingest.records import parse_prediction_id
from darksight_service.store.engine import reading
from darksight_service.store.read.policy_evaluation import LABELLED, labelled_within, prefer_index
from darksight_service.store.read.region_points import points_by_id
from darksight_service.store.read.search import (
    ALL_COLUMNS,
    PointFilter,
    StoredPoint,
    newest_rows,
    read_point,
    with_outcomes,
)
from darksight_service.store.rollups import within
from darksight_service.store.rows import FLOATS, MINUTE_MS, decode_probs
from darksight_service.store.tables import NAME_HASH, outcome, outcome_point, point, rollup

__all__ = ["PointTable", "filled_since", "joined", "labelled_frame", "newest_frame", "points_by_name"]

_COLUMNS = (
    point.c.id,
    *(point.c[name] for name in FLOATS),
    point.c.predicted,
    point.c.reason,
    point.c.is_accepted,
    outcome.c.label,
    point.c.probs,
)
_HOUR_MINUTES = 60
_MANY = 400


@dataclass(frozen=True, slots=True, eq=False)
class PointTable:
    """n points, newest first, as columns; numbers that a point lacks are NaN.

    Parameters
    ----------
    ids
        (n, 2) big-endian uint64.
    received_ms
        (n,).
    points
        Places on the map, (n, 2).
    log_density, log_kde, outlier_score, p_value, confidence, top
        (n,); `confidence` is the reject score of the gate that decided.
    predicted, reason, is_accepted
        (n,).
    label
        Right class, -1 if not known, (n,).
    probs
        (n, K), NaN in rows without probabilities; of no classes if none were kept.
    """

    ids: NDArray[np.uint64]
    received_ms: NDArray[np.int64]
    points: Floats
    log_density: Floats
    log_kde: Floats
    outlier_score: Floats
    p_value: Floats
    confidence: Floats
    top: Floats
    predicted: NDArray[np.int64]
    reason: NDArray[np.int64]
    is_accepted: NDArray[np.bool_]
    label: NDArray[np.int64]
    probs: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.label)

    @property
    def is_labelled(self) -> NDArray[np.bool_]:
        """Whose right class is known, (n,)."""
        return np.greater_equal(self.label, 0)

    @property
    def errors(self) -> NDArray[np.bool_]:
        """Which are known to be wrong, (n,)."""
        return self.is_labelled & np.not_equal(self.predicted, self.label)

    def take(self, chosen: NDArray[Any]) -> PointTable:
        """The rows with these numbers, or those a mask allows."""
        return PointTable(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    def id_bytes(self) -> list[bytes]:
        """The ids, 16 bytes each."""
        return [row.tobytes() for row in np.ascontiguousarray(self.ids).astype(">u8")]


def newest_frame(engine: Engine, bundles: dict[int, str], wanted: PointFilter, *, limit: int) -> PointTable:
    """The newest points of a filter."""
    return _frame(newest_rows(engine, bundles, wanted, _COLUMNS, limit=limit))


def labelled_frame(engine: Engine, bundles: dict[int, str], *, since_ms: int, until_ms: int, limit: int) -> PointTable:
    """The newest points whose right class is known; what a shadow said is left out."""
    query = select(*_COLUMNS).select_from(LABELLED).where(labelled_within(bundles, since_ms, until_ms))
    query = query.order_by(outcome_point.c.point_id.desc()).limit(limit)
    with reading(engine) as connection:
        prefer_index(connection, since_ms, until_ms)
        return _frame(connection.execute(query).all())


def filled_since(
    engine: Engine, bundles: dict[int, str], *, since_ms: int, until_ms: int, points: int
) -> tuple[int, int]:
    """When the newest `points` points before `until_ms` begin, in whole minutes, and how many there are since then.

    Never before `since_ms`, and never less than the last minute that has any.
    """
    bottom, top = since_ms // MINUTE_MS, (until_ms - 1) // MINUTE_MS
    first, total, look = until_ms, 0, _HOUR_MINUTES
    with reading(engine) as connection:
        bottom = max(bottom, _oldest_minute(connection, bundles))
        while top >= bottom:
            start = max(bottom, top - look + 1)
            query = (
                select(rollup.c.minute, func.sum(rollup.c.points))
                .where(within(rollup, bundles, False, start * MINUTE_MS, (top + 1) * MINUTE_MS))
                .group_by(rollup.c.minute)
                .order_by(rollup.c.minute.desc())
            )
            for minute, count in connection.execute(query):
                if total and total + int(count) > points:
                    return first, total
                first, total = max(since_ms, int(minute) * MINUTE_MS), total + int(count)
            top, look = start - 1, 4 * look
    return first, total


def points_by_name(engine: Engine, bundles: dict[int, str], model: str, name: str) -> list[StoredPoint]:
    """The points that a caller, or we, gave this name, newest first: what was answered and what a shadow said."""
    named = point.c.prediction_id == name
    if engine.dialect.name == "postgresql":
        # The index holds a part of the hash.
        hashed = text(f"{NAME_HASH.format('point.prediction_id')} = {NAME_HASH.format(':wanted_name')}")
        named = and_(named, hashed.bindparams(wanted_name=name))
    query = select(*ALL_COLUMNS).select_from(with_outcomes(point))
    query = query.where(named, point.c.bundle_id.in_(list(bundles))).order_by(point.c.id.desc()).limit(_MANY)
    with reading(engine) as connection:
        found = connection.execute(query).all()
    made_here = parse_prediction_id(name)
    if not found and made_here is not None:
        batch_id, row = made_here
        return points_by_id(engine, bundles, model, [(int.from_bytes(batch_id, "big") + row).to_bytes(16, "big")])
    return [read_point(row, model, bundles) for row in found]


def joined(frames: Sequence[PointTable]) -> PointTable:
    """One frame from several, row after row; without any an empty one."""
    if not frames:
        return _frame([])
    classes = max(frame.probs.shape[1] for frame in frames)
    columns = {
        field.name: np.concatenate([getattr(frame, field.name) for frame in frames])
        for field in fields(PointTable)
        if field.name != "probs"
    }
    probs = [
        frame.probs if frame.probs.shape[1] == classes else np.full((len(frame), classes), np.nan, dtype=np.float32)
        for frame in frames
    ]
    return PointTable(**columns, probs=np.concatenate(probs))


def _oldest_minute(connection: Connection, bundles: Iterable[int]) -> int:
    """The first minute with points; without it a span from the beginning of time would be walked through."""
    oldest = [
        connection.scalar(select(rollup.c.minute).where(rollup.c.bundle_id == each).order_by(rollup.c.minute).limit(1))
        for each in bundles
    ]
    return min((int(minute) for minute in oldest if minute is not None), default=1 << 40)


def _frame(found: Sequence[Any]) -> PointTable:
    n = len(found)
    columns = list(zip(*found, strict=True)) if n else [()] * len(_COLUMNS)
    ids = np.frombuffer(b"".join(columns[0]), dtype=">u8").reshape(n, 2).astype(np.uint64)
    floats = {name: np.array(column, dtype=np.float64) for name, column in zip(FLOATS, columns[1:9], strict=True)}
    predicted, reason, is_accepted = (np.array(column, dtype=np.int64) for column in columns[9:12])
    label = np.array([-1 if each is None else each for each in columns[12]], dtype=np.int64)
    points = np.stack([floats.pop("x"), floats.pop("y")], axis=1)
    return PointTable(
        ids=ids,
        received_ms=(ids[:, 0] >> np.uint64(16)).astype(np.int64),
        points=points,
        **floats,
        predicted=predicted,
        reason=reason,
        is_accepted=is_accepted.astype(np.bool_),
        label=label,
        probs=_probs(columns[13]),
    )


def _probs(kept: Sequence[bytes | None]) -> NDArray[np.float32]:
    """Rows of probabilities, at once where all are of one length."""
    lengths = {len(each) for each in kept if each}
    size = next(iter(lengths), 0)
    if len(lengths) == 1 and size % 2 == 0:
        missing = np.full(size // 2, math.nan, dtype="<f2").tobytes()
        joined = b"".join([each or missing for each in kept])
        return np.frombuffer(joined, dtype="<f2").reshape(len(kept), size // 2).astype(np.float32)
    rows = [decode_probs(each) for each in kept]
    matrix = np.full((len(rows), max(map(len, rows), default=0)), np.nan, dtype=np.float32)
    for number, row in enumerate(rows):
        if len(row):
            matrix[number, : len(row)] = row
    return matrix
