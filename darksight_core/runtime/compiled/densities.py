"""The kernel density at a place on the map; see `Kde.log_density`."""

from __future__ import annotations

import math

import numpy as np

from darksight_core.map.density import CONES, LEVELS, SQUARES
from darksight_core.runtime.arrays import Density
from darksight_core.runtime.compiled.numerics import compiled, count_not_above


@compiled
def log_kde(x: float, y: float, density: Density) -> float:
    """log p(y) of the kernel density."""
    across_x, across_y = (x - density.x) / density.side, (y - density.y) / density.side
    starts, counts, keys, widths = density.leaves[0], density.leaves[1], density.leaves[2], density.leaves[3]
    if 0.0 <= across_x < 1.0 and 0.0 <= across_y < 1.0:
        scale = float(1 << LEVELS)
        fine_x, fine_y = min(across_x * scale, scale - 1.0), min(across_y * scale, scale - 1.0)
        cell_x, cell_y = int(fine_x), int(fine_y)
        key = 0
        for bit in range(LEVELS):
            key |= (cell_x >> bit & 1) << 2 * bit | (cell_y >> bit & 1) << 2 * bit + 1
        leaf = count_not_above(keys[: density.cells], key) - 1
        place_x = (fine_x - float(cell_x & -widths[leaf])) / float(widths[leaf]) - 0.5
        place_y = (fine_y - float(cell_y & -widths[leaf])) / float(widths[leaf]) - 0.5
    else:
        place_x, place_y = across_x - 0.5, across_y - 0.5
        flat = abs(place_x) >= abs(place_y)
        along, towards = (place_y, place_x) if flat else (place_x, place_y)
        segment = min(int((along / abs(towards) + 1.0) * 0.5 * float(CONES)), CONES - 1)
        leaf = density.cells + ((0 if flat else 2) + (1 if towards < 0.0 else 0)) * CONES + segment
    gap_x, gap_y = x - density.anchors[leaf, 0], y - density.anchors[leaf, 1]
    square = (gap_x * gap_x + gap_y * gap_y) / (2.0 * density.bandwidth * density.bandwidth)
    first, count = starts[leaf], counts[leaf]
    if count > 0:
        top, total = -np.inf, 0.0
        for j in range(first, first + count):
            top = max(top, density.terms[j, 0] + density.terms[j, 1] * place_x + density.terms[j, 2] * place_y)
        for j in range(first, first + count):
            total += math.exp(density.terms[j, 0] + density.terms[j, 1] * place_x + density.terms[j, 2] * place_y - top)
        return float(math.log(total) + top - square)
    knot_x, knot_y, value = (place_x + 0.5) * float(SQUARES), (place_y + 0.5) * float(SQUARES), 0.0
    square_x, square_y = min(int(knot_x), SQUARES - 1), min(int(knot_y), SQUARES - 1)
    weights_x, weights_y = _b_spline(knot_x - float(square_x)), _b_spline(knot_y - float(square_y))
    for i in range(4):
        for j in range(4):
            value += weights_x[i] * weights_y[j] * density.tiles[first, square_x + i, square_y + j]
    return float(value - square)


@compiled
def _b_spline(t: float) -> tuple[float, float, float, float]:
    """Weights of the four cubic B-splines over a unit interval."""
    near, far = (4.0 - (6.0 - 3.0 * t) * t * t) / 6.0, 1.0 - t
    return far * far * far / 6.0, near, (4.0 - (6.0 - 3.0 * far) * far * far) / 6.0, t * t * t / 6.0
