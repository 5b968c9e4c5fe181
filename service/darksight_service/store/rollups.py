"""Counts per minute: added in the transaction that adds the points, read by searches, retention and the drift page.

`rollup` counts points by decision, reason and predicted class; classes from `OTHER_CLASSES` on are one. With the counts
it has the sum of the probabilities of being wrong, which the audit needs of all points. `rollup_bin`
counts p-values in equal bins. `rollup_tag` counts both by tag: a point with four tags counts four times. A point counts
in the minute in which it was received, which is also a range of ids, so the counts tell a search which ranges to read.
Counts outlive their points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Table, and_, func, select
from sqlalchemy.dialects import postgresql

from darksight_core.drift.segment_cells import Segment
from darksight_core.rows.schema import Reason
from darksight_core.rows.simplex import Floats
from darksight_service.store.database import Database
from darksight_service.store.engine import reading
from darksight_service.store.ids import MINUTE_MS
from darksight_service.store.points import PointTable
from darksight_service.store.tables import (
    BINS,
    OTHER_CLASSES,
    detector_state,
    rollup,
    rollup_bin,
    rollup_tag,
    tag,
    tag_bin,
)

__all__ = ["RollupQueries", "TagCounts", "add_counts", "within"]

_KEY = ("bundle_id", "minute", "is_shadow", "is_accepted", "reason", "predicted")
_BIN_KEY = ("bundle_id", "minute", "is_shadow", "bin")
_TAG_KEY = ("bundle_id", "tag_id", "minute", "is_shadow")
_TAG_SUMS = ("points", "accepted", "outliers", "scored", "audited", "chance_sum", *map(tag_bin, range(BINS)))


@dataclass(frozen=True, slots=True)
class TagCounts:
    """Points, accepted ones and outliers of a tag."""

    points: int
    accepted: int
    outliers: int


def add_counts(
    connection: Connection, groups: Iterable[tuple[int, PointTable, Sequence[tuple[int, ...]], Floats]]
) -> None:
    """Count points that were inserted in this transaction.

    They are given with the number of their bundle, the tag numbers of each tag set, and their probabilities of being
    wrong (n,), NaN for those that the audit does not cover.
    """
    counts, bins, tags = [], [], []
    for bundle_id, points, tag_ids, chances in groups:
        counts += _counts(bundle_id, points, chances)
        bins += _bin_counts(bundle_id, points)
        tags += _tag_counts(bundle_id, points, tag_ids, chances)
    # All writers lock rows in the same order, which prevents deadlocks.
    _add(connection, rollup, _KEY, counts, ("points", "scored", "log_density_sum", "chance_sum"))
    _add(connection, rollup_bin, _BIN_KEY, bins, ("points",))
    _add(connection, rollup_tag, _TAG_KEY, tags, _TAG_SUMS)


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
        driver: Any = connection.connection.driver_connection
        rows = [[row[name] for name in (*key, *sums)] for _, row in sorted(merged.items())]
        if connection.dialect.name == "postgresql":
            driver.execute(_upsert(table, key, sums, is_postgresql=True), [*map(list, zip(*rows, strict=True))])
        else:
            driver.executemany(_upsert(table, key, sums, is_postgresql=False), rows)


@cache
def _upsert(table: Table, key: Sequence[str], sums: Sequence[str], *, is_postgresql: bool) -> str:
    """The statement that adds counts; PostgreSQL gets all rows at once, as arrays of columns."""
    names = (*key, *sums)
    kinds = (table.c[name].type.compile(postgresql.dialect()) for name in names)  # type: ignore[no-untyped-call]
    arrays = f"SELECT * FROM unnest({', '.join(f'%s::{kind}[]' for kind in kinds)})"
    given = arrays if is_postgresql else f"SELECT {', '.join('?' * len(names))} WHERE true"
    added = ", ".join(f"{name} = {table.name}.{name} + excluded.{name}" for name in sums)
    return f"INSERT INTO {table.name} ({', '.join(names)}) {given} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {added}"


def _counts(bundle_id: int, points: PointTable, chances: Floats) -> list[dict[str, Any]]:
    density = points.log_density.astype(np.float64)
    is_scored = np.isfinite(density)
    columns = {
        "minute": points.id_ms // MINUTE_MS,
        "is_shadow": points.is_shadow,
        "is_accepted": points.accepted,
        "reason": points.reason,
        "predicted": np.minimum(points.predicted, OTHER_CLASSES),
    }
    first, inverse = _distinct(columns)
    values = {name: column[first].tolist() for name, column in columns.items()}
    values["points"] = np.bincount(inverse).tolist()
    values["scored"] = np.bincount(inverse, weights=is_scored).astype(np.int64).tolist()
    values["chance_sum"] = np.bincount(inverse, weights=np.nan_to_num(chances)).tolist()
    values["log_density_sum"] = np.bincount(inverse, weights=np.where(is_scored, density, 0.0)).tolist()
    return _dicts(bundle_id, values)


def _bins(p_value: NDArray[Any]) -> NDArray[np.int64]:
    # Upper edges belong to their bin, as p-values are ranks k / (n + 1) with k >= 1.
    number = np.ceil(p_value.astype(np.float64) * BINS - 1e-6).astype(np.int64) - 1
    return np.clip(number, 0, BINS - 1)


def _bin_counts(bundle_id: int, points: PointTable) -> list[dict[str, Any]]:
    known = np.flatnonzero(~np.isnan(points.p_value))
    columns = {
        "minute": points.id_ms[known] // MINUTE_MS,
        "is_shadow": points.is_shadow[known],
        "bin": _bins(points.p_value[known]),
    }
    first, inverse = _distinct(columns)
    values = {name: column[first].tolist() for name, column in columns.items()}
    return _dicts(bundle_id, values | {"points": np.bincount(inverse).tolist()})


def _tag_counts(
    bundle_id: int, points: PointTable, tag_ids: Sequence[tuple[int, ...]], chances: Floats
) -> list[dict[str, Any]]:
    """Counts by tag; `tag_ids` has the numbers of the tags of each set."""
    sizes = np.array([len(each) for each in tag_ids], dtype=np.int64)[points.tags]
    if not sizes.any():
        return []
    # Each point once for each of its tags.
    row = np.repeat(np.arange(len(points)), sizes)
    ends = np.cumsum([len(each) for each in tag_ids])
    within_set = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    starts = (ends - [len(each) for each in tag_ids])[points.tags]
    number = np.concatenate([np.array(each, dtype=np.int64) for each in tag_ids])[starts[row] + within_set]
    packed = number << 32 | (points.id_ms // MINUTE_MS)[row] << 1 | points.is_shadow[row]
    keys, inverse = np.unique(packed, return_inverse=True)

    def sums(chosen: NDArray[Any]) -> list[int]:
        found: list[int] = np.bincount(inverse[chosen[row]], minlength=len(keys)).tolist()
        return found

    is_audited = points.accepted & np.isfinite(chances)
    values: dict[str, list[Any]] = {
        "tag_id": (keys >> 32).tolist(),
        "minute": ((keys & 0xFFFF_FFFF) >> 1).tolist(),
        "is_shadow": (keys & 1).astype(bool).tolist(),
        "points": np.bincount(inverse).tolist(),
        "accepted": sums(points.accepted),
        "outliers": sums(np.equal(points.reason, Reason.OUTLIER)),
        "scored": sums(np.isfinite(points.log_density)),
        "audited": sums(is_audited),
        "chance_sum": np.bincount(inverse, weights=np.where(is_audited, chances, 0.0)[row]).tolist(),
    }
    known = ~np.isnan(points.p_value)
    bins = np.where(known, _bins(np.where(known, points.p_value, 0.0)), -1)
    values |= {tag_bin(each): sums(bins == each) for each in range(BINS)}
    return _dicts(bundle_id, values)


def _distinct(columns: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First row of each distinct tuple of a minute and numbers from -1 to 254, and which tuple each row has."""
    minute, *small = columns.values()
    packed = minute.astype(np.int64)
    for column in small:
        packed = packed << 8 | (column.astype(np.int64) + 1)
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    return first, inverse


def _dicts(bundle_id: int, values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    rows = zip(*values.values(), strict=True)
    return [{"bundle_id": bundle_id, **dict(zip(values, row, strict=True))} for row in rows]


def within(table: Table, bundles: Iterable[int], is_shadow: bool, since_ms: int, until_ms: int) -> ColumnElement[bool]:
    """The counts of some bundles in the minutes that touch a span of time."""
    return and_(
        table.c.bundle_id.in_(list(bundles)),
        table.c.is_shadow == is_shadow,
        table.c.minute >= since_ms // MINUTE_MS,
        table.c.minute <= (until_ms - 1) // MINUTE_MS,
    )


class RollupQueries(Database):
    """Counts per minute."""

    def tag_counts(self, model: str, version: str, *, until_ms: int, minutes: int) -> dict[Segment, TagCounts]:
        """Counts of the tags whose drift is followed, by key and value, within some minutes."""
        bundles = self._names.known(model, version)
        numbers, last = list(bundles), -(-until_ms // MINUTE_MS)
        of = rollup_tag.c
        followed = select(detector_state.c.tag_id).where(detector_state.c.bundle_id.in_(numbers))
        query = (
            select(tag.c.key, tag.c.value, func.sum(of.points), func.sum(of.accepted), func.sum(of.outliers))
            .join(tag, tag.c.id == of.tag_id)
            .where(of.bundle_id.in_(numbers), of.tag_id.in_(followed))
            .where(of.minute >= last - minutes, of.minute < last, of.is_shadow.is_(False))
            .group_by(tag.c.id, tag.c.key, tag.c.value)
        )
        with reading(self._engine) as connection:
            return {(key, value): TagCounts(*map(int, counts)) for key, value, *counts in connection.execute(query)}
