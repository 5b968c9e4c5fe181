"""Where the search for a row's place starts: the best anchor of a class, and f_p."""

from __future__ import annotations

import math

from darksight_core.map.anchors import LEAST_REST
from darksight_core.map.network import LARGEST_LOG_ODDS, LEAST_ROOT
from darksight_core.runtime.arrays import Start
from darksight_core.runtime.compiled.numerics import compiled
from darksight_core.simplex import FLOOR, Floats

__all__ = ["best_anchor", "guess"]


@compiled
def best_anchor(pi: Floats, log_pi: Floats, label: int, start: Start, costs: Floats) -> tuple[int, float]:
    """Number of the best anchor of a class and KL_sym there, infinite if there is none; see `Anchors.best`."""
    weights, near = start.weights[label], start.neighbours[label]
    listed, left, negative_entropy = len(near), 1.0, 0.0
    for m in range(len(costs)):
        costs[m] = weights[2 * listed + 2, m]
    for j in range(listed + 1):
        if j < listed:
            p, log_p = pi[near[j]], log_pi[near[j]]
            left -= p
        elif listed < len(pi):
            p = max(left, LEAST_REST)
            log_p = math.log(p)
        else:
            break
        negative_entropy += p * log_p
        minus_log_q, minus_q = weights[j], weights[listed + 1 + j]
        for m in range(len(costs)):
            costs[m] += p * minus_log_q[m] + log_p * minus_q[m]
    best = 0
    for m in range(1, len(costs)):
        best = m if costs[m] < costs[best] else best
    return best, 0.5 * (costs[best] + negative_entropy)


@compiled
def guess(pi: Floats, label: int, second: int, start: Start, bound: float, hidden: Floats) -> tuple[float, float]:
    """f_p of a row, kept within the bound; see `Network`. `hidden` is room for the hidden units."""
    classes, units, heads = len(pi), len(hidden), start.heads[label]
    log_odds = min(math.log(pi[label] / max(pi[second], FLOOR)) / LARGEST_LOG_ODDS, 1.0)
    for j in range(units):
        hidden[j] = start.second[second, j] + log_odds * start.inputs[classes, j]
    for k in range(classes):
        if pi[k] > LEAST_ROOT**4:
            root = math.sqrt(math.sqrt(pi[k])) - LEAST_ROOT
            for j in range(units):
                hidden[j] += root * start.inputs[k, j]
    x, y = float(start.centres[label, 0]), float(start.centres[label, 1])
    for j in range(units):
        x += max(hidden[j], 0.0) * heads[j, 0]
        y += max(hidden[j], 0.0) * heads[j, 1]
    return min(max(x, -bound), bound), min(max(y, -bound), bound)
