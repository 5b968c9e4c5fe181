"""A small picture of a map as SVG, for the HTML of a bundle or an estimator; needs no matplotlib."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from darksight_core.map.palette import class_colours, map_view
from darksight_core.map.strip import spread_over_strip
from darksight_core.map.student import Student

__all__ = ["thumbnail"]

_POINTS = 1_500
_PIXELS = 180


def thumbnail(student: Student, points: NDArray[np.floating], predicted: NDArray[np.integer], *, seed: int = 0) -> str:
    """Points by predicted class, at most some thousand of them, drawn at random.

    Parameters
    ----------
    student
        θ of the map.
    points
        Places, (n, 2).
    predicted
        Predicted class, (n,).
    seed
        Seed of the draw.
    """
    rows = np.arange(len(points))
    if len(rows) > _POINTS:
        rows = np.random.default_rng(seed).choice(rows, _POINTS, replace=False)
    drawn = spread_over_strip(student, points[rows].astype(np.float64), rows)
    low, high = map_view(student, drawn)
    scale = _PIXELS / float((high - low).max())
    width, height = scale * (high - low)
    colours = class_colours(int(predicted.max(initial=0)) + 1)
    # One path per class: a dot is a line of no length with round ends.
    paths = []
    for k in np.unique(predicted[rows]):
        places = (drawn[predicted[rows] == k] - low) * scale
        dots = "".join(f"M{x:.1f} {height - y:.1f}h0" for x, y in places.clip(-1.0, _PIXELS + 1.0))
        paths.append(f'<path d="{dots}" stroke="{colours[k]}"/>')
    return (
        f'<svg width="{width:.0f}" height="{height:.0f}" role="img" aria-label="Map of {len(points):,} predictions" '
        f'fill="none" stroke-width="3" stroke-linecap="round" stroke-opacity=".7">{"".join(paths)}</svg>'
    )
