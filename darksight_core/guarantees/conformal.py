"""Conformal p-values: how unusual a score is, as a probability that holds whatever the score is.

Scores are higher for more normal rows. A new row that is exchangeable with the n calibration rows takes each place
among n + 1 equally often, so

    p = (1 + #{calibration score <= score}) / (n + 1)        has   P(p <= α) <= α,

with equality to ⌊α (n + 1)⌋ / (n + 1) when no scores tie. A poor score costs power, never validity, on one condition:
it is a *fixed* function, made without the calibration rows. Everything here follows from that sentence.

    cutoff                how many alarms: α on average, or at most α with confidence 1 - δ
    smoothed_p_values     exactly uniform even with ties, for drift statistics
    ClassCalibration      the same promise within each predicted class
    benjamini_hochberg    which rows of a window to report, with a bounded share of false ones

The minimum of two p-values is no p-value: at α = 1% it raises up to twice the false alarms. Ranking that minimum among
the calibration rows that made the p-values is no remedy. A calibration row is one of its own references and a new row
is not, and the lowest ranks all occur twice, so alarms are lost: a fifth of them for 999 rows, all of them for 99.
Instead each score is mapped to its rank among *other* rows, such as those of the fit: `scores.outlier`. What is made of
these ranks is then one fixed score, and its conformal p-value is exact.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import binomial_cdf, rows_without_error
from darksight_core.simplex import Floats

__all__ = [
    "ClassCalibration",
    "Cutoff",
    "benjamini_hochberg",
    "cutoff",
    "p_values",
    "smoothed_p_values",
    "uniforms",
]

# A product such as 0.07 * 100 comes out a rounding error below the whole number it is.
_ROUNDING = 1e-9


def p_values(scores: Floats, calibration_sorted: Floats) -> Floats:
    """(1 + #{calibration score <= score}) / (n + 1), (m,), in O(log n) each; NaN for NaN.

    Equal scores count as less, so ties only make p larger and alarms rarer.

    Parameters
    ----------
    scores
        (m,).
    calibration_sorted
        Scores of the calibration rows, ascending, (n,). Their order is not checked, as that would take O(n).

    >>> p_values(np.array([0.0, 2.0]), np.array([1.0, 2.0]))
    array([0.33333333, 1.        ])
    """
    rank = np.searchsorted(calibration_sorted, scores, side="right")
    # NaN sorts last: without this a row that could not be scored would look perfectly normal.
    return np.where(np.isnan(scores), np.nan, (1.0 + rank) / (1.0 + len(calibration_sorted)))


def smoothed_p_values(scores: Floats, calibration_sorted: Floats, uniforms: Floats) -> Floats:
    """(#{calibration score < score} + U (1 + #{calibration score = score})) / (n + 1), exactly uniform, (m,).

    Without ties it is p - (1 - U) / (n + 1). Statistics that count p-values in bins need it: a plateau of the score is
    one value of `p_values`, which no bin boundary divides.

    Parameters
    ----------
    scores, calibration_sorted
        As in `p_values`.
    uniforms
        U of each row, independent of its score, (m,); see `uniforms`.
    """
    below = np.searchsorted(calibration_sorted, scores, side="left")
    equal = np.searchsorted(calibration_sorted, scores, side="right") - below
    return np.where(np.isnan(scores), np.nan, (below + uniforms * (1.0 + equal)) / (1.0 + len(calibration_sorted)))


def uniforms(record_ids: Iterable[str | bytes]) -> Floats:
    """A number in (0, 1) for each id, as good as uniform and the same on every machine and in every run, (m,).

    >>> uniforms(["a", "b", "a"]).round(3)
    array([0.063, 0.028, 0.063])
    """
    words = []
    for record_id in record_ids:
        name = record_id.encode() if isinstance(record_id, str) else record_id
        words.append(int.from_bytes(hashlib.blake2b(name, digest_size=8, person=b"darksight.p").digest(), "little"))
    # 52 bits and a half step are the finest grid on which neither 0 nor 1 is reached by rounding.
    return (np.array([word >> 12 for word in words], dtype=np.float64) + 0.5) / 2.0**52


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Outlier iff p <= `p_value`.

    Parameters
    ----------
    rank
        k: rows below the k-th smallest calibration score are outliers. 0 if none can ever be called one.
    n
        Calibration rows.
    alpha
        False-alarm rate that was asked for.
    delta
        Probability that the true rate is above alpha; None if alpha is kept on average over calibration sets.
    rows_needed
        Fewest calibration rows with which there are alarms at all.
    """

    rank: int
    n: int
    alpha: float
    delta: float | None
    rows_needed: int

    @property
    def p_value(self) -> float:
        """k / (n + 1), the expected false-alarm rate; over calibration sets the rate is Beta(k, n + 1 - k)."""
        return self.rank / (self.n + 1)

    @property
    def feasible(self) -> bool:
        """Whether there are rows enough for any alarm."""
        return self.rank > 0

    def flags(self, p_values: Floats) -> NDArray[np.bool_]:
        """Which rows are outliers, by `p_values` of n calibration rows, (m,)."""
        return np.asarray(p_values) <= self.p_value


def cutoff(n: int, alpha: float, delta: float | None = None) -> Cutoff:
    """Where to call a row an outlier so that at most a share alpha of normal rows is.

    *On average* (no delta) k = ⌊α (n + 1)⌋, as many alarms as validity allows. One calibration set is what a service
    has, though, and given that set the rate is a draw from Beta(k, n + 1 - k): half of all sets are above the mean.
    *With delta* k is the largest with P(Beta(k, n + 1 - k) > α) = P(Bin(n, α) < k) <= δ, so that the rate of this very
    set is at most α with confidence 1 - δ.

    Parameters
    ----------
    n
        Calibration rows.
    alpha
        Between 0 and 1.
    delta
        Between 0 and 1, or None.

    >>> cutoff(1000, 0.01).rank, cutoff(1000, 0.01, delta=0.05).rank
    (10, 5)
    """
    if n < 0 or not 0.0 < alpha < 1.0 or (delta is not None and not 0.0 < delta < 1.0):
        raise ConfigError(f"{n} rows, alpha {alpha} and delta {delta}: the last two must be between 0 and 1")
    if delta is None:
        # The product may round to the wrong side of a whole number, and p-values are compared, not products.
        rank = math.floor(alpha * (n + 1))
        rank += (rank + 1) / (n + 1) <= alpha
        rank -= rank / (n + 1) > alpha
        return Cutoff(rank, n, alpha, None, _least_rows(alpha))
    low, high = 0, n + 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_cdf(middle - 1, n, alpha) <= delta else (low, middle)
    return Cutoff(low, n, alpha, delta, rows_without_error(alpha, delta))


@dataclass(frozen=True, slots=True, eq=False)
class ClassCalibration:
    """Calibration scores by predicted class, for p-values that are valid within each class (Mondrian).

    A class whose rows are all a little unusual then raises no more alarms than another. A class with fewer rows than
    an alarm at alpha takes is ranked among all rows instead, and its p-values are marked: they promise nothing about
    that class by itself, only that all marked rows together raise false alarms for at most a share alpha of traffic.

    Parameters
    ----------
    scores
        Of all calibration rows, those of class 0 first, ascending within a class, (n,).
    starts
        Where each class begins, and the end, (K + 1,).
    min_rows
        Fewest rows for a class of its own.
    """

    scores: Floats
    starts: NDArray[np.int64]
    min_rows: int
    _all_sorted: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_all_sorted", np.sort(self.scores))

    @classmethod
    def of(cls, scores: ArrayLike, classes: ArrayLike, n_classes: int, alpha: float) -> ClassCalibration:
        """Calibration from scores (n,) and predicted classes (n,) in 0..n_classes-1, for alarms at alpha."""
        scores = np.asarray(scores, dtype=np.float64)
        classes = _checked_classes(classes, scores.shape, n_classes)
        if scores.ndim != 1 or np.isnan(scores).any() or not 0.0 < alpha < 1.0:
            raise ConfigError("class calibration needs scores in one dimension, none NaN, and alpha between 0 and 1")
        starts = np.concatenate([[0], np.cumsum(np.bincount(classes, minlength=n_classes))])
        return cls(scores[np.lexsort((scores, classes))], starts.astype(np.int64), _least_rows(alpha))

    @property
    def is_pooled(self) -> NDArray[np.bool_]:
        """Which classes have too few rows of their own, (K,)."""
        return np.diff(self.starts) < self.min_rows

    def p_values(self, scores: Floats, classes: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
        """p-value of each row, and whether it is one among all rows for lack of rows of its class, (m,) each.

        Parameters
        ----------
        scores
            (m,).
        classes
            Predicted classes in 0..K-1, (m,).
        """
        scores = np.asarray(scores, dtype=np.float64)
        classes = _checked_classes(classes, scores.shape, len(self.starts) - 1)
        pooled = self.is_pooled[classes]
        found = np.empty(len(scores))
        if pooled.any():
            found[pooled] = p_values(scores[pooled], self._all_sorted)
        for label in np.unique(classes[~pooled]):
            rows = classes == label
            found[rows] = p_values(scores[rows], self.scores[self.starts[label] : self.starts[label + 1]])
        return found, pooled


def benjamini_hochberg(p_values: Floats, level: float) -> NDArray[np.bool_]:
    """Which rows of a window to report as outliers, such that at most a share `level` of the reports is false, (m,).

    Reports the i smallest p-values, for the largest i with p_(i) <= level i / m. Conformal p-values of one calibration
    set depend on each other, but positively, which is all the procedure needs (Bates et al. 2023). The share is bounded
    on average over windows.

    Parameters
    ----------
    p_values
        (m,); NaN is never reported and not counted.
    level
        Between 0 and 1.
    """
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level is {level}; it must be between 0 and 1")
    ranked = np.sort(p_values[~np.isnan(p_values)])
    passed = np.flatnonzero(ranked * len(ranked) <= level * np.arange(1, len(ranked) + 1) + _ROUNDING)
    largest = float(ranked[passed[-1]]) if len(passed) else -math.inf
    reported: NDArray[np.bool_] = p_values <= largest
    return reported


def _least_rows(alpha: float) -> int:
    """Fewest calibration rows whose smallest p-value, 1 / (n + 1), is at most alpha."""
    return math.ceil(1.0 / alpha - _ROUNDING) - 1


def _checked_classes(classes: ArrayLike, shape: tuple[int, ...], n_classes: int) -> NDArray[np.int64]:
    labels = np.asarray(classes)
    whole = labels.dtype.kind in "iu" or not labels.size
    if labels.shape != shape or not whole or (labels < 0).any() or (labels >= n_classes).any():
        raise ConfigError(f"classes must be whole numbers from 0 to {n_classes - 1}, one for each score")
    return labels.astype(np.int64)
