"""Two replicas with simulated traffic, which a Prometheus server with the real rules scrapes.

Time is compressed 60-fold: all durations in the rules are divided by 60.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from darksight_service.metrics import Counts, StorageCounts
from darksight_service.metrics.exposition import render
from darksight_service.metrics.processes import SupervisorCounts
from grafana_foundation_sdk.models.dashboard import Panel

from darksight_core.drift.detector import RowBatch
from darksight_core.drift.stream import DriftTest
from darksight_core.guarantees.calibration import Calibration
from tests.support.prometheus import Prometheus, run_prometheus

VERSION = "3f9c1a77b2e04d58" * 4
CALIBRATION, RANK, ALPHA = 9_999, 100, 0.01
_LEAD_SECONDS = 3.0


class Replica:
    """The counters of one replica with two workers, and its simulated traffic."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self._rng = np.random.default_rng(seed)
        self._workers = [Counts(folder, worker) for worker in range(2)]
        self._storage = StorageCounts(folder)
        SupervisorCounts(folder).set("ready", 1.0)
        names = ["aeroplane", "bird", "boat", "car", "cat", "deer", "dog", "frog", "horse", "lorry"]
        self._models = [
            counts.model("vision", VERSION, classes=10, calibration_rows=CALIBRATION, class_names=names)
            for counts in self._workers
        ]
        self._shadows = [
            counts.model("vision", VERSION[::-1], classes=10, calibration_rows=CALIBRATION, class_names=names)
            for counts in self._workers
        ]
        for model in (*self._models, *self._shadows):
            model.set_rule(ALPHA, RANK)
        self._labelled, self._right = np.zeros(2), np.zeros(2)
        ranks = np.arange(1, CALIBRATION + 1) / (CALIBRATION + 1)
        self._test = DriftTest(Calibration(ranks, top=ranks), np.full(10, 1_000))
        self._drift = self._test.start()
        self._spool, self._appended, self._waiting = 0.0, [0, 0], 0.0

    def step(self, seconds: float, *, unusual: float, is_store_up: bool) -> None:
        """Simulate traffic with a share of unusual rows."""
        for i, (counts, model, shadow) in enumerate(zip(self._workers, self._models, self._shadows, strict=True)):
            for _ in range(self._rng.poisson(40 * seconds)):
                rows = self._rows(int(self._rng.integers(1, 24)), unusual)
                counts.process.start_call()
                if model.observe(*rows, float(self._rng.lognormal(-8.0, 0.5))):
                    model.remember_outlier("order-17", 0.005)
                shadow.observe(*rows, 0.0, is_shadow=True)
                counts.process.end_call(3 if self._rng.random() < 0.004 else 0)
                self._appended[i] += 1
                self._learn(rows)
                _, _, p, predicted, _ = rows
                uniforms = self._rng.random((len(p), 3))
                self._drift = self._test.update(self._drift, RowBatch(p, p, predicted, uniforms))
            counts.process.start_call()
            counts.process.report_outcomes(int(self._rng.integers(5, 15)))
            counts.process.end_call()
            counts.process.end_event("scored")
            if self._rng.random() < 0.05:
                counts.process.refuse_caller("expired")
        self._waiting = 1.0 if is_store_up else self._waiting + 60.0 * seconds
        self._spool = 2e5 if is_store_up else self._spool + 1e7 * seconds
        for counts, appended in zip(self._workers, self._appended, strict=True):
            stats = SimpleNamespace(bytes=int(self._spool), oldest_seconds=self._waiting, appended=appended)
            stats.dropped = stats.errors = 0
            counts.process.set_spool(stats, limit_bytes=1 << 30)
        self._storage.set_drain(lag_seconds=self._waiting, is_store_up=is_store_up)
        if is_store_up:
            self._storage.follow("drain_rows", sum(self._appended), value="inserted")
        else:
            self._storage.add("store_errors", 2.0)
        self._storage.set_drift("vision", VERSION, self._test.evidence(self._drift))
        self._storage.set_figures("vision", VERSION, *self._figures(unusual))
        accepted, rejected = self._labelled.tolist()
        self._storage.set_accuracy(
            "vision",
            VERSION,
            accepted_labelled=accepted,
            accepted_correct=self._right[0],
            rejected_labelled=rejected,
            rejected_correct=self._right[1],
            target_accuracy=0.97,
        )

    def _figures(self, unusual: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Verdict and estimated accuracy under a share of unusual rows, and what an audit of accepted rows shows."""
        estimate, labels = 0.96 - 0.5 * unusual, max(self._labelled[0], 1.0)
        accuracy, width = self._right[0] / labels, min(2.0 / np.sqrt(labels), 0.2)
        window = {"verdict": "new_content" if self._drift.alarm_row is not None else "none"}
        window["accuracy"] = {"estimate": estimate, "low": estimate - 0.05, "high": min(estimate + 0.03, 1.0)}
        audit = {"accuracy": accuracy, "low": max(accuracy - width, 0.0), "high": min(accuracy + width, 1.0)}
        return window, audit | {"labels": labels, "labels_needed": max(400.0 - labels, 0.0), "log_evidence": 0.0}

    def _rows(self, n: int, unusual: float) -> tuple[Any, ...]:
        rng = self._rng
        is_unusual = rng.random(n) < unusual
        p = np.where(is_unusual, rng.beta(0.25, 4.0, n), rng.random(n))
        p = np.clip(np.ceil(p * (CALIBRATION + 1)), 1, CALIBRATION + 1) / (CALIBRATION + 1)
        reason = np.where(p <= ALPHA, 2, np.where(rng.random(n) < np.exp(-40.0 * p), 3, 1)).astype(np.uint8)
        decision = np.where(reason == 1, 1, 2).astype(np.uint8)
        predicted = np.where(is_unusual & (rng.random(n) < 0.7), 4, rng.integers(0, 10, n)).astype(np.int32)
        log_density = -4.5 + 1.8 * np.log(p) + 0.3 * rng.normal(size=n)
        return decision, reason, p, predicted, log_density

    def _learn(self, rows: tuple[Any, ...]) -> None:
        decision, _, p, _, _ = rows
        known = self._rng.random(len(p)) < 0.05
        right = self._rng.random(len(p)) < 1.0 - 0.5 * np.exp(-12.0 * p) ** 1.5
        for i, wanted in enumerate((1, 2)):
            self._labelled[i] += np.sum(known & (decision == wanted))
            self._right[i] += np.sum(known & right & (decision == wanted))


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve the metrics page of a folder over HTTP; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page, content_type = render(folder, self.headers.get("Accept", ""), {"supervisor": os.getpid()})
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.end_headers()
            # A scrape that timed out has closed the connection.
            with contextlib.suppress(ConnectionError):
                self.wfile.write(page)

        def log_message(self, format: str, *args: Any) -> None:
            """Do not log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def panel_series(server: Prometheus, panel: Panel, *, start: float, end: float) -> dict[str, list[tuple[Any, Any]]]:
    """Results of the queries of a panel, by legend: labels with points, or with the last value."""
    found = {}
    for target in panel.targets or ():
        expr = target.expr
        chosen = {"model": ".*", "version": VERSION[:12], "instance": ".*", "__rate_interval": "15s"}
        for name, value in chosen.items():
            expr = expr.replace(f"${name}", value)
        if target.instant:
            result = server.get("query", query=expr, time=end)["result"]
            found[target.legend_format] = [(each["metric"], [each["value"]]) for each in result]
        else:
            result = server.get("query_range", query=expr, start=start, end=end, step=1)["result"]
            found[target.legend_format] = [(each["metric"], each["values"]) for each in result]
    return found


@contextlib.contextmanager
def run(folder: Path, plan: Callable[[float], dict[str, Any] | None]) -> Iterator[tuple[Prometheus, float, float]]:
    """Simulate traffic; gives the Prometheus server, the start time and the end time.

    The plan maps the seconds since the start to the arguments of `Replica.step`, or to None at the end.
    """
    replicas = {f"replica-{i}": Replica(folder / f"counts-{i}", i) for i in (1, 2)}
    with contextlib.ExitStack() as stack:
        urls = {name: stack.enter_context(serve(replica.folder)) for name, replica in replicas.items()}
        server = stack.enter_context(run_prometheus(folder / "prometheus", urls, speed_up_service_rules=True))
        # The first scrapes have no rows, and quantiles of no rows are NaN: the queries begin later.
        last = time.time()
        start = last + _LEAD_SECONDS
        while (arguments := plan(max(last - start, 0.0))) is not None:
            time.sleep(0.25)
            now = time.time()
            for replica in replicas.values():
                replica.step(now - last, **arguments)
            last = now
        yield server, start, last


def story(length: float) -> Callable[[float], dict[str, Any] | None]:
    """No drift for 40 % of the time, then 2 % unusual rows, from 70 % on 17 %; the store is unavailable once."""

    def plan(second: float) -> dict[str, Any] | None:
        at = second / length
        if at >= 1.0:
            return None
        return {"unusual": 0.0 if at < 0.4 else 0.02 if at < 0.7 else 0.17, "is_store_up": not 0.2 < at < 0.35}

    return plan
