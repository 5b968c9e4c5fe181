"""Spool: cost of a record on disk beside a SQLite WAL insert, and pace of the drain into a store that does nothing.

CPU of one process, encoding included, in turns; what counts are the ratios. The reference inserts the same payload into
a table of a SQLite file (journal_mode WAL, synchronous OFF for "process" and FULL for "fsync"), one commit per record.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.bench import results

if TYPE_CHECKING:
    from darksight_service.ingest.records import Record

    from darksight_core.rows.schema import ScoredBatch

_PARTS = ("append", "drain")


def make_points(n: int, classes: int, *, seed: int = 0) -> tuple[ScoredBatch, bytes]:
    """Scores and probabilities of a batch, as a call has them."""
    from darksight_core.rows.schema import ScoredBatch

    rng = np.random.default_rng(seed)
    batch = ScoredBatch.unscored(n)
    for column in (batch.points, batch.log_density, batch.log_kde, batch.p_value, batch.confidence, batch.top):
        column[:] = rng.normal(size=column.shape)
    batch.decision[:] = batch.reason[:] = 1
    return batch, rng.dirichlet(np.full(classes, 0.3), n).astype(np.float32).tobytes()


def encode(given: tuple[ScoredBatch, bytes]) -> bytes:
    """The record of a batch."""
    from darksight_service.ingest.records import encode_points
    from darksight_service.store.ids import make_batch_id

    from darksight_core.runtime.result_block import ResultBlock

    batch, probs = given
    batch_id = make_batch_id(time.time_ns() // 1_000_000)
    return encode_points(batch_id, "digits", "ab" * 32, False, 0, (), ResultBlock.of(batch), probs)


def in_turns(calls: dict[str, Callable[[], object]], *, repeat: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Least CPU and wall seconds of each call, of `rounds` turns of `repeat` calls."""
    best = dict.fromkeys(calls, (float("inf"), float("inf")))
    for _ in range(rounds):
        for name, call in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(repeat):
                call()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            best[name] = (min(best[name][0], cpu / repeat), min(best[name][1], wall / repeat))
    return best


def sqlite_log(path: Path, synchronous: str) -> Callable[[bytes], object]:
    """The reference: a function that inserts a payload and commits."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("CREATE TABLE record (id INTEGER PRIMARY KEY, payload BLOB)")
    return lambda payload: connection.execute("INSERT INTO record (payload) VALUES (?)", (payload,))


def append(folder: Path, rounds: int) -> results.Table:
    """One record of one row, and of many."""
    from darksight_service.ingest.spool import Spool

    rows = []
    for durability, synchronous in (("process", "OFF"), ("fsync", "FULL")):
        for n, classes in ((1, 10), (1, 1000), (4096, 10)):
            batch = make_points(n, classes)
            size = len(encode(batch))
            repeat = max(20, min(2000 if durability == "process" else 100, int(4e7 / size)))
            place = folder / f"{durability}-{n}-{classes}"
            place.mkdir()
            insert = sqlite_log(place / "reference.db", synchronous)
            spool = Spool(place / "spool", max_bytes=1 << 40, durability=durability)  # type: ignore[arg-type]  # both are
            found = in_turns(
                {
                    "encode": lambda batch=batch: encode(batch),
                    "spool": lambda spool=spool, batch=batch: spool.append(encode(batch)),
                    "sqlite": lambda insert=insert, batch=batch: insert(encode(batch)),
                },
                repeat=repeat,
                rounds=rounds,
            )
            stats = spool.stats()
            spool.close()
            assert stats.dropped == stats.errors == 0
            for path in (place / "spool").iterdir():
                path.unlink()
            cpu = {name: f"{1e6 * seconds[0]:.1f}" for name, seconds in found.items()}
            rows.append(
                (
                    durability, n, classes, f"{size:,}", cpu["encode"], cpu["spool"], cpu["sqlite"],
                    f"{found['sqlite'][0] / found['spool'][0]:.1f}x", f"{1e6 * found['spool'][1]:.0f}",
                    f"{1e6 * found['sqlite'][1]:.0f}",
                )
            )  # fmt: skip
            print(rows[-1], file=sys.stderr)
    header = (
        "durability", "rows", "K", "bytes", "encode alone, CPU us", "encode and append", "encode and SQLite WAL insert",
        "ratio", "append, wall us", "SQLite, wall us",
    )  # fmt: skip
    return results.Table(header, rows)


@dataclass(frozen=True)
class Taken:
    """What a store that does nothing says."""

    inserted: int
    duplicates: int = 0


class NullStore:
    """Counts rows."""

    def insert(self, batches: Sequence[Record]) -> Taken:
        """Take all."""
        return Taken(sum(len(batch) for batch in batches))


def drain(folder: Path, rounds: int) -> results.Table:
    """Reading, checking and decoding, beside reading the same payloads back from SQLite."""
    from darksight_service.ingest.drain import Drain, Progress
    from darksight_service.ingest.records import decode
    from darksight_service.ingest.spool import Spool

    rows = []
    for n, classes, records in ((1, 10, 40_000), (1, 1000, 10_000), (64, 10, 4000), (4096, 10, 100)):
        payload = encode(make_points(n, classes))
        place = folder / f"drain-{n}-{classes}"
        place.mkdir()
        reference = place / "reference.db"
        insert = sqlite_log(reference, "OFF")
        insert(b"")
        connection = sqlite3.connect(reference, isolation_level=None)
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO record (payload) VALUES (?)", ((payload,) for _ in range(records)))
        connection.execute("COMMIT")
        best = {"drain": float("inf"), "sqlite": float("inf")}
        for turn in range(rounds):
            with Spool(place / str(turn)) as spool:
                for _ in range(records):
                    spool.append(payload)
            mover = Drain(place / str(turn), NullStore())
            started = time.process_time()
            while mover.step() is Progress.MOVED:
                pass
            best["drain"] = min(best["drain"], time.process_time() - started)
            assert mover.stats().inserted == records * n
            started = time.process_time()
            read = connection.execute("SELECT payload FROM record WHERE id > 1 ORDER BY id")
            assert sum(len(decode(found)) for (found,) in read) == records * n
            best["sqlite"] = min(best["sqlite"], time.process_time() - started)
        rows.append(
            (
                n, classes, f"{records:,}", f"{1e6 * best['drain'] / records:.1f}",
                f"{1e6 * best['sqlite'] / records:.1f}", f"{best['sqlite'] / best['drain']:.2f}",
                f"{records * n / best['drain']:,.0f}", f"{records * len(payload) / best['drain'] / 1e6:,.0f}",
            )
        )  # fmt: skip
        print(rows[-1], file=sys.stderr)
    header = (
        "rows per record", "K", "records", "drain, CPU us per record", "SELECT from SQLite and decode one by one",
        "ratio", "rows per CPU second", "MB per CPU second",
    )  # fmt: skip
    return results.Table(header, rows)


def main(argv: list[str]) -> int:
    """Run both parts, or the ones named."""
    parser = argparse.ArgumentParser(prog="./dev bench spool", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], default=[])
    parser.add_argument("--rounds", type=int, default=7, help="turns of which the fastest counts (default 7)")
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    args = parser.parse_args(argv)
    runs: dict[str, tuple[str, Callable[[Path, int], results.Table]]] = {
        "append": ("a record on disk", append),
        "drain": ("drain into a store that does nothing", drain),
    }
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for part in args.parts or _PARTS:
            title, run = runs[part]
            results.save(f"spool: {title}", run(Path(folder), args.rounds))
    return 0
