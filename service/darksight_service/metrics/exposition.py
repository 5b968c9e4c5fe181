"""The metric files of all processes as a page for Prometheus.

Files are read at each scrape, added up over workers and named after the catalogue. Every series of a bundle is on the
page from the first scrape, at 0: a series that appears later would have no increase up to its first value, which biases
sums over bins.

Only the supervisor does this, so restarted workers cause neither gaps nor resets.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from prometheus_client.core import Exemplar
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from darksight_core import __version__
from darksight_core.guarantees.binomial import upper_bound
from darksight_core.rows.schema import Decision, Reason
from darksight_service.errors import MetricFileError
from darksight_service.metrics.catalogue import METRICS, Metric
from darksight_service.metrics.counts import (
    BATCH_BUCKETS,
    DENSITY_BUCKETS,
    MAX_CLASSES,
    OTHER,
    P_VALUE_BINS,
    SECONDS_BUCKETS,
    model_sections,
)
from darksight_service.metrics.files import Snapshot, list_files, read
from darksight_service.metrics.instance import ProcessesCollector, certificate_expiry

__all__ = ["CountsCollector", "make_registry", "render"]

# Share of calibration sets whose outlier rate exceeds the bound.
_RATE_BOUND_LEVEL = 0.0025
_REASONS = len(Reason) + 1
_DECISIONS = [
    (int(decision) * _REASONS + int(reason), {"decision": decision.name.lower(), "reason": reason.name.lower()})
    for decision in Decision
    for reason in Reason
]
_FAIL_OPEN = int(Decision.ACCEPT) * _REASONS + int(Reason.UNSCORED)
_OUTLIER = int(Decision.REJECT) * _REASONS + int(Reason.OUTLIER)

_RULE = ("calibration_rows", "alpha", "rank", "rule_since")
_EXEMPLAR = ("exemplar_time", "exemplar_p", "exemplar_id", "exemplar_trace")


def render(
    folder: Path, accept: str = "", processes: Mapping[str, int] | None = None, certificate: Path | None = None
) -> tuple[bytes, str]:
    """The page and its content type, in the format that the `Accept` header asks for (OpenMetrics or plain text).

    Parameters
    ----------
    folder
        Directory of the metric files.
    accept
        Header of the request.
    processes
        Ids of the processes of the instance, by name.
    certificate
        Certificate chain of the instance, PEM.
    """
    encode, content_type = choose_encoder(accept)
    return encode(make_registry(folder, processes, certificate)), content_type


def make_registry(
    folder: Path, processes: Mapping[str, int] | None = None, certificate: Path | None = None
) -> CollectorRegistry:
    """A registry that collects from a directory of metric files; the parameters are those of `render`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(CountsCollector(folder, certificate))
    registry.register(ProcessesCollector(processes or {}))
    return registry


class CountsCollector(Collector):
    """Merges the metric files of a directory at each scrape."""

    def __init__(self, folder: Path, certificate: Path | None = None) -> None:
        self._folder = folder
        self._certificate = certificate

    def collect(self) -> Iterable[Family]:
        """All families of the catalogue, in its order."""
        page = _Page()
        models: list[Snapshot] = []
        others: dict[str, list[Snapshot]] = {"process": [], "storage": [], "supervisor": []}
        unreadable = 0
        for path in list_files(self._folder):
            try:
                snapshot = _of_this_release(read(path))
            except MetricFileError:
                unreadable += 1
                continue
            if snapshot.labels["kind"] == "model":
                models.append(snapshot)
            else:
                others.setdefault(snapshot.labels["kind"], []).append(snapshot)
        for merged in _merge(models):
            _add_model(page, merged)
        for metric in METRICS:
            if metric.file in ("process", "storage", "supervisor"):
                _add_merged(page, metric, others[metric.file])
            else:
                for snapshot in others.get(metric.file, ()):
                    page.add_values(metric, snapshot.sections[metric.section], _key(snapshot))
        page.add("darksight_metric_files_unreadable", unreadable)
        expiry = None if self._certificate is None else certificate_expiry(self._certificate)
        if expiry is not None:
            page.add("darksight_certificate_expiration_timestamp_seconds", expiry)
        page.add("darksight_build_info", 1.0, {"version": __version__, "python": platform.python_version()})
        return page.families.values()


class _Page:
    """Families by name, all empty at first."""

    def __init__(self) -> None:
        endings = {"counter": "_total", "info": "_info"}
        self.families = {
            metric.name: Family(metric.name.removesuffix(endings.get(metric.kind, "")), metric.help, metric.kind)
            for metric in METRICS
        }

    def add(
        self, name: str, value: float, labels: Mapping[str, str] | None = None, exemplar: Exemplar | None = None
    ) -> None:
        self.families[name].add_sample(name, {} if labels is None else dict(labels), float(value), exemplar=exemplar)

    def add_values(self, metric: Metric, numbers: NDArray[np.float64], labels: Mapping[str, str] | None = None) -> None:
        """Add the numbers of a section; NaN has no series."""
        labels = {} if labels is None else labels
        values = [{metric.labels[-1]: value} for value in metric.values] or [{}]
        for value, number in zip(values, numbers.tolist(), strict=True):
            if number == number:
                self.add(metric.name, number, {**labels, **value})

    def add_histogram(
        self,
        name: str,
        labels: Mapping[str, str],
        bounds: Sequence[float],
        counts: NDArray[np.float64],
        total: float | None = None,
    ) -> None:
        family, cumulative = self.families[name], np.cumsum(counts).tolist()
        for bound, number in zip((*(str(float(each)) for each in bounds), "+Inf"), cumulative, strict=True):
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, number)
        if total is not None:
            family.add_sample(f"{name}_count", {**labels}, cumulative[-1])
            family.add_sample(f"{name}_sum", {**labels}, total)


def _key(snapshot: Snapshot) -> dict[str, str]:
    """Labels of a version or segment; metrics show the first 12 digits of the sha256 of a version."""
    labels = {name: snapshot.labels[name] for name in ("model", "version", "segment") if name in snapshot.labels}
    return {**labels, "version": labels["version"][:12]}


def _of_this_release(snapshot: Snapshot) -> Snapshot:
    """A snapshot with the sections of this release: a process of the one before may have written the file.

    A section that it lacks, or that has another length, counts 0; a gauge that the storage worker reads has no series.
    """
    labels, found = snapshot.labels, snapshot.sections
    kind, is_model = labels["kind"], labels["kind"] == "model"
    wanted = [(each.section, len(each.values) or 1) for each in METRICS if each.file == kind]
    sections = model_sections(min(labels["classes"], MAX_CLASSES)) if is_model else wanted
    missing = 0.0 if is_model or kind in ("process", "storage", "supervisor") else np.nan
    return Snapshot(
        labels,
        {
            name: found[name] if name in found and len(found[name]) == length else np.full(length, missing)
            for name, length in sections
        },
    )


def _merge(snapshots: Sequence[Snapshot]) -> Iterator[Snapshot]:
    """One snapshot per version, added up over workers."""
    groups: dict[tuple[object, ...], list[Snapshot]] = {}
    for snapshot in snapshots:
        groups.setdefault((*_key(snapshot).values(), snapshot.labels["classes"]), []).append(snapshot)
    for group in groups.values():
        sections = {name: np.sum([each.sections[name] for each in group], axis=0) for name in group[0].sections}
        latest = max(group, key=lambda each: each.number("rule_since"))
        sections |= {name: latest.sections[name] for name in _RULE}
        # A worker that has not yet loaded a new rule has outliers of the old one.
        current = [each for each in group if each.number("rank") == latest.number("rank")]
        newest = max(current, key=lambda each: each.number("exemplar_time"))
        sections |= {name: newest.sections[name] for name in _EXEMPLAR}
        yield Snapshot(group[0].labels, sections)


def _add_model(page: _Page, merged: Snapshot) -> None:
    labels, sections, key = merged.labels, merged.sections, _key(merged)
    exemplar = _exemplar(merged)
    for index, outcome in _DECISIONS:
        known = exemplar if index == _OUTLIER else None
        page.add("darksight_decisions_total", sections["decisions"][index], key | outcome, known)
        page.add("darksight_shadow_decisions_total", sections["shadow"][index], key | outcome)
    page.add("darksight_fail_open_total", sections["decisions"][_FAIL_OPEN], key)
    for index, number in enumerate(sections["p_values"].tolist(), 1):
        page.add("darksight_pvalue_bin_total", number, key | {"bin": f"{index / P_VALUE_BINS:.2f}"})
    # The last counter is for the classes beyond the limit; a model within the limit has none.
    names = [*labels["class_names"]]
    names += [OTHER] if not names or labels["classes"] > len(names) else []
    for index, name in enumerate(names):
        page.add("darksight_predicted_total", sections["predicted"][index], key | {"class": name})
        page.add("darksight_predicted_outliers_total", sections["outliers"][index], key | {"class": name})
    page.add_histogram("darksight_log_density", key, DENSITY_BUCKETS, sections["density"])
    page.add_histogram(
        "darksight_score_seconds", key, SECONDS_BUCKETS, sections["seconds"], merged.number("seconds_sum")
    )
    page.add_histogram("darksight_batch_rows", key, BATCH_BUCKETS, sections["batch"], merged.number("batch_sum"))
    page.add("darksight_calibration_size", merged.number("calibration_rows"), key)
    page.add("darksight_outlier_alpha", merged.number("alpha"), key)
    rows, rank = int(merged.number("calibration_rows")), int(merged.number("rank"))
    page.add("darksight_outlier_rate_bound", _rate_bound(rows, rank), key)
    page.add("darksight_bundle_info", 1.0, key | {"sha256": labels["version"], "classes": str(labels["classes"])})


@lru_cache(maxsize=256)
def _rate_bound(rows: int, rank: int) -> float:
    """The outlier rate is at most this without drift, for all but a share `_RATE_BOUND_LEVEL` of calibration sets.

    With k of n calibration rows among the outliers, the rate is distributed as Beta(k, n + 1 - k); 0 without a rule.
    """
    return float(upper_bound(rank - 1, rows, _RATE_BOUND_LEVEL)) if 1 <= rank <= rows else 0.0


def _exemplar(merged: Snapshot) -> Exemplar | None:
    """The latest outlier, so that an alert leads to a prediction."""
    if merged.number("exemplar_time") == 0.0:
        return None
    name = "".join(chr(int(code)) for code in merged.sections["exemplar_id"] if code)
    labels = {"prediction_id": name}
    trace = bytes(int(code) for code in merged.sections["exemplar_trace"])
    if any(trace):
        labels["trace_id"] = trace.hex()
    return Exemplar(labels, merged.number("exemplar_p"), merged.number("exemplar_time"))


def _add_merged(page: _Page, metric: Metric, snapshots: Sequence[Snapshot]) -> None:
    """A metric that several workers may count; 0 before the first of them has started."""
    found = [np.zeros(len(metric.values) or 1), *(each.sections[metric.section] for each in snapshots)]
    page.add_values(metric, np.max(found, axis=0) if metric.is_highest else np.sum(found, axis=0))
