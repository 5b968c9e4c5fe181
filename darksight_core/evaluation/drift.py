"""Drift of predictions in order of arrival: when it was detected, what kind it is, and what it costs in accuracy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.bundle import Bundle, Reference
from darksight_core.drift.accuracy import Accuracy
from darksight_core.drift.class_mix import ClassShares, bbse, confusion, mlls
from darksight_core.drift.detector import Baseline, Evidence, RowBatch
from darksight_core.drift.detectors import make_detectors
from darksight_core.drift.estimate import COVERAGE
from darksight_core.drift.verdict import Verdict, Window, classify
from darksight_core.rows.resolution import name_of
from darksight_core.rows.schema import ScoredBatch
from darksight_core.rows.simplex import Floats

__all__ = ["DriftReport", "WindowReport", "baseline_of", "report_drift", "report_window", "row_batch", "window_of"]

# Share of rows of another resolution, above that of the calibration rows, from which it is a finding.
_PRECISION = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class WindowReport:
    """What is known about the rows of a window.

    Parameters
    ----------
    verdict, class_shares, accuracy
        Kind of drift, class shares and accuracy without labels. The class shares are None if the bundle has neither
        labels of every class nor probabilities of its reference rows.
    class_names
        Names of the classes.
    precision
        That the rows have other digits than the fit rows, in words; empty if they have not. It is no drift: such rows
        are compared with calibration rows of their resolution.
    """

    verdict: Verdict
    class_shares: ClassShares | None
    accuracy: Accuracy
    class_names: tuple[str, ...]
    precision: str

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        shares, accuracy = self.class_shares, self.accuracy
        low, high = (None, None) if accuracy.interval is None else accuracy.interval
        return {
            "verdict": self.verdict.kind,
            "reason": self.verdict.reason,
            "precision": self.precision,
            "changed_classes": {
                self.class_names[k]: residual
                for k, residual in zip(self.verdict.classes, self.verdict.residuals, strict=True)
            },
            "within_class_p_value": self.verdict.within_class,
            "class_shares": None
            if shares is None
            else {
                name: {
                    "estimate": float(shares.estimate[k]),
                    "low": float(shares.low[k]),
                    "high": float(shares.high[k]),
                    "reference": float(shares.reference[k]),
                    "is_changed": bool(shares.is_changed[k]),
                }
                for k, name in enumerate(self.class_names)
            },
            "class_shares_method": None if shares is None else shares.method,
            "accuracy": {
                "estimate": accuracy.value,
                "low": low,
                "high": high,
                "withheld": accuracy.withheld,
                "at_most": accuracy.at_most,
                "coverage": None if accuracy.interval is None else COVERAGE,
                "error": accuracy.error,
            },
        }


@dataclass(frozen=True, slots=True, eq=False)
class DriftReport(WindowReport):
    """What is known about the drift of rows; the window has the rows since the change, or all rows without an alarm.

    Parameters
    ----------
    rows
        Number of rows.
    evidence
        Evidence after the last row, by kind.
    threshold
        Log evidence of an alarm.
    alarm_row, since_row
        Row of the first alarm of any kind, and estimated first row of the change, counted from 1; None without one.
    """

    rows: int
    evidence: Mapping[str, Evidence]
    threshold: float
    alarm_row: int | None
    since_row: int | None

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        evidence = {
            kind: {"log_evidence": each.log_evidence, "highest": each.highest, "alarm_row": each.alarm_row}
            for kind, each in self.evidence.items()
        }
        return {
            "rows": self.rows,
            "alarm_row": self.alarm_row,
            "since_row": self.since_row,
            "evidence": {**evidence, "threshold": self.threshold},
            **WindowReport.as_dict(self),
        }


def baseline_of(bundle: Bundle) -> Baseline:
    """What detectors compare rows of a bundle with."""
    levels = {level.number: level.calibration for level in bundle.resolutions.coarser}
    return Baseline(bundle.calibration, _class_counts(bundle), bundle.segments, bundle.features, levels)


def row_batch(scored: ScoredBatch, probs: NDArray[np.floating], seed: int = 0) -> RowBatch:
    """Rows (n, K) for a detector, with uniform numbers of a seed."""
    uniforms = np.random.default_rng(seed).random((len(scored.outlier_score), 3))
    return RowBatch(scored.outlier_score, scored.top, scored.predicted, uniforms, probs, scored.resolution)


def report_drift(
    bundle: Bundle, probs: NDArray[np.floating], scored: ScoredBatch, *, level: float = 0.01, seed: int = 0
) -> DriftReport:
    """Drift of rows in order of arrival.

    Parameters
    ----------
    bundle
        The bundle that scored them.
    probs
        Valid rows on the simplex, (n, K).
    scored
        Their scores.
    level
        Bound on the probability of a false alarm.
    seed
        Seed of the uniform numbers that break ties.
    """
    batch = row_batch(scored, probs, seed)
    evidence: dict[str, Evidence] = {}
    words = []
    tests = [each for each in make_detectors(baseline_of(bundle), level) if not each.is_by_segment]
    for test in tests:
        state = test.update(test.start(), batch)
        evidence |= test.evidence(state)
        if any(each.alarm_row is not None for each in test.evidence(state).values()):
            words.append(test.describe(state, bundle.class_names))
    alarms = {kind: each.alarm_row for kind, each in evidence.items() if each.alarm_row is not None}
    alarm_row, since_row = min(alarms.values(), default=None), None
    if alarm_row is not None:
        at_alarm = (test.evidence(test.update(test.start(), batch.take(slice(alarm_row)))) for test in tests)
        first = min(alarms, key=alarms.__getitem__)
        since_row = next(found[first].since_row for found in at_alarm if first in found)
    rows = slice(0 if since_row is None else since_row - 1, None)
    window = report_window(
        bundle,
        probs[rows].astype(np.float64),
        window_of(bundle, scored.p_value[rows], batch.take(rows)),
        alarms=alarms,
        words=words,
        level=level,
    )
    return DriftReport(
        window.verdict,
        window.class_shares,
        window.accuracy,
        window.class_names,
        window.precision,
        rows=len(probs),
        evidence=evidence,
        threshold=tests[0].threshold,
        alarm_row=alarm_row,
        since_row=since_row,
    )


def window_of(bundle: Bundle, p_values: Floats, rows: RowBatch) -> Window:
    """A window of rows in order of arrival, on the scale of the fit rows."""
    baseline = baseline_of(bundle)
    on_scale = rows.on_scale(baseline.calibration, baseline.levels)
    return Window(p_values, on_scale.scores, rows.classes, on_scale.top, rows.resolution)


def report_window(
    bundle: Bundle,
    probs: Floats,
    window: Window,
    *,
    alarms: Collection[str],
    words: Collection[str] = (),
    level: float = 0.01,
) -> WindowReport:
    """Kind of drift, class shares and accuracy of a window.

    Parameters
    ----------
    bundle
        The bundle that scored its rows.
    probs
        Rows on the simplex, (n, K): those of the window, or as many of them as are known.
    window
        Their scores.
    alarms
        Kinds of evidence that have reached their threshold. Without any, no class is marked as changed.
    words
        What detectors say has changed, for the reason of the verdict.
    level
        Error of the tests that tell kinds of drift apart.
    """
    verdict = classify(window, bundle.calibration, _class_counts(bundle), alarms=alarms, level=level)
    verdict = replace(verdict, reason="; ".join([verdict.reason, *filter(None, words)]))
    shares, accuracy = _class_shares(bundle, probs, window), _estimated_accuracy(bundle, probs, window, verdict)
    if shares is not None and not alarms:
        shares = replace(shares, is_changed=np.zeros_like(shares.is_changed))
    return WindowReport(verdict, shares, accuracy, bundle.class_names, _precision(bundle, window))


def _precision(bundle: Bundle, window: Window) -> str:
    """Which other resolutions the rows of a window have, if many more of them than of the calibration rows have."""
    known = bundle.resolutions
    if window.resolution is None:
        return ""
    numbers, counts = np.unique(window.resolution[window.resolution != known.own], return_counts=True)
    share = float(counts.sum()) / len(window.resolution)
    if share <= known.usual_coarser + _PRECISION:
        return ""
    names = ", ".join(name_of(int(numbers[k])) for k in np.argsort(-counts, kind="stable"))
    return (
        f"precision changed: {share:.0%} of {len(window.resolution)} rows have resolution {names}, "
        f"{known.usual_coarser:.0%} of the calibration rows; the fit rows are {name_of(known.own)}"
    )


def _class_counts(bundle: Bundle) -> NDArray[np.int64]:
    return np.bincount(bundle.reference.predicted, minlength=bundle.embedder.n_inputs)


def _class_shares(bundle: Bundle, probs: Floats, window: Window) -> ClassShares | None:
    reference, classes = bundle.reference, bundle.embedder.n_inputs
    counts = confusion(reference.predicted, reference.labels, classes)
    if counts is not None:
        return bbse(counts, np.bincount(window.classes, minlength=classes))
    return mlls(probs, _mean_probs(reference, classes), len(reference.points)) if len(probs) else None


def _mean_probs(reference: Reference, classes: int) -> Floats:
    """Mean probabilities (K,); what a row does not keep is spread evenly over its other classes."""
    kept = reference.top_probs.astype(np.float64)
    others = classes - kept.shape[1]
    rest = np.maximum(1.0 - kept.sum(axis=1), 0.0) / others if others else np.zeros(len(kept))
    sums = np.bincount(reference.top_classes.ravel(), (kept - rest[:, None]).ravel(), minlength=classes) + rest.sum()
    shares: Floats = sums / sums.sum()
    return shares


def _estimated_accuracy(bundle: Bundle, probs: Floats, window: Window, verdict: Verdict) -> Accuracy:
    model = bundle.accuracy_model
    if model is None:
        reason = "the bundle was fitted without labels, or with too few of them to back-test an estimate"
        return Accuracy("none", None, None, len(probs), withheld=reason)
    if not len(probs):
        return Accuracy("none", None, None, 0, withheld="the probabilities of the rows are not stored")
    # Rows unlike any known ones may belong to no class at all.
    withhold = {"new_content": "the rows have new content", "mixed": "the rows may have new content"}.get(verdict.kind)
    return model.estimate(probs, outlier_share=window.outlier_share, withhold=withhold)
