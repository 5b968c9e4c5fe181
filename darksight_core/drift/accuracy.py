"""Accuracy of a window, measured from labels: all rows labelled, or a small random audit.

    `accuracy_sequence`    right predictions among labelled rows, with an interval that holds at any time
    `prediction_powered`   confidence of all traffic, corrected by a random audit

Prediction-powered accuracy is valid whatever the confidence is worth, provided that the audited rows are a *random*
sample of all traffic. Labels of rejected or complained-about rows alone are not.

`estimate` has the accuracy without labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.drift.checks import checked_share
from darksight_core.drift.special import ln_beta
from darksight_core.errors import ConfigError

__all__ = ["Accuracy", "accuracy_sequence", "prediction_powered"]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of a window.

    Parameters
    ----------
    method
        "calibrated confidence", "ppi" or "labels"; "none" without an accuracy model.
    value
        Share of right predictions; None if the value is withheld.
    interval
        Lower and upper end; None if the data do not support one.
    rows
        Rows of the window.
    is_estimate
        True for a value without labels, which has no guarantee.
    error
        Mean absolute error of the method on past windows; None for a measurement.
    withheld
        Why there is no value; None if there is one.
    at_most
        Upper bound of a value that is withheld; None if there is none.
    """

    method: str
    value: float | None
    interval: tuple[float, float] | None
    rows: int
    is_estimate: bool = True
    error: float | None = None
    withheld: str | None = None
    at_most: float | None = None


def prediction_powered(
    confidence: ArrayLike, audit_confidence: ArrayLike, audit_correct: ArrayLike, *, level: float = 0.95
) -> Accuracy:
    """Accuracy of all traffic from a random audit and the confidence of the other rows.

        θ = mean_N f - mean_n (f - y),   θ ± z √(var f / N + var(f - y) / n)

    Unbiased for any f; the better f predicts y, the narrower the interval. An audit with fewer than 5 right or 5 wrong
    predictions has no interval, because the normal approximation fails.

    Parameters
    ----------
    confidence
        f, any estimate of the probability of being right, for the rows not audited, (N,).
    audit_confidence
        f of the audited rows, a random sample of the same traffic, (n,).
    audit_correct
        y: whether the prediction was right, (n,).
    level
        Probability that the interval contains the accuracy.
    """
    f, f_audit = np.asarray(confidence, dtype=np.float64), np.asarray(audit_confidence, dtype=np.float64)
    y = np.asarray(audit_correct, dtype=np.float64)
    if f.ndim != 1 or f_audit.shape != y.shape or y.ndim != 1 or len(f) < 2 or len(y) < 2:
        raise ConfigError(f"shapes must be (N,), (n,), (n,) with N, n >= 2, not {f.shape}, {f_audit.shape}, {y.shape}")
    if not (np.isfinite(f).all() and np.isfinite(f_audit).all() and np.isin(y, (0.0, 1.0)).all()):
        raise ConfigError("confidence must be finite, and audit_correct 0 or 1")
    miss = f_audit - y
    mean = float(f.mean() - miss.mean())
    value = min(max(mean, 0.0), 1.0)
    rows = len(f) + len(y)
    if min(y.sum(), len(y) - y.sum()) < 5:
        return Accuracy("ppi", value, None, rows, is_estimate=False)
    radius = _z(level) * math.sqrt(float(f.var(ddof=1)) / len(f) + float(miss.var(ddof=1)) / len(y))
    interval = max(mean - radius, 0.0), min(mean + radius, 1.0)
    return Accuracy("ppi", value, interval, rows, is_estimate=False)


def accuracy_sequence(correct: int, rows: int, *, level: float = 0.95) -> Accuracy:
    """Share of right predictions among labelled rows, with a time-uniform interval.

    While labels arrive in random order, all intervals together contain the accuracy with probability `level`: one may
    look after every label and stop when one likes. The interval has every accuracy m against which the bets

        M(m) = B(S + ½, n - S + ½) / B(½, ½) / (m^S (1 - m)^(n - S))

    on S right predictions of n have not won 1 / (1 - level): M(m) is a martingale if m is the accuracy (Ville).

    >>> [round(end, 3) for end in accuracy_sequence(90, 100).interval]
    [0.772, 0.971]
    """
    if not 0 <= correct <= rows or rows < 1:
        raise ConfigError(f"correct must be between 0 and rows, and rows at least 1, not {correct} of {rows}")
    wrong, limit = rows - correct, -math.log(1.0 - checked_share("level", level))
    mixture = float(ln_beta(correct + 0.5, wrong + 0.5) - ln_beta(0.5, 0.5))

    def is_inside(m: float) -> bool:
        loss = (correct * math.log(m) if correct else 0.0) + (wrong * math.log1p(-m) if wrong else 0.0)
        return mixture - loss < limit

    value = correct / rows
    ends = []
    for outside in (0.0, 1.0):
        inside = value
        for _ in range(60):
            middle = 0.5 * (inside + outside)
            inside, outside = (middle, outside) if 0.0 < middle < 1.0 and is_inside(middle) else (inside, middle)
        ends.append(inside)
    return Accuracy("labels", value, (ends[0], ends[1]), rows, is_estimate=False)


def _z(level: float) -> float:
    return NormalDist().inv_cdf(0.5 + 0.5 * checked_share("level", level))
