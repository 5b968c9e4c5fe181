"""The outlier score of a row; see `darksight_core.scores.outlier`."""

from __future__ import annotations

import math

import numpy as np

from darksight_core.runtime.arrays import Outlier
from darksight_core.runtime.compiled.numerics import compiled, count_not_above, exponentials, largest, log_and_inverse
from darksight_core.scores.outlier import FLOOR, GAMMA, GEN_WEIGHT, SHORTEST, TOP_CLASSES
from darksight_core.simplex import Floats

__all__ = ["gen", "outlier_score"]


@compiled
def gen(pi: Floats, label: int) -> float:
    """The generalised entropy of the most probable classes, negated; see `confidence.gen`."""
    kept, others, total = np.empty(min(len(pi), TOP_CLASSES)), 0.0, 0.0
    for k in range(len(pi)):
        others += pi[k] if k != label else 0.0
    if len(kept) < len(pi):
        largest(pi, kept)
    else:
        for k in range(len(pi)):
            kept[k] = pi[k]
    for k in range(len(kept)):
        # The sum of the others keeps the digits that 1 - p₁ has not.
        rest = 1.0 - kept[k] if kept[k] < 0.5 else others
        kept[k] = GAMMA * log_and_inverse(kept[k] * rest)[0]
    exponentials(kept, kept)
    for k in range(len(kept)):
        total += kept[k]
    return -total


@compiled
def outlier_score(log_pi: Floats, label: int, gen_score: float, outlier: Outlier, row: Floats) -> float:
    """Sum of the log ranks of GEN and of the distances of log-ratios and of directions; `row` is room for them."""
    mean, square = 0.0, 0.0
    for k in range(len(row)):
        row[k] = max(log_pi[k], FLOOR)
        mean += row[k]
    mean /= len(row)
    for k in range(len(row)):
        row[k] -= mean
        square += row[k] * row[k]
    total = GEN_WEIGHT * _log_rank(gen_score, outlier.gen_rank, outlier.gen_slope)
    total += _log_rank(-_distance(row, label, 0, outlier), outlier.log_ratio_rank, outlier.log_ratio_slope)
    scale = 1.0 / max(math.sqrt(square), SHORTEST)
    for k in range(len(row)):
        row[k] *= scale
    return float(total + _log_rank(-_distance(row, label, 1, outlier), outlier.direction_rank, outlier.direction_slope))


@compiled
def _distance(row: Floats, label: int, kind: int, outlier: Outlier) -> float:
    """Distance of log-ratios (0) or of a direction (1) from the mean of a class; see `ClassGaussians`."""
    mean, axes, precisions = outlier.means[kind, label], outlier.axes[kind], outlier.precisions[kind]
    rest, total = 0.0, 0.0
    for k in range(len(row)):
        residual = row[k] - mean[k]
        rest += residual * residual
    for j in range(len(axes)):
        axis, along = axes[j], 0.0
        for k in range(len(row)):
            along += (row[k] - mean[k]) * axis[k]
        rest -= along * along
        total += precisions[j] * along * along
    return float(total + precisions[len(axes)] * max(rest, 0.0))


@compiled
def _log_rank(score: float, rank: Floats, slope: float) -> float:
    """log r of a score among known ones, scores over log ranks (2, m); see `RankTransform`."""
    known, log_ranks, last = rank[0], rank[1], rank.shape[1] - 1
    if score <= known[0]:
        return float(log_ranks[0] + slope * (score - known[0]))
    if score >= known[last]:
        width = known[last] - known[0]
        return float(log_ranks[last] / (1.0 + (score - known[last]) / (width if width > 0.0 else 1.0)))
    j = count_not_above(known, score) - 1
    return float(log_ranks[j] + (score - known[j]) / (known[j + 1] - known[j]) * (log_ranks[j + 1] - log_ranks[j]))
