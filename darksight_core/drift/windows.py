"""How far a window of traffic is from normal: PSI and its verdict, distances of samples, shares of classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.drift.special import checked_level, chi2_quantile, chi2_tail, finite_values
from darksight_core.errors import ConfigError
from darksight_core.simplex import Floats

__all__ = [
    "Kernel",
    "OccupancyTest",
    "PsiVerdict",
    "TwoSampleTest",
    "ks_critical",
    "ks_distance",
    "mmd_test",
    "occupancy_test",
    "p_value_counts",
    "psi",
    "psi_critical",
    "psi_verdict",
    "wasserstein",
]

Kernel: TypeAlias = Literal["rbf", "energy"]


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
    values = finite_values("p_values", p_values, least=0)
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
    return chi2_quantile(1.0 - checked_level(level), bins - 1) * (1.0 / rows + 1.0 / calibration_rows)


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
    _, gap = _cdf_gap(finite_values("a", a), finite_values("b", b))
    return float(np.abs(gap).max())


def ks_critical(n: int, m: int, *, level: float = 0.01) -> float:
    """c √((n + m) / (n m)) with c = √(-ln(level / 2) / 2): conservative for ties, asymptotic otherwise.

    >>> round(ks_critical(100, 100, level=0.05), 4)
    0.1921
    """
    if n < 1 or m < 1:
        raise ConfigError(f"both samples need rows, not {n} and {m}")
    return math.sqrt(-0.5 * math.log(0.5 * checked_level(level)) * (n + m) / (n * m))


def wasserstein(a: ArrayLike, b: ArrayLike) -> float:
    """Wasserstein-1 distance ∫ |F_a - F_b| dx of samples a (n,) and b (m,): an effect size, in the units of the score.

    >>> wasserstein([0.0, 1.0], [5.0, 6.0])
    5.0
    """
    pooled, gap = _cdf_gap(finite_values("a", a), finite_values("b", b))
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
    table = np.stack([finite_values("reference", reference), finite_values("window", window)])
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
