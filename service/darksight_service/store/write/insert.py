"""Points into SQL, each exactly once however often it comes.

The fast way assumes that all rows are new, which they nearly always are: on PostgreSQL a binary COPY straight into the
day's partition, on SQLite one executemany. If some row was there already, the transaction is undone and the slow way
finds out which: only rows that are really new are counted, and points and counts are committed together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, text

from darksight_service.errors import SchemaMismatchError, StoreError
from darksight_service.store.engine import writing
from darksight_service.store.partitions import DEFAULT, is_plausible, make_days
from darksight_service.store.rollups import add_counts
from darksight_service.store.rows import DAY_MS, FLOATS, Rows
from darksight_service.store.write.copy import COLUMNS, HEADER, TRAILER, binary_rows
from darksight_service.store.write.outcomes import match_points

__all__ = ["Inserter", "prepared"]

_UNIQUE_VIOLATION = "23505"
_CHECK_VIOLATION = "23514"
_TOGETHER = 16
_COPY = "COPY {} (" + ", ".join(COLUMNS) + ") FROM STDIN (FORMAT BINARY)"


class Inserter:
    """Writes points.

    Parameters
    ----------
    engine
        Of the database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_postgresql = engine.dialect.name == "postgresql"
        self._days: dict[int, str] = {}

    def insert(self, groups: Sequence[Rows], *, today: int) -> tuple[int, int]:
        """Store rows; returns how many were new, and how many of them got an outcome that had come before them."""
        if not groups:
            return 0, 0
        if not self._is_postgresql:
            return self._into_sqlite(groups)
        try:
            return self._copy(groups, today)
        except StoreError as error:
            state = error.details.get("state")
            if state == _UNIQUE_VIOLATION:
                return self._merge(groups, today)
            # Another process dropped a partition since we last looked, or made one for what we sent to the default.
            if not isinstance(error, SchemaMismatchError) and state != _CHECK_VIOLATION:
                raise
            self._days = {}
        return self._merge(groups, today)

    def make_days(self, days: set[int], today: int) -> None:
        """Make sure that the plausible ones of these days have a partition, and know which of the others have one."""
        if not days <= self._days.keys():
            self._days = make_days(self._engine, {day for day in days if is_plausible(day, today)})

    def _copy(self, groups: Sequence[Rows], today: int) -> tuple[int, int]:
        by_table: dict[str, list[Rows]] = {}
        days = [rows.received_ms // DAY_MS for rows in groups]
        self.make_days({int(day) for each in days for day in np.unique(each)}, today)
        for rows, each in zip(groups, days, strict=True):
            found = np.unique(each).tolist()
            for day in found:
                part = rows if len(found) == 1 else rows.take(each == day)
                by_table.setdefault(self._days.get(day, DEFAULT), []).append(part)
        with writing(self._engine) as connection:
            for table, parts in by_table.items():
                _copy_into(connection, table, parts)
            return _finish(connection, groups)

    def _merge(self, groups: Sequence[Rows], today: int) -> tuple[int, int]:
        self.make_days({int(day) for rows in groups for day in np.unique(rows.received_ms // DAY_MS)}, today)
        with writing(self._engine) as connection:
            connection.exec_driver_sql("CREATE TEMPORARY TABLE incoming (LIKE point) ON COMMIT DROP")
            _copy_into(connection, "incoming", groups)
            columns = ", ".join(COLUMNS)
            query = f"INSERT INTO point SELECT {columns} FROM incoming ORDER BY id ON CONFLICT DO NOTHING RETURNING id"
            fresh = {found.bytes for (found,) in connection.execute(text(query))}
            return _finish(connection, _only(groups, fresh))

    def _into_sqlite(self, groups: Sequence[Rows]) -> tuple[int, int]:
        with writing(self._engine) as connection:
            driver: Any = connection.connection.driver_connection
            driver.execute("SAVEPOINT fast")
            before = driver.total_changes
            _insert(driver, groups)
            if driver.total_changes - before != sum(map(len, groups)):
                driver.execute("ROLLBACK TO fast")
                groups = _only(groups, _absent(driver, groups))
                _insert(driver, groups)
            return _finish(connection, groups)


def _copy_into(connection: Connection, table: str, groups: Sequence[Rows]) -> None:
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(_COPY.format(table)) as copy:
        copy.write(HEADER)
        for rows in groups:
            for part in binary_rows(rows):
                copy.write(part.view(np.uint8).data)
        copy.write(TRAILER)


def _finish(connection: Connection, groups: Sequence[Rows]) -> tuple[int, int]:
    add_counts(connection, groups)
    return sum(map(len, groups)), match_points(connection, groups)


def _only(groups: Sequence[Rows], fresh: set[bytes]) -> list[Rows]:
    """The first row of each id that is `fresh`."""
    left = set(fresh)
    kept = []
    for rows in groups:
        mask = np.zeros(len(rows), dtype=bool)
        for number, each in enumerate(rows.id_bytes()):
            if each in left:
                left.discard(each)
                mask[number] = True
        if mask.any():
            kept.append(rows.take(mask))
    return kept


def _absent(driver: Any, groups: Sequence[Rows]) -> set[bytes]:
    ids = [each for rows in groups for each in rows.id_bytes()]
    query = "SELECT 1 FROM point WHERE id = ?"
    return {each for each in ids if driver.execute(query, (each,)).fetchone() is None}


def _insert(driver: Any, groups: Sequence[Rows]) -> None:
    for rows in groups:
        for statement, values in prepared(rows):
            driver.executemany(statement, values)


def prepared(rows: Rows) -> Iterator[tuple[str, Iterator[tuple[Any, ...]]]]:
    """Statements for sqlite3, which stores NaN as NULL, each with its values; to be used up one after the other.

    sqlite3 looks for an adapter of every value that is not exactly an int, a float, a str or a bytearray, and for six
    of them in each row that took a third of the whole insert. So truths are numbers and blobs bytearrays, and columns
    that are NULL in all rows are not named. Several rows in a statement take a fifth less than one in each.
    """
    columns: dict[str, Iterable[Any]] = {
        "id": map(bytearray, rows.id_bytes()),
        **dict(zip(FLOATS, rows.floats.tolist(), strict=True)),
        "predicted": rows.predicted.tolist(),
        "reason": rows.reason.tolist(),
        "is_accepted": rows.is_accepted.view(np.uint8).tolist(),
        "is_shadow": rows.is_shadow.view(np.uint8).tolist(),
    }
    if rows.event_ms.any():
        columns["event_at"] = [each or None for each in rows.event_ms.tolist()]
    if rows.names.count(None) < len(rows):
        columns["prediction_id"] = rows.names
    if rows.probs.shape[1] and rows.has_probs.any():
        blobs = np.ascontiguousarray(rows.probs).view(f"V{rows.probs.shape[1]}").reshape(len(rows)).tolist()
        kept = rows.has_probs.tolist()
        columns["probs"] = [bytearray(blob) if is_kept else None for blob, is_kept in zip(blobs, kept, strict=True)]
    values = chain.from_iterable(zip(*columns.values(), strict=True))
    row = f"({rows.bundle_id}{', ?' * len(columns)})"
    for count, times in ((_TOGETHER, len(rows) // _TOGETHER), (1, len(rows) % _TOGETHER)):
        insert = f"INSERT INTO point (bundle_id, {', '.join(columns)}) VALUES {', '.join([row] * count)}"
        yield f"{insert} ON CONFLICT DO NOTHING", islice(zip(*[values] * (count * len(columns)), strict=False), times)
