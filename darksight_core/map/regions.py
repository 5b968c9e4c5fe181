"""Regions: polygons on the map of one bundle inside which an analyst refuses.

A point is inside if a ray from it to the right crosses the polygon an odd number of times. So the direction of the
corners does not matter, and of a polygon that crosses itself the parts that it goes around twice are outside: that is
also how a hole is drawn. The boundary is half-open: of a rectangle the left and lower sides are inside, the right and
upper ones are not, and of two polygons that share a side each point of it is in exactly one.

Corners and points are rounded to float32 before they are compared. The store keeps points as float32, so what a preview
counts among stored points is, to the last point, what the gate refuses.

The cost for n points and v corners is that of n comparisons with the bounding box and, for the points in it, of sorting
them and of the sides at their height: a few for a drawn polygon, v at the most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.simplex import Floats

__all__ = ["MAX_CORNERS", "MAX_NAME", "MAX_REGIONS", "Region", "hull", "inside_any"]

MAX_CORNERS = 4096
"""Corners that a polygon may have: a freehand line of a minute has some hundreds."""

MAX_REGIONS = 64
"""Regions that may be saved for one bundle."""

MAX_NAME = 100
"""Characters that a name may have."""

# Pairs of a point and a side that are compared at a time: some 100 MB.
_PAIRS = 2_000_000


@dataclass(frozen=True, slots=True)
class Region:
    """A polygon with a name.

    Parameters
    ----------
    name
        What people call it.
    polygon
        Corners (x, y), in either direction; a last one that repeats the first is left out.
    expires_ms
        When it ends, in Unix milliseconds; 0 for never. See `Gate.at`.

    Attributes
    ----------
    box
        Left, right, bottom and top of its corners.

    Raises
    ------
    ConfigError
        If this is no polygon: fewer than three corners, more than `MAX_CORNERS`, corners that are not finite as
        float32, or that lie on one line.

    >>> Region("square", ((0, 0), (1, 0), (1, 1), (0, 1))).inside([[0, 0], [0.5, 0.5], [1, 0.5], [0.5, 1]]).tolist()
    [True, True, False, False]
    """

    name: str
    polygon: tuple[tuple[float, float], ...]
    expires_ms: int = 0
    box: tuple[float, float, float, float] = field(init=False, repr=False, compare=False)
    _sides: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name.strip()) <= len(self.name) <= MAX_NAME:
            raise ConfigError(f"a region needs a name of 1 to {MAX_NAME} characters")
        if isinstance(self.expires_ms, bool) or not isinstance(self.expires_ms, int) or self.expires_ms < 0:
            raise ConfigError(f"region {self.name!r}: the time at which it ends must be Unix milliseconds, or 0")
        corners = _corners(self.name, self.polygon)
        object.__setattr__(self, "polygon", tuple((x, y) for x, y in corners.tolist()))
        (left, bottom), (right, top) = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
        object.__setattr__(self, "box", (left, right, bottom, top))
        starts, ends = corners, np.roll(corners, -1, axis=0)
        # From below to above, so that a side is the same whichever polygon it belongs to; level ones cross no ray.
        is_up = starts[:, 1:] < ends[:, 1:]
        sides = np.concatenate([np.where(is_up, starts, ends), np.where(is_up, ends, starts)], axis=1)
        object.__setattr__(self, "_sides", np.ascontiguousarray(sides[sides[:, 1] < sides[:, 3]].T))

    def inside(self, points: ArrayLike) -> NDArray[np.bool_]:
        """Which of the points (n, 2) are inside, (n,); a point that is not finite is outside."""
        with np.errstate(over="ignore"):
            places = np.asarray(points).astype(np.float32).astype(np.float64)
        left, right, bottom, top = self.box
        if len(places) == 1:
            # In the request path, where nearly every row is far away.
            x, y = places[0].tolist()
            if not (left <= x < right and bottom <= y < top):
                return np.zeros(1, dtype=np.bool_)
        xs, ys = places[:, 0], places[:, 1]
        near = np.flatnonzero((xs >= left) & (xs < right) & (ys >= bottom) & (ys < top))
        found = np.zeros(len(places), dtype=np.bool_)
        # By height: so the points that a side passes are neighbours.
        near = near[np.argsort(ys[near], kind="stable")]
        found[near] = self._is_odd(xs[near], ys[near])
        return found

    def _is_odd(self, x: Floats, y: Floats) -> NDArray[np.bool_]:
        """Whether the rays from points, sorted by y, cross an odd number of sides, (n,)."""
        x0, y0, x1, y1 = self._sides
        first, last = np.searchsorted(y, y0), np.searchsorted(y, y1)
        counts = last - first
        pairs = int(counts.sum())
        if pairs > _PAIRS and len(x) > 1:
            half = len(x) // 2
            return np.concatenate([self._is_odd(x[:half], y[:half]), self._is_odd(x[half:], y[half:])])
        side = np.repeat(np.arange(len(counts)), counts)
        point = np.arange(pairs) - np.repeat(np.cumsum(counts) - counts, counts) + first[side]
        # Left of the side, without a division: of float32 numbers these products are exact unless they lie far apart.
        x0, y0, x1, y1 = self._sides[:, side]
        is_crossed = (x[point] - x0) * (y1 - y0) < (x1 - x0) * (y[point] - y0)
        return np.equal(np.bincount(point[is_crossed], minlength=len(x)) % 2, 1)

    def settings(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {
            "name": self.name,
            "polygon": [list(corner) for corner in self.polygon],
            "expires_ms": self.expires_ms,
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Region:
        """Inverse of `settings`; ConfigError if it is none."""
        try:
            return cls(settings["name"], settings["polygon"], settings.get("expires_ms", 0))
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"a region needs a name and a polygon: {error}") from None


def inside_any(regions: Iterable[Region], points: ArrayLike) -> NDArray[np.bool_]:
    """Which of the points (n, 2) are inside a region, (n,)."""
    places = np.asarray(points)
    found = np.zeros(len(places), dtype=np.bool_)
    for region in regions:
        found |= region.inside(places)
    return found


def hull(points: ArrayLike) -> Floats:
    """Corners of the convex hull of points (n, 2), counter-clockwise, (h, 2)."""
    places = sorted({(x, y) for x, y in np.asarray(points, dtype=np.float64).tolist()})

    def half(ordered: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        chain: list[tuple[float, float]] = []
        for x, y in ordered:
            while len(chain) > 1:
                (ax, ay), (bx, by) = chain[-2:]
                if (bx - ax) * (y - ay) > (by - ay) * (x - ax):
                    break
                chain.pop()
            chain.append((x, y))
        return chain[:-1]

    return np.array(half(places) + half(reversed(places)) or places, dtype=np.float64).reshape(-1, 2)


def _corners(name: str, polygon: Sequence[Any]) -> Floats:
    """The corners as float32 numbers, (v, 2)."""
    if len(polygon) > MAX_CORNERS + 1:
        raise ConfigError(
            f"region {name!r}: {len(polygon):,} corners are more than {MAX_CORNERS:,}; draw it with fewer"
        )
    try:
        with np.errstate(over="ignore"):
            corners = np.array(polygon, dtype=np.float64).astype(np.float32).astype(np.float64)
    except (TypeError, ValueError):
        corners = np.empty(0)
    if corners.ndim != 2 or corners.shape[1] != 2:
        raise ConfigError(f"region {name!r}: a polygon is a list of corners (x, y)")
    bad = np.flatnonzero(~np.isfinite(corners).all(axis=1))
    if len(bad):
        raise ConfigError(f"region {name!r}: corner {bad[0]} is not finite, or too large for float32")
    if len(corners) > 1 and (corners[0] == corners[-1]).all():
        corners = corners[:-1]
    if len(np.unique(corners, axis=0)) < 3:
        raise ConfigError(f"region {name!r}: a polygon needs three different corners or more")
    if len(corners) > MAX_CORNERS:
        raise ConfigError(f"region {name!r}: {len(corners):,} corners are more than {MAX_CORNERS:,}")
    if len(hull(corners)) < 3:
        raise ConfigError(f"region {name!r}: all corners lie on one line, so nothing is inside")
    return corners
