"""The metric files of all processes as a page for Prometheus.

Files are read at each scrape, added up over workers and named after the catalogue. Every series of a bundle is on the
page from the first scrape, at 0: a series that appears later would have no increase up to its first value, which biases
sums over bins.

Only the supervisor does this, so restarted workers cause neither gaps nor resets.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from prometheus_client.core import Exemplar
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from darksight_core import __version__
from darksight_core.drift import pac_rate
from darksight_core.rows.schema import Decision, Reason
from darksight_service.errors import MetricFileError
from darksight_service.metrics.catalogue import METRICS
from darksight_service.metrics.counts import BATCH_BUCKETS, DENSITY_BUCKETS, OTHER, P_VALUE_BINS, SECONDS_BUCKETS
from darksight_service.metrics.files import Snapshot, list_files, read
from darksight_service.metrics.instance import ProcessesCollector, certificate_expiry
from darksight_service.metrics.processes import (
    AUTH_FAILURES,
    BOUNDS,
    DRIFT_KINDS,
    EVENT_RESULTS,
    GRPC_CODES,
    VERDICTS,
)

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

# Metrics that are one number of a section, by name of the section.
_OF_MODEL = {
    "calibration_rows": "darksight_calibration_size",
    "alpha": "darksight_outlier_alpha",
}
_OF_PROCESS = {
    "calls": "darksight_calls_total",
    "in_flight": "darksight_calls_in_flight",
    "overload": "darksight_overload_total",
    "outcomes": "darksight_outcomes_total",
    "starts": "darksight_worker_starts_total",
    "spool_bytes": "darksight_spool_bytes",
    "spool_appended": "darksight_spool_appended_total",
    "spool_dropped": "darksight_spool_dropped_total",
    "spool_errors": "darksight_spool_errors_total",
    "files_replaced": "darksight_metric_files_replaced_total",
    "models_refused": "darksight_models_refused_total",
}
_OF_STORAGE = {
    "drain_lag_seconds": "darksight_drain_lag_seconds",
    "store_up": "darksight_store_up",
    "store_errors": "darksight_store_errors_total",
    "pruned": "darksight_store_pruned_rows_total",
    "tag_values_dropped": "darksight_tag_values_dropped_total",
    "starts": "darksight_storage_starts_total",
    "state_rebuilds": "darksight_state_rebuilds_total",
    "audit_trail_broken": "darksight_audit_trail_broken",
    "clock_offset_seconds": "darksight_clock_offset_seconds",
}
_OF_SUPERVISOR = {"ready": "darksight_ready", "hung": "darksight_hung_processes_total"}
_DRAINED = {"inserted": "inserted", "duplicates": "duplicate", "quarantined": "quarantined"}
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
        files: dict[str, list[Snapshot]] = {
            "model": [], "process": [], "storage": [], "supervisor": [], "live": [], "drift": [], "figures": [],
            "segment": [],
        }  # fmt: skip
        unreadable = 0
        for path in list_files(self._folder):
            try:
                snapshot = read(path)
                files[snapshot.labels["kind"]].append(snapshot)
            except (MetricFileError, KeyError):
                unreadable += 1
        for merged in _merge(files["model"]):
            _add_model(page, merged)
        for snapshot in files["live"]:
            _add_live(page, snapshot)
        for snapshot in files["drift"]:
            _add_drift(page, snapshot)
        for snapshot in files["figures"]:
            _add_figures(page, snapshot)
        for snapshot in files["segment"]:
            _add_segment(page, snapshot)
        _add_processes(page, files["process"])
        _add_storage(page, files["storage"])
        for section, metric in _OF_SUPERVISOR.items():
            page.add(metric, sum(each.number(section) for each in files["supervisor"]))
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
    """Labels of a version; metrics show the first 12 digits of its sha256."""
    return {"model": snapshot.labels["model"], "version": snapshot.labels["version"][:12]}


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
    for section, metric in _OF_MODEL.items():
        page.add(metric, merged.number(section), key)
    rows, rank = int(merged.number("calibration_rows")), int(merged.number("rank"))
    bound = pac_rate(rows, rank, _RATE_BOUND_LEVEL) if 1 <= rank <= rows else 0.0
    page.add("darksight_outlier_rate_bound", bound, key)
    page.add("darksight_bundle_info", 1.0, key | {"sha256": labels["version"], "classes": str(labels["classes"])})


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


def _add_live(page: _Page, snapshot: Snapshot) -> None:
    key = _key(snapshot)
    for decision, prefix in (("accept", "accepted"), ("reject", "rejected")):
        for kind in ("labelled", "correct"):
            page.add(f"darksight_live_{kind}_rows", snapshot.number(f"{prefix}_{kind}"), key | {"decision": decision})
    if snapshot.number("target_accuracy") > 0.0:
        page.add("darksight_certified_accuracy", snapshot.number("target_accuracy"), key)


def _add_drift(page: _Page, snapshot: Snapshot) -> None:
    key = _key(snapshot)
    page.add("darksight_drift_tested_rows", snapshot.number("drift_rows"), key)
    for index, kind in enumerate(DRIFT_KINDS):
        of_kind = key | {"kind": kind}
        page.add("darksight_drift_log_evidence", snapshot.sections["log_evidence"][index], of_kind)
        page.add("darksight_drift_restarting_log_evidence", snapshot.sections["log_restarting"][index], of_kind)


def _add_segment(page: _Page, snapshot: Snapshot) -> None:
    key = {name: str(snapshot.labels[name]) for name in ("model", "version", "segment")}
    for name in ("log_evidence", "found", "explains"):
        page.add(f"darksight_segment_{name}", snapshot.number(f"segment_{name}"), key)


def _add_figures(page: _Page, snapshot: Snapshot) -> None:
    key, verdicts = _key(snapshot), snapshot.sections["verdict"]
    # Before the first rows there is no verdict, and nothing to withhold.
    if verdicts.any():
        for verdict, holds in zip(VERDICTS, verdicts.tolist(), strict=True):
            page.add("darksight_drift_verdict", holds, key | {"verdict": verdict})
        page.add("darksight_accuracy_withheld", float(snapshot.number("estimate") < 0.0), key)
    for section, metric in (
        ("estimate", "darksight_accuracy_estimate"),
        ("audit_accuracy", "darksight_audit_accuracy"),
    ):
        for bound, value in zip(BOUNDS, snapshot.sections[section].tolist(), strict=True):
            if value >= 0.0:
                page.add(metric, value, key | {"bound": bound})
    for section in ("audit_labels", "audit_labels_needed", "certificate_log_evidence"):
        page.add(f"darksight_{section}", snapshot.number(section), key)


def _add_processes(page: _Page, snapshots: Sequence[Snapshot]) -> None:
    for section, metric in _OF_PROCESS.items():
        page.add(metric, sum(each.number(section) for each in snapshots))
    for index, code in enumerate(GRPC_CODES):
        calls = sum(each.sections["codes"][index] for each in snapshots)
        page.add("darksight_call_results_total", calls, {"code": code})
    for index, kind in enumerate(AUTH_FAILURES):
        failures = sum(each.sections["auth"][index] for each in snapshots)
        page.add("darksight_auth_failures_total", failures, {"kind": kind})
    for index, result in enumerate(EVENT_RESULTS):
        events = sum(each.sections["events"][index] for each in snapshots)
        page.add("darksight_events_total", events, {"result": result})
    page.add("darksight_workers", sum(each.number("started_at") > 0.0 for each in snapshots))
    for section in ("versions_not_loaded", "token_file_errors", "spool_oldest_seconds"):
        page.add(f"darksight_{section}", max((each.number(section) for each in snapshots), default=0.0))
    used = [each.number("spool_bytes") / max(each.number("spool_limit_bytes"), 1.0) for each in snapshots]
    page.add("darksight_spool_used_ratio", max(used, default=0.0))


def _add_storage(page: _Page, snapshots: Sequence[Snapshot]) -> None:
    """There is one storage worker, or none yet."""
    for section, metric in _OF_STORAGE.items():
        page.add(metric, sum(each.number(section) for each in snapshots))
    for section, result in _DRAINED.items():
        page.add("darksight_drain_rows_total", sum(each.number(section) for each in snapshots), {"result": result})
