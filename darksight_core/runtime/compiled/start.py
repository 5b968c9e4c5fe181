"""Where the search for a row's place starts: the best anchor of a class, and f_p."""

from __future__ import annotations

import math

from darksight_core.map.anchors import LEAST_REST
from darksight_core.runtime.arrays import Start
from darksight_core.runtime.compiled.numerics import Ints, compiled
from darksight_core.simplex import Floats

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
def guess(pi: Floats, start: Start, bound: float, before: Floats, after: Floats, active: Ints) -> tuple[float, float]:
    """f_p of a row, kept within the bound; see `Network`. The arrays are room for the widest layer."""
    sizes, classes, first = start.sizes, len(pi), 0
    if start.features != 1:
        for k in range(classes):
            before[k] = pi[k]
    if start.features != 0:
        for k in range(classes):
            before[sizes[0] - classes + k] = math.log(max(pi[k], 1e-8)) / 8.0
    for layer in range(len(sizes) - 1):
        width, outputs, count = sizes[layer], sizes[layer + 1], 0
        end = first + width * outputs
        for j in range(outputs):
            after[j] = start.network[end + j]
        # Half of the hidden units rest.
        for i in range(width):
            active[count] = first + i * outputs
            before[count] = before[i]
            count += 1 if before[i] != 0.0 else 0
        while count % 4:
            active[count], before[count] = first, 0.0
            count += 1
        for i in range(0, count, 4):
            x_0, x_1, x_2, x_3 = before[i], before[i + 1], before[i + 2], before[i + 3]
            w_0, w_1 = start.network[active[i] :], start.network[active[i + 1] :]
            w_2, w_3 = start.network[active[i + 2] :], start.network[active[i + 3] :]
            for j in range(outputs):
                after[j] += x_0 * w_0[j] + x_1 * w_1[j] + x_2 * w_2[j] + x_3 * w_3[j]
        if layer + 2 < len(sizes):
            for j in range(outputs):
                after[j] = max(after[j], 0.0)
        first = end + outputs
        before, after = after, before
    return min(max(before[0], -bound), bound), min(max(before[1], -bound), bound)
