"""The counter files of all processes as the page that Prometheus scrapes.

Files are read at each scrape, added up over workers and put under the names of `catalogue`. Every series that can ever
exist for a bundle is there from its first scrape, at 0: a series that appears later has no increase from 0 to its first
value, and sums over bins would be biased.

The parent alone does this. A worker that is restarted, or all of them, leaves no gap and no reset.
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
from darksight_core.drift import OutlierCounts, OutlierRateTest
from darksight_core.gate.gate import Decision, Reason
from darksight_service.metrics.catalogue import METRICS
from darksight_service.metrics.counts import BATCH_BUCKETS, DENSITY_BUCKETS, OTHER, SECONDS_BUCKETS
from darksight_service.metrics.files import Snapshot, UnreadableError, list_files, read
from darksight_service.metrics.page import encode
from darksight_service.metrics.processes import AUTH_FAILURES, GRPC_CODES

__all__ = ["DRIFT_LEVEL", "CountsCollector", "make_registry", "render", "short_version"]

DRIFT_LEVEL = 0.01
"""Probability that the drift evidence of an unchanged rate ever reaches its threshold."""

_REASONS = len(Reason) + 1
_DECISIONS = [
    (int(decision) * _REASONS + int(reason), decision.name.lower(), reason.name.lower())
    for decision in Decision
    for reason in Reason
]
_FAIL_OPEN = int(Decision.ACCEPT) * _REASONS + int(Reason.UNSCORED)
_OUTLIER = int(Decision.REJECT) * _REASONS + int(Reason.OUTLIER)

# Sections that say what is and not what was counted: the same in the files of all workers, or the latest.
_STATES = ("calibration_rows", "alpha", "rank", "rule_since", "exemplar_time", "exemplar_p", "exemplar_id")

Families = dict[str, Family]


def render(folder: Path, accept: str = "", *, registry: CollectorRegistry | None = None) -> tuple[bytes, str]:
    """The page and its content type, in the format that the header `Accept` asks for (OpenMetrics, or plain text).

    Parameters
    ----------
    folder
        Where counter files lie.
    accept
        Header of the request.
    registry
        With more collectors than that of the folder; made by `make_registry` by default.
    """
    _, content_type = choose_encoder(accept)
    families = (make_registry(folder) if registry is None else registry).collect()
    return encode(families, is_openmetrics=content_type.startswith("application/openmetrics-text")), content_type


def make_registry(folder: Path) -> CollectorRegistry:
    """A registry with the counters of a folder."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(CountsCollector(folder))
    return registry


def short_version(version: str) -> str:
    """The label of a version: its first 12 digits."""
    return version[:12]


class CountsCollector(Collector):
    """Merges the counter files of a folder at each scrape."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)

    def collect(self) -> Iterable[Family]:
        """All families of the catalogue, in its order."""
        families = {metric.name: _family(metric.name, metric.help, metric.kind) for metric in METRICS}
        groups: dict[str, list[Snapshot]] = {"model": [], "process": [], "storage": [], "live": []}
        unreadable = 0
        for path in list_files(self._folder):
            try:
                snapshot = read(path)
                groups[snapshot.labels["kind"]].append(snapshot)
            except (UnreadableError, KeyError):
                unreadable += 1
        for merged in _merge(groups["model"]):
            _add_model(families, merged)
        for snapshot in groups["live"]:
            _add_live(families, snapshot)
        _add_processes(families, groups["process"])
        _add_storage(families, groups["storage"])
        _add(families, "darksight_counter_files_unreadable", {}, unreadable)
        _add(families, "darksight_build_info", {"version": __version__, "python": platform.python_version()}, 1.0)
        return families.values()


def _family(name: str, text: str, kind: str) -> Family:
    suffix = {"counter": "_total", "info": "_info"}.get(kind, "")
    return Family(name.removesuffix(suffix), text, kind)


def _add(families: Families, name: str, labels: dict[str, str], value: float, exemplar: Exemplar | None = None) -> None:
    families[name].add_sample(name, labels, float(value), exemplar=exemplar)


def _merge(snapshots: Sequence[Snapshot]) -> Iterator[Snapshot]:
    """One snapshot of each version, over workers."""
    groups: dict[tuple[str, str, int], list[Snapshot]] = {}
    for snapshot in snapshots:
        labels = snapshot.labels
        groups.setdefault((labels["model"], short_version(labels["version"]), labels["classes"]), []).append(snapshot)
    for group in groups.values():
        sections: dict[str, NDArray[np.float64]] = {
            name: np.sum([each.sections[name] for each in group], axis=0) for name in group[0].sections
        }
        latest = max(group, key=lambda each: each.number("rule_since"))
        sections |= {name: latest.sections[name] for name in ("calibration_rows", "alpha", "rank", "rule_since")}
        # A worker that has not yet heard of a new rule counts against the old one; its counts would be about both.
        current = [each for each in group if each.number("rank") == latest.number("rank")]
        for name in ("drift_rows", "drift_outliers"):
            sections[name] = np.sum([each.sections[name] for each in current], axis=0)
        newest = max(current, key=lambda each: each.number("exemplar_time"))
        sections |= {name: newest.sections[name] for name in _STATES if name.startswith("exemplar")}
        yield Snapshot(group[0].labels, sections)


def _add_model(families: Families, merged: Snapshot) -> None:
    labels, sections = merged.labels, merged.sections
    version = short_version(labels["version"])
    key = {"model": labels["model"], "version": version}
    exemplar = _exemplar(merged)
    for name, section in (("darksight_decisions_total", "decisions"), ("darksight_shadow_decisions_total", "shadow")):
        numbers = sections[section].tolist()
        for index, decision, reason in _DECISIONS:
            known = exemplar if section == "decisions" and index == _OUTLIER else None
            _add(families, name, {**key, "decision": decision, "reason": reason}, numbers[index], known)
    _add(families, "darksight_fail_open_total", key, sections["decisions"][_FAIL_OPEN])
    for index, number in enumerate(sections["p_values"].tolist()):
        _add(families, "darksight_pvalue_bin_total", {**key, "bin": str(index)}, number)
    names = [*labels["class_names"], OTHER]
    # Classes beyond the limit share a cell; a model within it has no others.
    shown = len(names) if labels["classes"] > len(names) - 1 or not labels["classes"] else len(names) - 1
    for metric, section in (
        ("darksight_predicted_total", "predicted"),
        ("darksight_predicted_outliers_total", "outliers"),
    ):
        for label, number in zip(names[:shown], sections[section].tolist()[:shown], strict=True):
            _add(families, metric, {**key, "class": label}, number)
    _add_histogram(families, "darksight_log_density", key, DENSITY_BUCKETS, sections["density"], None)
    for name, section, edges in (
        ("darksight_score_seconds", "seconds", SECONDS_BUCKETS),
        ("darksight_batch_rows", "batch", BATCH_BUCKETS),
    ):
        _add_histogram(families, name, key, edges, sections[section], merged.number(f"{section}_sum"))
    _add(families, "darksight_calibration_size", key, merged.number("calibration_rows"))
    _add(families, "darksight_outlier_alpha", key, merged.number("alpha"))
    _add(families, "darksight_outlier_rank", key, merged.number("rank"))
    _add(families, "darksight_drift_rows", key, merged.number("drift_rows"))
    _add(families, "darksight_drift_outliers", key, merged.number("drift_outliers"))
    bound, evidence = _drift(merged)
    _add(families, "darksight_outlier_rate_bound", key, bound)
    _add(families, "darksight_drift_evidence", key, evidence)
    info = {**key, "sha256": labels["version"], "classes": str(labels["classes"])}
    _add(families, "darksight_bundle_info", info, 1.0)


def _exemplar(merged: Snapshot) -> Exemplar | None:
    """The latest outlier by name, so that an alarm leads to a point."""
    if merged.number("exemplar_time") == 0.0:
        return None
    name = "".join(chr(int(code)) for code in merged.sections["exemplar_id"] if code)
    return Exemplar({"prediction_id": name}, merged.number("exemplar_p"), merged.number("exemplar_time"))


def _drift(merged: Snapshot) -> tuple[float, float]:
    """The bound of the outlier rate and ln of the evidence that it was left; 0 and 0 without an outlier rule."""
    rows, rank = int(merged.number("calibration_rows")), int(merged.number("rank"))
    if not 1 <= rank <= rows:
        return 0.0, 0.0
    test = OutlierRateTest(calibration_rows=rows, alpha=merged.number("alpha"), level=DRIFT_LEVEL, rank=rank)
    seen = int(merged.number("drift_rows"))
    # A worker is read between two of its additions.
    outliers = min(int(merged.number("drift_outliers")), seen)
    return test.p0, test.evidence(OutlierCounts(seen, outliers)).log_evidence


def _add_histogram(
    families: Families,
    name: str,
    key: Mapping[str, str],
    edges: Sequence[float],
    counts: NDArray[np.float64],
    total: float | None,
) -> None:
    family, cumulative = families[name], np.cumsum(counts).tolist()
    for edge, number in zip((*map(_edge, edges), "+Inf"), cumulative, strict=True):
        family.add_sample(f"{name}_bucket", {**key, "le": edge}, number)
    if total is not None:
        family.add_sample(f"{name}_count", {**key}, cumulative[-1])
        family.add_sample(f"{name}_sum", {**key}, total)


def _edge(edge: float) -> str:
    return str(float(edge))


def _add_live(families: Families, snapshot: Snapshot) -> None:
    key = {"model": snapshot.labels["model"], "version": short_version(snapshot.labels["version"])}
    for decision, prefix in (("accept", "accepted"), ("reject", "rejected")):
        for kind in ("labelled", "correct"):
            number = snapshot.number(f"{prefix}_{kind}")
            _add(families, f"darksight_live_{kind}_rows", {**key, "decision": decision}, number)
    if snapshot.number("target_accuracy") > 0.0:
        _add(families, "darksight_certified_accuracy", key, snapshot.number("target_accuracy"))


def _add_processes(families: Families, snapshots: Sequence[Snapshot]) -> None:
    def total(section: str) -> float:
        return sum(each.number(section) for each in snapshots)

    def summed(section: str, length: int) -> NDArray[np.float64]:
        return sum((each.sections[section] for each in snapshots), np.zeros(length))

    for name, section in (
        ("darksight_calls_total", "calls"),
        ("darksight_calls_in_flight", "in_flight"),
        ("darksight_overload_total", "overload"),
        ("darksight_outcomes_total", "outcomes"),
        ("darksight_worker_starts_total", "starts"),
        ("darksight_spool_bytes", "spool_bytes"),
        ("darksight_spool_appended_total", "spool_appended"),
        ("darksight_spool_dropped_total", "spool_dropped"),
        ("darksight_spool_errors_total", "spool_errors"),
        ("darksight_counter_files_replaced_total", "files_replaced"),
        ("darksight_models_refused_total", "models_refused"),
    ):
        _add(families, name, {}, total(section))
    for code, number in zip(GRPC_CODES, summed("codes", len(GRPC_CODES)), strict=True):
        _add(families, "darksight_call_results_total", {"code": code}, number)
    for kind, number in zip(AUTH_FAILURES, summed("auth", len(AUTH_FAILURES)), strict=True):
        _add(families, "darksight_auth_failures_total", {"kind": kind}, number)
    _add(families, "darksight_workers", {}, sum(each.number("started_at") > 0.0 for each in snapshots))
    oldest = max((each.number("spool_oldest_seconds") for each in snapshots), default=0.0)
    _add(families, "darksight_spool_oldest_seconds", {}, oldest)
    used = [each.number("spool_bytes") / max(each.number("spool_limit_bytes"), 1.0) for each in snapshots]
    _add(families, "darksight_spool_used_ratio", {}, max(used, default=0.0))


def _add_storage(families: Families, snapshots: Sequence[Snapshot]) -> None:
    def number(section: str) -> float:
        return snapshots[0].number(section) if snapshots else 0.0

    for name, section in (
        ("darksight_drain_lag_seconds", "drain_lag_seconds"),
        ("darksight_store_up", "store_up"),
        ("darksight_store_errors_total", "store_errors"),
        ("darksight_store_pruned_rows_total", "pruned"),
        ("darksight_storage_starts_total", "starts"),
    ):
        _add(families, name, {}, number(section))
    for result, section in (("inserted", "inserted"), ("duplicate", "duplicates"), ("quarantined", "quarantined")):
        _add(families, "darksight_drain_rows_total", {"result": result}, number(section))
