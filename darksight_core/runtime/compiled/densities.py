"""The kernel density at a place on the map; see `Kde.log_density`."""

from __future__ import annotations

import math

import numpy as np

from darksight_core.map.density import CONES, LEVELS, SQUARES
from darksight_core.runtime.arrays import Density
from darksight_core.runtime.compiled.numerics import compiled, count_not_above

__all__ = ["log_kde"]


@compiled
def log_kde(x: float, y: float, density: Density) -> float:
    """log p(y) of the kernel density."""
    across_x, across_y = (x - density.frame[0]) / density.frame[2], (y - density.frame[1]) / density.frame[2]
    keys, widths = density.cells[0], density.cells[1]
    if 0.0 <= across_x < 1.0 and 0.0 <= across_y < 1.0:
        scale = float(1 << LEVELS)
        fine_x, fine_y = min(across_x * scale, scale - 1.0), min(across_y * scale, scale - 1.0)
        cell_x, cell_y = int(fine_x), int(fine_y)
        leaf = count_not_above(keys, _spread_bits(cell_x) | (_spread_bits(cell_y) << 1)) - 1
        place_x = (fine_x - float(cell_x & -widths[leaf])) / float(widths[leaf]) - 0.5
        place_y = (fine_y - float(cell_y & -widths[leaf])) / float(widths[leaf]) - 0.5
    else:
        place_x, place_y = across_x - 0.5, across_y - 0.5
        flat = abs(place_x) >= abs(place_y)
        along, towards = (place_y, place_x) if flat else (place_x, place_y)
        segment = min(int((along / abs(towards) + 1.0) * 0.5 * float(CONES)), CONES - 1)
        leaf = len(keys) + ((0 if flat else 2) + (1 if towards < 0.0 else 0)) * CONES + segment
    gap_x, gap_y = x - density.anchors[leaf, 0], y - density.anchors[leaf, 1]
    square = (gap_x * gap_x + gap_y * gap_y) / (2.0 * density.bandwidth * density.bandwidth)
    first, count = density.leaves[0, leaf], density.leaves[1, leaf]
    if count == 0:
        return float(_read_tile(place_x, place_y, density, first) - square)
    top, total = -np.inf, 0.0
    for j in range(first, first + count):
        top = max(top, density.terms[j, 0] + density.terms[j, 1] * place_x + density.terms[j, 2] * place_y)
    for j in range(first, first + count):
        total += math.exp(density.terms[j, 0] + density.terms[j, 1] * place_x + density.terms[j, 2] * place_y - top)
    return float(math.log(total) + top - square)


@compiled
def _spread_bits(value: int) -> int:
    """The low 32 bits of a number, moved to the even places."""
    value = (value | (value << 16)) & 0x0000FFFF0000FFFF
    value = (value | (value << 8)) & 0x00FF00FF00FF00FF
    value = (value | (value << 4)) & 0x0F0F0F0F0F0F0F0F
    value = (value | (value << 2)) & 0x3333333333333333
    return (value | (value << 1)) & 0x5555555555555555


@compiled
def _read_tile(x: float, y: float, density: Density, tile: int) -> float:
    """A bicubic B-spline at a place of its cell."""
    knot_x, knot_y = (x + 0.5) * float(SQUARES), (y + 0.5) * float(SQUARES)
    square_x, square_y = min(int(knot_x), SQUARES - 1), min(int(knot_y), SQUARES - 1)
    weights_x, weights_y = _b_spline(knot_x - float(square_x)), _b_spline(knot_y - float(square_y))
    value = 0.0
    for i in range(4):
        line = 0.0
        for j in range(4):
            line += weights_y[j] * density.tiles[tile, square_x + i, square_y + j]
        value += weights_x[i] * line
    return value


@compiled
def _b_spline(offset: float) -> tuple[float, float, float, float]:
    """Weights of the four cubic B-splines over a unit interval."""
    rest = 1.0 - offset
    square, rest_square = offset * offset, rest * rest
    return (
        rest_square * rest / 6.0,
        (4.0 - (6.0 - 3.0 * offset) * square) / 6.0,
        (4.0 - (6.0 - 3.0 * rest) * rest_square) / 6.0,
        square * offset / 6.0,
    )
