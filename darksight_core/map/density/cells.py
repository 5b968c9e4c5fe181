"""Leaves of the quadtree inside the frame: each cell becomes a list, a tile, or four smaller cells.

In a cell with centre c and side s, a point is y = c + s u with u in [-1/2, 1/2]². Around the anchor, which is the mean
of the references weighted by their share of the density at c, the density is

    log p(y) = -|y - a|² / 2h² + offset + log Σ_j exp(log_share_j + slope_j·u),     slope_j = (y_j - a) s / h².

The shares sum to one and the mean slope is zero, so the sum lies above its tangent 0 at the centre.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from darksight_core.map.density.exact import CORE_DEPTH, CORE_ERROR, TAIL_ERROR, dimension, log_norm
from darksight_core.map.density.layout import LEVELS, SQUARES, TILE, Ints, Leaf, b_spline, morton
from darksight_core.rows.simplex import Floats, logsumexp

__all__ = ["DROPPED", "LONG", "MANY", "Cloud", "grow_cells", "log_density_at", "merge", "squared_norms"]

MANY = 4096
"""Number of references above which they are merged before anything costly."""

LONG = 64
"""Most terms of a list, unless the cell cannot be split."""

DROPPED = 1e-4
"""Nats that a cell may lose by the terms it drops."""

# A list of at most this many terms is shorter than a tile.
_SHORT = 16

# Points along a side of a tile where it is checked. With three per square the corners had errors half as large again.
_SAMPLES = 4 * SQUARES + 1

# Share of the allowed error that a tile may have where it is checked.
_SAFETY = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Cloud:
    """References with the frame around them.

    Parameters
    ----------
    references
        Different points, (2, n).
    log_weights
        Logarithm of how often each occurs, (n,).
    bandwidth
        h.
    """

    references: Floats
    log_weights: Floats
    bandwidth: float

    @property
    def log_norm(self) -> float:
        """log(N (2π h²)^(d/2)), N the number of references with repetitions."""
        return log_norm(float(np.exp(self.log_weights).sum()), self.bandwidth, dimension(self.references.T))

    @property
    def centre(self) -> Floats:
        """Centre of the frame, (2,)."""
        centre: Floats = 0.5 * (self.references.min(axis=1) + self.references.max(axis=1))
        return centre

    @property
    def side(self) -> float:
        """Side of the frame: seen from 100 h away few references are outermost, and each cone sees few of them."""
        return 1.25 * float(np.ptp(self.references, axis=1).max()) + 200.0 * self.bandwidth

    @property
    def peak(self) -> float:
        """Largest log density at some references, a lower bound of its maximum."""
        rows = max(16, min(256, 4_000_000 // len(self.log_weights)))
        some = self.references[:, :: max(1, len(self.log_weights) // rows)].T
        scores = [log_density_at(point, self.references, self.log_weights, self.bandwidth) for point in some]
        return max(scores) - self.log_norm


class _Cell(NamedTuple):
    """A cell by its level and number, with the references that may matter in it."""

    level: int
    x: int
    y: int
    references: Floats
    log_weights: Floats
    is_merged: bool

    @property
    def width(self) -> int:
        return 1 << (LEVELS - self.level)

    @property
    def key(self) -> int:
        return int(morton(self.x * self.width, self.y * self.width))


class _Terms(NamedTuple):
    """The affine functions that matter in a cell; see the module. `mean` is the anchor, from the centre, (2,)."""

    log_shares: Floats
    slopes: Floats
    mean: Floats
    offset: float

    def take(self, kept: Ints) -> _Terms:
        return self._replace(log_shares=self.log_shares[kept], slopes=self.slopes.take(kept, axis=1))


def grow_cells(cloud: Cloud) -> Iterator[Leaf]:
    """The leaves in the order of their keys: the frame is split, depth first, into lists and tiles."""
    core, frame_centre, frame_side, log_norm = cloud.peak - CORE_DEPTH - 0.5, cloud.centre, cloud.side, cloud.log_norm
    h = cloud.bandwidth
    stack = [_Cell(0, 0, 0, cloud.references, cloud.log_weights, False)]
    while stack:
        cell = stack.pop()
        side = frame_side / (1 << cell.level)
        centre = frame_centre + frame_side * ((np.array([cell.x, cell.y]) + 0.5) / (1 << cell.level) - 0.5)
        cell = _drop_far(cell, centre, side, h)
        cell, terms = _make_terms(cell, centre, side, h, log_norm)
        tile, is_core = _try_tile(terms, side, h, core)
        if tile is None and cell.level < LEVELS:
            terms = _shorten(terms, side, h, is_core)
        if tile is None and cell.level < LEVELS and len(terms.log_shares) > LONG:
            for quarter in (3, 2, 1, 0):
                x, y = 2 * cell.x + (quarter & 1), 2 * cell.y + (quarter >> 1)
                stack.append(cell._replace(level=cell.level + 1, x=x, y=y))
        else:
            values = _make_list(terms) if tile is None else tile
            yield Leaf(centre + terms.mean, values, cell.key, cell.width)


def _drop_far(cell: _Cell, centre: Floats, side: float, h: float) -> _Cell:
    """The cell without references that cannot matter in it, if there are many; the others merged where that is exact.

    A reference at distance ρ from the centre is below the nearest one, at distance d, by (ρ + d)(ρ - d - √2 s) / 2h²
    nats or more, everywhere in the cell.
    """
    references, log_weights = cell.references, cell.log_weights
    if len(log_weights) <= MANY:
        return cell
    square = (references[0] - centre[0]) ** 2 + (references[1] - centre[1]) ** 2
    nearest, half = math.sqrt(float(square.min())), side / math.sqrt(2.0)
    nats = math.log(len(square) / DROPPED) + float(log_weights.max())
    reach = half + math.sqrt((nearest + half) ** 2 + 2.0 * h**2 * nats)
    near = np.flatnonzero(square < reach**2)
    cell = cell._replace(references=references.take(near, axis=1), log_weights=log_weights[near])
    return _merge_squares(cell, centre, side, h) if side <= 64.0 * h and not cell.is_merged else cell


def _merge_squares(cell: _Cell, centre: Floats, side: float, h: float) -> _Cell:
    """The cell with references merged in squares of h / 16, if that leaves a quarter of them and the density is kept.

    It helps if the references lie on a curve, as all rows of a classifier with two classes do: the squares then lie
    across the line of sight from most cells, and only their weight matters. It fails in front of the end of a curve.
    """
    column, row = np.floor(cell.references * (16.0 / h))
    merged, weights = merge(cell.references, cell.log_weights, column + 1j * row)
    if 4 * len(weights) > len(cell.log_weights):
        return cell._replace(is_merged=True)
    steps = side * np.linspace(-0.5, 0.5, 5)
    for point in centre + np.stack(np.meshgrid(steps, steps)).reshape(2, -1).T:
        exact = log_density_at(point, cell.references, cell.log_weights, h)
        if abs(log_density_at(point, merged, weights, h) - exact) > 0.1 * CORE_ERROR:
            return cell._replace(is_merged=True)
    return cell._replace(references=merged, log_weights=weights, is_merged=True)


def _make_terms(cell: _Cell, centre: Floats, side: float, h: float, log_norm: float) -> tuple[_Cell, _Terms]:
    """The cell and its terms, without those that matter nowhere in the cell."""
    gap = cell.references - centre[:, None]
    log_shares = cell.log_weights - squared_norms(gap) / (2.0 * h**2)
    log_total = float(logsumexp(log_shares))
    log_shares -= log_total
    mean: Floats = gap @ np.exp(log_shares)
    offset = log_total + float(mean @ mean) / (2.0 * h**2) - log_norm
    terms = _Terms(log_shares, (gap - mean[:, None]) * (side / h**2), mean, offset)
    # The sum lies above 0, so terms that stay below this limit in the whole cell change it by less than DROPPED
    # together.
    highest = terms.log_shares + 0.5 * (np.abs(terms.slopes[0]) + np.abs(terms.slopes[1]))
    kept = np.flatnonzero(highest > math.log(DROPPED / len(highest)))
    if len(kept) == len(highest):
        return cell, terms
    cell = cell._replace(references=cell.references.take(kept, axis=1), log_weights=cell.log_weights[kept])
    return cell, terms.take(kept)


def _try_tile(terms: _Terms, side: float, h: float, core: float) -> tuple[Floats | None, bool]:
    """Coefficients of a tile, or None if a list is shorter or the tile not accurate; and whether the core is touched.

    Cells for which no tile is tried count as touching the core.
    """
    log_shares, slopes, mean, offset = terms
    # Among many references a large tile is hardly ever accurate, and trying is expensive.
    is_crowded = len(log_shares) > MANY and float(mean @ mean) < (side + 4.0 * h) ** 2
    if len(log_shares) <= _SHORT or side > (4.0 if is_crowded else 24.0) * h:
        return None, True
    # Larger slopes could overflow below; such a cell is full of creases anyway.
    if np.abs(slopes).max() > 600.0:
        return None, True
    if len(log_shares) > MANY:
        log_shares, slopes = _bin(log_shares, slopes, 0.3)
    ticks = np.linspace(-0.5, 0.5, _SAMPLES)
    along = np.exp(np.multiply.outer(ticks, slopes[0]) + 0.5 * log_shares)
    up = np.exp(np.multiply.outer(ticks, slopes[1]) + 0.5 * log_shares)
    exact = np.log(along @ up.T)
    squares = np.add.outer((side * ticks - mean[0]) ** 2, (side * ticks - mean[1]) ** 2)
    is_core = bool((exact - squares / (2.0 * h**2)).max() + offset > core)
    design, inverse = _design()
    coefficients = inverse @ exact @ inverse.T
    error = np.abs(design @ coefficients @ design.T - exact).max()
    is_accurate = error < _SAFETY * (CORE_ERROR if is_core else TAIL_ERROR)
    return coefficients + offset if is_accurate else None, is_core


def _shorten(terms: _Terms, side: float, h: float, is_core: bool) -> _Terms:
    """Terms of a small cell binned by slope, if there are too many for a list and the bins are few enough."""
    if len(terms.log_shares) <= LONG or side > h or terms.log_shares.min() <= -600.0:
        return terms
    # The mean of a bin, weighted by share, is exact to first order everywhere in the cell, whatever its distance.
    log_shares, slopes = _bin(terms.log_shares, terms.slopes, 0.25 if is_core else 0.8)
    return terms._replace(log_shares=log_shares, slopes=slopes) if len(log_shares) <= LONG else terms


def _make_list(terms: _Terms) -> Floats:
    """α, γ_x, γ_y of the terms that matter somewhere in the cell, (k, 3).

    The rule of `_make_terms`, applied to each of 9 x 9 parts of the cell with the tangent in its middle.
    """
    log_shares, slopes = terms.log_shares, terms.slopes
    ticks = np.linspace(-4.0, 4.0, 9) / 9.0
    rise = np.multiply.outer(slopes[0], ticks) + log_shares[:, None]
    scores = (rise[:, :, None] + np.multiply.outer(slopes[1], ticks)[:, None, :]).reshape(len(log_shares), -1)
    scores -= logsumexp(scores.T)
    tangent = slopes @ np.exp(scores)
    highest = scores + np.abs(slopes[:, :, None] - tangent[:, None, :]).sum(axis=0) / 18.0
    kept = np.flatnonzero(highest.max(axis=1) > math.log(10.0 * DROPPED / len(log_shares)))
    return np.column_stack([log_shares[kept] + terms.offset, *slopes[:, kept]])


def _bin(log_shares: Floats, slopes: Floats, width: float) -> tuple[Floats, Floats]:
    """Terms merged in squares of slopes: shares (b,) and mean slopes by share (2, b).

    A term e^{γ·u}, |u| <= 1/√2, replaced by one at the mean of its square has a relative error of var(γ·u)/2 <=
    width²/8, and a third of that if the square is evenly filled.
    """
    square = ((slopes - slopes.min(axis=1, keepdims=True)) / width).astype(np.int64)
    columns = int(square[1].max()) + 1
    shares = np.exp(log_shares)
    index = square[0] * columns + square[1]
    if columns * (int(square[0].max()) + 1) > 1_000_000:
        index = np.unique(index, return_inverse=True)[1]
    total = np.bincount(index, shares)
    used = np.flatnonzero(total)
    mean = np.stack([np.bincount(index, shares * slope)[used] for slope in slopes]) / total[used]
    return np.log(total[used]), mean


def merge(references: Floats, log_weights: Floats, square: NDArray[np.complex128]) -> tuple[Floats, Floats]:
    """References (2, k) with the same name of a square, (k,), merged into their weighted mean."""
    index = np.unique(square, return_inverse=True)[1]
    weights = np.exp(log_weights)
    total = np.bincount(index, weights)
    return np.stack([np.bincount(index, weights * axis) for axis in references]) / total, np.log(total)


def log_density_at(point: Floats, references: Floats, log_weights: Floats, h: float) -> float:
    """log Σ_j w_j exp(-|y - y_j|² / 2h²) at a point (2,)."""
    square = (references[0] - point[0]) ** 2 + (references[1] - point[1]) ** 2
    return float(logsumexp(log_weights - square / (2.0 * h**2)))


def squared_norms(vectors: Floats) -> Floats:
    """|v|² of vectors (2, k), as (k,)."""
    square: Floats = vectors[0] ** 2 + vectors[1] ** 2
    return square


@cache
def _design() -> tuple[Floats, Floats]:
    """Value of each B-spline at each sample along one side of a tile, (33, 11), and the pseudo-inverse.

    Computed when it is first needed: a process that only scores does without LAPACK, which takes 2 MB.
    """
    knots = np.linspace(0.0, SQUARES, _SAMPLES)
    square = np.minimum(knots.astype(np.int64), SQUARES - 1)
    design = np.zeros((_SAMPLES, TILE))
    for shift, weight in enumerate(b_spline(knots - square)):
        design[np.arange(_SAMPLES), square + shift] = weight
    inverse = np.asarray(np.linalg.pinv(design), dtype=np.float64)
    return design, inverse
