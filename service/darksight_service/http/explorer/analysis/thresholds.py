"""Thresholds of the gate on labelled points: what each would accept, and which one can be certified.

The steps describe these labels only. A threshold that was picked by looking at them promises nothing, because it is the
luckiest of all. Learn-then-Test certifies one threshold, provided that the labels are a random sample of the traffic,
as those of the audit are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import lower_bound, upper_bound
from darksight_core.guarantees.risk_curve import lowest_accepted, risk_curve
from darksight_core.guarantees.thresholds import Threshold, threshold_by_accuracy
from darksight_core.rows.simplex import Floats

__all__ = ["Certificate", "ThresholdSteps", "certify", "threshold_steps"]

Bools: TypeAlias = NDArray[np.bool_]

_DELTA = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class ThresholdSteps:
    """Thresholds of the gate's reject score, increasing; arrays are (m,).

    Parameters
    ----------
    threshold
        Accept iff score >= threshold; the first is -inf.
    accepted, wrong
        Labelled rows that all rules accept, and the wrong ones among them.
    low, high
        Exact 95% interval of the accuracy of accepted rows, for a threshold that was fixed in advance.
    rows
        Labelled rows, rejected ones included.
    """

    threshold: Floats
    accepted: NDArray[np.int64]
    wrong: NDArray[np.int64]
    low: Floats
    high: Floats
    rows: int


@dataclass(frozen=True, slots=True)
class Certificate:
    """What Learn-then-Test certifies on these labels.

    Parameters
    ----------
    threshold
        The threshold, feasible or not; its `coverage` is among rows that pass the other rules.
    coverage
        Share of all labelled rows that all rules accept; 0 if infeasible.
    picked
        The lowest threshold whose measured accuracy meets the target, which is not certified; None if there is none.
    """

    threshold: Threshold
    coverage: float
    picked: float | None


def threshold_steps(
    confidence: Floats, passed: Bools, errors: Bools, *, current: float = -math.inf, max_steps: int = 200
) -> ThresholdSteps:
    """Thresholds for a slider.

    Parameters
    ----------
    confidence
        The gate's reject score of labelled rows, (n,); rows with NaN are never accepted.
    passed
        Which rows the other rules accept: no outliers, and outside of regions, (n,).
    errors
        Which predictions are wrong, (n,).
    current
        Threshold in force, which is one of the steps.
    max_steps
        Maximum number of further thresholds.
    """
    scored = passed & ~np.isnan(confidence)
    values = np.sort(confidence[scored])
    steps = np.quantile(values, np.linspace(0.0, 1.0, max_steps), method="lower")[1:] if len(values) else values
    steps = np.unique(np.append(steps, [-np.inf, current]))
    ranked, lowest = np.sort(confidence[scored & errors]), lowest_accepted(steps)
    accepted = len(values) - np.searchsorted(values, lowest)
    wrong = len(ranked) - np.searchsorted(ranked, lowest)
    trials = np.maximum(accepted, 1)
    low = np.where(accepted > 0, 1.0 - upper_bound(wrong, trials, _DELTA / 2), 0.0)
    high = np.where(accepted > 0, 1.0 - lower_bound(wrong, trials, _DELTA / 2), 1.0)
    return ThresholdSteps(steps, accepted, wrong, low, high, len(confidence))


def certify(confidence: Floats, passed: Bools, errors: Bools, accuracy: float, *, delta: float = _DELTA) -> Certificate:
    """The lowest threshold that these labels certify for an accuracy; other arguments as in `threshold_steps`."""
    scored = passed & ~np.isnan(confidence)
    if not scored.any():
        raise ConfigError("no labelled row with a reject score passes the other rules, so nothing can be certified")
    share = float(scored.mean())
    found = threshold_by_accuracy(confidence[scored], errors[scored], accuracy, delta=delta)
    if found.labels_needed is not None:
        found = replace(found, labels_needed=math.ceil(found.labels_needed / share))
    curve = risk_curve(confidence[scored], errors[scored])
    good = np.flatnonzero(curve.accuracy >= accuracy)
    picked = float(curve.threshold[good[-1]]) if len(good) else None
    return Certificate(found, found.coverage * share if found.feasible else 0.0, picked)
