"""Class colours, and the part of the plane that a map shows."""

from __future__ import annotations

import colorsys

import numpy as np
from numpy.typing import NDArray

from darksight_core.map.student import Student
from darksight_core.simplex import Floats

__all__ = ["class_colours", "map_view"]

# Okabe and Ito's palette, which is safe for colour-blind readers, then Paul Tol's muted colours.
_COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#882255", "#999933", "#332288", "#44AA99",
    "#AA4499", "#117733", "#DDCC77", "#661100", "#6699CC", "#888888",
)  # fmt: skip
_GOLDEN = 0.6180339887


def class_colours(classes: int) -> list[str]:
    """A colour for each class; beyond sixteen classes hues that are far from those of their neighbours."""
    if classes <= len(_COLOURS):
        return list(_COLOURS[:classes])
    wheel = (colorsys.hls_to_rgb(k * _GOLDEN % 1.0, (0.36, 0.5, 0.62)[k % 3], 0.65) for k in range(classes))
    return ["#" + "".join(f"{round(255 * part):02x}" for part in colour) for colour in wheel]


def map_view(student: Student, points: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Lower and upper corner of a view with all centres and nearly all points."""
    shown = np.concatenate([np.quantile(points, [0.002, 0.998], axis=0), student.means])
    low, high = shown.min(axis=0), shown.max(axis=0)
    margin = 0.06 * float((high - low).max()) + 1e-9
    return low - margin, high + margin
