"""The outlier score of a row; see `darksight_core.scores.outlier`."""

from __future__ import annotations

import math

import numpy as np

from darksight_core.rows.simplex import Floats
from darksight_core.runtime.arrays import Outlier
from darksight_core.runtime.compiled.numerics import compiled, count_not_above, exponentials, log_and_inverse
from darksight_core.scores.outlier import AXES, FLOOR, GAMMA, GEN_WEIGHT, SHORTEST


@compiled
def gen(pi: Floats, label: int, kept: Floats) -> float:
    """The generalised entropy of the most probable classes, negated; `kept` is room for them. See `confidence.gen`."""
    # Numbers from 0 to 1 are in the order of their bits, which are halved until as many are above as there is room for.
    bits, low, high, count, found = pi.view(np.int64), np.int64(0), np.float64(1.5).view(np.int64), len(pi), 0
    while count > len(kept) and high - low > 1:
        middle, above = (low + high) >> 1, 0
        for k in range(len(bits)):
            above += 1 if bits[k] >= middle else 0
        if above >= len(kept):
            low, count = middle, above
        else:
            high = middle
    others, total = 0.0, 0.0
    for k in range(len(pi)):
        others += pi[k] if k != label else 0.0
        if bits[k] > low:
            kept[found] = pi[k]
            found += 1
    for k in range(len(kept)):
        # What was not found equals the limit. The sum of the others keeps the digits that 1 - p₁ has not.
        p = kept[k] if k < found else np.int64(low).view(np.float64)
        kept[k] = GAMMA * log_and_inverse(p * (1.0 - p if p < 0.5 else others))[0]
    exponentials(kept, kept)
    for k in range(len(kept)):
        total += kept[k]
    return -total


@compiled
def outlier_score(
    log_pi: Floats, label: int, gen_score: float, outlier: Outlier, row: Floats, residual: Floats
) -> float:
    """Sum of the log ranks of GEN and of both distances, less the offset of the class.

    `row` and `residual` are room for a row.
    """
    mean, square = 0.0, 0.0
    for k in range(len(row)):
        row[k] = max(log_pi[k], FLOOR)
        mean += row[k]
    mean /= len(row)
    for k in range(len(row)):
        row[k] -= mean
        square += row[k] * row[k]
    total = GEN_WEIGHT * _log_rank(gen_score, outlier.ranks[0], outlier.gen_slope)
    distance = _distance(row, 1.0, label, 0, outlier, residual)
    total += _log_rank(-distance, outlier.ranks[1], outlier.log_ratio_slope)
    distance = _distance(row, 1.0 / max(math.sqrt(square), SHORTEST), label, 1, outlier, residual)
    total += _log_rank(-distance, outlier.ranks[2], outlier.direction_slope)
    return float(total - outlier.offsets[label])


@compiled
def _distance(row: Floats, scale: float, label: int, kind: int, outlier: Outlier, residual: Floats) -> float:
    """Distance of scaled log-ratios, kind 0, or of a direction, kind 1, from the mean of a class."""
    axes, last, rest, total = outlier.axes, len(row), 0.0, 0.0
    for k in range(len(row)):
        residual[k] = scale * row[k] - outlier.means[kind, label, k]
        rest += residual[k] * residual[k]
    # Several axes in one loop, which works on several classes at once for each of them.
    for j in range(0, AXES, 4):
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        for k in range(len(row)):
            a += residual[k] * axes[kind, j, k]
            b += residual[k] * axes[kind, j + 1, k]
            c += residual[k] * axes[kind, j + 2, k]
            d += residual[k] * axes[kind, j + 3, k]
        rest -= a * a + b * b + c * c + d * d
        total += axes[kind, j, last] * a * a + axes[kind, j + 1, last] * b * b
        total += axes[kind, j + 2, last] * c * c + axes[kind, j + 3, last] * d * d
    return float(total + axes[kind, AXES, last] * max(rest, 0.0))


@compiled
def _log_rank(score: float, rank: Floats, slope: float) -> float:
    """log r of a score among known ones, scores over log ranks (2, m); see `RankTransform`."""
    known, log_ranks, last = rank[0], rank[1], rank.shape[1] - 1
    if score <= known[0] or score >= known[last]:
        return float(log_ranks[0] + slope * (score - known[0]) if score <= known[0] else log_ranks[last])
    j = count_not_above(known, score) - 1
    return float(log_ranks[j] + (score - known[j]) / (known[j + 1] - known[j]) * (log_ranks[j + 1] - log_ranks[j]))
