"""The line of two classes as people see it: a strip.

All points of the map of two classes have second coordinate 0. Pictures spread them over a strip, so that they do not
cover each other, and a region there is an interval of the first coordinate: a rectangle as high as the strip.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from darksight_core.map.regions import Region
from darksight_core.map.student import Student

__all__ = ["region_on_strip", "spread_over_strip", "strip_height", "strip_to_line"]

# Half of the height of the strip, as a share of the distance of a centre from the middle.
_HEIGHT = 0.15
_GOLDEN = 0.6180339887498949
# Larger numbers would leave a product with the golden ratio few digits after the point.
_NUMBERS = 1 << 20

_Number = TypeVar("_Number", np.float32, np.float64)


def strip_height(student: Student) -> float:
    """Half of the height of the strip; 0 if the map is not a line."""
    is_line = student.n_classes == 2 and not student.means[:, 1].any()
    return _HEIGHT * float(np.abs(student.means[:, 0]).max()) if is_line else 0.0


def spread_over_strip(
    student: Student, points: NDArray[_Number], numbers: NDArray[np.integer] | None = None
) -> NDArray[_Number]:
    """Points (n, 2) as they are drawn: on a line, each at a height that its number (n,) decides; by default its row."""
    height = strip_height(student)
    if height == 0.0:
        return points
    drawn = points.copy()
    numbers = np.arange(len(drawn)) if numbers is None else numbers % _NUMBERS
    drawn[:, 1] = height * (2.0 * (numbers * _GOLDEN % 1.0) - 1.0)
    return drawn


def strip_to_line(student: Student, points: NDArray[_Number]) -> NDArray[_Number]:
    """Where the density of places (n, 2) of a picture is read: of a strip, at the same place of its line."""
    return points * np.array([1.0, 0.0], dtype=points.dtype) if strip_height(student) > 0.0 else points


def region_on_strip(student: Student, region: Region) -> Region:
    """A region as the map has it: on a line, from the leftmost to the rightmost of its corners."""
    height, (left, right, _, _) = 1.2 * strip_height(student), region.box
    if height == 0.0:
        return region
    return replace(region, polygon=((left, -height), (right, -height), (right, height), (left, height)))
