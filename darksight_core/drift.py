"""Is the traffic drifting? Window distances for a dashboard, and evidence that may wake someone.

Conformal p-values are uniform while nothing changes, whatever the classifier, so one reference serves every model. Two
kinds of question are asked of them, and they deserve different trust.

**How far is this window from normal?** `psi` on counts of p-values, `ks_distance` and `wasserstein` on scores,
`mmd_test` on points of the map, `occupancy_test` on predicted classes. Each error rate holds for one look; whoever
looks every minute will be alarmed every day. Critical values shrink like 1/n, so no fixed limit suits all windows: the
customary PSI of 0.1 is passed by 40 % of undisturbed windows of 100 rows. `psi_verdict` therefore asks for
significance, for a practical effect and for enough rows, all three. What stays below its floor, such as twice as many
rows in the lowest tenth of p-values (PSI 0.08), is left to the evidence below.

**Has the outlier rate ever left its calibrated value?** A non-negative martingale M that starts at 1 reaches 1/a with
probability at most a, over all time and however often it is read (Ville). The trap is the null hypothesis. A threshold
calibrated on n rows at level α with rank k = ⌊α (n + 1)⌋ has a rate π that is itself random, π ~ Beta(k, n + 1 - k);
a test that takes π = α for granted gives 44 % false alarms over 50,000 rows where 1 % was promised (n = 2,000,
α = 0.01). `OutlierRateTest` runs two honest tests and alarms when either does:

    Polya     averages over π: P(next is an outlier | S of t were) = (k + S) / (n + 1 + t), against a Beta(1, 20)
              mixture. The likelihood ratio is exact and quick for large jumps, but in a long stream it takes a small
              excess for a property of the calibration set. It also notices a rate that falls.
    PAC       takes π <= p0, a bound that fails for a share δ of calibration sets, and bets on rates above it. Slower,
              but its power against a small excess keeps growing.

Both read nothing but the two counts S and t, so the counts of replicas are added and give the evidence one server would
have. `ChangeDetector` answers a third question, when did it change, with a bound on how often it cries wolf per row
instead of ever; its values add up across replicas, too, because M minus the rows seen has mean at most 0 on each.

What the guarantees do not cover: rows that are not exchangeable (retries, one user sending one row a thousand times);
tied scores, which make p-values conservative and the rate lower than k / (n + 1); a change of bundle, which starts new
counts; and concept drift that leaves the probabilities alone, which nothing here can see.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.binomial import upper_bound
from darksight_core.errors import ConfigError
from darksight_core.simplex import Floats

__all__ = [
    "AdaptiveLevel",
    "ChangeDetector",
    "Evidence",
    "OccupancyTest",
    "OutlierCounts",
    "OutlierRateTest",
    "PsiVerdict",
    "TwoSampleTest",
    "bet_weights",
    "chi2_quantile",
    "chi2_tail",
    "conformal_rank",
    "detector_path",
    "ks_critical",
    "ks_distance",
    "mmd_test",
    "occupancy_test",
    "p_value_counts",
    "pac_log_evidence",
    "pac_rate",
    "polya_log_evidence",
    "psi",
    "psi_critical",
    "psi_verdict",
    "ville_threshold",
    "wasserstein",
]

Kernel: TypeAlias = Literal["rbf", "energy"]
Detector: TypeAlias = Literal["sr", "cusum"]

# Rates of a few per cent are the alternative of interest: Beta(1, 20) has mean 0.048 and reaches from 0 to about 0.2.
_PRIOR_OUTLIER, _PRIOR_USUAL = 1.0, 20.0

# ln of the smallest positive float: as good as M = 0 and, unlike -inf, a number that JSON and SQL can hold.
_LN_NOTHING = -745.0

# Bets of the PAC test. Against a rate of 0.02 (n = 2,000, α = 0.01) 8 bets take half as long again as 16, and 32 are no
# quicker.
_BETS = 16


def p_value_counts(p_values: ArrayLike, *, bins: int = 10) -> NDArray[np.int64]:
    """How many p-values lie in each of the bins (0, 1/B], (1/B, 2/B], ..., counts (B,).

    Bins include their upper edge, as the outlier decision p <= α does. They have equal probability under no drift when
    B divides n + 1, n the number of calibration rows.

    >>> p_value_counts([0.1, 0.100001, 1.0])
    array([1, 1, 0, 0, 0, 0, 0, 0, 0, 1])

    Parameters
    ----------
    p_values
        (n,), in (0, 1].
    bins
        Number B of bins.
    """
    values = _values("p_values", p_values, least=0)
    if bins < 2:
        raise ConfigError(f"p-values need at least 2 bins, not {bins}")
    if values.size and not (values.min() > 0.0 and values.max() <= 1.0):
        raise ConfigError("p_values must lie in (0, 1]")
    # Rounding may lift j B / (n + 1) just above an edge that it meets exactly; no calibration grid is as fine as 1e-9.
    index = np.maximum(np.ceil(values * bins - 1e-9).astype(np.int64) - 1, 0)
    return np.bincount(index, minlength=bins)


def psi(counts: ArrayLike) -> Floats:
    """Population stability index of counts against the uniform distribution over their bins.

        PSI = Σ_b (a_b - 1/B) ln(a_b B),   a_b = (c_b + 1/2) / (N + B/2)

    All cells get the half count, empty or not, so that the recording rule in Prometheus is the same formula.

    >>> float(psi([100, 100, 100, 100]))
    0.0

    Parameters
    ----------
    counts
        (..., B); need not be whole, since rates over time are not.
    """
    counts = np.asarray(counts, dtype=np.float64)
    if counts.ndim < 1 or counts.shape[-1] < 2:
        raise ConfigError(f"counts must have shape (..., B) with B >= 2, not {counts.shape}")
    if not (np.isfinite(counts).all() and (counts >= 0.0).all()):
        raise ConfigError("counts must be finite and not negative")
    bins = counts.shape[-1]
    share = (counts + 0.5) / (counts.sum(axis=-1, keepdims=True) + 0.5 * bins)
    total: Floats = ((share - 1.0 / bins) * np.log(share * bins)).sum(axis=-1)
    return total


def psi_critical(rows: float, calibration_rows: float, *, bins: int = 10, level: float = 0.01) -> float:
    """χ²_{B-1, 1-level} (1/n + 1/m): exceeded by PSI in a share `level` of windows without drift.

    The term 1/m is the noise of the calibration set, which no window length removes. Measured false alarms at level 1 %
    with B = 10 are between 0.9 and 1.1 % from n = 100 on. That is owed to the half counts: without them 2 % at n = 100.

    Parameters
    ----------
    rows
        n, rows in the window.
    calibration_rows
        m, rows from which p-values are ranked.
    """
    if rows <= 0 or calibration_rows <= 0:
        raise ConfigError(f"rows and calibration_rows must be positive, not {rows} and {calibration_rows}")
    return chi2_quantile(1.0 - _level(level), bins - 1) * (1.0 / rows + 1.0 / calibration_rows)


@dataclass(frozen=True, slots=True)
class PsiVerdict:
    """What PSI says about one window.

    Parameters
    ----------
    psi
        The index.
    critical
        Its critical value for this number of rows.
    floor
        Least index that matters in practice.
    rows
        Rows in the window.
    is_enough
        Whether there are 50 rows per bin; with fewer, chance alone comes close to the floor.
    """

    psi: float
    critical: float
    floor: float
    rows: float
    is_enough: bool

    @property
    def is_alert(self) -> bool:
        """PSI above both its critical value and the floor, on enough rows."""
        return self.is_enough and self.psi > max(self.critical, self.floor)


def psi_verdict(
    counts: ArrayLike, calibration_rows: float, *, level: float = 0.01, floor: float = 0.1
) -> PsiVerdict | None:
    """Verdict on a window with counts (B,) of p-values; None for a window without rows."""
    counts = np.asarray(counts, dtype=np.float64)
    if counts.ndim != 1:
        raise ConfigError(f"counts of one window must have shape (B,), not {counts.shape}")
    index, rows, bins = float(psi(counts)), float(counts.sum()), len(counts)
    if rows == 0.0:
        return None
    critical = psi_critical(rows, calibration_rows, bins=bins, level=level)
    return PsiVerdict(index, critical, floor, rows, rows >= 50 * bins)


def ks_distance(a: ArrayLike, b: ArrayLike) -> float:
    """Kolmogorov-Smirnov distance sup_x |F_a(x) - F_b(x)| of samples a (n,) and b (m,)."""
    _, gap = _cdf_gap(_values("a", a), _values("b", b))
    return float(np.abs(gap).max())


def ks_critical(n: int, m: int, *, level: float = 0.01) -> float:
    """c √((n + m) / (n m)) with c = √(-ln(level / 2) / 2): conservative for ties, asymptotic otherwise.

    >>> round(ks_critical(100, 100, level=0.05), 4)
    0.1921
    """
    if n < 1 or m < 1:
        raise ConfigError(f"both samples need rows, not {n} and {m}")
    return math.sqrt(-0.5 * math.log(0.5 * _level(level)) * (n + m) / (n * m))


def wasserstein(a: ArrayLike, b: ArrayLike) -> float:
    """Wasserstein-1 distance ∫ |F_a - F_b| dx of samples a (n,) and b (m,): an effect size, in the units of the score.

    >>> wasserstein([0.0, 1.0], [5.0, 6.0])
    5.0
    """
    pooled, gap = _cdf_gap(_values("a", a), _values("b", b))
    return float((np.abs(gap[:-1]) * np.diff(pooled)).sum())


def _cdf_gap(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """The pooled values in order, (n + m,), and F_a - F_b at each of them."""
    pooled = np.sort(np.concatenate([a, b]))
    above = [np.searchsorted(np.sort(sample), pooled, side="right") / len(sample) for sample in (a, b)]
    return pooled, above[0] - above[1]


@dataclass(frozen=True, slots=True)
class TwoSampleTest:
    """A distance between two samples and how often a random split of the pooled rows is at least as far apart.

    Parameters
    ----------
    distance
        Unbiased estimate of the squared distance; below zero when the samples are closer than chance.
    p_value
        (1 + #{permutations >= distance}) / (1 + permutations): exact, no asymptotics.
    rows
        Rows compared of each sample.
    """

    distance: float
    p_value: float
    rows: tuple[int, int]


def mmd_test(
    reference: Floats,
    window: Floats,
    *,
    kernel: Kernel = "rbf",
    permutations: int = 199,
    max_rows: int = 1_000,
    seed: int = 0,
) -> TwoSampleTest:
    """Maximum mean discrepancy of two clouds of points, with a permutation p-value.

        MMD² = Σ_{i≠j} k(x_i, x_j) / (n (n-1)) + Σ_{i≠j} k(y_i, y_j) / (m (m-1)) - 2 Σ_{i,j} k(x_i, y_j) / (n m)

    Parameters
    ----------
    reference
        Points x, (n, d).
    window
        Points y, (m, d).
    kernel
        "rbf": exp(-|x - y|² / 2σ²) with σ the median distance of the pooled points; "energy": -|x - y|, which makes
        MMD² the energy distance and has no scale to choose.
    permutations
        Number of random splits; the smallest p-value is 1 / (permutations + 1).
    max_rows
        Each sample is thinned to this many rows: the cost is their square.
    seed
        Seed of the thinning and of the splits.
    """
    rng = np.random.default_rng(seed)
    x, y = (_thinned(name, rows, max_rows, rng) for name, rows in (("reference", reference), ("window", window)))
    if x.shape[1] != y.shape[1]:
        raise ConfigError(f"reference and window must have points of one dimension, not {x.shape[1]} and {y.shape[1]}")
    if permutations < 1:
        raise ConfigError(f"permutations must be positive, not {permutations}")
    n, m = len(x), len(y)
    similar = _similarity(np.concatenate([x, y]), kernel)

    # One column for each split, the observed one first: a 1 for every row that belongs to x. Columns of one matrix
    # product cost far less than a loop over splits.
    member = np.zeros((n + m, permutations + 1))
    member[:n] = 1.0
    member[:, 1:] = rng.permuted(member[:, 1:], axis=0)
    shared = similar @ member
    within_x = (member * shared).sum(axis=0)
    across = shared.sum(axis=0) - within_x
    within_y = similar.sum() - 2.0 * across - within_x
    squared = within_x / (n * (n - 1)) + within_y / (m * (m - 1)) - 2.0 * across / (n * m)

    # Splits that equal the observed one must count as equal although their sums were rounded in another order.
    slack = 1e-12 * float(np.abs(similar).max(initial=0.0))
    reached = int((squared[1:] >= squared[0] - slack).sum())
    return TwoSampleTest(float(squared[0]), (1 + reached) / (1 + permutations), (n, m))


def _thinned(name: str, points: Floats, max_rows: int, rng: np.random.Generator) -> Floats:
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or len(points) < 2 or max_rows < 2:
        raise ConfigError(f"{name} must be at least two points (n, d), not an array of shape {points.shape}")
    if not np.isfinite(points).all():
        raise ConfigError(f"{name} must be finite")
    return points if len(points) <= max_rows else points[rng.choice(len(points), size=max_rows, replace=False)]


def _similarity(points: Floats, kernel: Kernel) -> Floats:
    """Kernel matrix (n, n) with a zero diagonal, which the unbiased estimate leaves out."""
    square: Floats = np.square(points[:, None] - points[None]).sum(axis=-1)
    if kernel == "energy":
        return -np.sqrt(square)
    if kernel != "rbf":
        raise ConfigError(f"kernel must be 'rbf' or 'energy', not {kernel!r}")
    scale = float(np.median(square[np.triu_indices(len(points), k=1)]))
    # More than half of the pairs coincide: any finite width still tells apart the others.
    scale = scale or float(square.max()) or 1.0
    similar: Floats = np.exp(square / (-2.0 * scale))
    np.fill_diagonal(similar, 0.0)
    return similar


@dataclass(frozen=True, slots=True)
class OccupancyTest:
    """Whether predicted classes come in the same shares as before.

    Parameters
    ----------
    statistic
        Pearson's χ² of the 2 × cells table.
    dof
        Its degrees of freedom; 0 when all rows fall in one cell.
    p_value
        Tail of χ² beyond the statistic.
    residuals
        For each class the standardised gap of the window's share, about N(0, 1) under no drift: which class moved, and
        in which direction. (K,)
    """

    statistic: float
    dof: int
    p_value: float
    residuals: tuple[float, ...]


def occupancy_test(reference: ArrayLike, window: ArrayLike) -> OccupancyTest:
    """Pearson's test that two rows of class counts (K,) have the same shares.

    Classes of which one of the samples expects fewer than 5 rows are pooled into one cell, because χ² is no
    approximation for them.
    """
    table = np.stack([_values("reference", reference), _values("window", window)])
    rows = table.sum(axis=1, keepdims=True)
    if (table < 0.0).any() or (rows == 0.0).any():
        raise ConfigError("reference and window must be counts, and each must have rows")
    share = table.sum(axis=0) / rows.sum()
    spread = np.sqrt(rows[1] * (1.0 - rows[1] / rows.sum()) * share * (1.0 - share))
    gap = table[1] - rows[1] * share
    residuals = np.divide(gap, spread, out=np.zeros_like(gap), where=spread > 0.0)

    rare = share * rows.min() < 5.0
    cells = np.concatenate([table[:, ~rare], table[:, rare].sum(axis=1, keepdims=True)], axis=1)
    cells = cells[:, cells.sum(axis=0) > 0.0]
    expected = rows * cells.sum(axis=0) / rows.sum()
    statistic, dof = float(((cells - expected) ** 2 / expected).sum()), cells.shape[1] - 1
    p_value = chi2_tail(statistic, dof) if dof else 1.0
    return OccupancyTest(statistic, dof, p_value, tuple(residuals.tolist()))


def ville_threshold(level: float) -> float:
    """ln(1/level): a non-negative martingale that starts at 1 ever reaches 1/level with probability <= level."""
    return -math.log(_level(level))


def conformal_rank(calibration_rows: int, alpha: float) -> int:
    """k = ⌊α (n + 1)⌋, the number of p-values j / (n + 1) that are at most α.

    >>> conformal_rank(99, 0.29), int(0.29 * 100)
    (29, 28)
    """
    steps, _ = calibration_rows + 1, _level(alpha)
    # The product may round to the wrong side of a whole number; the gate compares j / (n + 1) with α, and so must we.
    rank = int(alpha * steps)
    rank += (rank + 1) / steps <= alpha
    rank -= rank / steps > alpha
    if rank < 1:
        raise ConfigError(
            f"alpha {alpha} needs at least {math.ceil(1 / alpha) - 1} calibration rows, not {calibration_rows}"
        )
    return rank


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
    drifted = _ln_beta(a + hits, c + misses) - _ln_beta(a, c)
    return drifted - _ln_beta(k + hits, rest + misses) + _ln_beta(k, rest)


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
        _level(self.level)
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


def detector_path(
    flags: NDArray[np.bool_], p0: float, p1: float, *, kind: Detector = "sr", start: float = _LN_NOTHING
) -> Floats:
    """ln M after each row of a detector for a change of the outlier rate from at most p0 to p1.

        sr       M_t = (M_{t-1} + 1) L_t          cusum    M_t = max(M_{t-1}, 1) L_t

    with L_t the likelihood ratio of p1 to p0. M_t - t is a supermartingale without change, so the first time that M
    reaches c comes after c rows or more on average.

    Parameters
    ----------
    flags
        Whether each row is an outlier, in order of arrival, (..., n).
    start
        ln M before the first row; M = 0 by default.
    """
    if kind not in ("sr", "cusum"):
        raise ConfigError(f"kind must be 'sr' or 'cusum', not {kind!r}")
    won, lost = bet_weights(p0, p1)
    flags = np.asarray(flags, dtype=np.bool_)
    ratio = np.cumsum(np.where(flags, won, lost), axis=-1)
    # M_t = C_t (M_0 + Σ_{s<t} 1/C_s) with C the running product of L; CUSUM has the largest term in place of the sum.
    terms = np.concatenate([np.zeros_like(ratio[..., :1]), -ratio[..., :-1]], axis=-1)
    terms[..., :1] = np.logaddexp(terms[..., :1], start) if kind == "sr" else np.maximum(terms[..., :1], start)
    accumulate: Callable[..., Floats] = (np.logaddexp if kind == "sr" else np.maximum).accumulate
    return ratio + accumulate(terms, axis=-1)


@dataclass(frozen=True, slots=True)
class ChangeDetector:
    """Watches for a change of the outlier rate from at most p0 to p1, with a false alarm every c rows at most.

    Use `pac_rate` for p0: the calibrated α is exceeded by half of all calibration sets. "sr" (Shiryaev-Roberts) spends
    the whole budget of false alarms and is therefore quicker; "cusum" gives about a hundred times fewer.

    Parameters
    ----------
    p0
        Highest rate without change.
    p1
        The rate to be found soonest.
    run_length
        c, lower bound of the mean number of rows before a false alarm.
    kind
        "sr" or "cusum".
    rows
        Rows seen.
    log_value
        ln M after them.
    alarm_row
        Number of rows seen at the first alarm, or None.
    """

    p0: float
    p1: float
    run_length: float = 1e6
    kind: Detector = "sr"
    rows: int = 0
    log_value: float = _LN_NOTHING
    alarm_row: int | None = None

    def __post_init__(self) -> None:
        bet_weights(self.p0, self.p1)
        if self.run_length < 1.0:
            raise ConfigError(f"run_length must be at least 1, not {self.run_length}")

    @property
    def is_alarm(self) -> bool:
        """Whether M has reached c since the start."""
        return self.alarm_row is not None

    def update(self, flags: NDArray[np.bool_]) -> ChangeDetector:
        """The state after more rows, (n,) in order of arrival."""
        flags = np.asarray(flags, dtype=np.bool_)
        if flags.size == 0:
            return self
        path = detector_path(flags, self.p0, self.p1, kind=self.kind, start=self.log_value)
        alarm_row = self.alarm_row
        if alarm_row is None and path.max() >= math.log(self.run_length):
            alarm_row = self.rows + 1 + int(np.argmax(path >= math.log(self.run_length)))
        return replace(self, rows=self.rows + flags.size, log_value=float(path[-1]), alarm_row=alarm_row)

    def __add__(self, other: ChangeDetector) -> ChangeDetector:
        # M - t is a supermartingale on each replica, hence the sum of M minus the sum of rows is one, too.
        if (self.p0, self.p1, self.run_length, self.kind) != (other.p0, other.p1, other.run_length, other.kind):
            raise ConfigError("detectors of different rates, run length or kind cannot be added")
        rows, log_value = self.rows + other.rows, float(np.logaddexp(self.log_value, other.log_value))
        is_alarm = self.is_alarm or other.is_alarm or log_value >= math.log(self.run_length)
        return replace(self, rows=rows, log_value=log_value, alarm_row=rows if is_alarm else None)


@dataclass(frozen=True, slots=True)
class AdaptiveLevel:
    """Adaptive conformal level: moves α_t so that the share of flagged rows stays at its target, for any sequence.

        α_1 = target,   α_{t+1} = α_t + γ (target - err_t),   err_t = 1 if p_t <= α_t

    Off unless asked for, and never to be connected to an alarm: it keeps the flagged share constant *while the model
    gets worse*, which hides drift. Alarms read raw p-values; the level itself is exported, and a level that leaves
    [target/3, 3 target] is drift.

    Parameters
    ----------
    target
        Share of rows to flag.
    step
        γ.
    rows
        Rows seen.
    flagged
        Rows flagged among them.
    """

    target: float
    step: float = 0.01
    rows: int = 0
    flagged: int = 0

    def __post_init__(self) -> None:
        _level(self.target)
        if self.step <= 0.0:
            raise ConfigError(f"step must be positive, not {self.step}")

    @property
    def level(self) -> float:
        """α_t; at or below 0 nothing is flagged, at or above 1 everything."""
        return self.target + self.step * (self.target * self.rows - self.flagged)

    @property
    def bound(self) -> float:
        """(max(α_1, 1 - α_1) + γ) / (T γ): largest gap between flagged share and target after T rows, whatever came."""
        if self.rows == 0:
            return math.inf
        return (max(self.target, 1.0 - self.target) + self.step) / (self.rows * self.step)

    @property
    def is_drifting(self) -> bool:
        """Whether the level has left [target/3, 3 target]: what it hides from the flagged share, it shows here."""
        return not self.target / 3.0 <= self.level <= 3.0 * self.target

    def update(self, p_values: ArrayLike) -> AdaptiveLevel:
        """The state after rows with these p-values, (n,) in (0, 1] and in order of arrival."""
        rows, flagged = self.rows, self.flagged
        for p_value in _values("p_values", p_values, least=0).tolist():
            level = self.target + self.step * (self.target * rows - flagged)
            rows, flagged = rows + 1, flagged + (p_value <= level)
        return replace(self, rows=rows, flagged=flagged)


@lru_cache(maxsize=256)
def chi2_quantile(q: float, dof: int) -> float:
    """Quantile of χ² with `dof` degrees of freedom.

    >>> round(chi2_quantile(0.99, 9), 2)
    21.67
    """
    if dof < 1 or not 0.0 < q < 1.0:
        raise ConfigError(f"χ² needs dof >= 1 and 0 < q < 1, not dof = {dof}, q = {q}")

    def is_below(x: float) -> bool:
        lower, upper = _gamma_tails(0.5 * dof, 0.5 * x)
        return lower < q if q < 0.5 else upper > 1.0 - q

    low, high = 0.0, float(dof)
    while is_below(high):
        high *= 2.0
    # To the last bit: the middle of two neighbouring floats is one of them.
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def chi2_tail(x: float, dof: int) -> float:
    """P(χ²_dof > x)."""
    return _gamma_tails(0.5 * dof, 0.5 * x)[1]


def _gamma_tails(a: float, x: float) -> tuple[float, float]:
    """Regularised incomplete gamma functions P(a, x) and Q(a, x) = 1 - P, the smaller one to full precision."""
    if x <= 0.0:
        return 0.0, 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1.0:
        term = total = 1.0 / a
        while term > 1e-17 * total:
            a += 1.0
            term *= x / a
            total += term
        return front * total, 1.0 - front * total
    # Lentz's continued fraction; it converges fast exactly where the series does not.
    b = x + 1.0 - a
    c, d = math.inf, 1.0 / b
    total, i, factor = d, 0, 0.0
    while abs(factor - 1.0) > 1e-15:
        i += 1
        b += 2.0
        numerator = i * (a - i)
        d = 1.0 / (numerator * d + b)
        c = b + numerator / c
        factor = c * d
        total *= factor
    return 1.0 - front * total, front * total


def _ln_beta(a: Floats | float, b: Floats | float) -> Floats:
    return _ln_gamma(a) + _ln_gamma(b) - _ln_gamma(a + b)


def _ln_gamma(x: Floats | float) -> Floats:
    """ln Γ(x) for x > 0, any shape: Stirling's series at x + 8, then down by Γ(x + 1) = x Γ(x). numpy has none."""
    x = np.asarray(x, dtype=np.float64)
    z = x + 8.0
    fall = x * (x + 1.0) * (x + 2.0) * (x + 3.0) * (x + 4.0) * (x + 5.0) * (x + 6.0) * (x + 7.0)
    w = 1.0 / (z * z)
    tail = (1 / 12 - w * (1 / 360 - w * (1 / 1260 - w * (1 / 1680 - w * (1 / 1188 - w * 691 / 360360))))) / z
    value: Floats = (z - 0.5) * np.log(z) - z + 0.5 * math.log(2.0 * math.pi) + tail - np.log(fall)
    return value


def _values(name: str, values: ArrayLike, *, least: int = 1) -> Floats:
    """`values` as finite float64 (n,) with n >= least."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < least or not np.isfinite(array).all():
        raise ConfigError(f"{name} must be at least {least} finite numbers (n,), not an array of shape {array.shape}")
    return array


def _level(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise ConfigError(f"a level must be between 0 and 1, not {level}")
    return level
