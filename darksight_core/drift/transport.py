"""COTT: accuracy without labels by optimal transport (Lu et al., NeurIPS 2023).

If class shares are as before, the labels of a window are known as a set: only which row has which is not. Transport
moves each row to a label at the cost 1 - π_y, as cheaply as possible in total. A row whose own prediction does not find
a label left is moved to another class at a high cost. The estimate is the share of rows whose cost is below a limit,
chosen such that it is the accuracy on reference rows.
"""

from __future__ import annotations

import numpy as np

from darksight_core.rows.simplex import Floats

__all__ = ["transport_costs"]

# Softness of the plan at each stage. From 0.01 down the costs of the rows do not change by more than 0.005.
_STAGES = (1.0, 0.3, 0.1, 0.03, 0.01)
_STEPS = 40
# Sum of the differences from the shares at which a stage ends.
_CLOSE = 1e-3
# A class with a smaller share gets no row.
_LEAST_SHARE = 1e-6


def transport_costs(probs: Floats, shares: Floats) -> Floats:
    """Cost of moving each row to a label, (n,), in the cheapest plan that uses class k for a share `shares` of rows.

    The plan is that of entropic transport (Sinkhorn), made harder in stages, rounded to the best label of each row.

    Parameters
    ----------
    probs
        Rows on the simplex, (n, K).
    shares
        Share of each class, (K,), with sum one.
    """
    used = shares > _LEAST_SHARE
    costs = 1.0 - probs[:, used]
    target, price = shares[used], np.zeros(int(used.sum()))
    for softness in _STAGES:
        gains = price - costs
        weights = np.exp((gains - gains.max(axis=1, keepdims=True)) / softness)
        factors = np.ones(len(target))
        for _ in range(_STEPS):
            wanted = factors * ((1.0 / (weights @ factors)) @ weights) / len(weights)
            if np.abs(wanted - target).sum() < _CLOSE:
                break
            factors *= target / np.maximum(wanted, 1e-12)
            factors /= factors.max()
        price += softness * np.log(factors)
    best = (price - costs).argmax(axis=1)
    chosen: Floats = costs[np.arange(len(costs)), best]
    return chosen
