"""Numbers of processes that are sections of metric files by themselves: calls, refusals, spool, drain, drift, restarts.

The catalogue names the sections. A restarted process continues the counters of its predecessor; its gauges start at 0.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from darksight_core.drift.detector import Evidence
from darksight_service.errors import MetricFileError
from darksight_service.metrics.catalogue import DRIFT_KINDS, GRPC_CODES, METRICS, VERDICTS
from darksight_service.metrics.files import SUFFIX, MetricFile, list_files, read

__all__ = ["ProcessCounts", "SpoolNumbers", "StorageCounts", "SupervisorCounts", "clear_gauges"]


class SpoolNumbers(Protocol):
    """State of a spool; counters are since its start."""

    @property
    def bytes(self) -> int: ...  # noqa: D102
    @property
    def oldest_seconds(self) -> float: ...  # noqa: D102
    @property
    def appended(self) -> int: ...  # noqa: D102
    @property
    def dropped(self) -> int: ...  # noqa: D102
    @property
    def errors(self) -> int: ...  # noqa: D102


_UNKNOWN = GRPC_CODES.index("UNKNOWN")
_MAX_SEGMENTS = 200


class _Cells:
    """The sections of one kind of metric file, updated under a lock; gauges are 0 at the start."""

    def __init__(self, path: Path, kind: str, **labels: Any) -> None:
        metrics = {metric.section: metric for metric in METRICS if metric.file == kind}
        self._values = {name: metric.values for name, metric in metrics.items()}
        sections = [(name, len(values) or 1) for name, values in self._values.items()]
        self.file = MetricFile(path, {"kind": kind, **labels}, sections)
        self._cells, self._at, self._lock = self.file.cells, self.file.offsets, threading.Lock()
        self._seen: dict[tuple[str, str], float] = {}
        for name, metric in metrics.items():
            if metric.kind == "gauge":
                self.set(name, 0.0)

    def add(self, section: str, amount: float = 1.0, *, value: str = "") -> None:
        """Increase a counter, of one value of its label if it has one."""
        with self._lock:
            self._cells[self._at[section] + (self._values[section].index(value) if value else 0)] += amount

    def set(self, section: str, value: float) -> None:
        """Set a gauge."""
        self._cells[self._at[section]] = value

    def follow(self, section: str, total: float, *, value: str = "") -> None:
        """Increase a counter by the growth of `total` since the last call; `total` starts at 0."""
        growth = total - self._seen.get((section, value), 0.0)
        self._seen[section, value] = total
        self.add(section, max(growth, 0.0), value=value)


class ProcessCounts(_Cells):
    """Counters of one worker process."""

    def __init__(self, folder: Path, worker: int) -> None:
        super().__init__(folder / f"process-{worker}{SUFFIX}", "process", worker=worker)
        self.set("workers", 1.0)
        self.add("worker_starts")
        self.add("metric_files_replaced", float(self.file.was_replaced))
        names = ("calls_in_flight", "calls", "call_results")
        self._in_flight, self._calls, self._codes = (self._at[name] for name in names)

    def start_call(self) -> None:
        """A call started."""
        with self._lock:
            self._cells[self._in_flight] += 1.0
            self._cells[self._calls] += 1.0

    def end_call(self, code: int = 0) -> None:
        """A call ended with this gRPC status code."""
        with self._lock:
            self._cells[self._in_flight] -= 1.0
            self._cells[self._codes + (code if 0 <= code < len(GRPC_CODES) else _UNKNOWN)] += 1.0

    def refuse_overload(self) -> None:
        """A call was refused because of too many concurrent calls."""
        self.add("overload")

    def refuse_caller(self, kind: str) -> None:
        """A caller was refused; `kind` is one of `AUTH_FAILURES`."""
        self.add("auth_failures", value=kind)

    def end_event(self, result: str) -> None:
        """An event of an inference logger was handled; `result` is one of `EVENT_RESULTS`."""
        self.add("events", value=result)

    def report_outcomes(self, rows: int) -> None:
        """A number of outcomes were reported."""
        self.add("outcomes", rows)

    def set_spool(self, stats: SpoolNumbers, *, limit_bytes: int) -> None:
        """Publish the state of the spool."""
        self.set("spool_bytes", stats.bytes)
        self.set("spool_used_ratio", stats.bytes / max(limit_bytes, 1))
        self.set("spool_oldest_seconds", stats.oldest_seconds)
        self.follow("spool_appended", stats.appended)
        self.follow("spool_dropped", stats.dropped)
        self.follow("spool_errors", stats.errors)


class StorageCounts(_Cells):
    """Counters of the storage worker, and what it reads from the store: drift, accuracy and segments of versions.

    The latter are gauges in a metric file for each version or segment, which is deleted at the end of its series. A
    number that is NaN has no series.
    """

    def __init__(self, folder: Path, *, max_models: int = 64) -> None:
        self._folder, self._max_models = Path(folder), max_models
        super().__init__(self._folder / f"storage{SUFFIX}", "storage")
        self.add("storage_starts")
        self._files: dict[str, dict[tuple[str, ...], _Cells]] = {"live": {}, "drift": {}, "figures": {}, "segment": {}}
        for kind in self._files:
            for path in self._folder.glob(f"{kind}-*{SUFFIX}"):
                path.unlink(missing_ok=True)

    def set_drain(self, *, lag_seconds: float, is_store_up: bool) -> None:
        """Age of the oldest record that is not in the store yet, and whether the last store operation succeeded."""
        self.set("drain_lag_seconds", lag_seconds)
        self.set("store_up", float(is_store_up))

    def set_accuracy(
        self,
        model: str,
        version: str,
        *,
        accepted_labelled: int,
        accepted_correct: int,
        rejected_labelled: int,
        rejected_correct: int,
        target_accuracy: float = 0.0,
    ) -> None:
        """Rows with a known outcome in the storage worker's window, and the certified accuracy (0 for none)."""
        self._publish(
            "live",
            (model, version),
            live_labelled_rows=(accepted_labelled, rejected_labelled),
            live_correct_rows=(accepted_correct, rejected_correct),
            certified_accuracy=(target_accuracy or math.nan,),
        )

    def set_drift(self, model: str, version: str, evidence: Mapping[str, Evidence]) -> None:
        """Drift evidence by kind of the rows that were stored."""
        kinds = [evidence.get(name, Evidence(0.0)) for name in DRIFT_KINDS]
        self._publish(
            "drift",
            (model, version),
            drift_tested_rows=(max(each.rows for each in kinds),),
            drift_log_evidence=[each.log_evidence for each in kinds],
            drift_restarting_log_evidence=[each.log_restarting for each in kinds],
        )

    def set_figures(self, model: str, version: str, window: Mapping[str, Any] | None, audit: Mapping[str, Any]) -> None:
        """Verdict and accuracy of a version: the JSON values of a `WindowReport` and of an `AuditReport`.

        Before the first rows there is no verdict, and nothing to withhold.
        """
        estimate = {} if window is None else window["accuracy"]
        verdict = [math.nan if window is None else float(each == window["verdict"]) for each in VERDICTS]
        self._publish(
            "figures",
            (model, version),
            drift_verdict=verdict,
            accuracy_withheld=(math.nan if window is None else float(estimate["estimate"] is None),),
            accuracy_estimate=[estimate.get(name) for name in ("estimate", "low", "high")],
            audit_accuracy=[audit[name] for name in ("accuracy", "low", "high")],
            audit_labels=(audit["labels"],),
            audit_labels_needed=(audit["labels_needed"],),
            certificate_log_evidence=(audit["log_evidence"],),
        )

    def set_segments(self, found: Mapping[tuple[str, str, str], tuple[float, bool, bool]]) -> None:
        """Publish segments by model, version and name: log evidence, whether found, and whether it explains a drift.

        Others are deleted. Of each version the first `_MAX_SEGMENTS` are published.
        """
        number: dict[tuple[str, str], int] = {}
        shown = {}
        for key, numbers in found.items():
            number[key[:2]] = number.get(key[:2], 0) + 1
            if number[key[:2]] <= _MAX_SEGMENTS:
                shown[key] = numbers
        self._drop("segment", shown)
        for key, (evidence, is_found, explains) in shown.items():
            self._publish(
                "segment",
                key,
                segment_log_evidence=(evidence,),
                segment_found=(is_found,),
                segment_explains=(explains,),
            )

    def drop_drift(self, keep: Collection[tuple[str, str]]) -> None:
        """Delete the drift evidence of all versions but those to keep, given by model and version."""
        self._drop("drift", keep)

    def drop_accuracy(self, keep: Collection[tuple[str, str]]) -> None:
        """Delete accuracy and verdict of all versions but those to keep, given by model and version."""
        self._drop("live", keep)
        self._drop("figures", keep)

    def close(self) -> None:
        """Unmap the files; they keep their numbers."""
        for cells in (self, *(each for files in self._files.values() for each in files.values())):
            cells.file.close()

    def _publish(self, kind: str, key: tuple[str, ...], **sections: Sequence[float | None]) -> None:
        """Set all numbers of the file of a version or segment; without effect beyond the limit of versions."""
        files = self._files[kind]
        if key not in files:
            if kind != "segment" and len(files) >= self._max_models:
                return
            digest = hashlib.blake2b("\0".join(key).encode(), digest_size=10).hexdigest()
            labels = dict(zip(("model", "version", "segment"), key, strict=False))
            files[key] = _Cells(self._folder / f"{kind}-{digest}{SUFFIX}", kind, **labels)
        file = files[key].file
        file.array[:] = np.concatenate([np.array(sections[name], dtype=np.float64) for name in file.offsets])

    def _drop(self, kind: str, keep: Collection[tuple[str, ...]]) -> None:
        files = self._files[kind]
        for key in files.keys() - set(keep):
            file = files.pop(key).file
            file.path.unlink(missing_ok=True)
            file.close()


class SupervisorCounts(_Cells):
    """What the supervisor sees of its children: `ready`, and `hung_processes`, those killed as hung."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / f"supervisor{SUFFIX}", "supervisor")


def clear_gauges(folder: Path) -> None:
    """Set the gauges of all workers to 0, before the supervisor starts workers, perhaps fewer than before."""
    for path in list_files(folder):
        try:
            labels = dict(read(path).labels)
        except MetricFileError:
            continue
        if labels.pop("kind") == "process":
            _Cells(path, "process", **labels).file.close()
