"""Soak: memory, errors and latency of a service that runs for minutes at 70% of its saturation.

The service has everything on: validation, metrics, a spool drained to SQLite, and tokens. Calls of one row and of 32
rows are mixed. Saturation is the rate at which calls are answered and their rows stored: answers alone are faster for
as long as the spool grows. The load comes in rounds, and memory is read after each.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.bench import results
from tests.bench.load import Generator, Taken, merged, resident_bytes
from tests.bench.serve import Bench, connect, demand_ok, generators, tell, together, verdict
from tests.support.servers import wait_until, waiting

_SCORE = "/darksight.v1.MonitorService/Score"
_CLASSES = 10
_LOAD = 0.7
_MOST_GROWTH = 1.05
# Of each generator to each worker. Old connections are closed and come back to a worker by chance: few of them badly.
_CONNECTIONS = 8


def at_rate(some: Sequence[Generator], requests: Sequence[bytes], rate: float, seconds: float) -> Taken:
    """A round of calls at a fixed rate, spread over the generators."""
    for number, generator in enumerate(some):
        options = {"rate": rate / len(some), "seconds": seconds, "offset": number / len(some)}
        generator.start("open", "ours", _SCORE, requests, **options)
    return merged([generator.result() for generator in some])


def growth(memory: Sequence[float]) -> float:
    """Memory in the last quarter of the rounds relative to the second quarter; the first one fills caches."""
    quarter = max(len(memory) // 4, 1)
    return float(np.mean(memory[-quarter:]) / np.mean(memory[quarter : 2 * quarter]))


def soak(bench: Bench, minutes: float) -> results.Parts:
    """Run the rounds and report memory by process, failed calls, dropped records and latency."""
    seconds = min(15.0, 60.0 * minutes / 8)
    rounds = round(60.0 * minutes / seconds)
    requests = [*bench.requests(1, _CLASSES), *bench.requests(32, _CLASSES, 4)]
    with bench.serving([_CLASSES]) as ours, generators() as some:
        connect(some, "ours", ours.address, ours.workers, ours.metadata, _CONNECTIONS)
        pids = {"supervisor": [ours.server.process.pid], "workers": ours.workers, "storage worker": [ours.storage]}
        # Until then numpy answers, and saturation would be too low.
        wait_until(lambda: len(ours.server.events("kernel_loaded")) >= len(ours.workers), what="the compiled code")
        together(some, "closed", "ours", _SCORE, requests, in_flight=16, seconds=2.0)
        wait_until(lambda: not waiting(ours.server.data_dir), what="the spools to be empty")
        start = time.monotonic()
        full = demand_ok(together(some, "closed", "ours", _SCORE, requests, in_flight=16, seconds=8.0), "saturation")
        wait_until(lambda: not waiting(ours.server.data_dir), what="the spools to be empty")
        saturation = full.ok / (time.monotonic() - start)
        rate = _LOAD * saturation
        tell(f"{full.ok_per_second:,.0f} calls/s answered, {saturation:,.0f} answered and stored")
        memory: dict[str, list[float]] = {name: [] for name in pids}
        p99, statuses, texts = [], Counter[str](), Counter[str]()
        for number in range(rounds):
            taken = at_rate(some, requests, rate, seconds)
            statuses += taken.statuses
            texts += taken.texts
            p99.append(1e3 * taken.quantile(0.99))
            for name, group in pids.items():
                memory[name].append(sum(map(resident_bytes, group)) / 1e6)
            now = ", ".join(f"{name} {values[-1]:.0f} MB" for name, values in memory.items())
            tell(f"round {number + 1} of {rounds}: {dict(taken.statuses)}, p99 {p99[-1]:.1f} ms, {now}")
        wait_until(lambda: not waiting(ours.server.data_dir), what="the spools to be empty")
        dropped = ours.server.counted("darksight_spool_dropped_total")
        deaths = len(ours.server.events("child_died"))
    failed = statuses - Counter(OK=statuses["OK"])
    if texts:
        tell(f"failed calls: {dict(texts)}")
    rows = [
        (
            f"memory of the {name}, MB, last / second quarter",
            f"{values[0]:.0f} to {values[-1]:.0f}, ratio {growth(values):.3f}",
            f"at most {_MOST_GROWTH:g}",
            verdict(growth(values), _MOST_GROWTH, most=True),
        )
        for name, values in memory.items()
    ]
    rows += [
        (f"failed calls of {statuses.total():,}", str(dict(failed) or 0), "0", verdict(failed.total(), 0, most=True)),
        ("records dropped", f"{dropped:.0f}", "0", verdict(dropped, 0, most=True)),
        ("processes that died", str(deaths), "0", verdict(deaths, 0, most=True)),
        ("p99 of a round, ms, first / last", f"{p99[0]:.1f} / {p99[-1]:.1f}", "", ""),
    ]
    about = (
        f"{minutes:g} minutes at {rate:,.0f} calls/s, 70% of the {saturation:,.0f} calls/s that are answered and "
        f"stored ({full.ok_per_second:,.0f} answered); "
        f"calls of 1 row, and 1 in 17 of 32 rows; K = {_CLASSES}. Refused calls count as failed."
    )
    return about, results.Table(("figure", "found", "target", ""), tuple(rows))


def main(argv: list[str]) -> int:
    """Run the soak; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="./dev bench soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of load (default 10)")
    args = parser.parse_args(argv)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="darksight-bench-") as folder:
        parts = soak(Bench(Path(folder), results.is_quick), args.minutes)
    results.save("soak: 70% load", parts)
    return int("**missed**" in str(parts[-1]))
