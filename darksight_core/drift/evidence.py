"""Has the outlier rate ever left its calibrated value? Evidence that is valid at any time and however often it is read.

A non-negative martingale M that starts at 1 ever reaches 1/a with probability at most a (Ville). The null hypothesis
needs care: a threshold calibrated on n rows at level α with rank k = ⌊α (n + 1)⌋ has an outlier rate π that is itself
random, π ~ Beta(k, n + 1 - k). A test that assumes π = α gives 44% false alarms over 50,000 rows at a nominal 1%
(n = 2,000, α = 0.01). `OutlierRateTest` runs two valid tests and raises an alarm if either does:

    Polya     averages over π: P(next is an outlier | S of t were) = (k + S) / (n + 1 + t), against a Beta(1, 20)
              mixture. The likelihood ratio is exact and detects large jumps fast, but in a long stream it attributes a
              small excess to the calibration set. It also detects a rate that falls.
    PAC       assumes π <= p0, a bound that fails for a share δ of calibration sets, and bets on rates above p0. Slower,
              but its power against a small excess keeps growing.

Both depend only on the counts S and t, so counts of replicas are added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.drift.checks import checked_level
from darksight_core.drift.special import ln_beta
from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import upper_bound
from darksight_core.guarantees.conformal import cutoff
from darksight_core.rows.simplex import Floats

__all__ = [
    "Evidence",
    "OutlierCounts",
    "OutlierRateTest",
    "bet_weights",
    "conformal_rank",
    "pac_log_evidence",
    "pac_rate",
    "polya_log_evidence",
    "ville_threshold",
]

# Outlier rates of a few percent are the alternative of interest: Beta(1, 20) has mean 0.048 and mass up to about 0.2.
_PRIOR_OUTLIER, _PRIOR_USUAL = 1.0, 20.0

# Bets of the PAC test. Against a rate of 0.02 (n = 2,000, α = 0.01) 8 bets need half as many rows again as 16; 32 are
# not faster.
_BETS = 16


def ville_threshold(level: float) -> float:
    """ln(1/level): a non-negative martingale that starts at 1 ever reaches 1/level with probability <= level."""
    return -math.log(checked_level(level))


def conformal_rank(calibration_rows: int, alpha: float) -> int:
    """k = ⌊α (n + 1)⌋, the number of p-values j / (n + 1) that are at most α.

    >>> conformal_rank(99, 0.29), int(0.29 * 100)
    (29, 28)
    """
    found = cutoff(calibration_rows, checked_level(alpha))
    if not found.feasible:
        raise ConfigError(f"alpha {alpha} needs at least {found.rows_needed} calibration rows, not {calibration_rows}")
    return found.rank


def polya_log_evidence(outliers: ArrayLike, rows: ArrayLike, *, calibration_rows: int, rank: int) -> Floats:
    """ln M of S outliers among t rows, against a rate known only through the calibration set.

        ln M = B(A + S, C + t - S) - B(A, C) - B(k + S, n + 1 - k + t - S) + B(k, n + 1 - k)

    with B the logarithm of the Beta function and A = 1, C = 20.

    Parameters
    ----------
    outliers
        S, any shape.
    rows
        t, same shape.
    calibration_rows
        n.
    rank
        k: rows with p-value at most k / (n + 1) are outliers.
    """
    hits = np.asarray(outliers, dtype=np.float64)
    misses = np.asarray(rows, dtype=np.float64) - hits
    a, c, k, rest = _PRIOR_OUTLIER, _PRIOR_USUAL, float(rank), float(calibration_rows + 1 - rank)
    drifted = ln_beta(a + hits, c + misses) - ln_beta(a, c)
    return drifted - ln_beta(k + hits, rest + misses) + ln_beta(k, rest)


def pac_log_evidence(outliers: ArrayLike, rows: ArrayLike, *, p0: float) -> Floats:
    """ln M of S outliers among t rows, against any rate up to p0, with the shape of the arguments.

    M is the mean of likelihood ratios (q/p0)^S ((1-q)/(1-p0))^(t-S) over 16 rates q spread evenly in ln q between p0
    and 1. Only rates above p0 are used: a bet below p0 would turn a low rate into evidence.
    """
    hits = np.asarray(outliers, dtype=np.float64)[..., None]
    misses = np.asarray(rows, dtype=np.float64)[..., None] - hits
    rates = p0 ** (1.0 - (np.arange(_BETS) + 0.5) / _BETS)
    won, lost = (np.array(weights) for weights in zip(*(bet_weights(p0, q) for q in rates.tolist()), strict=True))
    evidence: Floats = np.logaddexp.reduce(hits * won + misses * lost, axis=-1) - math.log(_BETS)
    return evidence


def bet_weights(p0: float, p1: float) -> tuple[float, float]:
    """ln(p1/p0) and ln((1-p1)/(1-p0)): contributions of an outlier and of another row to the log likelihood ratio.

    A recording rule computes the evidence of a window from two counters with them.
    """
    if not 0.0 < p0 < p1 < 1.0:
        raise ConfigError(f"rates must satisfy 0 < p0 < p1 < 1, not p0 = {p0}, p1 = {p1}")
    return math.log(p1 / p0), math.log1p(-p1) - math.log1p(-p0)


@lru_cache(maxsize=256)
def pac_rate(calibration_rows: int, rank: int, delta: float) -> float:
    """p0, the 1 - δ quantile of Beta(k, n + 1 - k).

    Without drift the outlier rate is at most p0 for a share 1 - δ of calibration sets.

    Parameters
    ----------
    calibration_rows
        n.
    rank
        k.
    delta
        δ.
    """
    if not 1 <= rank <= calibration_rows:
        raise ConfigError(f"rank must be between 1 and {calibration_rows}, not {rank}")
    return float(upper_bound(rank - 1, calibration_rows, delta))


@dataclass(frozen=True, slots=True)
class OutlierCounts:
    """Rows seen since the start of a test, and outliers among them; `+` adds the counts of replicas."""

    rows: int = 0
    outliers: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.outliers <= self.rows:
            raise ConfigError(f"outliers must be between 0 and rows, not {self.outliers} of {self.rows}")

    def __add__(self, other: OutlierCounts) -> OutlierCounts:
        return OutlierCounts(self.rows + other.rows, self.outliers + other.outliers)

    def update(self, *, rows: int, outliers: int) -> OutlierCounts:
        """The counts after more rows."""
        return self + OutlierCounts(rows, outliers)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of counts against an unchanged outlier rate.

    Parameters
    ----------
    rate
        Share of outliers; None without rows.
    expected_rate
        k / (n + 1), the mean rate without drift.
    log_polya
        ln M of the Polya test.
    log_pac
        ln M of the PAC test.
    log_evidence
        max(log_polya - ln 2, log_pac - ln 4): the evidence after correcting for two tests.
    threshold
        ln(1/level), with which `log_evidence` is compared.
    """

    rate: float | None
    expected_rate: float
    log_polya: float
    log_pac: float
    log_evidence: float
    threshold: float

    @property
    def is_alarm(self) -> bool:
        """Whether the outlier rate has changed, at the level of the test."""
        return self.log_evidence >= self.threshold


@dataclass(frozen=True, slots=True)
class OutlierRateTest:
    """The anytime-valid test of an unchanged outlier rate.

    P(any alarm, ever | no drift) <= level. The Polya test uses half of the level; the PAC test uses a quarter for the
    probability that p0 is wrong and a quarter for its bets.

    >>> test = OutlierRateTest(calibration_rows=2_000, alpha=0.01)
    >>> test.evidence(OutlierCounts(rows=1_000, outliers=12)).is_alarm
    False
    >>> test.evidence(OutlierCounts(rows=1_000, outliers=12) + OutlierCounts(rows=200, outliers=30)).is_alarm
    True

    Parameters
    ----------
    calibration_rows
        n, rows among which p-values are ranks.
    alpha
        Rows with p-value at most α are outliers.
    level
        Bound on the probability of a false alarm.
    rank
        k, if the gate has another rank than ⌊α (n + 1)⌋, such as the lower one of a cutoff with confidence.
    """

    calibration_rows: int
    alpha: float
    level: float = 0.01
    rank: int | None = None

    def __post_init__(self) -> None:
        checked_level(self.level)
        if not 1 <= self.k <= self.calibration_rows:
            raise ConfigError(f"rank must be between 1 and {self.calibration_rows}, not {self.k}")

    @property
    def k(self) -> int:
        """Rows with p-value at most k / (n + 1) are outliers."""
        return conformal_rank(self.calibration_rows, self.alpha) if self.rank is None else self.rank

    @property
    def p0(self) -> float:
        """Highest outlier rate that is attributed to the calibration set."""
        return pac_rate(self.calibration_rows, self.k, 0.25 * self.level)

    def log_polya(self, outliers: ArrayLike, rows: ArrayLike) -> Floats:
        """ln M of the Polya test, with the shape of the counts."""
        return polya_log_evidence(outliers, rows, calibration_rows=self.calibration_rows, rank=self.k)

    def log_pac(self, outliers: ArrayLike, rows: ArrayLike) -> Floats:
        """ln M of the PAC test, with the shape of the counts."""
        return pac_log_evidence(outliers, rows, p0=self.p0)

    def log_evidence(self, outliers: ArrayLike, rows: ArrayLike) -> Floats:
        """Evidence of both tests, with the shape of the counts: alarm where it reaches `ville_threshold(level)`."""
        return _combined(self.log_polya(outliers, rows), self.log_pac(outliers, rows))

    def evidence(self, counts: OutlierCounts) -> Evidence:
        """Evidence of these counts, valid at any time."""
        log_polya, log_pac = self.log_polya(counts.outliers, counts.rows), self.log_pac(counts.outliers, counts.rows)
        return Evidence(
            rate=counts.outliers / counts.rows if counts.rows else None,
            expected_rate=self.k / (self.calibration_rows + 1),
            log_polya=float(log_polya),
            log_pac=float(log_pac),
            log_evidence=float(_combined(log_polya, log_pac)),
            threshold=ville_threshold(self.level),
        )


def _combined(log_polya: Floats, log_pac: Floats) -> Floats:
    # The limit of Polya is 2/level, that of PAC 4/level, because half of its share of the level is spent on p0.
    return np.maximum(log_polya - math.log(2.0), log_pac - math.log(4.0))
