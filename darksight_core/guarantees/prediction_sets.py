"""Conformal prediction sets: a few classes among which the true one is, with a stated probability.

The set of a row has its m most probable classes, so it is stored as its size m. With the probabilities in descending
order, π_(1) >= π_(2) >= ..., the class at rank r has the score

    s(r) = π_(1) + ... + π_(r-1) + λ (r - 1),

the mass of the classes before it and a penalty for each of them: adaptive prediction sets (APS, Romano et al. 2020) for
λ = 0, regularised ones (RAPS, Angelopoulos et al. 2021, with k_reg = 1) for λ > 0. The set holds all ranks with
s(r) <= q, and q is the k-th smallest score of the true classes of n calibration rows, k = ⌈(n + 1) c⌉. If a new row is
exchangeable with them, its true class is in its set with a probability of at least c, and of at most c + 1 / (n + 1) if
no two scores are equal. Given the n rows, the probability is a draw from Beta(k, n + 1 - k).

**Not randomised.** APS is usually randomised: the mass of a class counts in part, so that coverage is exact. Here the
mass of the class itself does not count. The score is then a fixed function of the row, equal rows have equal sets, and
no set is empty. The price: rows whose true class is the most probable one tie at s = 0, so if a share c of the
calibration rows are such rows, q = 0 and coverage is above c. Sets are smaller than with the mass counted or randomised
(`./dev bench sets`).

**Selected rows.** The guarantee is about the group of rows that the calibration rows come from. Whether a gate rejects
a row depends on nothing but the row once the gate is fixed, so rejected calibration rows and a rejected new row are
exchangeable, and sets calibrated on the rejected ones alone are valid for rejected rows. Sets calibrated on all rows
would not be: most of these are easy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import beta_quantile
from darksight_core.guarantees.conformal import cutoff, least_rows
from darksight_core.rows.simplex import Floats

__all__ = [
    "MAX_SIZE",
    "PENALTIES",
    "PredictionSets",
    "calibrate_sets",
    "choose_penalty",
    "class_ranks",
    "coverage_range",
    "rows_for_sets",
    "set_classes",
    "set_rank",
    "top_classes",
]

MAX_SIZE = 0x7FFF
"""Most classes of a set: a stored size has two bytes."""

PENALTIES = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Values of λ to choose from."""

# Scores this close are equal, so that rounding does not decide on rows that equal a calibration row: files and calls
# have float32, local callers float64, and forests give thousands of equal scores. No set gets smaller by it.
_TIE = 2e-7
_AT_ONCE = 1 << 18
_WORTH = 0.02


@dataclass(frozen=True, slots=True)
class PredictionSets:
    """A rule that gives each row a set of classes.

    Parameters
    ----------
    coverage
        c, the least probability with which the true class is in the set.
    limit
        q, the largest score of a class in the set.
    penalty
        λ.
    n
        Rows that q was calibrated on.
    """

    coverage: float
    limit: float
    penalty: float
    n: int

    def __post_init__(self) -> None:
        if not 0.0 < self.coverage < 1.0 or self.n < rows_for_sets(self.coverage):
            raise ConfigError(f"prediction sets of coverage {self.coverage} cannot be calibrated on {self.n} rows")
        if not (0.0 <= self.limit < math.inf and 0.0 <= self.penalty < math.inf):
            raise ConfigError(f"limit {self.limit} and penalty {self.penalty} must be finite and not negative")

    def sizes(self, log_pi: Floats) -> NDArray[np.int32]:
        """Number of classes in the set of each row, (n,), at least 1.

        Parameters
        ----------
        log_pi
            Log-probabilities, (n, K); see `simplex.log_probs`.

        >>> PredictionSets(0.9, limit=0.75, penalty=0.0, n=9).sizes(np.log([[0.7, 0.2, 0.1], [0.8, 0.1, 0.1]]))
        array([2, 1], dtype=int32)
        """
        found = np.empty(len(log_pi), dtype=np.int32)
        step = max(_AT_ONCE // max(log_pi.shape[1], 1), 1)
        for start in range(0, len(log_pi), step):
            part = slice(start, start + step)
            scores = _rank_scores(np.exp(-np.sort(-log_pi[part], axis=1)), self.penalty)
            found[part] = np.count_nonzero(scores <= self.limit + _TIE, axis=1)
        return np.minimum(found, MAX_SIZE)

    def settings(self) -> dict[str, Any]:
        """JSON values."""
        return {"coverage": self.coverage, "limit": self.limit, "penalty": self.penalty, "n": self.n}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> PredictionSets:
        """Inverse of `settings`; ConfigError if one is missing."""
        try:
            return cls(**{name: settings[name] for name in ("coverage", "limit", "penalty", "n")})
        except KeyError as missing:
            raise ConfigError(f"the prediction sets have no setting {missing}") from None


def rows_for_sets(coverage: float) -> int:
    """Fewest calibration rows: (n + 1) c must not be above n, so n >= c / (1 - c).

    >>> rows_for_sets(0.95)
    19
    """
    return least_rows(_alpha(coverage))


def set_rank(n: int, coverage: float) -> int:
    """k = ⌈(n + 1) c⌉, the rank of the limit among n calibration scores.

    >>> set_rank(99, 0.95)
    95
    """
    return n + 1 - cutoff(n, _alpha(coverage)).rank


def coverage_range(n: int, coverage: float) -> tuple[float, float]:
    """Between which the coverage is for 90% of sets of n calibration rows, if scores do not tie."""
    k = set_rank(n, coverage)
    low, high = beta_quantile([0.05, 0.95], k, n + 1 - k).tolist()
    return low, high


def class_ranks(log_pi: Floats, labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Number of classes before the label when classes are sorted by probability, (n,); ties go to the first class.

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K).
    labels
        True classes, (n,).
    """
    own = np.take_along_axis(log_pi, np.asarray(labels)[:, None], axis=1)
    is_before = (log_pi == own) & (np.arange(log_pi.shape[1]) < np.asarray(labels)[:, None])
    ranks: NDArray[np.int64] = np.count_nonzero((log_pi > own) | is_before, axis=1)
    return ranks


def calibrate_sets(
    log_pi: Floats, labels: NDArray[np.integer], coverage: float, penalty: float = 0.0
) -> PredictionSets:
    """Sets with a coverage of at least `coverage` for rows that are exchangeable with these.

    Parameters
    ----------
    log_pi
        Log-probabilities of calibration rows, (n, K); those that a gate rejects, if the sets are for rejected rows.
    labels
        True classes, (n,).
    coverage
        Between 0 and 1.
    penalty
        λ; it must not be chosen on these rows.
    """
    needed = rows_for_sets(_checked(coverage))
    if len(log_pi) < needed:
        raise ConfigError(
            f"prediction sets of coverage {coverage:g} need {needed} calibration rows, not {len(log_pi)}",
            needed=needed,
            rows=len(log_pi),
        )
    scores, last = _label_scores(log_pi, labels, penalty), set_rank(len(log_pi), coverage) - 1
    return PredictionSets(coverage, float(np.partition(scores, last)[last]), penalty, len(scores))


def choose_penalty(log_pi: Floats, labels: NDArray[np.integer], coverage: float) -> float:
    """The λ of `PENALTIES` for which sets are smallest on these rows, which must not be those that calibrate.

    A larger λ is taken only if it makes sets smaller by more than 2%, as less is noise; it is 0 with too few rows.

    Parameters
    ----------
    log_pi, labels, coverage
        As in `calibrate_sets`.
    """
    if len(log_pi) < rows_for_sets(_checked(coverage)):
        return 0.0
    found = [calibrate_sets(log_pi, labels, coverage, penalty) for penalty in PENALTIES]
    sizes = [float(sets.sizes(log_pi).mean()) for sets in found]
    return next(penalty for penalty, size in zip(PENALTIES, sizes, strict=True) if size <= (1.0 + _WORTH) * min(sizes))


def set_classes(probs: NDArray[np.floating], sizes: NDArray[np.integer]) -> NDArray[np.int32]:
    """The classes of all sets, one set after the other, each with its most probable class first.

    Parameters
    ----------
    probs
        Probabilities, (n, K).
    sizes
        Sizes of the sets, (n,); 0 for a row without one.

    >>> set_classes(np.array([[0.1, 0.6, 0.3], [1.0, 0.0, 0.0], [0.3, 0.3, 0.4]]), np.array([2, 0, 1]))
    array([1, 2, 2], dtype=int32)
    """
    rows = np.flatnonzero(sizes)
    order = np.argsort(-probs[rows], axis=1, kind="stable")
    found: NDArray[np.int32] = order[np.arange(order.shape[1]) < sizes[rows][:, None]].astype(np.int32)
    return found


def top_classes(probs: NDArray[np.floating], size: int) -> NDArray[np.int64]:
    """The `size` most probable classes of a row, the first one first; none if equal probabilities leave them open.

    Stored probabilities are rounded: if the last class of the set and the next one are then equal, it is not known
    which of them is in the set.

    Parameters
    ----------
    probs
        Probabilities of one row, (K,); of no classes if none are stored.
    size
        Size of its set.

    >>> top_classes(np.array([0.1, 0.6, 0.3]), 2), top_classes(np.array([0.6, 0.2, 0.2]), 2)
    (array([1, 2]), array([], dtype=int64))
    """
    order = np.argsort(-probs, kind="stable")
    if not 0 < size <= len(order) or (size < len(order) and not probs[order[size - 1]] > probs[order[size]]):
        return order[:0]
    return order[:size]


def _rank_scores(ordered: Floats, penalty: float) -> Floats:
    """s of each rank, (n, K), from probabilities in descending order (n, K)."""
    scores = np.zeros_like(ordered)
    np.cumsum(ordered[:, :-1], axis=1, out=scores[:, 1:])
    scores += penalty * np.arange(ordered.shape[1])
    return scores


def _label_scores(log_pi: Floats, labels: NDArray[np.integer], penalty: float) -> Floats:
    ranks = class_ranks(log_pi, labels)
    scores = _rank_scores(np.exp(-np.sort(-log_pi, axis=1)), penalty)
    return np.take_along_axis(scores, ranks[:, None], axis=1)[:, 0]


def _alpha(coverage: float) -> float:
    """1 - c without the rounding error of the difference: 1 - 0.9 is below 0.1, which would cost a rank."""
    return round(1.0 - _checked(coverage), 12)


def _checked(coverage: float) -> float:
    if not 0.0 < coverage < 1.0:
        raise ConfigError(f"coverage of prediction sets is {coverage}; it must be between 0 and 1")
    return coverage
