"""What could be promised instead of a target that the rows do not support.

Each function returns a target of the same kind that these rows support, rounded to the safe side; None if there is
none. It was found by looking at the labels, so it is a proposal for the next labels: certified on the same rows it is
the luckiest of several targets.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from darksight_core.guarantees.risk_curve import RankedRows
from darksight_core.guarantees.thresholds import threshold_by_accuracy
from darksight_core.rows.simplex import Floats

__all__ = ["attainable_accuracy", "attainable_alpha", "attainable_coverage", "attainable_risk"]

_STEPS = 1_000
"""Accuracies are tried in steps of a tenth of a percent."""


def attainable_alpha(n: int, delta: float | None) -> float | None:
    """The smallest share of outliers that n calibration rows can promise."""
    if n < 1:
        return None
    return _round_up(1.0 / (n + 1) if delta is None else -math.expm1(math.log(delta) / n))


def attainable_coverage(flagged: NDArray[np.bool_]) -> float | None:
    """The largest coverage beside an outlier rule that flags these rows, (n,)."""
    n = len(flagged)
    return math.floor(1e4 * (n - float(flagged.sum())) / (n + 1)) / 1e4 or None


def attainable_accuracy(
    scores: Floats, errors: NDArray[np.bool_], accuracy: float, delta: float, reference: Floats | None
) -> float | None:
    """The highest accuracy below `accuracy` that would be certified; other parameters as in `threshold_by_accuracy`."""
    low, high = 0, math.ceil(accuracy * _STEPS - 1e-9)
    while low + 1 < high:
        middle = (low + high) // 2
        found = threshold_by_accuracy(scores, errors, middle / _STEPS, delta=delta, reference=reference)
        low, high = (middle, high) if found.feasible else (low, middle)
    return low / _STEPS or None


def attainable_risk(scores: Floats, errors: NDArray[np.bool_]) -> float | None:
    """The smallest share accepted and wrong that rows (n,) can promise."""
    ranked = RankedRows.of(scores, errors)
    wrong = ranked.accepted_by(ranked.thresholds())[1]
    risk = _round_up((float(wrong[0]) + 1.0) / (len(errors) + 1))
    return risk if risk < 1.0 else None


def _round_up(rate: float) -> float:
    """A rate with three digits, not below it."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return min(float(f"{math.ceil(rate / unit - 1e-9) * unit:.6g}"), 1.0)
