"""Drift and accuracy of a version now: the evidence of stored rows, the newest rows, and the labels of the audit.

The storage worker publishes it as metrics and as a file that the workers answer from; the explorer shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from darksight_core.bundle import Bundle
from darksight_core.drift.audit import AuditReport, report_audit
from darksight_core.drift.detector import Detector, Evidence, RowBatch, mean_log_evidence
from darksight_core.drift.urn import row_uniforms
from darksight_core.evaluation.drift import WindowReport, report_window, window_of
from darksight_service.control.state import Deployment
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.store import Store

__all__ = ["LiveDrift", "certified_accuracy", "live_audit", "live_drift"]

_LEAST_ROWS, _MOST_ROWS = 200, 2_000
# All replicas have applied a change after this time, also with clocks that differ.
_APPLIED_MS = 60_000


@dataclass(frozen=True, slots=True, eq=False)
class LiveDrift:
    """Drift of a version.

    Parameters
    ----------
    rows
        Rows that the evidence is about, of all replicas given.
    evidence
        ln of the mean evidence of the replicas, by kind.
    thresholds
        Log evidence of an alarm, by kind.
    points
        The newest rows: since the estimated change, or the last ones without an alarm.
    window
        Their verdict, class shares and accuracy.
    """

    rows: int
    evidence: Mapping[str, float]
    thresholds: Mapping[str, float]
    points: PointTable
    window: WindowReport


def live_drift(
    store: Store, bundle: Bundle, found: Sequence[tuple[Detector[Any], Sequence[Any]]], model: str, version: str
) -> LiveDrift | None:
    """Drift of a version from the states of its detectors, of one or all replicas; None without rows."""
    by_kind: dict[str, list[Evidence]] = {}
    evidence: dict[str, float] = {}
    thresholds: dict[str, float] = {}
    words: list[str] = []
    for detector, states in found:
        evidence |= mean_log_evidence(detector, states)
        thresholds |= dict.fromkeys(detector.kinds, detector.threshold)
        parts = [detector.evidence(state) for state in states]
        by_kind |= {kind: [part[kind] for part in parts] for kind in detector.kinds}
        if any(evidence[kind] >= detector.threshold for kind in detector.kinds):
            strongest_state = states[max(range(len(states)), key=lambda n: max(each[0] for each in parts[n].values()))]
            words.append(detector.describe(strongest_state, bundle.class_names))
    if not evidence:
        return None
    alarms = {kind for kind, value in evidence.items() if value >= thresholds[kind]}
    wanted = _MOST_ROWS
    if alarms:
        # The rows since the change of each replica, by the kind with the most evidence.
        strongest = by_kind[max(alarms, key=evidence.__getitem__)]
        wanted = min(max(sum(each.rows - each.since_row + 1 for each in strongest), _LEAST_ROWS), _MOST_ROWS)
    points = store.newest_points(PointFilter(model, version), limit=wanted).sample()
    classes = bundle.embedder.n_inputs
    points = points.take(np.isfinite(points.outlier_score) & (points.predicted >= 0) & (points.predicted < classes))
    if not len(points):
        return None
    uniforms = row_uniforms(points.ids)
    rows = RowBatch(points.outlier_score, points.top, points.predicted, uniforms, None, points.resolution)
    window = report_window(
        bundle,
        _probs(points, classes),
        window_of(bundle, points.p_value, rows),
        alarms=alarms,
        words=words,
    )
    seen = max(sum(each.rows for each in parts) for parts in by_kind.values())
    return LiveDrift(seen, evidence, thresholds, points, window)


def live_audit(store: Store, bundle: Bundle, deployed: Deployment, model: str, version: str) -> AuditReport:
    """What the labels of the audit say about the rows since the gate last changed or the evidence was reset."""
    gate_ms = deployed.gate_ms + _APPLIED_MS if deployed.gate_ms else 0
    start_ms = max(deployed.deployed_ms, deployed.evidence_ms, gate_ms)
    policy = deployed.policy
    # The certificate is about the thresholds of the bundle.
    promised = certified_accuracy(bundle) if policy.alpha is None and policy.threshold is None else None
    return report_audit(store.audited_rows(model, version, start_ms=start_ms).rows, promised)


def certified_accuracy(bundle: Bundle) -> float | None:
    """Accuracy of accepted rows that the bundle certifies, or None."""
    reject = (bundle.manifest["certificate"] or {}).get("reject") or {}
    is_promised = reject.get("kind") == "accuracy" and reject.get("feasible")
    return float(reject["promised"]) if is_promised else None


def _probs(points: PointTable, classes: int) -> Any:
    """Stored probabilities of the rows that have them, (n, K): they were rounded, so they are normalised again."""
    probs = points.probs.astype(np.float64)
    if probs.shape[1] != classes:
        return np.empty((0, classes))
    probs = probs[np.isfinite(probs).all(axis=1)]
    return probs / np.maximum(probs.sum(axis=1, keepdims=True), 1e-300)
