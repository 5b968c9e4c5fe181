"""The map of two classes is a line: its first coordinate rises with the log-odds, its second one is 0.

Two probabilities are one number, their log-odds. In the plane a whole curve of points reproduces it, and a search may
end anywhere on that curve. On the line through both centres, at -a and a, the student's log-odds are

    l(x) = c log(((x + a)² + v) / ((x - a)² + v)),

which rise from -L to L while x goes from -w to w: w² = a² + v, a = √v sinh(L / 2c). So each row has one point and
nothing is fitted. The centres are so far apart that L is 16; rows with larger log-odds are at the ends of the line.

Nothing else knows of the line. At a point with second coordinate 0 the gradient of KL_sym has no second coordinate if
the centres have none, so a search that starts from an anchor on the line stays on it, as does f_p in its training.
"""

from __future__ import annotations

import math

import numpy as np

from darksight_core.map.anchors import MARGIN
from darksight_core.map.network import LARGEST_LOG_ODDS
from darksight_core.map.student import Student, default_scale
from darksight_core.rows.simplex import Floats

__all__ = ["line_anchors", "line_end", "line_student", "place_on_line"]

# Anchors of each class. A search from the nearest one ends at the row's point unless KL_sym is flat there.
_ANCHORS = 200
# The first anchor is just where the student prefers its class, and the last one just before the end of the line.
_FIRST, _LAST = 1.001 * MARGIN, 0.999


def line_student(dof: float) -> Student:
    """θ of the line: centres on the first axis, the first class on the left, equal priors and scales."""
    scale = default_scale(2)
    centre = math.sqrt(dof) * scale * math.sinh(LARGEST_LOG_ODDS / (dof + 2.0))
    return Student(np.array([[-centre, 0.0], [centre, 0.0]]), np.full(2, scale), np.zeros(2), dof)


def line_end(student: Student) -> float:
    """w, the largest coordinate of a point on the line."""
    return math.sqrt(student.means[1, 0] ** 2 + student.dof * student.scales[1] ** 2)


def line_anchors(student: Student) -> Floats:
    """Anchors (m, 2) at equal distances on each side, from the middle outwards."""
    first = place_on_line(student, np.array([_FIRST]))[0, 0]
    right = np.linspace(first, _LAST * line_end(student), _ANCHORS)
    return np.column_stack([np.concatenate([-right, right]), np.zeros(2 * _ANCHORS)])


def place_on_line(student: Student, log_odds: Floats) -> Floats:
    """Points (n, 2) of rows by the log-odds (n,) of the second class against the first."""
    centre, end = student.means[1, 0], line_end(student)
    # l(x) = l is a quadratic equation in x; the solutions are x and w² / x, of which the smaller one is on the line.
    slope = np.clip(np.tanh(log_odds / (student.dof + 2.0)), -centre / end, centre / end)
    root = np.sqrt(np.maximum(centre**2 - (end * slope) ** 2, 0.0))
    return np.column_stack([end**2 * slope / (centre + root), np.zeros(len(log_odds))])
