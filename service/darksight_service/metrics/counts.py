"""Counters that a worker updates on every Score call, in metric files that the supervisor reads.

A call with one row updates ten numbers in 1.4 us; labelled metrics of prometheus_client take seven times as long. A
batch is counted with `bincount`. This module does not import prometheus_client: `exposition` adds up the files of all
workers and names the series.

Size is bounded: a file has a fixed length, classes beyond `MAX_CLASSES` share one counter, and there are at most
`max_models` files. Active and shadow versions have a file each: if there is none left, the oldest file of another
version is deleted and its series end. Versions without a file share one, shown as the model `_other`. Adding the counts
of a deleted file to it would look like a burst of traffic to every rate.

Several threads count into one file. `x += 1` on a shared cell is three steps of the interpreter, so a lock is held
around it (0.1 us). A reader takes no lock. Rows are counted before the outliers among them, so a concurrent reader may
miss outliers but never sees more outliers than rows.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.schema import Decision, Reason
from darksight_service.errors import MetricFileError
from darksight_service.metrics.files import SUFFIX, MetricFile, Sections, read
from darksight_service.metrics.processes import ProcessCounts

__all__ = [
    "BATCH_BUCKETS",
    "DENSITY_BUCKETS",
    "EXEMPLAR_LENGTH",
    "MAX_CLASSES",
    "OTHER",
    "P_VALUE_BINS",
    "SECONDS_BUCKETS",
    "Counts",
    "ModelCounts",
    "model_sections",
]

P_VALUE_BINS = 20
"""Bins (0, 1/20], (1/20, 2/20], ... of p-values; equally likely without drift."""

MAX_CLASSES = 100
"""Predicted classes with a counter of their own."""

OTHER = "_other"
"""Label of the classes and models beyond a limit."""

SECONDS_BUCKETS = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0)
"""Upper bounds of the buckets of seconds per call."""

BATCH_BUCKETS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)
"""Upper bounds of the buckets of rows per call."""

# On the maps of five public classifiers all rows lie between -20.4 and -2.3, with medians from -8.3 to -4.6.
DENSITY_BUCKETS = (
    *(-100.0, -50.0, -30.0, -24.0, -20.0, -18.0, -16.0, -15.0, -14.0, -13.0, -12.0, -11.0, -10.0, -9.0, -8.0),
    *(-7.5, -7.0, -6.5, -6.0, -5.5, -5.0, -4.5, -4.0, -3.5, -3.0, -2.0, -1.0, 0.0, 2.0),
)
"""Upper bounds of the buckets of log P(y; θ)."""

EXEMPLAR_LENGTH = 64
"""Characters of a prediction id that an exemplar keeps."""

TRACE_LENGTH = 16
"""Bytes of a trace id; all 0 without one."""

_REASONS = len(Reason) + 1
_TABLE = (len(Decision) + 1) * _REASONS
_OUTLIER = int(Reason.OUTLIER)
_EXEMPLAR_SECONDS = 1.0

_log = logging.getLogger("darksight.metrics")


def model_sections(classes: int) -> Sections:
    """Sections of the file of one model version: a counter per class, and one for all other classes."""
    return (
        ("decisions", _TABLE),
        ("shadow", _TABLE),
        ("p_values", P_VALUE_BINS),
        ("predicted", classes + 1),
        ("outliers", classes + 1),
        ("density", len(DENSITY_BUCKETS) + 1),
        ("seconds", len(SECONDS_BUCKETS) + 1),
        ("seconds_sum", 1),
        ("batch", len(BATCH_BUCKETS) + 1),
        ("batch_sum", 1),
        ("calibration_rows", 1),
        ("alpha", 1),
        ("rank", 1),
        ("rule_since", 1),
        ("exemplar_time", 1),
        ("exemplar_p", 1),
        ("exemplar_id", EXEMPLAR_LENGTH),
        ("exemplar_trace", TRACE_LENGTH),
    )


class ModelCounts:
    """Counters of one model version; created by `Counts.model`."""

    def __init__(self, path: Path, labels: dict[str, Any], *, classes: int, calibration_rows: int) -> None:
        self._classes = min(classes, MAX_CLASSES)
        sections = model_sections(self._classes)
        self.file = MetricFile(path, labels, sections)
        self._cells, self._array = self.file.cells, self.file.array
        self._lock = threading.Lock()
        self._parts = {
            name: self._array[start : start + length]
            for (name, length), start in zip(sections, self.file.offsets.values(), strict=True)
        }
        at = self.file.offsets
        # Offsets that every call needs: to unpack one tuple is cheaper than an attribute lookup each.
        names = ("p_values", "rank", "density", "predicted", "outliers")
        self._row = tuple(at[name] for name in names)
        self._call = (at["seconds"], at["seconds_sum"], at["batch"], at["batch_sum"])
        self._cells[at["calibration_rows"]] = float(calibration_rows)
        self._rank = self._cells[at["rank"]]
        # A list, because copies of this object for different outlier rules share the value.
        self._exemplar_due = [0.0]

    def observe(
        self,
        decision: NDArray[np.integer[Any]],
        reason: NDArray[np.integer[Any]],
        p_value: NDArray[np.floating[Any]],
        predicted: NDArray[np.integer[Any]],
        log_density: NDArray[np.floating[Any]],
        seconds: float,
        *,
        is_shadow: bool = False,
    ) -> bool:
        """Count one call of n rows, columns (n,); NaN and negative classes are skipped.

        A shadow version counts decisions only, so that it does not change the drift metrics of the active one. Returns
        whether one of the call's outliers should be passed to `remember_outlier`.
        """
        if len(decision) == 1 and not is_shadow:
            one = (p_value.item(), log_density.item(), predicted.item(), decision.item(), reason.item())
            return self.observe_one(*one, seconds)
        # Count first, so that the lock is held for the additions only.
        table = np.bincount(decision.astype(np.intp) * _REASONS + reason, minlength=_TABLE)
        if is_shadow:
            with self._lock:
                self._parts["shadow"][:] += table
            return False
        p_value, log_density = p_value[p_value == p_value], log_density[log_density == log_density]
        bins = np.bincount((p_value * P_VALUE_BINS - 1e-9).astype(np.intp), minlength=P_VALUE_BINS)
        edges = np.searchsorted(_DENSITY_EDGES, log_density)
        densities = np.bincount(edges, minlength=len(DENSITY_BUCKETS) + 1)
        labels = np.minimum(predicted, self._classes)
        is_outlier, is_known = reason == _OUTLIER, labels >= 0
        has_outliers = bool(is_outlier.any())
        classes = np.bincount(labels[is_known], minlength=self._classes + 1)
        if has_outliers:
            class_outliers = np.bincount(labels[is_known & is_outlier], minlength=self._classes + 1)
        cells = self._cells
        with self._lock:
            parts = self._parts
            parts["p_values"] += bins
            parts["decisions"] += table
            parts["density"] += densities
            parts["predicted"] += classes
            if has_outliers:
                parts["outliers"] += class_outliers
            times, time_sum, sizes, size_sum = self._call
            cells[times + bisect_left(SECONDS_BUCKETS, seconds)] += 1.0
            cells[time_sum] += seconds
            cells[sizes + bisect_left(BATCH_BUCKETS, len(decision))] += 1.0
            cells[size_sum] += len(decision)
        is_in_force = cells[self._row[1]] == self._rank
        return has_outliers and is_in_force and time.monotonic() >= self._exemplar_due[0]

    def observe_one(self, p: float, density: float, label: int, decision: int, why: int, seconds: float) -> bool:
        """Count a call of one row; returns what `observe` returns.

        This is the most frequent call. Without loops and inner calls it takes half the time.

        Parameters
        ----------
        p, density, label
            p-value, log density and predicted class.
        decision, why
            Decision and reason of the gate.
        seconds
            Duration of the call.
        """
        cell = decision * _REASONS + why
        p_values, rank, densities, classes, class_outliers = self._row
        times, time_sum, sizes, size_sum = self._call
        cells = self._cells
        with self._lock:
            if p == p:
                # (0, 1/20] is bin 0: bins include their upper edge, as the outlier rule p <= alpha does.
                cells[p_values + int(p * P_VALUE_BINS - 1e-9)] += 1.0
            cells[cell] += 1.0
            if density == density:
                cells[densities + bisect_left(DENSITY_BUCKETS, density)] += 1.0
            if label >= 0:
                label = label if label < self._classes else self._classes
                cells[classes + label] += 1.0
                if why == _OUTLIER:
                    cells[class_outliers + label] += 1.0
            cells[times + bisect_left(SECONDS_BUCKETS, seconds)] += 1.0
            cells[time_sum] += seconds
            # A call of one row falls into the first bucket.
            cells[sizes] += 1.0
            cells[size_sum] += 1.0
        return why == _OUTLIER and cells[rank] == self._rank and time.monotonic() >= self._exemplar_due[0]

    def set_rule(self, alpha: float, rank: int) -> ModelCounts:
        """Set the outlier rule p-value <= rank / (n + 1), or 0 and 0 for none; returns the counters for calls under it.

        The exemplar is an outlier of this rule, so it is reset when the rule changes.
        """
        at = self.file.offsets
        with self._lock:
            if (self._cells[at["alpha"]], self._cells[at["rank"]]) != (float(alpha), float(rank)):
                self._cells[at["exemplar_time"]] = self._exemplar_due[0] = 0.0
                self._cells[at["alpha"]], self._cells[at["rank"]] = float(alpha), float(rank)
                self._cells[at["rule_since"]] = time.time()
            self._rank = float(rank)
        return copy.copy(self)

    def remember_outlier(self, prediction_id: str, p_value: float, trace: bytes = b"") -> None:
        """Keep the id and the trace of a counted outlier as the exemplar of its counter; at most one per second."""
        at, text, now = self.file.offsets, prediction_id[:EXEMPLAR_LENGTH], time.monotonic()
        with self._lock:
            # Another thread may have stored one since the call was counted, or the rule may have changed.
            if now < self._exemplar_due[0] or self._cells[at["rank"]] != self._rank:
                return
            self._exemplar_due[0] = now + _EXEMPLAR_SECONDS
            self._parts["exemplar_id"][:] = [*map(ord, text), *[0] * (EXEMPLAR_LENGTH - len(text))]
            self._parts["exemplar_trace"][:] = [*trace] or [0] * TRACE_LENGTH
            self._cells[at["exemplar_p"]] = float(p_value)
            self._cells[at["exemplar_time"]] = time.time()


_DENSITY_EDGES = np.array(DENSITY_BUCKETS)


class Counts:
    """All counters of one worker.

    Parameters
    ----------
    folder
        Directory of the metric files.
    worker
        Number of the worker; a restarted worker with the same number continues with the same files.
    max_models
        Maximum number of versions with a file each; the others share one.
    """

    def __init__(self, folder: Path, worker: int, *, max_models: int = 64) -> None:
        self.folder, self.worker, self.max_models = Path(folder), worker, max_models
        self.process = ProcessCounts(self.folder, worker)
        self._models: dict[tuple[str, str], ModelCounts] = {}
        self._other: ModelCounts | None = None
        self._reserved: Collection[tuple[str, str]] = ()
        self._lock = threading.Lock()

    def reserve(self, versions: Collection[tuple[str, str]]) -> None:
        """Name the active and shadow versions, by model and version: they get a file before all others."""
        self._reserved = versions

    def known_models(self) -> set[str]:
        """Names of the models that this worker has counted, in this process or an earlier one."""
        names = set()
        for path in self.folder.glob(f"model-{self.worker}-*{SUFFIX}"):
            with contextlib.suppress(MetricFileError):
                names.add(str(read(path).labels["model"]))
        return names

    def model(
        self, model: str, version: str, *, classes: int, calibration_rows: int, class_names: Sequence[str] = ()
    ) -> ModelCounts:
        """Counters of a version, continued from an earlier process; call once per version, not per request.

        Parameters
        ----------
        model, version
            Name and full sha256; metrics show the first 12 digits.
        classes
            Number of classes.
        calibration_rows
            Calibration rows of the bundle.
        class_names
            Shown instead of class numbers, if all are different.
        """
        with self._lock:
            known = self._models.get((model, version))
            if known is not None:
                return known
            if len(self._models) >= self.max_models and not self._free_a_file(model, version):
                if self._other is None:
                    self._other = self._open(OTHER, OTHER, 0, 0, ())
                return self._other
            counts = self._open(model, version, classes, calibration_rows, class_names)
            self._models[model, version] = counts
            self._evict()
            return counts

    def _free_a_file(self, model: str, version: str) -> bool:
        """Delete the oldest file of a version that is not reserved, for one that is; whether there was one."""
        if (model, version) not in self._reserved:
            return False
        retired = next((key for key in self._models if key not in self._reserved), None)
        if retired is None:
            self.process.add("models_refused")
            _log.error("version_without_metrics", extra={"model": model, "version": version, "limit": self.max_models})
            return False
        # Calls in flight still write to the mapping, so it is not closed.
        self._models.pop(retired).file.path.unlink(missing_ok=True)
        return True

    def _open(
        self, model: str, version: str, classes: int, calibration_rows: int, class_names: Sequence[str]
    ) -> ModelCounts:
        shown = [name[:64] for name in class_names[:MAX_CLASSES]]
        if len(shown) != min(classes, MAX_CLASSES) or len({*shown, OTHER}) <= len(shown):
            shown = [str(index) for index in range(min(classes, MAX_CLASSES))]
        labels = {"kind": "model", "worker": self.worker, "model": model, "version": version}
        labels |= {"classes": classes, "class_names": shown}
        digest = hashlib.blake2b(f"{model}\0{version}".encode(), digest_size=10).hexdigest()
        path = self.folder / f"model-{self.worker}-{digest}{SUFFIX}"
        counts = ModelCounts(path, labels, classes=classes, calibration_rows=calibration_rows)
        self.process.add("metric_files_replaced", float(counts.file.was_replaced))
        return counts

    def _evict(self) -> None:
        """Delete the oldest files of versions that are no longer served, down to the limit."""
        keep = {counts.file.path for counts in self._models.values()}
        stale = [path for path in self.folder.glob(f"model-{self.worker}-*{SUFFIX}") if path not in keep]
        excess = len(stale) + len(keep) - self.max_models
        for path in sorted(stale, key=lambda path: path.stat().st_mtime)[: max(excess, 0)]:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmap the files; they keep their numbers."""
        opened = [*self._models.values(), *([self._other] if self._other else [])]
        for file in (self.process.file, *(counts.file for counts in opened)):
            file.close()
