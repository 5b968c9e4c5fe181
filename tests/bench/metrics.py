"""Metrics: counting a call beside prometheus_client's own metrics and beside scoring it, and a scrape of 5,000 series.

CPU seconds of one process; what counts are the ratios, of calls that take turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import results

_GOLDEN = Path(__file__).parents[1] / "golden" / "bundle_v3.safetensors"
_VERSION = "ab" * 32


def turns(calls: Mapping[str, Callable[[], object]], rounds: int, number: int) -> dict[str, float]:
    """CPU seconds per call of each, the fastest of so many turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            best[name] = min(best[name], timeit.timeit(call, timer=time.process_time, number=number) / number)
    return best


def columns(n: int, classes: int = 10) -> tuple[Any, ...]:
    """Rows of one call as the monitor counts them."""
    rng = np.random.default_rng(n)
    p_value = rng.integers(1, 10_001, n) / 10_000
    reason = np.where(p_value <= 0.01, 2, 1).astype(np.int8)
    predicted = rng.integers(0, classes, n).astype(np.int32)
    return reason, reason, p_value, predicted, rng.normal(-7.0, 2.0, n)


class Reference:
    """The same numbers in labelled metrics of prometheus_client, children kept where a call needs only one of them."""

    def __init__(self) -> None:
        from darksight_service.metrics.counts import BATCH_BUCKETS, DENSITY_BUCKETS, SECONDS_BUCKETS
        from prometheus_client import CollectorRegistry, Counter, Histogram

        registry, key = CollectorRegistry(), ("model", "version")
        self._decisions = Counter("decisions", "-", (*key, "decision", "reason"), registry=registry)
        self._bins = Counter("bins", "-", (*key, "bin"), registry=registry)
        self._predicted = Counter("predicted", "-", (*key, "class"), registry=registry)
        self._outliers = Counter("outliers", "-", (*key, "class"), registry=registry)
        self._density, self._seconds, self._batch = (
            Histogram(name, "-", key, buckets=buckets, registry=registry).labels("m", "abababababab")
            for name, buckets in (("density", DENSITY_BUCKETS), ("seconds", SECONDS_BUCKETS), ("batch", BATCH_BUCKETS))
        )

    def observe(
        self, decision: Any, reason: Any, p_value: Any, predicted: Any, log_density: Any, seconds: float
    ) -> None:
        """Count one call, row by row."""
        key = ("m", "abababababab")
        for chosen, why, p, label, density in zip(
            decision.tolist(), reason.tolist(), p_value.tolist(), predicted.tolist(), log_density.tolist(), strict=True
        ):
            self._decisions.labels(*key, chosen, why).inc()
            self._bins.labels(*key, int(p * 20 - 1e-9)).inc()
            self._predicted.labels(*key, label).inc()
            if why == 2:
                self._outliers.labels(*key, label).inc()
            self._density.observe(density)
        self._seconds.observe(seconds)
        self._batch.observe(len(decision))


def observe(folder: Path, rounds: int) -> results.Parts:
    """Microseconds to count one call."""
    from darksight_service.metrics import Counts

    from darksight_core.runtime.scorer import Scorer

    counts = Counts(folder, 0)
    model = counts.model("m", _VERSION, classes=10, calibration_rows=9_999)
    model.set_rule(0.01, 100)
    reference, scorer = Reference(), Scorer.load(_GOLDEN)
    rows = []
    for n in (1, 256, 4_096):
        call = columns(n)
        probs = np.random.default_rng(n).dirichlet(np.full(scorer.n_inputs, 0.3), n)
        best = turns(
            {
                "ours": lambda call=call: model.observe(*call, 1e-3),
                "reference": lambda call=call: reference.observe(*call, 1e-3),
                "scoring": lambda probs=probs: scorer.score(probs),
            },
            rounds,
            max(20_000 // (n + 20), 4),
        )
        ours, theirs, scoring = (1e6 * best[name] for name in ("ours", "reference", "scoring"))
        rows.append((f"{n:,}", ours, theirs, f"{theirs / ours:.1f}x", scoring, f"{ours / scoring:.1%}"))
    both = turns({"call": lambda: (counts.process.start_call(), counts.process.end_call())}, rounds, 2_000)
    table = results.Table(
        ["rows in a call", "observe() us", "prometheus_client us", "against it", "scorer.score us", "observe / score"],
        rows,
    )
    return table, f"Begin and end of a call: {1e6 * both['call']:.2f} us."


def scrape(folder: Path, rounds: int) -> results.Table:
    """Milliseconds to make the page of two workers."""
    from darksight_service.metrics import Counts
    from darksight_service.metrics.exposition import make_registry, render

    for worker in range(2):
        counts = Counts(folder, worker)
        for i in range(16):
            model = counts.model(f"m{i}", f"{i:064x}", classes=100, calibration_rows=9_999)
            model.set_rule(0.01, 100)
            model.observe(*columns(5_000, 100), 1e-3)
    openmetrics = "application/openmetrics-text; version=1.0.0"
    series = sum(not line.startswith(b"#") for line in render(folder)[0].splitlines())
    registry = make_registry(folder)
    rows = []
    for name, accept in (("plain text", ""), ("OpenMetrics, as Prometheus asks for", openmetrics)):
        best = turns(
            {
                "page": lambda accept=accept: render(folder, accept),
                "merge": lambda: list(registry.collect()),
            },
            rounds,
            1,
        )
        rows.append((name, f"{series:,}", 1e3 * best["page"], 1e3 * best["merge"]))
    return results.Table(["format", "series", "page ms", "of it to read and merge files ms"], rows)


def main(argv: list[str]) -> int:
    """Run both and put their tables into the README of the benchmarks."""
    parser = argparse.ArgumentParser(prog="./dev bench metrics", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="turns of which the fastest counts (default 15)")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        results.save("metrics: counting a call", observe(Path(folder) / "observe", args.rounds))
        results.save("metrics: a scrape, two workers", scrape(Path(folder) / "scrape", args.rounds))
    return 0
