"""Retention: deletes points by age, number and size without blocking writers.

On PostgreSQL whole days are dropped, oldest first, the current one never: that takes milliseconds however many points a
day has. A drop that does not acquire its lock at once is retried, so that no other session queues behind it. On SQLite
the oldest points are deleted a few thousand at a time, and free pages are returned to the file system.

After pruning there are at most as many points as the limits allow, and on PostgreSQL up to a day fewer. Counts per
minute are kept unless they have an age limit of their own; those of stored points are always kept, since searches need
them. Counts by tag may be as many as points, and are deleted with them, except those of the last day.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, Table, delete, func, select, text

from darksight_service.errors import StoreUnavailableError
from darksight_service.store.engine import reading, writing
from darksight_service.store.ids import DAY_MS, MINUTE_MS, first_id, id_ms
from darksight_service.store.partitions import DEFAULT, day_of, partitions
from darksight_service.store.tables import (
    audit_point,
    bundle,
    outcome,
    outcome_point,
    point,
    rollup,
    rollup_bin,
    rollup_tag,
    tag,
)

__all__ = ["Limits", "Pruned", "prune", "used_bytes"]

_log = logging.getLogger("darksight.store")

_BATCH = 5_000
# Tags whose counts are deleted in one transaction.
_TRANSACTION_TAGS = 50
_NEVER = (1 << 48) - 1
_DROP_TRIES = 50
_DROP_LOCK = "100ms"
# Their rows are deleted with their points.
_OF_POINTS = (outcome_point, audit_point)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of what is kept; 0 for no limit.

    Parameters
    ----------
    max_age_ms
        Age of points and outcomes.
    max_rows
        Number of points.
    max_bytes
        Size of the points on disk, with their indexes; on SQLite of the whole file.
    max_rollup_age_ms
        Age of counts per minute.
    """

    max_age_ms: int = 0
    max_rows: int = 0
    max_bytes: int = 0
    max_rollup_age_ms: int = 0


@dataclass(slots=True)
class Pruned:
    """What was deleted, or would be."""

    points: int = 0
    bytes: int = 0
    outcomes: int = 0
    rollups: int = 0
    days: list[str] = field(default_factory=list)


def prune(engine: Engine, limits: Limits, *, now_ms: int, dry_run: bool = False) -> Pruned:
    """Delete what exceeds the limits; with `dry_run` only count it."""
    pruned = Pruned()
    if engine.dialect.name == "postgresql":
        _prune_days(engine, limits, now_ms, dry_run, pruned)
    else:
        _prune_rows(engine, limits, now_ms, dry_run, pruned)
    _prune_outcomes(engine, limits, now_ms, dry_run, pruned)
    if pruned.points and not dry_run:
        _prune_tag_counts(engine, min(_oldest_ms(engine), now_ms - DAY_MS) // MINUTE_MS)
    if limits.max_rollup_age_ms:
        minute = min(now_ms - limits.max_rollup_age_ms, _oldest_ms(engine)) // MINUTE_MS
        pruned.rollups = sum(
            _prune_minutes(engine, table, minute, dry_run) for table in (rollup, rollup_bin, rollup_tag)
        )
    if not dry_run and (pruned.points or pruned.outcomes or pruned.rollups):
        facts = {"points": pruned.points, "bytes": pruned.bytes, "outcomes": pruned.outcomes, "days": pruned.days}
        _log.info("points_pruned", extra=facts)
    return pruned


def used_bytes(engine: Engine) -> int:
    """Size of the points on disk with their indexes; on SQLite of all used pages of the file."""
    with reading(engine) as connection:
        if connection.dialect.name == "postgresql":
            return int(connection.scalar(text(f"SELECT sum(pg_total_relation_size(relid)) FROM {_TREE}")) or 0)
        return _file_bytes(connection)


_TREE = "pg_partition_tree('point')"


def _oldest_ms(engine: Engine) -> int:
    """When the oldest points were received; on PostgreSQL the start of their day, wrong clocks aside."""
    if engine.dialect.name == "postgresql":
        return min(partitions(engine), default=_NEVER // DAY_MS) * DAY_MS
    with reading(engine) as connection:
        first = connection.scalar(select(point.c.id).order_by(point.c.id).limit(1))
        return _NEVER if first is None else id_ms(first)


def _file_bytes(connection: Connection) -> int:
    pages, free, size = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _prune_days(engine: Engine, limits: Limits, now_ms: int, dry_run: bool, pruned: Pruned) -> None:
    days = partitions(engine)
    sizes, rows = _day_sizes(engine, days)
    total_bytes, total_rows = sum(sizes.values()), sum(rows.values())
    oldest_ms = now_ms - limits.max_age_ms
    for day in sorted(days):
        too_old = limits.max_age_ms and (day + 1) * DAY_MS <= oldest_ms
        too_many = limits.max_rows and total_rows > limits.max_rows
        too_big = limits.max_bytes and total_bytes > limits.max_bytes
        if day >= day_of(now_ms) or not (too_old or too_many or too_big):
            break
        if not dry_run:
            _drop(engine, days[day])
            for table in _OF_POINTS:
                _delete_before(engine, table, first_id((day + 1) * DAY_MS))
        total_bytes, total_rows = total_bytes - sizes[day], total_rows - rows[day]
        pruned.points, pruned.bytes = pruned.points + rows[day], pruned.bytes + sizes[day]
        pruned.days.append(days[day])
    if limits.max_age_ms:
        # Points of the default partition have implausible times; old ones are deleted row by row.
        old = f"id < '{first_id(oldest_ms).hex()}'::uuid"
        if dry_run:
            with reading(engine) as connection:
                pruned.points += int(connection.scalar(text(f"SELECT count(*) FROM {DEFAULT} WHERE {old}")) or 0)
            return
        some = f"SELECT id FROM {DEFAULT} WHERE {old} LIMIT {_BATCH}"
        pruned.points += _repeat(
            engine, lambda connection: connection.execute(text(f"DELETE FROM {DEFAULT} WHERE id IN ({some})")).rowcount
        )


def _day_sizes(engine: Engine, days: dict[int, str]) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes and points of each day; points from the counts, which are exact."""
    minutes = DAY_MS // MINUTE_MS
    number = (rollup.c.minute // minutes).label("day")
    with reading(engine) as connection:
        found = connection.execute(text(f"SELECT relid::regclass::text, pg_total_relation_size(relid) FROM {_TREE}"))
        sizes = {name: int(size) for name, size in found}
        query = select(number, func.sum(rollup.c.points)).group_by(number)
        rows = {int(day): int(points) for day, points in connection.execute(query)}
    return {day: sizes.get(name, 0) for day, name in days.items()}, {day: rows.get(day, 0) for day in days}


def _drop(engine: Engine, name: str) -> None:
    for attempt in range(_DROP_TRIES):
        try:
            with writing(engine) as connection:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_DROP_LOCK}'")
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
            return
        except StoreUnavailableError as error:
            if error.details.get("state") != "55P03" or attempt == _DROP_TRIES - 1:
                raise
        time.sleep(0.1)


def _delete_before(engine: Engine, table: Table, end: bytes) -> None:
    some = select(table.c.point_id).where(table.c.point_id < end).limit(_BATCH)
    _repeat(engine, lambda connection: connection.execute(delete(table).where(table.c.point_id.in_(some))).rowcount)


def _prune_rows(engine: Engine, limits: Limits, now_ms: int, dry_run: bool, pruned: Pruned) -> None:
    oldest = first_id(now_ms - limits.max_age_ms) if limits.max_age_ms else b""
    with reading(engine) as connection:
        rows = int(connection.scalar(select(func.count()).select_from(point)) or 0)
        size = _file_bytes(connection)
        too_old = int(connection.scalar(select(func.count()).select_from(point).where(point.c.id < oldest)) or 0)
    excess = max(too_old, rows - limits.max_rows if limits.max_rows else 0)
    if dry_run:
        by_size = round(rows * max(0, size - limits.max_bytes) / size) if limits.max_bytes else 0
        pruned.points = max(excess, by_size)
        return
    while rows:
        if excess <= 0 and limits.max_bytes and size > limits.max_bytes:
            # Estimated from the size of a row, and corrected by what the next turn measures.
            excess = max(1, rows // 50, round(rows * (size - limits.max_bytes) / size))
        count = min(_BATCH, max(0, excess))
        if not count:
            break
        with writing(engine) as connection:
            ids = select(point.c.id).order_by(point.c.id).limit(count)
            for table in _OF_POINTS:
                connection.execute(delete(table).where(table.c.point_id.in_(ids)))
            deleted = connection.execute(delete(point).where(point.c.id.in_(ids))).rowcount
        rows, excess = rows - deleted, excess - deleted
        pruned.points += deleted
        with reading(engine) as connection:
            before, size = size, _file_bytes(connection)
        pruned.bytes += max(0, before - size)
        if not deleted:
            break
    if pruned.points:
        _release_pages(engine)


def _release_pages(engine: Engine) -> None:
    """Return free pages to the file system, a few at a time."""
    while True:
        with writing(engine) as connection:
            before = int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())
            driver: Any = connection.connection.driver_connection
            driver.execute("PRAGMA incremental_vacuum(2000)").fetchall()
            after = int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())
        if after == 0 or after == before:
            return


def _prune_outcomes(engine: Engine, limits: Limits, now_ms: int, dry_run: bool, pruned: Pruned) -> None:
    """Delete old outcomes that have no points left."""
    if not limits.max_age_ms:
        return
    has_point = select(outcome_point.c.point_id).where(outcome_point.c.outcome_id == outcome.c.id).exists()
    old = (outcome.c.received_at < now_ms - limits.max_age_ms) & ~has_point
    if dry_run:
        with reading(engine) as connection:
            pruned.outcomes = int(connection.scalar(select(func.count()).select_from(outcome).where(old)) or 0)
        return
    some = select(outcome.c.id).where(old).limit(_BATCH)
    pruned.outcomes = _repeat(
        engine, lambda connection: connection.execute(delete(outcome).where(outcome.c.id.in_(some))).rowcount
    )


def _prune_minutes(engine: Engine, table: Table, before: int, dry_run: bool) -> int:
    """Delete counts of minutes before `before`, by bundle, tag and quarter of a day, as they are indexed."""
    total = 0
    keys = [table.c[name] for name in ("bundle_id", "tag_id") if name in table.c]
    with reading(engine) as connection:
        query = select(func.min(table.c.minute), func.count(), *keys).where(table.c.minute < before).group_by(*keys)
        found = connection.execute(query).all()
    for first, count, *numbers in found:
        total += int(count)
        chosen = [key == number for key, number in zip(keys, numbers, strict=True)]
        for start in range(int(first), 0 if dry_run else before, 360):
            end = min(start + 360, before)
            with writing(engine) as connection:
                connection.execute(delete(table).where(*chosen, table.c.minute < end))
    return total


def _prune_tag_counts(engine: Engine, before: int) -> None:
    """Delete counts by tag of minutes before `before`, tag by tag, as they are indexed."""
    with reading(engine) as connection:
        pairs = connection.execute(select(bundle.c.id, tag.c.id).join(tag, tag.c.model_id == bundle.c.model_id)).all()
    old = delete(rollup_tag).where(rollup_tag.c.minute < before)
    for start in range(0, len(pairs), _TRANSACTION_TAGS):
        with writing(engine) as connection:
            for bundle_id, tag_id in pairs[start : start + _TRANSACTION_TAGS]:
                connection.execute(old.where(rollup_tag.c.bundle_id == bundle_id, rollup_tag.c.tag_id == tag_id))


def _repeat(engine: Engine, delete_some: Callable[[Connection], int]) -> int:
    """Delete in small transactions until nothing is left; returns the number of rows."""
    total = 0
    while True:
        with writing(engine) as connection:
            deleted = delete_some(connection)
        total += deleted
        if not deleted:
            return total
