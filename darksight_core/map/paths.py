"""What the map says along a curve: the student's P(k | y) from place to place, and the real rows that lie beside it.

Two classes that get confused are joined by a bridge of rows torn between them. `bridge` finds it in the rows
themselves; any other curve is a list of places. `trace` walks it and reports what the student expects at each step
beside what the watched classifier said about the nearest rows: where the two agree, the map may be read there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.map.student import Student
from darksight_core.simplex import Floats

__all__ = ["MapPath", "bridge", "confused_pairs", "trace"]

# Rows whose other classes have this much together are torn between more than two.
_OTHERS = 0.2
_BENDS = 5
_ROWS_PER_BEND = 4


@dataclass(frozen=True, slots=True, eq=False)
class MapPath:
    """A curve on the map.

    Parameters
    ----------
    points
        Places along it, evenly spaced, (m, 2).
    position
        Share of its length covered at each place, from 0 to 1, (m,).
    probs
        Student's P(k | y), (m, K).
    log_density
        Student's log P(y; θ), (m,).
    rows
        Real rows beside it, in the order in which they are passed, (r,).
    row_position, row_distance
        Where each of them is passed, and how far away it lies, (r,).
    """

    points: Floats
    position: Floats
    probs: Floats
    log_density: Floats
    rows: NDArray[np.intp]
    row_position: Floats
    row_distance: Floats


def bridge(log_pi: Floats, points: Floats, means: Floats, first: int, second: int) -> Floats:
    """Corners of a curve from the centre of one class to that of another, (c, 2), through the rows between them.

    Rows whose two most probable classes are these two, and sum to 0.8 or more, are ordered by their log-odds and cut
    into at most five groups of at least four; the median places of the groups are the corners. Without such rows the
    curve is the straight line between the centres.

    Parameters
    ----------
    log_pi
        Watched classifier, (n, K).
    points
        (n, 2).
    means
        Class centres, (K, 2).
    first, second
        Two different classes.
    """
    classes = log_pi.shape[1]
    if first == second or not (0 <= first < classes and 0 <= second < classes):
        raise ConfigError(f"a path joins two different classes from 0 to {classes - 1}, not {first} and {second}")
    pair = np.exp(log_pi[:, [first, second]])
    torn = np.flatnonzero((pair.sum(axis=1) >= 1.0 - _OTHERS) & (pair.min(axis=1) >= 0.05))
    corners = [means[first]]
    bends = min(_BENDS, len(torn) // _ROWS_PER_BEND)
    if bends:
        odds = log_pi[torn, first] - log_pi[torn, second]
        ordered = torn[np.argsort(-odds, kind="stable")]
        corners += [np.median(points[group], axis=0) for group in np.array_split(ordered, bends)]
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
    """Walk the straight pieces between corners at an even pace.

    Parameters
    ----------
    student
        θ of the map.
    corners
        Places to pass, (c, 2) with c >= 2.
    points
        Places of real rows, (n, 2).
    steps
        Number m of places to report.
    width
        Rows farther than this from the curve are not beside it; by default the median class scale.
    most
        The curve is cut into this many equal pieces, and the nearest row of each is reported.

    >>> student = Student(np.array([[0.0, 0.0], [4.0, 0.0]]), np.ones(2), np.zeros(2))
    >>> path = trace(student, [[0.0, 0.0], [4.0, 0.0]], np.array([[2.0, 0.5]]), steps=3)
    >>> path.probs[1], path.rows, path.row_position, path.row_distance
    (array([0.5, 0.5]), array([0]), array([0.5]), array([0.5]))
    """
    places = np.asarray(corners, dtype=np.float64)
    if places.ndim != 2 or places.shape[0] < 2 or places.shape[1] != 2 or not np.isfinite(places).all():
        raise ConfigError(f"a path needs two or more finite places (c, 2), not an array of shape {places.shape}")
    lengths = np.hypot(*np.diff(places, axis=0).T)
    if lengths.sum() <= 0.0:
        raise ConfigError("a path has a length; all its places are the same")
    ends = np.concatenate([[0.0], np.cumsum(lengths)])
    position = np.linspace(0.0, 1.0, steps)
    walked = np.stack([np.interp(position * ends[-1], ends, places[:, axis]) for axis in range(2)], axis=1)
    distance, passed = _beside(places, lengths, ends, points)
    reach = float(np.median(student.scales)) if width is None else width
    piece = np.minimum((passed * most).astype(np.intp), most - 1)
    order = np.argsort(distance, kind="stable")
    order = order[distance[order] <= reach]
    _, nearest = np.unique(piece[order], return_index=True)
    rows = order[nearest]
    rows = rows[np.argsort(passed[rows], kind="stable")]
    posterior = np.exp(student.log_posterior(walked))
    return MapPath(walked, position, posterior, student.log_density(walked), rows, passed[rows], distance[rows])


def _beside(places: Floats, lengths: Floats, ends: Floats, points: Floats) -> tuple[Floats, Floats]:
    """Distance of each point from the curve, and the share of its length at which it is nearest, (n,) each."""
    best, passed = np.full(len(points), np.inf), np.zeros(len(points))
    for start, step, length, before in zip(places[:-1], np.diff(places, axis=0), lengths, ends[:-1], strict=True):
        if length == 0.0:
            continue
        along = np.clip((points - start) @ step / length**2, 0.0, 1.0)
        gap = np.hypot(*(points - start - along[:, None] * step).T)
        closer = gap < best
        best[closer] = gap[closer]
        passed[closer] = (before + along[closer] * length) / ends[-1]
    return best, passed


def confused_pairs(log_pi: Floats, most: int = 3) -> list[tuple[int, int]]:
    """Pairs of classes that the classifier is most often torn between, most first.

    A pair weighs Σ_i min(π_ia, π_ib) over the rows whose two most probable classes it is.

    Parameters
    ----------
    log_pi
        Watched classifier, (n, K).
    most
        Number of pairs, fewer where fewer are confused at all.
    """
    classes = log_pi.shape[1]
    top = np.argpartition(-log_pi, 1, axis=1)[:, :2]
    low, high = top.min(axis=1), top.max(axis=1)
    weight = np.exp(np.take_along_axis(log_pi, top, axis=1)).min(axis=1)
    total = np.bincount(low * classes + high, weights=weight, minlength=classes**2)
    order = np.argsort(-total, kind="stable")[:most]
    return [(int(pair) // classes, int(pair) % classes) for pair in order if total[pair] > 0.0]
