"""Conformal p-values: how unusual a score is, as a probability that is valid for any score.

Scores are higher for more usual rows. A new row that is exchangeable with the n calibration rows has each rank among
n + 1 with equal probability, so

    p = (1 + #{calibration score <= score}) / (n + 1)        satisfies   P(p <= α) <= α,

with equality to ⌊α (n + 1)⌋ / (n + 1) if no scores tie. A poor score costs power, never validity, provided that it is a
*fixed* function, made without the calibration rows.

    cutoff                 false-alarm rate α on average, or at most α with confidence 1 - δ
    smoothed_p_values      exactly uniform even with ties, for drift statistics
    benjamini_hochberg     which rows of a window to report, with a bounded share of false reports

`class_conditional` gives the same guarantee within each predicted class.

The minimum of two p-values is not a p-value: at α = 1% it can double the false alarms. Ranking that minimum among the
calibration rows that made the p-values does not help: a calibration row is one of its own references and a new row is
not, so alarms are lost (a fifth of them for 999 rows, all of them for 99). Instead each score is mapped to its rank
among *other* rows, such as the fit rows (`scores.outlier.RankTransform`). A sum of these ranks is one fixed score, and
its conformal p-value is exact.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import binomial_cdf, rows_without_error
from darksight_core.rows.simplex import Floats

__all__ = ["Cutoff", "benjamini_hochberg", "cutoff", "least_rows", "p_values", "smoothed_p_values", "uniforms"]

# A product such as 0.07 * 100 may come out a rounding error below the whole number that it is.
_ROUNDING = 1e-9


def p_values(scores: Floats, calibration_sorted: Floats) -> Floats:
    """(1 + #{calibration score <= score}) / (n + 1), (m,), in O(log n) each; NaN for NaN.

    Equal scores count as lower, so ties make p larger and alarms rarer.

    Parameters
    ----------
    scores
        (m,).
    calibration_sorted
        Scores of the calibration rows, ascending, (n,). The order is not checked, because that costs O(n).

    >>> p_values(np.array([0.0, 2.0]), np.array([1.0, 2.0]))
    array([0.33333333, 1.        ])
    """
    rank = np.searchsorted(calibration_sorted, scores, side="right")
    # NaN sorts last: without this a row that could not be scored would look usual.
    return np.where(np.isnan(scores), np.nan, (1.0 + rank) / (1.0 + len(calibration_sorted)))


def smoothed_p_values(scores: Floats, calibration_sorted: Floats, uniforms: Floats) -> Floats:
    """(#{calibration score < score} + U (1 + #{calibration score = score})) / (n + 1), exactly uniform, (m,).

    Without ties it is p - (1 - U) / (n + 1). Statistics that count p-values in bins need it, because rows with tied
    scores all have the same value of `p_values` and fall into one bin.

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
    """A pseudo-random uniform number in (0, 1) for each id, the same on every machine and in every run, (m,).

    >>> uniforms(["a", "b", "a"]).round(3)
    array([0.063, 0.028, 0.063])
    """
    words = []
    for record_id in record_ids:
        name = record_id.encode() if isinstance(record_id, str) else record_id
        words.append(int.from_bytes(hashlib.blake2b(name, digest_size=8, person=b"darksight.p").digest(), "little"))
    # The finest grid on which rounding reaches neither 0 nor 1 has 52 bits and an offset of half a step.
    return (np.array([word >> 12 for word in words], dtype=np.float64) + 0.5) / 2.0**52


@dataclass(frozen=True, slots=True)
class Cutoff:
    """A row is an outlier if p <= `p_value`.

    Parameters
    ----------
    rank
        k: rows that score below the k-th smallest calibration score are outliers; 0 if no row can be one.
    n
        Calibration rows.
    alpha
        Requested false-alarm rate.
    delta
        Probability that the true rate is above alpha; None if alpha holds on average over calibration sets.
    rows_needed
        Fewest calibration rows with which any row can be an outlier.
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
        """Whether there are enough calibration rows for any outlier."""
        return self.rank > 0

    def flags(self, p_values: Floats) -> NDArray[np.bool_]:
        """Which rows are outliers, (m,), from their p-values (m,)."""
        return np.asarray(p_values) <= self.p_value


def cutoff(n: int, alpha: float, delta: float | None = None) -> Cutoff:
    """The cutoff at which at most a share alpha of usual rows are outliers.

    *On average* (no delta): k = ⌊α (n + 1)⌋, the most alarms that are valid. But a service has one calibration set, and
    given that set the rate is a draw from Beta(k, n + 1 - k): half of all sets are above the mean.

    *With delta*: k is the largest with P(Beta(k, n + 1 - k) > α) = P(Bin(n, α) < k) <= δ, so the rate of this set is at
    most α with confidence 1 - δ.

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
        raise ConfigError(
            f"n is {n}, alpha {alpha} and delta {delta}; n must be 0 or more, alpha and delta between 0 and 1"
        )
    if delta is None:
        # The product may round to the wrong side of a whole number, so the p-values themselves are compared.
        rank = math.floor(alpha * (n + 1))
        rank += (rank + 1) / (n + 1) <= alpha
        rank -= rank / (n + 1) > alpha
        return Cutoff(rank, n, alpha, None, least_rows(alpha))
    low, high = 0, n + 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_cdf(middle - 1, n, alpha) <= delta else (low, middle)
    return Cutoff(low, n, alpha, delta, rows_without_error(alpha, delta))


def benjamini_hochberg(p_values: Floats, level: float) -> NDArray[np.bool_]:
    """Which rows of a window to report as outliers, so that at most a share `level` of the reports is false, (m,).

    Reports the i smallest p-values, for the largest i with p_(i) <= level i / m. Conformal p-values that share a
    calibration set are positively dependent, which is sufficient (Bates et al. 2023). The share is bounded on average
    over windows.

    Parameters
    ----------
    p_values
        (m,); NaN is neither reported nor counted.
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


def least_rows(alpha: float) -> int:
    """Fewest calibration rows whose smallest p-value, 1 / (n + 1), is at most alpha."""
    return math.ceil(1.0 / alpha - _ROUNDING) - 1
