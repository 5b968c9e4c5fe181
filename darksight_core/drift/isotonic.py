"""Isotonic calibration of a confidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from darksight_core.rows.simplex import Floats

__all__ = ["Isotonic", "fit_isotonic"]


@dataclass(frozen=True, slots=True, eq=False)
class Isotonic:
    """A non-decreasing piecewise linear curve, constant before the first knot and after the last.

    Parameters
    ----------
    x
        Knots in ascending order, (m,).
    y
        Values there, (m,).
    """

    x: Floats
    y: Floats

    def __call__(self, values: Floats) -> Floats:
        """The curve at values (n,)."""
        curve: Floats = np.interp(values, self.x, self.y)
        return curve


def fit_isotonic(x: Floats, y: Floats) -> Isotonic:
    """Least-squares non-decreasing fit of y (n,) on x (n,), by pooling adjacent violators.

    >>> fit_isotonic(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 0.0])).y
    array([0. , 0.5, 0.5])
    """
    knots, group, size = np.unique(x, return_inverse=True, return_counts=True)
    means = np.bincount(group, weights=y) / size
    # A block is (mean, weight, knots); a new one is merged with its predecessors as long as it lies below them.
    blocks: list[tuple[float, float, int]] = []
    for mean, weight in zip(means.tolist(), size.tolist(), strict=True):
        length = 1
        while blocks and blocks[-1][0] >= mean:
            before, heft, knots_before = blocks.pop()
            mean = (before * heft + mean * weight) / (heft + weight)
            weight, length = weight + heft, length + knots_before
        blocks.append((mean, weight, length))
    fitted = np.repeat([block[0] for block in blocks], [block[2] for block in blocks])
    # Only the ends of a block shape the curve; a saturated classifier keeps few of its many knots.
    inner = np.zeros(len(knots), dtype=np.bool_)
    inner[1:-1] = (fitted[1:-1] == fitted[:-2]) & (fitted[1:-1] == fitted[2:])
    return Isotonic(knots[~inner], fitted[~inner])
