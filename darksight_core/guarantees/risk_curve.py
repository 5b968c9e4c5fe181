"""Risk-coverage curves: what a threshold on a score accepts, and how often the accepted rows are wrong.

A row is accepted if its score is at or above the threshold, so rows of equal score are accepted or rejected together. A
curve therefore has points at distinct scores only; between two of them it is what rejecting a random part of the tied
rows would give.

numpy, compiled code and float32 columns round the score of the same row differently, and a decision must not depend on
that. So a row whose score equals the threshold up to `TIE` is accepted: `lowest_accepted` is the number that every
implementation compares scores with, and `RankedRows.accepted_by` counts with it. Curves tell all scores apart.

    coverage        share of rows accepted
    selective risk  share of the accepted rows that are wrong
    joint risk      share of all rows that are accepted and wrong

A measured curve guarantees nothing about new rows; `darksight_core.guarantees.thresholds` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

__all__ = ["TIE", "Counts", "RankedRows", "RiskCurve", "check_scores", "lowest_accepted", "risk_curve"]

TIE = 1e-6
"""Relative difference up to which a score equals a threshold; float32 rounds by 6e-8, compiled code by 1e-12."""

# Near zero rounding errors are absolute, so the difference does not shrink further below this threshold.
_NEAR_ZERO = 1e-5

Counts: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RiskCurve:
    """Risk against coverage at the m distinct scores, from the strictest threshold to none.

    Parameters
    ----------
    threshold
        Accept if score >= threshold, (m,); the last is -inf and accepts all rows.
    coverage, selective_risk, joint_risk
        As in the module docstring, (m,).
    """

    threshold: Floats
    coverage: Floats
    selective_risk: Floats
    joint_risk: Floats

    @property
    def accuracy(self) -> Floats:
        """Accuracy of the accepted rows, (m,); against `coverage` it is the paper's accuracy-data plot."""
        return 1.0 - self.selective_risk


def lowest_accepted(thresholds: ArrayLike) -> Floats:
    """The lowest score that equals each threshold up to `TIE`: a row is rejected if its score is below it.

    >>> float(lowest_accepted(2.0)), float(lowest_accepted(-np.inf))
    (1.999998, -inf)
    """
    value = np.asarray(thresholds, dtype=np.float64)
    lowered: Floats = value - TIE * np.maximum(np.abs(value), _NEAR_ZERO)
    return np.where(np.isfinite(value), lowered, value)


def risk_curve(scores: ArrayLike, errors: ArrayLike) -> RiskCurve:
    """Risk at every distinct score.

    Parameters
    ----------
    scores
        Higher is more confident, (n,).
    errors
        1 or True where the prediction was wrong, (n,).

    >>> curve = risk_curve([0.9, 0.8, 0.8, 0.5], [0, 1, 0, 1])
    >>> curve.coverage, curve.selective_risk
    (array([0.25, 0.75, 1.  ]), array([0.        , 0.33333333, 0.5       ]))
    """
    ranked = RankedRows.of(*check_scores(scores, errors))
    accepted, wrong = ranked.accepted()
    n = accepted[-1]
    return RiskCurve(ranked.thresholds(), accepted / n, wrong / accepted, wrong / n)


@dataclass(frozen=True, slots=True, eq=False)
class RankedRows:
    """Rows sorted by score, most confident first.

    Parameters
    ----------
    wrong
        Errors in that order, (n,).
    starts
        Index of the first row with each distinct score, (m,).
    values
        The distinct scores, descending, (m,).
    """

    wrong: NDArray[np.bool_]
    starts: NDArray[np.intp]
    values: Floats

    @classmethod
    def of(cls, scores: Floats, wrong: NDArray[np.bool_]) -> RankedRows:
        """Sort rows by scores (n,), with their errors (n,)."""
        order = np.argsort(-scores, kind="stable")
        ranked = scores[order]
        starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
        return cls(wrong[order], starts, ranked[starts])

    def thresholds(self) -> Floats:
        """Threshold that accepts each distinct score and all higher ones, (m,); the last also accepts lower ones."""
        return np.append(self.values[:-1], -np.inf)

    def accepted(self) -> tuple[Counts, Counts]:
        """Numbers of rows and of errors accepted down to each distinct score, (m,) each."""
        ends = np.append(self.starts[1:], len(self.wrong))
        return ends.astype(np.int64), np.cumsum(self.wrong)[ends - 1]

    def accepted_by(self, thresholds: Floats) -> tuple[Counts, Counts]:
        """Numbers of rows and of errors that thresholds (t,) accept, (t,) each."""
        rows, errors = (np.append(0, counts) for counts in self.accepted())
        last = np.searchsorted(-self.values, -lowest_accepted(thresholds), side="right")
        return rows[last], errors[last]


def check_scores(scores: ArrayLike, errors: ArrayLike | None = None) -> tuple[Floats, NDArray[np.bool_]]:
    """Scores and errors as arrays (n,); without errors there are none. ConfigError if they cannot be used."""
    confidence = np.asarray(scores, dtype=np.float64)
    if confidence.ndim != 1 or not len(confidence) or np.isnan(confidence).any():
        raise ConfigError(f"scores must have shape (n,) with n >= 1 and no NaN, not shape {confidence.shape}")
    if errors is None:
        return confidence, np.zeros(len(confidence), dtype=np.bool_)
    wrong = np.asarray(errors)
    if wrong.shape != confidence.shape or not np.isin(wrong, (0, 1)).all():
        raise ConfigError(f"errors must be 0 or 1, one for each of the {len(confidence)} scores")
    return confidence, wrong.astype(np.bool_)
