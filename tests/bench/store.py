"""The store: pace beside bare COPY and bare executemany, bytes per row, queries among millions of rows, dropping a day.

Paces are of the same rows in the same run, turn by turn, into tables with the same columns and indexes; the bare
writers get their bytes and tuples ready-made. PostgreSQL runs on disk with its own defaults (fsync on).
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from darksight_service.control.regions import MAX_EXAMINED
from darksight_service.ingest.records import decode_all
from darksight_service.store.ids import make_batch_id, point_ids
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.probabilities import parse_probability_codec
from darksight_service.store.store import Store
from darksight_service.store.texts import Texts
from darksight_service.store.write.copy import HEADER, TRAILER, binary_rows
from darksight_service.store.write.insert import BundlePoints, sql_values, sqlite_statements, tag_blobs
from darksight_service.store.write.retention import Limits

from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from darksight_core.map.regions import Region
from tests.bench import results
from tests.support.points import VERSION, encode, make_outcomes, make_points
from tests.support.postgres import Postgres, running_postgres

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
CLASSES = 10
ROWS_PER_INSERT = 20_480
DAYS = 10
GATE = Gate(cutoff(1000, 0.02), "msp", 0.6)

_PARTS = ("pace", "history")


def batches(
    count: int, size: int, *, first: int = 0, start_ms: int = NOW_MS, step_ms: float = 1.0
) -> Iterator[PointTable]:
    """Batches with ids and names of 16 letters of their own; the numbers repeat."""
    rng = np.random.default_rng(first)
    kinds = [make_points(size, seed=seed, classes=CLASSES, with_invalid=False) for seed in range(8)]
    for number in range(first, first + count):
        ms = start_ms + int((number - first) * step_ms)
        names = Texts.of([f"{number * size + row:016x}" for row in range(size)])
        batch_id = np.frombuffer(make_batch_id(ms, rng.bytes(7)), ">u8").reshape(1, 2)
        yield replace(kinds[number % 8], ids=point_ids(batch_id, size), names=names)


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def bare_copy(url: str, table: str) -> Callable[[bytes], None]:
    """A writer of ready-made binary rows."""
    connection = psycopg.connect(url)

    def write(data: bytes) -> None:
        with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:  # type: ignore[call-overload]
            copy.write(data)
        connection.commit()

    return write


def bare_sqlite(path: Path) -> Callable[[list[tuple[str, list[tuple[Any, ...]]]]], None]:
    """A writer of ready-made tuples, by statement."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")

    def write(groups: list[tuple[str, list[tuple[Any, ...]]]]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        for statement, rows in groups:
            connection.executemany(statement, rows)
        connection.execute("COMMIT")

    return write


def pace(server: Postgres, folder: Path, rows: int) -> results.Table:
    """Rows per second of the store and of the bare drivers."""
    codec = parse_probability_codec("float16")
    turns = max(2, rows // ROWS_PER_INSERT)
    urls = [
        server.fresh_database(),
        server.fresh_database(),
        f"sqlite:///{folder / 'a.db'}",
        f"sqlite:///{folder / 'b.db'}",
    ]
    stores = []
    for url in urls:
        store = Store.open(url, check=False, clock=lambda: NOW_MS)
        store.upgrade()
        store.maintain()
        stores.append(store)
    copy, executemany = bare_copy(urls[1], "point_20270115"), bare_sqlite(folder / "b.db")
    found = []
    for size, name in ((4096, "4,096 rows a call"), (1, "1 row a call")):
        seconds = np.zeros((turns, 4))
        for turn in range(turns):
            count = ROWS_PER_INSERT // size
            given: list[Any] = list(batches(count, size, first=(turn + 1) * 10_000_000 + size, start_ms=NOW_MS + turn))
            if size == 1:
                given = decode_all([encode(batch) for batch in given])
            group = BundlePoints(1, 1, PointTable.join(given))
            parts = binary_rows(
                group.points, sql_values(group), codec(group.points.probs, group.points.known), tag_blobs(group)
            )
            data = HEADER + b"".join(part.tobytes() for part in parts) + TRAILER
            tuples = [(statement, list(values)) for statement, values in sqlite_statements(group, codec)]
            work: list[Callable[[], object]] = [
                lambda given=given: stores[0].insert(given),  # type: ignore[misc]
                lambda data=data: copy(data),  # type: ignore[misc]
                lambda given=given: stores[2].insert(given),  # type: ignore[misc]
                lambda tuples=tuples: executemany(tuples),  # type: ignore[misc]
            ]
            for each in np.random.default_rng(turn).permutation(4):
                seconds[turn, each] = timed(work[each])
        # The median turn: a checkpoint or another process in one of them says nothing about the code.
        store_pg, copy_pg, store_lite, raw_lite = ROWS_PER_INSERT / np.median(seconds, axis=0)
        found.append((name, "PostgreSQL, COPY", f"{store_pg:,.0f}", f"{copy_pg:,.0f}", f"{store_pg / copy_pg:.2f}"))
        found.append(
            (name, "SQLite, executemany", f"{store_lite:,.0f}", f"{raw_lite:,.0f}", f"{store_lite / raw_lite:.2f}")
        )
    for store in stores:
        store.close()
    header = ("batches", "database, bare writer", "Store.insert, rows/s", "bare, rows/s", "ratio (goal 0.5)")
    return results.Table(header, found)


def history(server: Postgres, rows: int) -> results.Parts:
    """Size and queries of a PostgreSQL that has ten days of points."""
    url = server.fresh_database()
    store = Store.open(url, check=False, clock=lambda: NOW_MS)
    store.upgrade()
    size = 2048
    count = rows // size
    begun = NOW_MS - (DAYS - 1) * DAY_MS - HOUR_MS
    made = batches(count, size, start_ms=begun, step_ms=(NOW_MS - begun) / count)
    started = time.perf_counter()
    done = 0
    while waiting := [batch for _, batch in zip(range(10), made, strict=False)]:
        done += store.insert(waiting).points
        if done % (size * 500) < size * 10:
            print(f"{done:,} rows, {done / (time.perf_counter() - started):,.0f} rows/s", file=sys.stderr)
    filled = time.perf_counter() - started
    per_row = store.stats().bytes / done
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE point")
    hour = {"since_ms": NOW_MS - HOUR_MS, "until_ms": NOW_MS}
    rng = np.random.default_rng(0)

    def some_class() -> tuple[int]:
        return (int(rng.integers(CLASSES)),)

    def labels() -> object:
        wanted = rng.integers(0, done, size=100)
        return store.insert([make_outcomes({f"{number:016x}": 1 for number in wanted}, ms=NOW_MS)])

    def preview(size: float) -> object:
        region = Region("drawn", ((0.0, -size), (size, -size), (size, size), (0.0, size)))
        return store.newest_inside("digits", VERSION, region, since_ms=0, until_ms=NOW_MS, limit=MAX_EXAMINED)

    queries: dict[str, Callable[[], object]] = {
        "points of the last hour, 100": lambda: store.list_points(PointFilter("digits", **hour)),  # type: ignore[arg-type]
        "points of the last hour, 1,000": lambda: store.list_points(PointFilter("digits", **hour), page_size=1000),  # type: ignore[arg-type]
        "outliers of one class, 100": lambda: store.list_points(
            PointFilter("digits", predicted=some_class(), reasons=(2,))
        ),
        "points of one class on the first day, 100": lambda: store.list_points(
            PointFilter("digits", predicted=some_class(), until_ms=begun + HOUR_MS)
        ),
        "dry run on the last hour": lambda: store.evaluate_policy("digits", None, GATE, **hour),
        "preview of a small region": lambda: preview(0.3),
        "preview of half the map": lambda: preview(10.0),
        "100 outcomes for any points": labels,
        "live accuracy of ten days": lambda: store.label_counts("digits", since_ms=begun, until_ms=NOW_MS),
    }
    found = []
    for name, call in queries.items():
        call()
        milliseconds = [1e3 * timed(call) for _ in range(40)]
        found.append((name, f"{np.median(milliseconds):.1f}", f"{np.percentile(milliseconds, 95):.1f}"))
        print(found[-1], file=sys.stderr)
    days = sorted(store.stats().days)
    seconds = timed(lambda: store.prune(Limits(max_rows=done - 1)))
    dropped = len(days) - len(store.stats().days)
    store.close()
    table = results.Table(("query", "median, ms", "p95, ms"), found)
    figures = [
        ("bytes per row on disk with all indexes", f"{per_row:.1f}"),
        (f"s to drop {dropped} day", f"{seconds:.2f}"),
    ]
    return (
        f"{done:,} points of {CLASSES} classes on {len(days)} days, names of 16 letters, probabilities as float16; "
        f"filled at {done / filled:,.0f} rows/s.",
        results.Table(("figure", "found"), figures),
        table,
    )


def main(argv: list[str]) -> int:
    """Run both parts, or the ones named."""
    parser = argparse.ArgumentParser(prog="./dev bench store", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], default=[])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the history (default 1,000,000)")
    parser.add_argument("--pace-rows", type=int, default=400_000, help="rows of each pace (default 400,000)")
    args = parser.parse_args(argv)
    # Not in memory: both databases write to the same disk.
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/tmp")) as name,
        running_postgres(
            in_memory=False, fsync="on", full_page_writes="on", shared_buffers="512MB",
            max_wal_size="4GB",
        ) as server,
    ):  # fmt: skip
        if "pace" in (args.parts or _PARTS):
            results.save("store: pace of inserts", pace(server, Path(name), args.pace_rows))
        if "history" in (args.parts or _PARTS):
            results.save(f"store: history of {args.rows:,} rows", history(server, args.rows))
    return 0
