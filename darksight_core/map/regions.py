"""Regions: polygons on the map of one bundle, inside which rows are rejected.

A point is inside if a ray from it to the right crosses the polygon an odd number of times (even-odd rule). The
orientation of the polygon does not matter, and parts that a self-intersecting polygon encloses twice are outside, so a
hole can be drawn. The boundary is half-open: the left and lower sides of a rectangle are inside, the right and upper
sides are not, and a point on a side that two polygons share is in exactly one of them.

Corners and points are rounded to float32 before they are compared. The store keeps points as float32, so the points
that a preview counts are exactly those that the gate rejects.

The cost for n points and v corners is n comparisons with the bounding box; the points in the box are sorted and
compared with the sides at their height, which are few for a drawn polygon and at most v. A comparison takes 2 to 4 ns
where there are many; `MAX_ENFORCED_CORNERS` bounds the time of a batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

__all__ = ["MAX_CORNERS", "MAX_ENFORCED_CORNERS", "MAX_NAME", "MAX_REGIONS", "Region", "hull", "inside_any"]

MAX_CORNERS = 4096
"""Most corners of a polygon; one drawn by hand for a minute has some hundreds."""

MAX_REGIONS = 64
"""Most regions of a bundle."""

MAX_ENFORCED_CORNERS = 8192
"""Most corners of all regions that a gate applies: at worst a tenth of a second for 1,000 rows."""

MAX_NAME = 100
"""Most characters of a name."""

# Databases and UTF-8 cannot hold these.
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")

# Points beside a side, on average, from which on it is faster to take one side after the other.
_MANY = 100


@dataclass(frozen=True, slots=True)
class Region:
    """A polygon with a name.

    Parameters
    ----------
    name
        Name shown to people.
    polygon
        Corners (x, y) in either orientation; a last corner equal to the first is removed.
    expires_ms
        Time of expiry in Unix milliseconds; 0 for never. See `Gate.at`.

    Attributes
    ----------
    box
        Left, right, bottom and top of the bounding box.

    Raises
    ------
    ConfigError
        If the polygon has fewer than three corners or more than `MAX_CORNERS`, corners that are not finite as float32,
        or corners that all lie on one line.

    >>> Region("square", ((0, 0), (1, 0), (1, 1), (0, 1))).inside([[0, 0], [0.5, 0.5], [1, 0.5], [0.5, 1]]).tolist()
    [True, True, False, False]
    """

    name: str
    polygon: tuple[tuple[float, float], ...]
    expires_ms: int = 0
    box: tuple[float, float, float, float] = field(init=False, repr=False, compare=False)
    _sides: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (
            not isinstance(self.name, str)
            or not 0 < len(self.name.strip()) <= len(self.name) <= MAX_NAME
            or _NOT_TEXT.search(self.name)
        ):
            raise ConfigError(f"the name of a region must have 1 to {MAX_NAME} characters, and no NUL or surrogate")
        if isinstance(self.expires_ms, bool) or not isinstance(self.expires_ms, int) or self.expires_ms < 0:
            raise ConfigError(f"region {self.name!r}: expires_ms must be Unix milliseconds, or 0 for never")
        corners = _corners(self.name, self.polygon)
        object.__setattr__(self, "polygon", tuple((x, y) for x, y in corners.tolist()))
        (left, bottom), (right, top) = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
        object.__setattr__(self, "box", (left, right, bottom, top))
        starts, ends = corners, np.roll(corners, -1, axis=0)
        # Sides point upwards, so that a side is the same in both polygons that share it; horizontal ones cross no ray.
        is_up = starts[:, 1:] < ends[:, 1:]
        sides = np.concatenate([np.where(is_up, starts, ends), np.where(is_up, ends, starts)], axis=1)
        object.__setattr__(self, "_sides", np.ascontiguousarray(sides[sides[:, 1] < sides[:, 3]].T))

    def inside(self, points: ArrayLike) -> NDArray[np.bool_]:
        """Which of the points (n, 2) are inside, (n,); a point that is not finite is outside."""
        with np.errstate(over="ignore"):
            rounded = np.asarray(points).astype(np.float32).astype(np.float64)
        left, right, bottom, top = self.box
        if len(rounded) == 1:
            # A shortcut for requests of one row, which is nearly always outside the box.
            x, y = rounded[0].tolist()
            if not (left <= x < right and bottom <= y < top):
                return np.zeros(1, dtype=np.bool_)
        xs, ys = rounded[:, 0], rounded[:, 1]
        near = np.flatnonzero((xs >= left) & (xs < right) & (ys >= bottom) & (ys < top))
        found = np.zeros(len(rounded), dtype=np.bool_)
        # Sorted by height, so that the points beside a side are consecutive.
        near = near[np.argsort(ys[near], kind="stable")]
        found[near] = self._is_odd(xs[near], ys[near])
        return found

    def _is_odd(self, x: Floats, y: Floats) -> NDArray[np.bool_]:
        """Whether the rays from points, sorted by y, cross an odd number of sides, (n,)."""
        x0, y0, x1, y1 = self._sides
        first, last = np.searchsorted(y, y0), np.searchsorted(y, y1)
        counts = last - first
        pairs = int(counts.sum())
        if pairs > _MANY * len(counts):
            return self._is_odd_by_side(x, y, first, last)
        side = np.repeat(np.arange(len(counts)), counts)
        point = np.arange(pairs) - np.repeat(np.cumsum(counts) - counts, counts) + first[side]
        # Left of the side, without a division: products of float32 numbers are exact unless they differ a lot in size.
        x0, y0, x1, y1 = self._sides[:, side]
        is_crossed = (x[point] - x0) * (y1 - y0) < (x1 - x0) * (y[point] - y0)
        return np.equal(np.bincount(point[is_crossed], minlength=len(x)) % 2, 1)

    def _is_odd_by_side(
        self, x: Floats, y: Floats, first: NDArray[np.int64], last: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """The same, one side after the other, on slices of the points: many points beside each side."""
        found = np.zeros(len(x), dtype=np.bool_)
        rises, widths = self._sides[3] - self._sides[1], self._sides[2] - self._sides[0]
        sides = zip(
            *self._sides[:2].tolist(), rises.tolist(), widths.tolist(), first.tolist(), last.tolist(), strict=True
        )
        left, right = np.empty_like(x), np.empty_like(x)
        for x0, y0, rise, width, start, end in sides:
            beside = slice(start, end)
            np.multiply(np.subtract(x[beside], x0, out=left[beside]), rise, out=left[beside])
            np.multiply(np.subtract(y[beside], y0, out=right[beside]), width, out=right[beside])
            found[beside] ^= left[beside] < right[beside]
        return found

    def settings(self) -> dict[str, Any]:
        """The region as JSON values."""
        return {
            "name": self.name,
            "polygon": [list(corner) for corner in self.polygon],
            "expires_ms": self.expires_ms,
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Region:
        """Inverse of `settings`; ConfigError if they do not describe a region."""
        try:
            return cls(settings["name"], settings["polygon"], settings.get("expires_ms", 0))
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"a region needs a name and a polygon: {error}") from None


def inside_any(regions: Iterable[Region], points: ArrayLike) -> NDArray[np.bool_]:
    """Which of the points (n, 2) are inside a region, (n,)."""
    points = np.asarray(points)
    found = np.zeros(len(points), dtype=np.bool_)
    for region in regions:
        found |= region.inside(points)
    return found


def hull(points: ArrayLike) -> Floats:
    """Corners of the convex hull of points (n, 2), counter-clockwise, (h, 2)."""
    ordered = sorted({(x, y) for x, y in np.asarray(points, dtype=np.float64).tolist()})

    def half(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        chain: list[tuple[float, float]] = []
        for x, y in points:
            while len(chain) > 1:
                (ax, ay), (bx, by) = chain[-2:]
                if (bx - ax) * (y - ay) > (by - ay) * (x - ax):
                    break
                chain.pop()
            chain.append((x, y))
        return chain[:-1]

    return np.array(half(ordered) + half(reversed(ordered)) or ordered, dtype=np.float64).reshape(-1, 2)


def _corners(name: str, polygon: Sequence[Any]) -> Floats:
    """The corners rounded to float32, (v, 2)."""
    if len(polygon) > MAX_CORNERS + 1:
        raise ConfigError(f"region {name!r}: the polygon has {len(polygon):,} corners; the limit is {MAX_CORNERS:,}")
    try:
        with np.errstate(over="ignore"):
            corners = np.array(polygon, dtype=np.float64).astype(np.float32).astype(np.float64)
    except (TypeError, ValueError):
        corners = np.empty(0)
    if corners.ndim != 2 or corners.shape[1] != 2:
        raise ConfigError(f"region {name!r}: the polygon must be a list of corners (x, y)")
    bad = np.flatnonzero(~np.isfinite(corners).all(axis=1))
    if len(bad):
        raise ConfigError(f"region {name!r}: corner {bad[0]} is not finite as float32")
    if len(corners) > 1 and (corners[0] == corners[-1]).all():
        corners = corners[:-1]
    if len(np.unique(corners, axis=0)) < 3:
        raise ConfigError(f"region {name!r}: a polygon needs at least three different corners")
    if len(corners) > MAX_CORNERS:
        raise ConfigError(f"region {name!r}: the polygon has {len(corners):,} corners; the limit is {MAX_CORNERS:,}")
    if len(hull(corners)) < 3:
        raise ConfigError(f"region {name!r}: all corners lie on one line")
    return corners
