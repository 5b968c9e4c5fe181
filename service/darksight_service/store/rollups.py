"""Counts per minute: added in the transaction that adds the points, read by dashboards and by searches.

`rollup` counts points by decision, reason and predicted class; classes from `OTHER_CLASSES` on are one. `rollup_bin`
counts p-values in equal bins. A minute is that in which a point was received, so it is also a range of ids, and the
counts say where in `point` there is something to find. Counts outlive the points they were made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Engine, Table, and_, func, select

from darksight_core.scored import Reason
from darksight_service.store.engine import reading
from darksight_service.store.rows import FLOATS, MINUTE_MS, Rows
from darksight_service.store.tables import BINS, OTHER_CLASSES, rollup, rollup_bin
from darksight_service.store.write.names import insert_into

__all__ = ["ClassRate", "Rates", "add_counts", "class_rates", "rates", "within"]

_KEY = ("bundle_id", "minute", "is_shadow", "is_accepted", "reason", "predicted")
_BIN_KEY = ("bundle_id", "minute", "is_shadow", "bin")


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """What was decided in m steps of time, as columns.

    Parameters
    ----------
    start_ms
        When each step begins, (m,); steps without points are left out.
    points
        Their points, (m,).
    accepted
        Of them accepted, (m,).
    reasons
        Of them with each `Reason`, (m, 7).
    mean_log_density
        Of those that have one, (m,); NaN if none has.
    bins
        Points by p-value, (m, 20).
    """

    start_ms: NDArray[np.int64]
    points: NDArray[np.int64]
    accepted: NDArray[np.int64]
    reasons: NDArray[np.int64]
    mean_log_density: NDArray[np.float64]
    bins: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClassRate:
    """Points of one predicted class; class `OTHER_CLASSES` stands for itself and all above, -1 for rows not valid."""

    predicted: int
    points: int
    accepted: int
    outliers: int


def add_counts(connection: Connection, groups: Iterable[Rows]) -> None:
    """Count points that were inserted in this transaction."""
    counts, bins = [], []
    for rows in groups:
        counts += _counts(rows)
        bins += _bin_counts(rows)
    # Everyone locks the rows in the same order, so that nobody waits in a circle.
    _add(connection, rollup, _KEY, counts, ("points", "scored", "log_density_sum"))
    _add(connection, rollup_bin, _BIN_KEY, bins, ("points",))


def _add(
    connection: Connection, table: Table, key: Sequence[str], found: list[dict[str, Any]], sums: Sequence[str]
) -> None:
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in found:
        old = merged.setdefault(tuple(row[name] for name in key), row)
        if old is not row:
            for name in sums:
                old[name] += row[name]
    if merged:
        insert = insert_into(connection, table)
        added = {name: table.c[name] + insert.excluded[name] for name in sums}
        connection.execute(
            insert.on_conflict_do_update(index_elements=list(key), set_=added),
            [merged[each] for each in sorted(merged)],
        )


def _counts(rows: Rows) -> list[dict[str, Any]]:
    density = rows.floats[FLOATS.index("log_density")].astype(np.float64)
    is_scored = np.isfinite(density)
    minute = rows.received_ms // MINUTE_MS
    predicted = np.minimum(rows.predicted, OTHER_CLASSES)
    keys = _packed(minute, rows.is_shadow, rows.is_accepted, rows.reason, predicted + 1)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    points = np.bincount(inverse)
    scored = np.bincount(inverse, weights=is_scored)
    sums = np.bincount(inverse, weights=np.where(is_scored, density, 0.0))
    return [
        {
            "bundle_id": rows.bundle_id,
            "minute": int(minute[row]),
            "is_shadow": bool(rows.is_shadow[row]),
            "is_accepted": bool(rows.is_accepted[row]),
            "reason": int(rows.reason[row]),
            "predicted": int(predicted[row]),
            "points": int(points[number]),
            "scored": int(scored[number]),
            "log_density_sum": float(sums[number]),
        }
        for number, row in enumerate(first.tolist())
    ]


def _bin_counts(rows: Rows) -> list[dict[str, Any]]:
    p_value = rows.floats[FLOATS.index("p_value")]
    known = np.flatnonzero(~np.isnan(p_value))
    # Upper edges belong to their bin, as p-values are ranks k / (n + 1) with k >= 1.
    number = np.clip(np.ceil(p_value[known].astype(np.float64) * BINS - 1e-6).astype(np.int64) - 1, 0, BINS - 1)
    minute, is_shadow = rows.received_ms[known] // MINUTE_MS, rows.is_shadow[known]
    keys = _packed(minute, is_shadow, number)
    _, first, points = np.unique(keys, return_index=True, return_counts=True)
    return [
        {
            "bundle_id": rows.bundle_id,
            "minute": int(minute[row]),
            "is_shadow": bool(is_shadow[row]),
            "bin": int(number[row]),
            "points": int(count),
        }
        for row, count in zip(first.tolist(), points.tolist(), strict=True)
    ]


def _packed(minute: NDArray[Any], *small: NDArray[Any]) -> NDArray[np.int64]:
    """One number per row for a tuple of a minute and numbers below 256."""
    packed = minute.astype(np.int64)
    for column in small:
        packed = packed << 8 | column.astype(np.int64)
    return packed


def within(table: Table, bundles: Iterable[int], is_shadow: bool, since_ms: int, until_ms: int) -> ColumnElement[bool]:
    """The counts of some bundles in the minutes that touch a span of time."""
    return and_(
        table.c.bundle_id.in_(list(bundles)),
        table.c.is_shadow == is_shadow,
        table.c.minute >= since_ms // MINUTE_MS,
        table.c.minute <= (until_ms - 1) // MINUTE_MS,
    )


def rates(
    engine: Engine, bundles: Iterable[int], *, since_ms: int, until_ms: int, step_ms: int, is_shadow: bool
) -> Rates:
    """What was decided over time, in steps of whole minutes."""
    minutes = max(1, step_ms // MINUTE_MS)
    numbers = list(bundles)
    step = (rollup.c.minute - rollup.c.minute % minutes).label("step")
    query = (
        select(
            step, rollup.c.is_accepted, rollup.c.reason, func.sum(rollup.c.points), func.sum(rollup.c.scored),
            func.sum(rollup.c.log_density_sum),
        )
        .where(within(rollup, numbers, is_shadow, since_ms, until_ms))
        .group_by(step, rollup.c.is_accepted, rollup.c.reason)
    )  # fmt: skip
    bin_step = (rollup_bin.c.minute - rollup_bin.c.minute % minutes).label("step")
    bin_query = (
        select(bin_step, rollup_bin.c.bin, func.sum(rollup_bin.c.points))
        .where(within(rollup_bin, numbers, is_shadow, since_ms, until_ms))
        .group_by(bin_step, rollup_bin.c.bin)
    )
    with reading(engine) as connection:
        found = np.array([[float(cell) for cell in row] for row in connection.execute(query)]).reshape(-1, 6)
        cells = [[int(cell) for cell in row] for row in connection.execute(bin_query)]
    binned = np.array(cells, dtype=np.int64).reshape(-1, 3)
    steps, inverse = np.unique(found[:, 0].astype(np.int64), return_inverse=True)
    m = len(steps)
    reasons = np.zeros((m, 7), dtype=np.int64)
    np.add.at(reasons, (inverse, found[:, 2].astype(np.int64)), found[:, 3].astype(np.int64))
    scored = np.bincount(inverse, weights=found[:, 4], minlength=m)
    sums = np.bincount(inverse, weights=found[:, 5], minlength=m)
    bins = np.zeros((m, BINS), dtype=np.int64)
    np.add.at(bins, (np.searchsorted(steps, binned[:, 0]), binned[:, 1]), binned[:, 2])
    return Rates(
        start_ms=steps * MINUTE_MS,
        points=reasons.sum(axis=1),
        accepted=np.bincount(inverse, weights=found[:, 3] * found[:, 1], minlength=m).astype(np.int64),
        reasons=reasons,
        mean_log_density=np.divide(sums, scored, out=np.full(m, np.nan), where=scored > 0),
        bins=bins,
    )


def class_rates(
    engine: Engine, bundles: Iterable[int], *, since_ms: int, until_ms: int, is_shadow: bool
) -> list[ClassRate]:
    """What was decided about each predicted class."""
    of = rollup.c
    query = (
        select(
            of.predicted,
            func.sum(of.points),
            func.coalesce(func.sum(of.points).filter(of.is_accepted), 0),
            func.coalesce(func.sum(of.points).filter(of.reason == int(Reason.OUTLIER)), 0),
        )
        .where(within(rollup, bundles, is_shadow, since_ms, until_ms))
        .group_by(of.predicted)
        .order_by(of.predicted)
    )
    with reading(engine) as connection:
        return [ClassRate(*(int(cell) for cell in row)) for row in connection.execute(query)]
