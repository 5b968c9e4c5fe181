"""The kernel density at a place on the map; see `Kde.log_density`."""

from __future__ import annotations

import math

from darksight_core.map.density import MARGIN, STEP
from darksight_core.runtime.arrays import Density
from darksight_core.runtime.compiled.numerics import compiled


@compiled
def log_kde(x: float, y: float, density: Density) -> float:
    """log p(y) of the kernel density."""
    columns, rows = density.values.shape
    across, up = (x - density.x) / (STEP * density.bandwidth), (y - density.y) / (STEP * density.bandwidth)
    inside_x, inside_y = min(max(across, 1.0), columns - 2.0), min(max(up, 1.0), rows - 2.0)
    column, row = min(int(inside_x), columns - 3), min(int(inside_y), rows - 3)
    weights_x, weights_y, value = _interpolate(inside_x - column), _interpolate(inside_y - row), 0.0
    for i in range(4):
        for j in range(4):
            value += weights_x[i] * weights_y[j] * density.values[column + i - 1, row + j - 1]
    gap = STEP * math.hypot(across - inside_x, up - inside_y)
    return float(value - gap * (0.5 * gap + MARGIN))


@compiled
def _interpolate(t: float) -> tuple[float, float, float, float]:
    """Weights of four nodes in a row for a place t in [0, 1] between the middle two."""
    s = 1.0 - t
    return -0.5 * t * s * s, 1.0 - t * t * (2.5 - 1.5 * t), 1.0 - s * s * (2.5 - 1.5 * s), -0.5 * s * t * t
