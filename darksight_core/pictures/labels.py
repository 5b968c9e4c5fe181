"""Positions of class names around the centres of a map, such that no two names overlap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.simplex import Floats

__all__ = ["LABEL_SIDES", "MAX_LABELS", "place_labels", "text_sizes"]

MAX_LABELS = 150
"""Maximum number of names on a map; more would hide its points."""

LABEL_SIDES = {
    "top center": (0.0, 1.0),
    "bottom center": (0.0, -1.0),
    "middle right": (1.0, 0.0),
    "middle left": (-1.0, 0.0),
}
"""Positions of a label in order of preference, as plotly.js names them, with their directions."""


def text_sizes(names: list[str], font: float) -> Floats:
    """Estimated width and height in pixels of names at a font size, (n, 2)."""
    return np.array([[0.62 * font * max(len(name), 1), 1.3 * font] for name in names])


def place_labels(centres: Floats, sizes: Floats, counts: NDArray[np.integer], gap: float) -> list[str | None]:
    """A side of its centre for each label, as in `LABEL_SIDES`; None for a label that is left out.

    The labels of frequent classes are placed first, at most `MAX_LABELS` of them. A label takes the first side where it
    overlaps no earlier label.

    Parameters
    ----------
    centres
        Centres in pixels, y upwards, (n, 2).
    sizes
        Widths and heights of the labels in pixels, (n, 2).
    counts
        Rows of each class, (n,).
    gap
        Distance of a label from its centre in pixels.
    """
    found: list[str | None] = [None] * len(centres)
    taken = np.empty((0, 4))
    for k in np.argsort(-counts, kind="stable")[:MAX_LABELS]:
        for side, direction in LABEL_SIDES.items():
            middle = centres[k] + np.asarray(direction) * (gap + sizes[k] / 2.0)
            low, high = middle - sizes[k] / 2.0, middle + sizes[k] / 2.0
            if ((taken[:, :2] >= high) | (taken[:, 2:] <= low)).any(axis=1).all():
                taken = np.vstack((taken, (*low, *high)))
                found[k] = side
                break
    return found
