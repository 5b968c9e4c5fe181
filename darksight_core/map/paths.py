"""Curves on the map: the student's P(k | y) along a curve, and the rows beside it.

Two confused classes are connected by a bridge of undecided rows. `bridge` finds it from the rows; any other curve is a
list of points. `trace` gives the student's prediction along the curve next to the rows nearest to it: where the
watched classifier agrees with the student there, the map can be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.map.student import Student
from darksight_core.rows.simplex import Floats

__all__ = ["MapPath", "bridge", "confused_pairs", "trace"]

# Rows whose other classes have more than this in sum are undecided between more than two classes.
_OTHERS = 0.2
_GROUPS = 5
_ROWS_PER_GROUP = 4


@dataclass(frozen=True, slots=True, eq=False)
class MapPath:
    """A curve on the map.

    Parameters
    ----------
    points
        Evenly spaced points on the curve, (m, 2).
    position
        Share of the length up to each point, from 0 to 1, (m,).
    probs
        Student's P(k | y), (m, K).
    log_density
        Student's log P(y; θ), (m,).
    rows
        Indices of rows beside the curve, in the order along it, (r,).
    row_position, row_distance
        Position of the nearest point of the curve, and distance from it, (r,).
    """

    points: Floats
    position: Floats
    probs: Floats
    log_density: Floats
    rows: NDArray[np.intp]
    row_position: Floats
    row_distance: Floats


def bridge(log_pi: Floats, points: Floats, means: Floats, first: int, second: int) -> Floats:
    """Corners of a curve from the centre of one class to the centre of another through the rows between them, (c, 2).

    Rows whose two most probable classes are these two, with a sum of at least 0.8, are sorted by log-odds and divided
    into at most five groups of at least four rows; the corners are the median points of the groups. Without such rows
    the curve is the straight line between the centres.

    Parameters
    ----------
    log_pi
        Log-probabilities of the watched classifier, (n, K).
    points
        Points of the rows, (n, 2).
    means
        Class centres, (K, 2).
    first, second
        Two different classes.
    """
    classes = log_pi.shape[1]
    if first == second or not (0 <= first < classes and 0 <= second < classes):
        raise ConfigError(f"a bridge needs two different classes from 0 to {classes - 1}, not {first} and {second}")
    pair = np.exp(log_pi[:, [first, second]])
    undecided = np.flatnonzero((pair.sum(axis=1) >= 1.0 - _OTHERS) & (pair.min(axis=1) >= 0.05))
    corners = [means[first]]
    groups = min(_GROUPS, len(undecided) // _ROWS_PER_GROUP)
    if groups:
        odds = log_pi[undecided, first] - log_pi[undecided, second]
        ordered = undecided[np.argsort(-odds, kind="stable")]
        corners += [np.median(points[group], axis=0) for group in np.array_split(ordered, groups)]
    return np.asarray([*corners, means[second]], dtype=np.float64)


def trace(
    student: Student,
    corners: ArrayLike,
    points: Floats,
    *,
    steps: int = 121,
    width: float | None = None,
    most: int = 60,
) -> MapPath:
    """The student along the straight lines between corners, and the rows beside them.

    Parameters
    ----------
    student
        θ of the map.
    corners
        Points that the curve connects, (c, 2) with c >= 2.
    points
        Points of rows, (n, 2).
    steps
        Number m of points on the curve.
    width
        Largest distance of a row beside the curve; by default the median class scale.
    most
        The curve is divided into this many equal pieces, and the nearest row of each is returned.

    >>> student = Student(np.array([[0.0, 0.0], [4.0, 0.0]]), np.ones(2), np.zeros(2))
    >>> path = trace(student, [[0.0, 0.0], [4.0, 0.0]], np.array([[2.0, 0.5]]), steps=3)
    >>> path.probs[1], path.rows, path.row_position, path.row_distance
    (array([0.5, 0.5]), array([0]), array([0.5]), array([0.5]))
    """
    ends = np.asarray(corners, dtype=np.float64)
    if ends.ndim != 2 or ends.shape[0] < 2 or ends.shape[1] != 2 or not np.isfinite(ends).all():
        raise ConfigError(f"a path needs at least two finite points (c, 2), not an array of shape {ends.shape}")
    lengths = np.hypot(*np.diff(ends, axis=0).T)
    if lengths.sum() <= 0.0:
        raise ConfigError("all points of the path are equal")
    distances = np.concatenate([[0.0], np.cumsum(lengths)])
    position = np.linspace(0.0, 1.0, steps)
    curve = np.stack([np.interp(position * distances[-1], distances, ends[:, axis]) for axis in range(2)], axis=1)
    gap, row_position = _project(ends, distances, points)
    reach = float(np.median(student.scales)) if width is None else width
    piece = np.minimum((row_position * most).astype(np.intp), most - 1)
    order = np.argsort(gap, kind="stable")
    order = order[gap[order] <= reach]
    _, nearest = np.unique(piece[order], return_index=True)
    rows = order[nearest]
    rows = rows[np.argsort(row_position[rows], kind="stable")]
    posterior = np.exp(student.log_posterior(curve))
    return MapPath(curve, position, posterior, student.log_density(curve), rows, row_position[rows], gap[rows])


def _project(ends: Floats, distances: Floats, points: Floats) -> tuple[Floats, Floats]:
    """Distance of each point from the curve, and the share of the length at its nearest point, (n,) each."""
    best, position = np.full(len(points), np.inf), np.zeros(len(points))
    for start, step, before, after in zip(ends, np.diff(ends, axis=0), distances[:-1], distances[1:], strict=False):
        length = after - before
        if length == 0.0:
            continue
        along = np.clip((points - start) @ step / length**2, 0.0, 1.0)
        gap = np.hypot(*(points - start - along[:, None] * step).T)
        closer = gap < best
        best[closer] = gap[closer]
        position[closer] = (before + along[closer] * length) / distances[-1]
    return best, position


def confused_pairs(log_pi: Floats, most: int = 3) -> list[tuple[int, int]]:
    """Pairs of classes that the classifier confuses most, in descending order.

    The weight of a pair is Σ_i min(π_ia, π_ib) over the rows whose two most probable classes are the pair.

    Parameters
    ----------
    log_pi
        Log-probabilities of the watched classifier, (n, K).
    most
        Largest number of pairs.
    """
    classes = log_pi.shape[1]
    top = np.argpartition(-log_pi, 1, axis=1)[:, :2]
    low, high = top.min(axis=1), top.max(axis=1)
    weight = np.exp(np.take_along_axis(log_pi, top, axis=1)).min(axis=1)
    total = np.bincount(low * classes + high, weights=weight, minlength=classes**2)
    order = np.argsort(-total, kind="stable")[:most]
    return [(int(pair) // classes, int(pair) % classes) for pair in order if total[pair] > 0.0]
