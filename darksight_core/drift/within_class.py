"""Ranks of rows among the calibration rows of their predicted class: what has changed besides the class mix.

The rank of a value is (rows below + U (ties + 1)) / (n_k + 1), with U uniform, among the n_k calibration rows of its
class. If only the class mix changed, ranks are uniform.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.special import chi2_tail
from darksight_core.guarantees.binomial import lower_bound
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats

__all__ = ["LEAST_ROWS", "Ranks", "divergence", "within_class_ranks"]

LEAST_ROWS = 50
"""Fewest calibration rows with which a class is ranked by itself, and fewest rows that are ranked."""

_BINS = 10
# Rows up to this rank are unlike their class; they are new content if they are this share of the rows that changed.
_UNLIKE, _NEW_SHARE = 0.02, 0.35
# Excess from which the rows of a bin are set aside.
_EXCESS = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """Ranks of rows within their class, in (0, 1].

    Parameters
    ----------
    scores, confidence
        Ranks of the outlier score and of the largest probability, (m,); None if the calibration does not have the
        latter.
    classes
        Predicted classes, (m,).
    noise
        Variance of the mean of ranks, relative to that of one rank; calibration rows are shared by all rows of a class.
    """

    scores: Floats
    confidence: Floats | None
    classes: NDArray[np.integer]
    noise: float

    @property
    def p_value(self) -> float:
        """P-value of the hypothesis that ranks are uniform: Pearson's χ² over ten bins, of the two with Bonferroni."""
        bins = self._bins()
        least = min(chi2_tail(float(np.square(each - 0.1).sum()) * _BINS / self.noise, _BINS - 1) for each in bins)
        return min(1.0, len(bins) * least)

    @property
    def change(self) -> float:
        """Divergence from uniform ranks in nats per row, without its mean by chance."""
        found = max(divergence(each, np.full(_BINS, 1.0 / _BINS)) for each in self._bins())
        return max(found - 0.5 * (_BINS - 1) * self.noise, 0.0)

    @property
    def is_usual(self) -> NDArray[np.bool_]:
        """Which rows have no rank in excess, (m,)."""
        pairs = zip(self._known(), self._bins(), strict=True)
        usual = [(share <= _EXCESS / _BINS)[_bin(each)] for each, share in pairs]
        return usual[0] & usual[-1]

    @property
    def is_new_content(self) -> bool:
        """Whether a good part of the rows that changed are unlike their class."""
        rows, unlike = len(self.scores), int((self.scores <= _UNLIKE).sum())
        moved = max(0.5 * float(np.abs(each - 1.0 / _BINS).sum()) for each in self._bins())
        is_more = float(lower_bound(unlike, rows, 0.01)) > 2.0 * _UNLIKE
        return is_more and unlike / rows - _UNLIKE >= _NEW_SHARE * moved

    def _known(self) -> tuple[Floats, ...]:
        return (self.scores,) if self.confidence is None else (self.scores, self.confidence)

    def _bins(self) -> list[Floats]:
        return [np.bincount(_bin(each), minlength=_BINS) / len(each) for each in self._known()]


def within_class_ranks(
    calibration: Calibration, scores: Floats, confidence: Floats, predicted: NDArray[np.integer], classes: int
) -> Ranks | None:
    """Ranks of rows within their class.

    Classes with fewer than `LEAST_ROWS` calibration rows are ranked together. None without classes in the calibration,
    or if fewer than `LEAST_ROWS` rows can be ranked.

    Parameters
    ----------
    calibration
        The calibration rows.
    scores, confidence, predicted
        Outlier score, largest probability and predicted class of the rows, (m,).
    classes
        K.
    """
    if calibration.predicted is None:
        return None
    sizes = np.bincount(calibration.predicted, minlength=classes)
    group = np.where(sizes >= LEAST_ROWS, np.arange(classes), classes)
    known, own = group[calibration.predicted], group[predicted]
    sizes = np.bincount(known, minlength=classes + 1)
    ranked = sizes[own] >= LEAST_ROWS
    own, rows = own[ranked], int(ranked.sum())
    if rows < LEAST_ROWS:
        return None
    rng = np.random.default_rng(0)
    # `ranked` are the scores lowered by the distance within which scores tie.
    lowered, raised = calibration.ranked, 2.0 * calibration.scores - calibration.ranked
    by_score = _ranks(lowered, raised, known, scores[ranked], own, rng)
    by_confidence = None
    if calibration.top is not None:
        top, found = calibration.top.astype(np.float64), confidence[ranked].astype(np.float32).astype(np.float64)
        by_confidence = _ranks(top, top, known, found, own, rng)
    share = np.bincount(own, minlength=classes + 1) / rows
    noise = 1.0 / rows + float((share[sizes > 0] ** 2 / sizes[sizes > 0]).sum())
    return Ranks(by_score, by_confidence, predicted[ranked], noise)


def divergence(found: Floats, usual: Floats) -> float:
    """Kullback-Leibler divergence of shares (B,) from usual ones, in nats."""
    some = found > 0.0
    return float((found[some] * np.log(found[some] / usual[some])).sum())


def _ranks(
    lowered: Floats,
    raised: Floats,
    known: NDArray[np.integer],
    values: Floats,
    own: NDArray[np.integer],
    rng: np.random.Generator,
) -> Floats:
    """Ranks of values (m,) of classes `own` among calibration values (n,) of classes `known`."""
    ranks = 1.0 - rng.random(len(own))
    for k in np.unique(own):
        mine, here = known == k, own == k
        below = np.searchsorted(np.sort(raised[mine]), values[here], side="left")
        ties = np.searchsorted(np.sort(lowered[mine]), values[here], side="right") - below
        ranks[here] = (below + ranks[here] * (ties + 1)) / (mine.sum() + 1)
    return ranks


def _bin(ranks: Floats) -> NDArray[np.int64]:
    return np.clip(np.ceil(ranks * _BINS - 1e-9).astype(np.int64) - 1, 0, _BINS - 1)
