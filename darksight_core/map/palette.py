"""Class colours of every picture, page and figure, and the part of the plane that a map shows."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from darksight_core.map.strip import strip_height
from darksight_core.map.student import Student
from darksight_core.rows.simplex import Floats

__all__ = ["GRADES", "class_colours", "map_view"]

# Okabe and Ito's palette and Paul Tol's muted colours, which are safe for colour-blind readers. The darkest and the
# lightest are changed so that all are visible on white and on a dark page.
_FIRST = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#A0336B", "#999933", "#6A51C8", "#44AA99",
    "#B25AAE", "#2E8B3D", "#C4A94D", "#9C5A3C", "#6699CC", "#888888",
)  # fmt: skip
GRADES = ("#F2B84B", "#E07A5F", "#B5367A", "#6A3FA0")
"""Colours from low to high values such as entropy; visible on white and on a dark page."""

_GOLDEN = 0.6180339887


def class_colours(classes: int) -> list[str]:
    """A colour for each class; it depends on the number of the class alone, so that it is the same everywhere."""
    return [_FIRST[k] if k < len(_FIRST) else _hue(k) for k in range(classes)]


def _hue(number: int) -> str:
    """A colour of OKLCH whose hue is far from those of the neighbouring numbers, of nearly equal lightness."""
    lightness, angle = (0.56, 0.64, 0.72)[number % 3], 2.0 * math.pi * (number * _GOLDEN % 1.0)
    a, b = 0.12 * math.cos(angle), 0.12 * math.sin(angle)
    cones = [
        (lightness + 0.3963 * a + 0.2158 * b) ** 3,
        (lightness - 0.1056 * a - 0.0639 * b) ** 3,
        (lightness - 0.0895 * a - 1.2915 * b) ** 3,
    ]
    rows = ((4.0767, -3.3077, 0.2310), (-1.2684, 2.6098, -0.3413), (-0.0042, -0.7034, 1.7076))
    linear = [min(max(sum(x * y for x, y in zip(row, cones, strict=True)), 0.0), 1.0) for row in rows]
    parts = [12.92 * part if part <= 0.0031308 else 1.055 * part ** (1 / 2.4) - 0.055 for part in linear]
    return "#" + "".join(f"{round(255 * part):02X}" for part in parts)


def map_view(student: Student, points: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Lower and upper corner of a view with all centres and nearly all points."""
    reach = [0.0, strip_height(student)]
    shown = np.concatenate([np.quantile(points, [0.002, 0.998], axis=0), student.means - reach, student.means + reach])
    low, high = shown.min(axis=0), shown.max(axis=0)
    margin = 0.05 * float((high - low).max()) + 1e-9
    return low - margin, high + margin
