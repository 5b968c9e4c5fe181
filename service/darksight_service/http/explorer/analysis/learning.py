"""The learned confidence score on stored labels: compared with max-softmax, and used to rank the review queue.

With 100 to 300 labels hardly any score beats max-softmax. The learned score therefore starts from it and departs only
if cross-validation finds an improvement (`darksight_core.scores.learned`). Figures are cross-fitted, with intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.simplex import Floats, log_probs
from darksight_core.scores.confidence import msp
from darksight_core.scores.learned import DENSITIES, MIN_ROWS, Learned
from darksight_service.http.explorer.analysis.scores import ScoreCurve, compare_scores, known_densities
from darksight_service.store.points import PointTable

__all__ = ["MIN_ERRORS", "LearnedScore", "learn", "rank_points"]

Ints: TypeAlias = NDArray[np.int64]

MIN_ERRORS = 5
"""Wrong and right predictions that the comparison needs, each."""


@dataclass(frozen=True, slots=True, eq=False)
class LearnedScore:
    """The learned score, fitted to labelled points.

    Parameters
    ----------
    labels, errors
        Labelled points used, and the wrong ones among them.
    labels_needed
        Additional labels that a fit needs; 0 if there are enough.
    fit
        The fit; None if there are too few labels.
    learned, softmax
        The cross-fitted score and max-softmax on the same rows; None with too few errors or too few right ones.
    """

    labels: int
    errors: int
    labels_needed: int
    fit: Learned | None = None
    learned: ScoreCurve | None = None
    softmax: ScoreCurve | None = None

    @property
    def is_softmax(self) -> bool:
        """Whether the learned score orders rows exactly as max-softmax does."""
        return self.fit is None or (not self.fit.weights.any() and not self.fit.offsets.any())

    @property
    def summary(self) -> str:
        """The comparison in one sentence that claims no more than was measured."""
        if self.labels_needed:
            return f"The learned score needs {self.labels_needed:,} more labels."
        if self.learned is None or self.learned.gain is None or self.learned.gain_error is None:
            return (
                f"{self.errors:,} of {self.labels:,} labelled predictions are wrong. A comparison needs at least "
                f"{MIN_ERRORS} right and {MIN_ERRORS} wrong ones."
            )
        if self.is_softmax:
            return "The learned score ranks points as max-softmax does: no other feature improves on it beyond noise."
        if self.learned.gain > 2.0 * self.learned.gain_error:
            return "The learned score finds errors better than max-softmax, by more than two standard errors."
        if self.learned.gain < -2.0 * self.learned.gain_error:
            return "The learned score finds errors worse than max-softmax. Rank by max-softmax."
        return "The difference between the learned score and max-softmax is within noise."


def learn(table: PointTable, *, seed: int = 0) -> LearnedScore:
    """Fit the learned score to labelled points; points without stored probabilities are left out."""
    table = table.take(_has_probs(table))
    errors = table.errors
    labels, wrong = len(table), int(errors.sum())
    if labels < 2 * MIN_ROWS:
        return LearnedScore(labels, wrong, 2 * MIN_ROWS - labels)
    log_pi, densities = log_probs(table.probs.astype(np.float64)), known_densities(table)
    fit = Learned.fit(log_pi, ~errors, seed=seed, **densities)
    if min(wrong, labels - wrong) < MIN_ERRORS:
        return LearnedScore(labels, wrong, 0, fit)
    scores = {"msp": msp(log_pi), "learned": Learned.cross_fit(log_pi, ~errors, seed=seed, **densities)}
    curves = {curve.name: curve for curve in compare_scores(scores, errors)}
    return LearnedScore(labels, wrong, 0, fit, curves["learned"], curves["msp"])


def rank_points(score: LearnedScore, table: PointTable) -> tuple[Ints, Ints, Floats]:
    """Ranks of points by max-softmax and by the learned score, least confident first, and P(correct), (n,) each.

    Points without probabilities rank last, with P(correct) NaN.
    """
    n = len(table)
    softmax, learned = np.full((2, n), np.inf)
    chance = np.full(n, np.nan)
    usable = np.flatnonzero(_has_probs(table))
    if len(usable):
        some = table.take(usable)
        log_pi = log_probs(some.probs.astype(np.float64))
        softmax[usable] = learned[usable] = msp(log_pi)
        if score.fit is not None:
            densities = {name: each for name, each in known_densities(some).items() if name in score.fit.features}
            if set(score.fit.features) & set(DENSITIES) <= set(densities):
                learned[usable] = score.fit.log_odds(log_pi, **densities)
                chance[usable] = 0.5 * (1.0 + np.tanh(0.5 * learned[usable]))
    return _ranks(softmax), _ranks(learned), chance


def _has_probs(table: PointTable) -> NDArray[np.bool_]:
    if table.probs.shape[1] < 2:
        return np.zeros(len(table), dtype=np.bool_)
    return np.asarray(np.isfinite(table.probs).all(axis=1), dtype=np.bool_)


def _ranks(scores: Floats) -> Ints:
    ranks = np.empty(len(scores), dtype=np.int64)
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return ranks
