"""Where the search for a row's place starts: the best anchor of a class, and f_p."""

from __future__ import annotations

import math

import numpy as np

from darksight_core.map.anchors import LEAST_REST
from darksight_core.map.network import LARGEST_LOG_ODDS, LEAST_ROOT
from darksight_core.rows.simplex import FLOOR, Floats
from darksight_core.runtime.arrays import Start
from darksight_core.runtime.compiled.numerics import compiled


@compiled
def find_start(
    i: int, pi: Floats, log_pi: Floats, first: int, second: int, start: Start, costs: Floats, points: Floats
) -> float:
    """Write the best anchor of two classes to column `i` of the points; KL_sym there, or infinity. See `Anchors`."""
    best, listed, weights = np.inf, start.neighbours.shape[1], start.weights
    for label in (first, second):
        left, negative_entropy = 1.0, 0.0
        for m in range(len(costs)):
            costs[m] = weights[label, 2 * listed + 2, m]
        for j in range(listed + 1):
            if j < listed:
                p, log_p = pi[start.neighbours[label, j]], log_pi[start.neighbours[label, j]]
                left -= p
            elif listed < len(pi):
                p = max(left, LEAST_REST)
                log_p = math.log(p)
            else:
                break
            negative_entropy += p * log_p
            for m in range(len(costs)):
                costs[m] += p * weights[label, j, m] + log_p * weights[label, listed + 1 + j, m]
        for m in range(len(costs)):
            if 0.5 * (costs[m] + negative_entropy) < best:
                best = 0.5 * (costs[m] + negative_entropy)
                points[0, i], points[1, i] = weights[label, 2 * listed + 3, m], weights[label, 2 * listed + 4, m]
        if first == second:
            break
    return best


@compiled
def guess(pi: Floats, label: int, second: int, start: Start, bound: float) -> tuple[float, float]:
    """f_p of a row, kept within the bound; see `Network`."""
    classes, hidden = len(pi), np.empty(start.inputs.shape[1])
    log_odds = min(math.log(pi[label] / max(pi[second], FLOOR)) / LARGEST_LOG_ODDS, 1.0)
    for j in range(len(hidden)):
        hidden[j] = start.inputs[classes + 1 + second, j] + log_odds * start.inputs[classes, j]
    for k in range(classes):
        if pi[k] > LEAST_ROOT**4:
            root = math.sqrt(math.sqrt(pi[k])) - LEAST_ROOT
            for j in range(len(hidden)):
                hidden[j] += root * start.inputs[k, j]
    x, y = float(start.heads[label, len(hidden), 0]), float(start.heads[label, len(hidden), 1])
    for j in range(len(hidden)):
        x += max(hidden[j], 0.0) * start.heads[label, j, 0]
        y += max(hidden[j], 0.0) * start.heads[label, j, 1]
    return min(max(x, -bound), bound), min(max(y, -bound), bound)
