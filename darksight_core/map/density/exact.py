"""The kernel density as the sum over all references, and how close `Kde` comes to it."""

from __future__ import annotations

import math

import numpy as np

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats, logsumexp

__all__ = ["CORE_DEPTH", "CORE_ERROR", "TAIL_ERROR", "check_references", "dimension", "exact_log_kde", "log_norm"]

CORE_DEPTH = 15.0
"""The core is where log p is at most this many nats below its maximum over the references."""

CORE_ERROR = 0.01
"""Largest error of `Kde.log_density` in the core, in nats."""

TAIL_ERROR = 0.1
"""Largest error of `Kde.log_density` outside the core, in nats."""


def exact_log_kde(points: Floats, references: Floats, bandwidth: float) -> Floats:
    """log p(y) by the sum over all references, (m,): slow, and the reference for `Kde`.

    Parameters
    ----------
    points
        Where to evaluate the density, (m, 2).
    references
        Centres of the kernels, (n, 2).
    bandwidth
        Standard deviation h of a kernel.

    >>> exact_log_kde(np.zeros((1, 2)), np.zeros((1, 2)), 1.0)
    array([-1.83787707])
    """
    points = np.asarray(points, dtype=np.float64)
    references = np.asarray(references, dtype=np.float64)
    log_density = np.empty(len(points))
    rows = max(1, 1_000_000 // len(references))
    for start in range(0, len(points), rows):
        chunk = points[start : start + rows]
        square = (chunk[:, :1] - references[:, 0]) ** 2 + (chunk[:, 1:] - references[:, 1]) ** 2
        log_density[start : start + rows] = logsumexp(square / (-2.0 * bandwidth**2))
    return log_density - log_norm(len(references), bandwidth, dimension(references))


def dimension(references: Floats) -> int:
    """1 if the references (n, 2) are on one horizontal line, as on the map of two classes, else 2."""
    width, height = np.ptp(references, axis=0).tolist()
    return 1 if height == 0.0 < width else 2


def log_norm(count: float, bandwidth: float, dimension: int) -> float:
    """log(n (2π h²)^(d/2))."""
    return math.log(count) + dimension * (0.5 * math.log(2.0 * math.pi) + math.log(bandwidth))


def check_references(points: Floats) -> Floats:
    """Reference points as float64 (n, 2); ConfigError if they cannot be used."""
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
        raise ConfigError(f"reference points must have shape (n, 2) with n >= 1, not {points.shape}")
    if not np.isfinite(points).all():
        raise ConfigError("reference points must be finite")
    return points
