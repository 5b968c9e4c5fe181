"""The kernel density as the sum over all references: slow, and what `Kde` is measured against."""

from __future__ import annotations

import math

import numpy as np

from darksight_core.map.bandwidth import dimension
from darksight_core.rows.simplex import Floats, logsumexp

__all__ = ["exact_log_kde"]


def exact_log_kde(points: Floats, references: Floats, bandwidth: float) -> Floats:
    """log p of points (m, 2), (m,), for references (n, 2).

    >>> exact_log_kde(np.zeros((1, 2)), np.zeros((1, 2)), 1.0)
    array([-1.83787707])
    """
    log_density = np.empty(len(points))
    rows = max(1, 1_000_000 // len(references))
    for start in range(0, len(points), rows):
        chunk = points[start : start + rows]
        square = (chunk[:, :1] - references[:, 0]) ** 2 + (chunk[:, 1:] - references[:, 1]) ** 2
        log_density[start : start + rows] = logsumexp(square / (-2.0 * bandwidth**2))
    return (
        log_density - math.log(len(references)) - 0.5 * dimension(references) * math.log(2.0 * math.pi * bandwidth**2)
    )
