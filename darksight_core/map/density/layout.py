"""The format of the arrays of a `Kde`: leaves, their keys, and the splines of tiles."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.simplex import Floats

__all__ = ["CONES", "LEVELS", "SQUARES", "TILE", "Ints", "Leaf", "b_spline", "morton"]

Ints: TypeAlias = NDArray[np.int64]

LEVELS = 24
"""Depth of the quadtree: the smallest cell has side / 2^24."""

SQUARES = 8
"""Squares along a side of a tile."""

TILE = SQUARES + 3
"""Coefficients of the cubic B-spline along a side of a tile."""

CONES = 16
"""Cones along a side of the frame."""


class Leaf(NamedTuple):
    """A cell of the tree, or a cone, which has no key.

    `values` are the coefficients of a tile, (11, 11), or the terms α, γ_x, γ_y of a list, (k, 3). `width` is the side
    of the cell in units of the smallest one.
    """

    anchor: Floats
    values: Floats
    key: int = -1
    width: int = 0

    @property
    def is_tile(self) -> bool:
        """Whether it is a tile."""
        return len(self.values[0]) != 3

    @property
    def size(self) -> int:
        """Bytes of its arrays."""
        return 40 + (4 if self.is_tile else 8) * self.values.size


def morton(x: Ints | int, y: Ints | int) -> Ints:
    """Morton keys of cells in units of the smallest one: bits of x and y in turn, x in the even ones.

    >>> morton(np.array([1, 0, 3]), np.array([0, 1, 3]))
    array([ 1,  2, 15])
    """
    even, odd = (_SPREAD[each & 4095] | _SPREAD[each >> 12] << 24 for each in (x, y))
    keys: Ints = even | odd << 1
    return keys


def b_spline(offset: Floats) -> Floats:
    """Weights of the four cubic B-splines over a unit interval, stacked in front.

    >>> b_spline(np.array([0.0]))[:, 0] * 6
    array([1., 4., 1., 0.])
    """
    rest = 1.0 - offset
    square, rest_square = offset * offset, rest * rest
    return np.stack(
        [
            rest_square * rest / 6.0,
            (4.0 - (6.0 - 3.0 * offset) * square) / 6.0,
            (4.0 - (6.0 - 3.0 * rest) * rest_square) / 6.0,
            square * offset / 6.0,
        ]
    )


# Bits of 0..4095 with a zero between any two.
_SPREAD: Ints = ((np.arange(4096)[:, None] >> np.arange(12) & 1) << 2 * np.arange(12)).sum(axis=1)
