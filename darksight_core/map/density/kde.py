"""The density that a bundle stores: fitted, checked and evaluated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.map.density.bandwidth import MOST_REFERENCES, choose_bandwidth
from darksight_core.map.density.exact import check_references
from darksight_core.map.density.layout import CONES, LEVELS, SQUARES, TILE, Ints, b_spline, morton
from darksight_core.map.density.tree import build_within
from darksight_core.rows.simplex import Floats

__all__ = ["Kde"]

# Bytes of the arrays of a chosen bandwidth, which is raised until they fit.
_MOST_BYTES = 1_200_000
# Terms of the longest list: reading one takes a tenth of a millisecond.
_LONGEST = 16_384


@dataclass(frozen=True, slots=True)
class Kde:
    """Log density of the reference points; made by `fit`.

    Leaves 0..L-1 are the cells of the quadtree in Morton order, the last 64 are the cones. A point inside the frame
    belongs to the last leaf whose key is at most its own.

    Parameters
    ----------
    bandwidth
        Standard deviation h of the kernel.
    frame
        Lower corner x, y and side of the square that the tree covers, (3,).
    keys
        Morton key of the lower corner of each cell, ascending, (L,).
    widths
        Side of each cell in units of side / 2^24, a power of two, (L,).
    anchors
        Anchor a of each leaf, (L + 64, 2).
    starts
        First row in `terms` of a list, or index in `tiles` of a tile, (L + 64,).
    counts
        Length of a list, or 0 for a tile, (L + 64,).
    tiles
        B-spline coefficients of r over a cell, (T, 11, 11).
    terms
        α, γ_x, γ_y of the affine functions, (N, 3); γ multiplies the local coordinates: the point relative to the
        centre of the cell, in units of its side. For a cone they are relative to the frame.
    """

    bandwidth: float
    frame: Floats
    keys: Ints
    widths: Ints
    anchors: Floats
    starts: NDArray[np.int32]
    counts: NDArray[np.int32]
    tiles: NDArray[np.float32]
    terms: Floats

    def __post_init__(self) -> None:
        leaves = len(self.keys) + 4 * CONES
        fits = (
            self.bandwidth > 0.0
            and self.frame.shape == (3,)
            and self.keys.shape == self.widths.shape
            and self.keys[:1].tolist() == [0]
            and bool((np.diff(self.keys) > 0).all() and (self.widths > 0).all())
            and self.anchors.shape == (leaves, 2)
            and self.starts.shape == self.counts.shape == (leaves,)
            and self.tiles.shape[1:] == (TILE, TILE)
            and self.terms.shape[1:] == (3,)
        )
        if fits:
            ends = self.starts + np.maximum(self.counts, 1)
            limits = np.where(self.counts > 0, len(self.terms), len(self.tiles))
            fits = bool((self.starts >= 0).all() and (self.counts >= 0).all() and (ends <= limits).all())
            fits = fits and int(self.counts.max()) <= _LONGEST
        if not fits:
            raise ConfigError("the arrays of the density have shapes or indices that do not match")
        for array in self.tensors().values():
            array.flags.writeable = False

    @classmethod
    def fit(cls, points: Floats, *, bandwidth: float | None = None, seed: int = 0) -> Kde:
        """Density of reference points.

        Parameters
        ----------
        points
            Reference points, (n, 2), finite.
        bandwidth
            Standard deviation h of the kernel. By default `choose_bandwidth`, raised by fifths until the arrays take at
            most 1.2 MB; a given value is kept, whatever the size.
        seed
            Seed of `choose_bandwidth`.
        """
        points = check_references(points)
        if bandwidth is not None and not (math.isfinite(bandwidth) and bandwidth > 0.0):
            raise ConfigError(f"bandwidth must be positive and finite, not {bandwidth}")
        distinct, counts = np.unique(points[:, 0] + 1j * points[:, 1], return_counts=True)
        references, log_weights = np.stack([distinct.real, distinct.imag]), np.log(counts)
        if bandwidth is not None:
            return cls(*build_within(references, log_weights, bandwidth, math.inf))
        bandwidth = choose_bandwidth(points, seed)
        if len(counts) > MOST_REFERENCES:
            # Raising the bandwidth is cheap on a sample. More references leave fewer cells to short lists: from 20,000
            # to 1,000,000 references the tree of ten clusters with bridges grew by a factor of 2.3 at the same h.
            some = np.random.default_rng(seed).choice(len(counts), MOST_REFERENCES, replace=False)
            limit = _MOST_BYTES * (MOST_REFERENCES / len(counts)) ** 0.15
            bandwidth = build_within(references[:, some], log_weights[some], bandwidth, limit).bandwidth
        return cls(*build_within(references, log_weights, bandwidth, _MOST_BYTES))

    def log_density(self, points: Floats) -> Floats:
        """log p(y) for points (m, 2), as (m,); the result of a point never depends on the others."""
        points = np.asarray(points, dtype=np.float64)
        leaf, local = self._locate(points)
        gap = points - self.anchors[leaf]
        log_density: Floats = (gap[:, 0] ** 2 + gap[:, 1] ** 2) / (-2.0 * self.bandwidth**2)
        listed = self.counts[leaf] > 0
        if listed.any():
            rows = np.flatnonzero(listed)
            # Bounds the memory of a batch whose points are all on long lists.
            step = max(1, 1_000_000 // int(self.counts[leaf[rows]].max()))
            for part in (rows[start : start + step] for start in range(0, len(rows), step)):
                log_density[part] += self._read_lists(leaf[part], local[part])
            if len(rows) < len(points):
                rows = np.flatnonzero(~listed)
                log_density[rows] += self._read_tiles(leaf[rows], local[rows])
        else:
            log_density += self._read_tiles(leaf, local)
        return log_density

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, with `bandwidth` as (1,)."""
        return {"bandwidth": np.array([self.bandwidth]), **{name: getattr(self, name) for name in _KINDS}}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> Kde:
        """Inverse of `tensors`; ConfigError if an array is missing or does not match the others."""
        try:
            arrays: dict[str, Any] = {name: np.array(tensors[name], dtype=kind) for name, kind in _KINDS.items()}
            bandwidth = float(tensors["bandwidth"][0])
        except KeyError as missing:
            raise ConfigError(f"the density has no array {missing}") from None
        return cls(bandwidth=bandwidth, **arrays)

    def _locate(self, points: Floats) -> tuple[Ints, Floats]:
        """Leaf of each point, (m,), and its local coordinates there, (m, 2)."""
        relative = (points - self.frame[:2]) / self.frame[2]
        is_inside = ((relative >= 0.0) & (relative < 1.0)).all(axis=1)
        scaled = np.minimum(np.maximum(relative, 0.0), 1.0 - 2.0**-LEVELS) * 2.0**LEVELS
        cell = scaled.astype(np.int64)
        leaf = np.searchsorted(self.keys, morton(cell[:, 0], cell[:, 1]), side="right") - 1
        width = self.widths[leaf, None]
        local = (scaled - (cell & -width)) / width - 0.5
        if not is_inside.all():
            outside = np.flatnonzero(~is_inside)
            local[outside] = relative[outside] - 0.5
            leaf[outside] = len(self.keys) + _cone(*local[outside].T)
        return leaf, local

    def _read_tiles(self, leaf: Ints, local: Floats) -> Floats:
        """r at local coordinates (m, 2) of tiles: 4 x 4 coefficients of the cubic B-spline."""
        knots = (local + 0.5) * SQUARES
        square = np.minimum(knots.astype(np.int64), SQUARES - 1)
        weights = b_spline(knots - square)
        corner = (self.starts[leaf] * TILE + square[:, 0]) * TILE + square[:, 1]
        near = self.tiles.ravel()[corner + _NEIGHBOURS[:, None]].reshape(4, 4, -1)
        value: Floats = np.einsum("im,ijm,jm->m", weights[:, :, 0], near, weights[:, :, 1])
        return value

    def _read_lists(self, leaf: Ints, local: Floats) -> Floats:
        """r at local coordinates u (m, 2) of lists: log Σ exp(α + γ·u), over lists of unequal length."""
        counts = self.counts[leaf]
        first = np.cumsum(counts) - counts
        row = np.repeat(np.arange(len(leaf)), counts)
        terms = self.terms[np.arange(len(row)) + (self.starts[leaf] - first)[row]]
        scores = terms[:, 0] + terms[:, 1] * local[row, 0] + terms[:, 2] * local[row, 1]
        top = np.maximum.reduceat(scores, first)
        value: Floats = np.log(np.add.reduceat(np.exp(scores - top[row]), first)) + top
        return value


def _cone(x: Floats, y: Floats) -> Ints:
    """Number of the cone for points relative to the centre of the frame: 16 for each of right, left, top, bottom."""
    is_sideways = np.abs(x) >= np.abs(y)
    along, towards = np.where(is_sideways, y, x), np.where(is_sideways, x, y)
    segment = ((along / np.abs(towards) + 1.0) * (0.5 * CONES)).astype(np.int64)
    side = np.where(is_sideways, 0, 2) + (towards < 0.0)
    cone: Ints = side * CONES + np.minimum(segment, CONES - 1)
    return cone


_KINDS: dict[str, type] = {
    "frame": np.float64,
    "keys": np.int64,
    "widths": np.int64,
    "anchors": np.float64,
    "starts": np.int32,
    "counts": np.int32,
    "tiles": np.float32,
    "terms": np.float64,
}

_NEIGHBOURS = np.add.outer(np.arange(4) * TILE, np.arange(4)).ravel()
