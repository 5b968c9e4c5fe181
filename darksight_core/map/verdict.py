"""How far a map can be read, in words.

KL_sym says how faithful a map is, but not what that means to a reader: it is unbounded, and a probability of zero where
the map has a thousandth adds 0.03 to it. Three shares are what a reader sees, and the worst of them decides:

- The total variation between a row and the map's classes at its point is the probability that is in the wrong place.
- Readers take the nearest star, a class centre, for the class of a point.
- The points of undecided rows would lie further out than the border of the map and are moved to it, so their distances
  mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.simplex import Floats

__all__ = ["has_points_near", "is_on_border", "map_verdict", "nearest_stars"]

# Largest mean total variation, share of points whose nearest star is another class than the predicted one, and share of
# points on the border, of a map that is good, and of one that is fair.
_LIMITS = ((0.05, 0.15), (0.05, 0.2), (0.005, 0.1))
_READING = (
    "good: {}; clusters, bridges and neighbours can be read",
    "fair: {}; clusters and bridges can be read, small distances cannot",
    "poor: {}; read the cluster of a point and nothing finer. p-values do not use the map",
)
_BLOCK_VALUES = 1 << 20


def nearest_stars(points: Floats, means: Floats) -> NDArray[np.intp]:
    """Index of the nearest class centre (K, 2) of each point (n, 2), (n,)."""
    found = np.empty(len(points), dtype=np.intp)
    step = max(_BLOCK_VALUES // len(means), 1)
    for start in range(0, len(points), step):
        part = points[start : start + step, None]
        found[start : start + step] = ((part - means) ** 2).sum(axis=-1).argmin(axis=1)
    return found


def has_points_near(
    points: Floats, predicted: NDArray[np.integer], means: Floats, columns: Sequence[int] | None
) -> NDArray[np.bool_]:
    """Whether each class centre is the nearest one of some point of its class, (K,).

    Parameters
    ----------
    points, predicted
        Points (n, 2) and their classes (n,).
    means
        Class centres, (K, 2).
    columns
        The classes of the centres; None for all classes.
    """
    found = np.zeros(len(means), dtype=bool)
    nearest = nearest_stars(points, means)
    classes = np.arange(len(means)) if columns is None else np.asarray(columns)
    found[nearest[classes[nearest] == predicted]] = True
    return found


def is_on_border(points: Floats, bound: float) -> NDArray[np.bool_]:
    """Whether points (n, 2) lie on the border of the map, the square of half width `bound`, (n,)."""
    farthest: Floats = np.abs(points).max(axis=1)
    return farthest >= (1.0 - 1e-6) * bound


def map_verdict(total_variation: float, star_agreement: float | None = None, on_border: float | None = None) -> str:
    """What these figures of rows and their points mean for reading the map.

    Parameters
    ----------
    total_variation
        Its mean between rows and the map's classes at their points.
    star_agreement
        Share of points whose nearest star is the predicted class; None if it is not known.
    on_border
        Share of points on the border; None if it is not known.

    >>> map_verdict(0.01, 0.99, 0.0)
    'good: 1.0% of the probability is in the wrong place on average; clusters, bridges and neighbours can be read'
    """
    other_star = 0.0 if star_agreement is None else 1.0 - star_agreement
    found = (total_variation, other_star, on_border or 0.0)
    grades = [sum(value > limit for limit in limits) for value, limits in zip(found, _LIMITS, strict=True)]
    facts = [f"{total_variation:.1%} of the probability is in the wrong place on average"]
    if grades[1]:
        facts.append(f"the nearest star is another class than the predicted one for {other_star:.1%} of the points")
    if grades[2]:
        facts.append(f"{on_border:.1%} of the points lie on the border of the map")
    return _READING[max(grades)].format(", ".join(facts))
