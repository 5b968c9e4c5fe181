"""Capacity: cores, disk and database load for any traffic, from a short calibration that is checked at other loads.

A service with two workers, tokens and PostgreSQL on disk gets hardly any calls, just enough that points are brought to
the database all the time; then calls of three sizes, each at one load. This gives the cost of being there, of a call,
of one with several rows and of a row. From them follow the figures at other loads and sizes, and two of these are run
to see how far off the prediction is. CPU is that of the processes; on a busy machine a call takes more of it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.bench import results
from tests.bench.load import cpu_seconds, resident_bytes
from tests.bench.serve import Bench, Served, connect, generators, tell, verdict
from tests.support.faults.nemesis import children
from tests.support.postgres import Postgres, running_postgres
from tests.support.servers import wait_until, waiting

__all__ = ["BUSY", "Costs", "Load", "calibrated", "cells"]

FIGURES = (
    "workers, cores",
    "storage workers, cores",
    "PostgreSQL, cores",
    "stored, bytes/s",
    "write-ahead log, bytes/s",
)
"""What is measured and predicted, per second."""

# The storage worker brings the rows of many calls at once, so the database knows of rows alone.
_BY_ROWS = FIGURES[2:]

BUSY = 0.7
"""Share of a core that is planned with: beyond it latencies grow."""

_CLASSES = 10
_WITHIN = 0.25
_SCORE = "/darksight.v1.MonitorService/Score"
_DEPLOY = Path(__file__).parents[2] / "deploy" / "README.md"
# Until the storage worker is in step with the traffic.
_LEAD_SECONDS = 3.0
_PREDICTIONS = (1_000, 10_000, 100_000, 1_000_000)
_SIZES = (1, 32, 256)
# What comes when the server pleases would fall into one of the runs and not the others. So there is no checkpoint, and
# each run vacuums its own rows. Statistics are left out: they are made when a table has grown by a tenth, all the time
# in the first runs, never in the last ones, and a few times a day where the table has a size that matters.
_DATABASE = {
    "fsync": "on", "full_page_writes": "on", "checkpoint_timeout": "1h", "max_wal_size": "8GB", "autovacuum": "off",
}  # fmt: skip
_VACUUM_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Load:
    """Calls per second, and rows in each."""

    calls: float
    size: int

    @property
    def rows(self) -> float:
        """Predictions per second."""
        return self.calls * self.size

    def __str__(self) -> str:
        return f"{self.calls:,.0f} calls/s of {self.size} row{'s' * (self.size > 1)}"


CALIBRATION = (Load(8, 1), Load(800, 1), Load(300, 32), Load(100, 256))
CHECKS = (Load(1_300, 1), Load(200, 100))


@dataclass(frozen=True, slots=True)
class Costs:
    """What each figure costs: just to be there, for a call, for one of several rows on top of that, and for a row.

    One row is judged by a compiled loop, several go through arrays: their call costs more, and each row less. To be
    there is not to be idle: a service that gets any calls brings points to the database several times a second.
    """

    idle: Mapping[str, float]
    call: Mapping[str, float]
    batch: Mapping[str, float]
    row: Mapping[str, float]

    def predict(self, load: Load, *, replicas: int = 1) -> dict[str, float]:
        """Every figure at a load; what is there without calls is there in every replica."""
        return {
            name: replicas * self.idle[name]
            + float(_quantities(load) @ (self.call[name], self.batch[name], self.row[name]))
            for name in self.idle
        }


def _quantities(load: Load) -> NDArray[np.float64]:
    """Calls, those of several rows, and rows, per second."""
    return np.array([load.calls, load.calls * (load.size > 1), load.rows])


def calibrated(measured: Mapping[Load, Mapping[str, float]]) -> Costs:
    """Costs from the smallest load, which counts as none, and three more, one of single rows; none is below 0.

    Parameters
    ----------
    measured
        Figures per second of each run.
    """
    from scipy.optimize import nnls

    least, *loads = sorted(measured, key=lambda load: load.rows)
    idle = measured[least]
    found = {}
    for name in idle:
        seen = np.array([measured[load][name] for load in loads])
        above = np.maximum(seen - idle[name], 0.0)
        quantities = np.array([_quantities(load) for load in loads])
        if name in _BY_ROWS:
            quantities[:, :2] = 0.0
        # Relative to each figure, so that noise in the largest does not decide all.
        weights = 1.0 / np.maximum(seen, 1e-12)
        found[name] = nnls(weights[:, None] * quantities, weights * above)[0]
    call, batch, row = ({name: float(costs[part]) for name, costs in found.items()} for part in range(3))
    return Costs(dict(idle), call, batch, row)


def cells(costs: Costs, predictions: float, size: int) -> tuple[object, ...]:
    """One line of the sizing table."""
    load = Load(predictions / size, size)
    # Everything but what is there without calls first: it decides how many replicas there are.
    serving, keeping = (costs.predict(load, replicas=0)[name] for name in FIGURES[:2])
    workers = max(int(np.ceil(serving / BUSY)), 1)
    replicas = max(int(np.ceil(keeping / BUSY)), 3)
    found = costs.predict(load, replicas=replicas)
    return (
        f"{predictions:,.0f}", size, f"{load.calls:,.0f}", max(workers, replicas), replicas,
        f"{found[FIGURES[1]]:.2g}", f"{found[FIGURES[2]]:.2g}", f"{86_400 * found[FIGURES[3]] / 1e9:,.3g}",
        f"{found[FIGURES[4]] / 1e6:.2g}",
    )  # fmt: skip


HEADER = (
    "predictions/s", "rows in a call", "calls/s", "workers (cores)", "replicas, at least", "storage workers, cores",
    "PostgreSQL, cores", "stored, GB/day", "write-ahead log, MB/s",
)  # fmt: skip


# -- measuring ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """A service and its database, whose use is read."""

    ours: Served
    postgres: Postgres
    database: str

    def totals(self) -> dict[str, float]:
        """CPU seconds and bytes so far."""
        server = self.postgres.process
        assert server is not None
        pids = (server.pid, *children(server.pid))
        found = [
            sum(map(cpu_seconds, (*self.ours.workers, self.ours.server.process.pid))),
            cpu_seconds(self.ours.storage),
            sum(map(_exact_seconds, pids)) + _buried_seconds(server.pid),
            *map(float, self.postgres.execute(_SIZES_QUERY, self.database)[0]),
        ]
        return dict(zip(FIGURES, found, strict=True))

    def vacuum(self) -> None:
        """What autovacuum does, once for all rows since the last time."""
        self.postgres.execute("VACUUM point", self.database)

    def run(self, load: Load, seconds: float, bench: Bench, some: Sequence[object]) -> dict[str, float]:
        """Figures per second at a load."""
        requests = bench.requests(load.size, _CLASSES, 64, has_ids=True)
        for number, generator in enumerate(some):
            options = {"rate": load.calls / len(some), "seconds": seconds + _LEAD_SECONDS + _VACUUM_SECONDS}
            offset = number / len(some)
            generator.start("open", "ours", _SCORE, requests, **options, offset=offset)  # type: ignore[attr-defined]
        time.sleep(_LEAD_SECONDS)
        self.vacuum()
        before, started = self.totals(), time.monotonic()
        time.sleep(seconds)
        self.vacuum()
        after, elapsed = self.totals(), time.monotonic() - started
        for generator in some:
            statuses = generator.result().statuses  # type: ignore[attr-defined]
            # A call or two that a busy machine refuses change no figure.
            if statuses["OK"] < 0.999 * sum(statuses.values()):
                raise RuntimeError(f"{load}: {dict(statuses)}")
        # Rows that come late are those of this run, not of the next one.
        wait_until(lambda: not waiting(self.ours.server.data_dir), what="the spools to be empty")
        found = {name: (after[name] - before[name]) / elapsed for name in FIGURES}
        if load.rows > 1_000 and not found["stored, bytes/s"]:
            raise RuntimeError(f"{load}: no point reached the database")
        return found


_SIZES_QUERY = "SELECT pg_database_size(current_database()), pg_current_wal_lsn() - '0/0'"


def _exact_seconds(pid: int) -> float:
    """CPU time of a process of one thread; a tenth of what a process of the database uses in a run may be one tick."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0]) / 1e9
    except FileNotFoundError:  # a connection that has ended, and is among the buried
        return 0.0


def _buried_seconds(pid: int) -> float:
    """CPU time of children that have ended."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def measure(bench: Bench, loads: Sequence[Load], seconds: float) -> tuple[dict[Load, dict[str, float]], str]:
    """Figures of every load, one after the other, and a sentence on memory."""
    with running_postgres(in_memory=False, **_DATABASE) as postgres:
        url = postgres.migrated_database()
        database = url.partition("?")[0].rpartition("/")[2]
        with bench.serving([_CLASSES], "--database-url", url) as ours, generators() as some:
            connect(some, "ours", ours.address, ours.workers, ours.metadata)
            service, found = Measured(ours, postgres, database), {}
            # Compiles, connects, makes the tables of the day.
            service.run(Load(100, 8), 3.0, bench, some)
            for load in loads:
                found[load] = service.run(load, seconds, bench, some)
                tell(f"{load}: " + ", ".join(f"{name} {value:.4g}" for name, value in found[load].items()))
            worker = np.mean([resident_bytes(pid) for pid in ours.workers]) / 1e6
            storage = resident_bytes(ours.storage) / 1e6
            memory = f"A worker has {worker:.0f} MB resident, the storage worker {storage:.0f} MB."
    return found, memory


# -- telling -----------------------------------------------------------------------------------------------------------


def costs_table(costs: Costs) -> results.Parts:
    """Costs in units that people read."""
    rows = []
    for name in FIGURES:
        is_cpu = name.endswith("cores")
        scale, unit = (1e6, "us CPU") if is_cpu else (1.0, "bytes")
        idle = f"{100.0 * costs.idle[name]:.1f}% of a core" if is_cpu else f"{costs.idle[name]:,.0f} bytes/s"
        call, batch, row = (f"{scale * each[name]:,.4g} {unit}" for each in (costs.call, costs.batch, costs.row))
        rows.append((name.partition(",")[0], call, batch, row, idle))
    return results.Table(("resource", "per call", "extra per call of several rows", "per row", "when idle"), rows)


def check_table(costs: Costs, found: Mapping[Load, Mapping[str, float]]) -> results.Parts:
    """Prediction beside what was measured."""
    rows = []
    for load in CHECKS:
        predicted = costs.predict(load)
        for name in FIGURES:
            off = predicted[name] / max(found[load][name], 1e-12) - 1.0
            rows.append(
                (
                    str(load), name, float(predicted[name]), float(found[load][name]), f"{off:+.0%}",
                    f"within {_WITHIN:.0%}", verdict(abs(off), _WITHIN, most=True),
                )
            )  # fmt: skip
    return results.Table(("load", "figure", "predicted", "measured", "off by", "target", ""), rows)


def record_bytes(rows: int) -> int:
    """Size of the record of a call in the spool."""
    from darksight_service.ingest.records import encode_points
    from darksight_service.store.ids import make_batch_id

    from darksight_core.rows.schema import ScoredBatch
    from darksight_core.runtime.result_block import ResultBlock

    block, probs = ResultBlock.of(ScoredBatch.unscored(rows)), bytes(4 * rows * _CLASSES)
    batch_id = make_batch_id(time.time_ns() // 1_000_000)
    return len(encode_points(batch_id, "digits", "ab" * 32, False, 0, (), block, probs))


def spool_bytes() -> str:
    """What an hour without the database takes on disk."""
    small, large = record_bytes(1), record_bytes(257)
    row = (large - small) / 256
    return f"{small - row:.0f} bytes for a call and {row:.0f} for a row wait in the spool while the database is away."


def fit_cost() -> str:
    """CPU and memory of fitting a million rows, from the benchmark of the fit."""
    for name, section in results.read_sections().items():
        for row in section.tables()[0].records() if name.startswith("fit: cost per row") else ():
            if row["rows"] == "1,000,000":
                cpu, memory = row["CPU us per row"], row["peak memory / input"]
                return f"A fit of a million rows takes {cpu} s CPU and {memory} times their memory (`./dev bench fit`)."
    return ""


def main(argv: list[str]) -> int:
    """Calibrate, check, and write the sizing table."""
    parser = argparse.ArgumentParser(prog="./dev bench capacity", description=__doc__)
    parser.add_argument("--seconds", type=float, default=25.0, help="of each of six runs (default 25)")
    args = parser.parse_args(argv)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="darksight-bench-") as folder:
        bench = Bench(Path(folder), results.is_quick)
        found, memory = measure(bench, (*CALIBRATION, *CHECKS), args.seconds)
    costs = calibrated({load: found[load] for load in CALIBRATION})
    cost = costs_table(costs), " ".join((memory, spool_bytes(), fit_cost()))
    sizing = results.Table(HEADER, [cells(costs, wanted, size) for wanted in _PREDICTIONS for size in _SIZES])
    rows = f"{_CLASSES} classes, probabilities as float16, ids of 16 letters, drift followed"
    said = f"Calibrated at {', '.join(map(str, CALIBRATION))}; {rows}."
    results.save("capacity: cost of a call and of a row", (said, *cost))
    results.save("capacity: prediction and measurement", check_table(costs, found))
    results.save("capacity: sizing", sizing)
    if not results.is_quick:
        results.put_between(_DEPLOY, "sizing", "\n\n".join(map(str, (said, *cost, sizing))))
    return 0
