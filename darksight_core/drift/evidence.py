"""Whether the outlier rate has ever left its calibrated value: evidence that may be read at any time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.drift.special import checked_level, ln_beta
from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import upper_bound
from darksight_core.guarantees.conformal import cutoff
from darksight_core.simplex import Floats

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

# Rates of a few per cent are the alternative of interest: Beta(1, 20) has mean 0.048 and reaches from 0 to about 0.2.
_PRIOR_OUTLIER, _PRIOR_USUAL = 1.0, 20.0

# Bets of the PAC test. Against a rate of 0.02 (n = 2,000, α = 0.01) 8 bets take half as long again as 16, and 32 are no
# quicker.
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
    """ln M of S outliers among t rows, against a rate that is known only through the calibration set.

        ln M = B(A + S, C + t - S) - B(A, C) - B(k + S, n + 1 - k + t - S) + B(k, n + 1 - k)

    with B the logarithm of the Beta function and A = 1, C = 20.

    Parameters
    ----------
    outliers
        S, any shape.
    rows
        t, of the same shape.
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
    """ln M of S outliers among t rows, against any rate up to p0; of the shape of its arguments.

    M is the mean of likelihood ratios (q/p0)^S ((1-q)/(1-p0))^(t-S) over 16 rates q spread evenly in ln q between p0
    and 1. Only rates above p0 take part: one below would collect evidence from a rate that is merely low.
    """
    hits = np.asarray(outliers, dtype=np.float64)[..., None]
    misses = np.asarray(rows, dtype=np.float64)[..., None] - hits
    rates = p0 ** (1.0 - (np.arange(_BETS) + 0.5) / _BETS)
    won, lost = (np.array(weights) for weights in zip(*(bet_weights(p0, q) for q in rates.tolist()), strict=True))
    evidence: Floats = np.logaddexp.reduce(hits * won + misses * lost, axis=-1) - math.log(_BETS)
    return evidence


def bet_weights(p0: float, p1: float) -> tuple[float, float]:
    """ln(p1/p0) and ln((1-p1)/(1-p0)): what an outlier and any other row add to the log likelihood ratio of p1 to p0.

    With them a recording rule computes the evidence of a window from two counters.
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
    """Rows seen since the start of a test and the outliers among them; counts of replicas are added with +."""

    rows: int = 0
    outliers: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.outliers <= self.rows:
            raise ConfigError(f"{self.outliers} outliers among {self.rows} rows cannot be")

    def __add__(self, other: OutlierCounts) -> OutlierCounts:
        return OutlierCounts(self.rows + other.rows, self.outliers + other.outliers)

    def update(self, *, rows: int, outliers: int) -> OutlierCounts:
        """The counts after more rows."""
        return self + OutlierCounts(rows, outliers)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the counts say against an unchanged outlier rate.

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
        max(log_polya - ln 2, log_pac - ln 4): what is left after the price of running both.
    threshold
        ln(1/level), to which `log_evidence` is compared.
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

    @property
    def is_above(self) -> bool:
        """Whether the rate is higher than expected; an alarm may also mean that it fell."""
        return self.rate is not None and self.rate > self.expected_rate


@dataclass(frozen=True, slots=True)
class OutlierRateTest:
    """The anytime-valid test of an unchanged outlier rate.

    P(any alarm, ever | no drift) <= level. The Polya test has half of the level. The PAC test has the other half, of
    which it spends one part on p0 being wrong and one on its bets.

    >>> test = OutlierRateTest(calibration_rows=2_000, alpha=0.01)
    >>> test.evidence(OutlierCounts(rows=1_000, outliers=12)).is_alarm
    False
    >>> test.evidence(OutlierCounts(rows=1_000, outliers=12) + OutlierCounts(rows=200, outliers=30)).is_alarm
    True

    Parameters
    ----------
    calibration_rows
        n, rows from which p-values are ranked.
    alpha
        Rows with p-value at most α are outliers.
    level
        Bound on the probability of a false alarm.
    rank
        k where the gate has another than ⌊α (n + 1)⌋, such as a PAC cutoff, which is lower.
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
        """Highest outlier rate that is put down to calibration."""
        return pac_rate(self.calibration_rows, self.k, 0.25 * self.level)

    def log_polya(self, outliers: ArrayLike, rows: ArrayLike) -> Floats:
        """ln M of the Polya test, of the shape of the counts."""
        return polya_log_evidence(outliers, rows, calibration_rows=self.calibration_rows, rank=self.k)

    def log_pac(self, outliers: ArrayLike, rows: ArrayLike) -> Floats:
        """ln M of the PAC test, of the shape of the counts."""
        return pac_log_evidence(outliers, rows, p0=self.p0)

    def log_evidence(self, outliers: ArrayLike, rows: ArrayLike) -> Floats:
        """Combined evidence, of the shape of the counts: alarm where it reaches `ville_threshold(level)`."""
        return _combined(self.log_polya(outliers, rows), self.log_pac(outliers, rows))

    def evidence(self, counts: OutlierCounts) -> Evidence:
        """What these counts say; may be asked at any time and any number of times."""
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
    # Polya may reach 2/level, PAC 4/level: it has spent half of its half on p0.
    return np.maximum(log_polya - math.log(2.0), log_pac - math.log(4.0))
