"""Distances between two samples: Kolmogorov-Smirnov for scores, maximum mean discrepancy for points of the map."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.drift.checks import checked_level, finite_values
from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

__all__ = ["TwoSampleTest", "ks_critical", "ks_distance", "mmd_test"]


def ks_distance(a: ArrayLike, b: ArrayLike) -> float:
    """Kolmogorov-Smirnov distance sup_x |F_a(x) - F_b(x)| of samples a (n,) and b (m,)."""
    samples = np.sort(finite_values("a", a)), np.sort(finite_values("b", b))
    pooled = np.concatenate(samples)
    below_a, below_b = (np.searchsorted(sample, pooled, side="right") / len(sample) for sample in samples)
    return float(np.abs(below_a - below_b).max())


def ks_critical(n: int, m: int, *, level: float = 0.01) -> float:
    """c √((n + m) / (n m)) with c = √(-ln(level / 2) / 2): asymptotic, and conservative with ties.

    >>> round(ks_critical(100, 100, level=0.05), 4)
    0.1921
    """
    if n < 1 or m < 1:
        raise ConfigError(f"both samples need rows, not {n} and {m}")
    return math.sqrt(-0.5 * math.log(0.5 * checked_level(level)) * (n + m) / (n * m))


@dataclass(frozen=True, slots=True)
class TwoSampleTest:
    """A distance between two samples and its permutation p-value.

    Parameters
    ----------
    distance
        Unbiased estimate of the squared distance; below zero if the samples are closer than random splits.
    p_value
        (1 + #{permutations >= distance}) / (1 + permutations), exact at every sample size.
    rows
        Rows of each sample that were compared.
    """

    distance: float
    p_value: float
    rows: tuple[int, int]


def mmd_test(
    reference: Floats,
    window: Floats,
    *,
    permutations: int = 199,
    max_rows: int = 1_000,
    seed: int = 0,
) -> TwoSampleTest:
    """Maximum mean discrepancy of two clouds of points, with a permutation p-value.

        MMD² = Σ_{i≠j} k(x_i, x_j) / (n (n-1)) + Σ_{i≠j} k(y_i, y_j) / (m (m-1)) - 2 Σ_{i,j} k(x_i, y_j) / (n m)

    with k(x, y) = exp(-|x - y|² / 2σ²), σ the median distance of the pooled points.

    Parameters
    ----------
    reference
        Points x, (n, d).
    window
        Points y, (m, d).
    permutations
        Number of random splits; the smallest p-value is 1 / (permutations + 1).
    max_rows
        Most rows of each sample, drawn at random; the cost grows with their square.
    seed
        Seed of the draw and of the splits.
    """
    rng = np.random.default_rng(seed)
    x, y = (_draw(name, rows, max_rows, rng) for name, rows in (("reference", reference), ("window", window)))
    if x.shape[1] != y.shape[1]:
        raise ConfigError(f"reference and window must have points of one dimension, not {x.shape[1]} and {y.shape[1]}")
    if permutations < 1:
        raise ConfigError(f"permutations must be positive, not {permutations}")
    n, m = len(x), len(y)
    similar = _similarity(np.concatenate([x, y]))

    # One column for each split, the observed one first, with a 1 for every row of x: one matrix product is much faster
    # than a loop over splits.
    member = np.zeros((n + m, permutations + 1))
    member[:n] = 1.0
    member[:, 1:] = rng.permuted(member[:, 1:], axis=0)
    shared = similar @ member
    within_x = (member * shared).sum(axis=0)
    across = shared.sum(axis=0) - within_x
    within_y = similar.sum() - 2.0 * across - within_x
    squared = within_x / (n * (n - 1)) + within_y / (m * (m - 1)) - 2.0 * across / (n * m)

    # A split with the same distance as the observed one may differ by rounding, and must count as equal.
    slack = 1e-12 * float(np.abs(similar).max(initial=0.0))
    reached = int((squared[1:] >= squared[0] - slack).sum())
    return TwoSampleTest(float(squared[0]), (1 + reached) / (1 + permutations), (n, m))


def _draw(name: str, points: Floats, max_rows: int, rng: np.random.Generator) -> Floats:
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or len(points) < 2 or max_rows < 2:
        raise ConfigError(f"{name} must be at least two points (n, d), not an array of shape {points.shape}")
    if not np.isfinite(points).all():
        raise ConfigError(f"{name} must be finite")
    return points if len(points) <= max_rows else points[rng.choice(len(points), size=max_rows, replace=False)]


def _similarity(points: Floats) -> Floats:
    """Kernel matrix (n, n) with a zero diagonal, which the unbiased estimate omits."""
    square: Floats = np.square(points[:, None] - points[None]).sum(axis=-1)
    scale = float(np.median(square[np.triu_indices(len(points), k=1)]))
    # If more than half of the pairs coincide, any finite width still separates the others.
    scale = scale or float(square.max()) or 1.0
    similar: Floats = np.exp(square / (-2.0 * scale))
    np.fill_diagonal(similar, 0.0)
    return similar
