"""Counters of processes that do not depend on the model: calls, refusals, spool, drain, restarts.

A restarted process continues the counters of its predecessor; its gauges start at 0.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from darksight_service.errors import MetricFileError
from darksight_service.metrics.files import SUFFIX, MetricFile, Sections, list_files, read

__all__ = [
    "AUTH_FAILURES",
    "BOUNDS",
    "DRIFT_KINDS",
    "EVENT_RESULTS",
    "GRPC_CODES",
    "VERDICTS",
    "DriftNumbers",
    "EvidenceNumbers",
    "ProcessCounts",
    "SpoolNumbers",
    "StorageCounts",
    "SupervisorCounts",
    "clear_gauges",
]

GRPC_CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""Names of the gRPC status codes, by number."""

AUTH_FAILURES = ("missing", "invalid", "expired", "forbidden")
"""Why a caller was refused: no token, unknown token, expired token, token without the scope."""


EVENT_RESULTS = ("scored", "unjoined", "request", "refused")
"""What became of an event of an inference logger: scored and recorded, the same without the tags of its request, of a
request, or refused."""


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


class DriftNumbers(Protocol):
    """Drift evidence of a version; see `darksight_core.drift.stream.DriftState`."""

    @property
    def rows(self) -> int: ...  # noqa: D102
    @property
    def kinds(self) -> Mapping[str, EvidenceNumbers]: ...  # noqa: D102


class EvidenceNumbers(Protocol):
    """Evidence of one kind."""

    @property
    def log_evidence(self) -> float: ...  # noqa: D102
    @property
    def log_restarting(self) -> float: ...  # noqa: D102


_Key = TypeVar("_Key", bound=tuple[str, ...])

_UNKNOWN = GRPC_CODES.index("UNKNOWN")
_PROCESS_GAUGES = (
    "in_flight",
    "spool_bytes",
    "spool_limit_bytes",
    "spool_oldest_seconds",
    "started_at",
    "versions_not_loaded",
    "token_file_errors",
)
_PROCESS_SECTIONS: Sections = (
    *((name, 1) for name in _PROCESS_GAUGES),
    ("calls", 1),
    ("overload", 1),
    ("starts", 1),
    ("outcomes", 1),
    ("spool_appended", 1),
    ("spool_dropped", 1),
    ("spool_errors", 1),
    ("files_replaced", 1),
    ("models_refused", 1),
    ("codes", len(GRPC_CODES)),
    ("auth", len(AUTH_FAILURES)),
    ("events", len(EVENT_RESULTS)),
)


class _Cells:
    """Named numbers of a metric file, updated under a lock."""

    def __init__(self, path: Path, labels: dict[str, Any], sections: Sections) -> None:
        self.file = MetricFile(path, labels, sections)
        self._cells, self._at, self._lock = self.file.cells, self.file.offsets, threading.Lock()
        self._seen: dict[str, float] = {}

    def add(self, section: str, amount: float = 1.0, *, index: int = 0) -> None:
        """Increase a counter."""
        with self._lock:
            self._cells[self._at[section] + index] += amount

    def set(self, section: str, value: float) -> None:
        """Set a gauge."""
        self._cells[self._at[section]] = value

    def follow(self, section: str, total: float) -> None:
        """Increase a counter by the growth of `total` since the last call; `total` starts at 0."""
        with self._lock:
            self._cells[self._at[section]] += max(total - self._seen.get(section, 0.0), 0.0)
            self._seen[section] = total


class ProcessCounts(_Cells):
    """Counters of one worker process."""

    def __init__(self, folder: Path, worker: int) -> None:
        path = folder / f"process-{worker}{SUFFIX}"
        super().__init__(path, {"kind": "process", "worker": worker}, _PROCESS_SECTIONS)
        # Gauges of the previous process are out of date.
        for name in _PROCESS_GAUGES:
            self.set(name, 0.0)
        self.set("started_at", time.time())
        self.add("starts")
        self.add("files_replaced", float(self.file.was_replaced))
        self._in_flight, self._calls, self._codes = (self._at[name] for name in ("in_flight", "calls", "codes"))

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
        self.add("auth", index=AUTH_FAILURES.index(kind))

    def end_event(self, result: str) -> None:
        """An event of an inference logger was handled; `result` is one of `EVENT_RESULTS`."""
        self.add("events", index=EVENT_RESULTS.index(result))

    def report_outcomes(self, rows: int) -> None:
        """A number of outcomes were reported."""
        self.add("outcomes", rows)

    def set_spool(self, stats: SpoolNumbers, *, limit_bytes: int) -> None:
        """Publish the state of the spool."""
        self.set("spool_bytes", stats.bytes)
        self.set("spool_limit_bytes", limit_bytes)
        self.set("spool_oldest_seconds", stats.oldest_seconds)
        self.follow("spool_appended", stats.appended)
        self.follow("spool_dropped", stats.dropped)
        self.follow("spool_errors", stats.errors)


_STORAGE_SECTIONS: Sections = (
    ("drain_lag_seconds", 1),
    ("store_up", 1),
    ("inserted", 1),
    ("duplicates", 1),
    ("quarantined", 1),
    ("store_errors", 1),
    ("pruned", 1),
    ("starts", 1),
    ("state_rebuilds", 1),
    ("audit_trail_broken", 1),
    ("clock_offset_seconds", 1),
    ("tag_values_dropped", 1),
)
_SUPERVISOR_SECTIONS: Sections = (("ready", 1), ("hung", 1))
_LIVE_SECTIONS: Sections = (
    ("accepted_labelled", 1),
    ("accepted_correct", 1),
    ("rejected_labelled", 1),
    ("rejected_correct", 1),
    ("target_accuracy", 1),
)
DRIFT_KINDS = ("scores", "confidence", "classes")
"""Kinds of drift evidence, as in `darksight_core.drift.stream`."""

_DRIFT_SECTIONS: Sections = (
    ("drift_rows", 1),
    ("log_evidence", len(DRIFT_KINDS)),
    ("log_restarting", len(DRIFT_KINDS)),
)
VERDICTS = ("none", "class_mix", "new_content", "less_sure", "surer")
"""Kinds of drift, as in `darksight_core.drift.verdict`."""

BOUNDS = ("value", "low", "high")
"""An accuracy and its interval."""

# An accuracy that is not known is negative.
_FIGURES_SECTIONS: Sections = (
    ("verdict", len(VERDICTS)),
    ("estimate", len(BOUNDS)),
    ("audit_accuracy", len(BOUNDS)),
    ("audit_labels", 1),
    ("audit_labels_needed", 1),
    ("certificate_log_evidence", 1),
)
_UNKNOWN_ACCURACY = -1.0
_SEGMENT_SECTIONS: Sections = (("segment_log_evidence", 1), ("segment_found", 1), ("segment_explains", 1))
_MAX_SEGMENTS = 200


class StorageCounts(_Cells):
    """Counters of the storage worker, and what it reads from the store: drift and live accuracy.

    `add` and `follow` increase the counters inserted, duplicates, quarantined, store_errors, pruned and
    tag_values_dropped.
    """

    def __init__(self, folder: Path, *, max_models: int = 64) -> None:
        self._folder, self._max_models = Path(folder), max_models
        super().__init__(self._folder / f"storage{SUFFIX}", {"kind": "storage"}, _STORAGE_SECTIONS)
        self.set("drain_lag_seconds", 0.0)
        self.set("store_up", 0.0)
        self.set("clock_offset_seconds", 0.0)
        self.add("starts")
        self._live: dict[tuple[str, str], MetricFile] = {}
        self._drift: dict[tuple[str, str], MetricFile] = {}
        self._figures: dict[tuple[str, str], MetricFile] = {}
        self._segments: dict[tuple[str, str, str], MetricFile] = {}
        for kind in ("live", "drift", "figures", "segment"):
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
        file = self._file(self._live, "live", model, version, _LIVE_SECTIONS)
        if file is not None:
            file.array[:] = (accepted_labelled, accepted_correct, rejected_labelled, rejected_correct, target_accuracy)

    def set_drift(self, model: str, version: str, state: DriftNumbers) -> None:
        """Drift evidence of the rows that were stored."""
        file = self._file(self._drift, "drift", model, version, _DRIFT_SECTIONS)
        if file is not None:
            kinds = [state.kinds[name] for name in DRIFT_KINDS]
            evidence, restarting = [each.log_evidence for each in kinds], [each.log_restarting for each in kinds]
            file.array[:] = (state.rows, *evidence, *restarting)

    def set_figures(self, model: str, version: str, window: Mapping[str, Any] | None, audit: Mapping[str, Any]) -> None:
        """Verdict and accuracy of a version: the JSON values of a `WindowReport` and of an `AuditReport`."""
        file = self._file(self._figures, "figures", model, version, _FIGURES_SECTIONS)
        if file is None:
            return
        verdict = [0.0] * len(VERDICTS)
        estimate = {"estimate": None, "low": None, "high": None}
        if window is not None:
            verdict[VERDICTS.index(window["verdict"])] = 1.0
            estimate = window["accuracy"]
        accuracies = [estimate[name] for name in ("estimate", "low", "high")]
        accuracies += [audit[name] for name in ("accuracy", "low", "high")]
        known = [_UNKNOWN_ACCURACY if each is None else each for each in accuracies]
        file.array[:] = (*verdict, *known, audit["labels"], audit["labels_needed"], audit["log_evidence"])

    def set_segments(self, found: Mapping[tuple[str, str, str], tuple[float, bool, bool]]) -> None:
        """Publish segments by model, version and name: log evidence, whether found, and whether it explains a drift.

        Others are deleted. Of each version the first `_MAX_SEGMENTS` are published.
        """
        kept: dict[tuple[str, str], int] = {}
        shown = {}
        for key, numbers in found.items():
            kept[key[:2]] = kept.get(key[:2], 0) + 1
            if kept[key[:2]] <= _MAX_SEGMENTS:
                shown[key] = numbers
        _drop(self._segments, shown)
        for key, numbers in shown.items():
            if key not in self._segments:
                model, version, segment = key
                digest = hashlib.blake2b("\0".join(key).encode(), digest_size=10).hexdigest()
                labels = {"kind": "segment", "model": model, "version": version, "segment": segment}
                path = self._folder / f"segment-{digest}{SUFFIX}"
                self._segments[key] = MetricFile(path, labels, _SEGMENT_SECTIONS)
            self._segments[key].array[:] = numbers

    def drop_drift(self, keep: Collection[tuple[str, str]]) -> None:
        """Delete the drift evidence of all versions but those to keep, given by model and version."""
        _drop(self._drift, keep)

    def _file(
        self, files: dict[tuple[str, str], MetricFile], kind: str, model: str, version: str, sections: Sections
    ) -> MetricFile | None:
        """The file of a version; None beyond the limit."""
        if (model, version) not in files and len(files) < self._max_models:
            digest = hashlib.blake2b(f"{model}\0{version}".encode(), digest_size=10).hexdigest()
            labels = {"kind": kind, "model": model, "version": version}
            files[model, version] = MetricFile(self._folder / f"{kind}-{digest}{SUFFIX}", labels, sections)
        return files.get((model, version))

    def drop_accuracy(self, keep: Collection[tuple[str, str]]) -> None:
        """Delete accuracy and verdict of all versions but those to keep, given by model and version."""
        _drop(self._live, keep)
        _drop(self._figures, keep)

    def close(self) -> None:
        """Unmap the files; they keep their numbers."""
        parts = (self._live, self._drift, self._figures, self._segments)
        for file in (self.file, *(each for part in parts for each in part.values())):
            file.close()


class SupervisorCounts(_Cells):
    """What the supervisor sees of its children: `ready`, and `hung`, the number of children killed as hung."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / f"supervisor{SUFFIX}", {"kind": "supervisor"}, _SUPERVISOR_SECTIONS)
        self.set("ready", 0.0)


def _drop(files: dict[_Key, MetricFile], keep: Collection[_Key]) -> None:
    for key in files.keys() - set(keep):
        file = files.pop(key)
        file.path.unlink(missing_ok=True)
        file.close()


def clear_gauges(folder: Path) -> None:
    """Set the gauges of all workers to 0, before the supervisor starts workers, perhaps fewer than before."""
    for path in list_files(folder):
        try:
            snapshot = read(path)
        except MetricFileError:
            continue
        if snapshot.labels["kind"] != "process":
            continue
        file = MetricFile(path, snapshot.labels, [(name, len(part)) for name, part in snapshot.sections.items()])
        for name in set(_PROCESS_GAUGES) & set(file.offsets):
            file.cells[file.offsets[name]] = 0.0
        file.close()
