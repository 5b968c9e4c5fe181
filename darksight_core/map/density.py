"""A Gaussian kernel density of the map, read from a tree of small pieces at a cost that does not grow with n.

    log p(y) = log 1/(n 2π h²) Σ_j exp(-|y - y_j|² / 2h²)

Only the bandwidth h is estimated: it maximises the leave-one-out likelihood (`choose_bandwidth`). Scott's rule sees one
Gaussian where a map has clusters, and smooths them away.

Reading the density is what happens online, and the sum over n references is too slow there. A grid alone will not do:
between two clusters log p has a crease of width h² / D, D being the distance of the clusters, and far out it falls like
a parabola whose foot is the nearest reference. Both are easy after one rewriting. For any anchor a and centre c,

    log p(y) = -|y - a|² / 2h² + r(y),      r(y) = log Σ_j exp(α_j + γ_j·(y - c)),      γ_j = (y_j - a) / h²,

so r is the log-sum-exp of *affine* functions. It is convex, lies above its tangent, and in a small cell of the plane
few j matter, or r is smooth. A quadtree splits the plane until each cell is one of two things:

    list    the affine functions that matter anywhere in the cell, at most a few dozen: exact where creases are
    tile    r as a bicubic B-spline on 8 x 8 squares, checked against the exact sum on 33 x 33 places: dense regions

Outside the tree the plane is cut into cones with a list each, which hold to infinity because the references that
matter there are those near the convex hull. Tails are made of references, not of noise.

Promise, against `exact_log_kde`: within `CORE_ERROR` nats where log p is at most `CORE_DEPTH` nats below its maximum
over the references, within `TAIL_ERROR` elsewhere, at any distance. The exception is a cloud of tens of thousands of
references of which none lies inside the others' hull: outside the frame, 100 h away, it may err by more than that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.simplex import Floats, logsumexp

__all__ = ["CORE_DEPTH", "CORE_ERROR", "TAIL_ERROR", "Crew", "Kde", "choose_bandwidth", "exact_log_kde"]

Ints: TypeAlias = NDArray[np.int64]

CORE_DEPTH = 15.0
"""Nats below the highest log density of a reference down to which the tighter promise holds."""

CORE_ERROR = 0.01
"""Largest error of `Kde.log_density` in the core, in nats."""

TAIL_ERROR = 0.1
"""Largest error of `Kde.log_density` outside the core, in nats."""

_BUDGET, _TREE = 1_200_000, 0.7
"""Bytes of the arrays of a chosen bandwidth, which is raised until the tree fits in its share of them."""

_RISE = 1.2
"""Step by which a bandwidth is raised."""

_DRAWN = 20_000
"""References that a bandwidth is chosen on."""

LEVELS, SQUARES, CONES = 24, 8, 16
"""Depth of the tree, squares along a tile, cones along a side of the frame: the format of the arrays."""

_DEALT = 3
"""Level whose cells are dealt in turn to the processes that build a tree together."""

_SAMPLES = 4 * SQUARES + 1
"""Places along a tile where it is checked. With three to a square its corners erred by half as much again unseen."""

_SHORT, _LONG, _MANY = 16, 64, 4096
"""References that are always a list, that may be one, and that are merged before anything costly."""

_DROPPED = 1e-4
"""Nats that one cell may lose by the terms it drops."""

_SAFETY = 0.5
"""Share of the promised error that a tile may have where it is checked."""


def exact_log_kde(points: Floats, references: Floats, bandwidth: float) -> Floats:
    """log p(y) by the sum over all references, (m,): slow, and what `Kde` is held to.

    Parameters
    ----------
    points
        Where to read the density, (m, 2).
    references
        Centres of the kernels, (n, 2).
    bandwidth
        Standard deviation h of a kernel.

    >>> exact_log_kde(np.zeros((1, 2)), np.zeros((1, 2)), 1.0)
    array([-1.83787707])
    """
    points = np.asarray(points, dtype=np.float64)
    references = np.asarray(references, dtype=np.float64)
    log_density = np.empty(len(points))
    rows = max(1, 1_000_000 // len(references))
    for start in range(0, len(points), rows):
        chunk = points[start : start + rows]
        square = (chunk[:, :1] - references[:, 0]) ** 2 + (chunk[:, 1:] - references[:, 1]) ** 2
        log_density[start : start + rows] = logsumexp(square / (-2.0 * bandwidth**2))
    return log_density - _log_norm(len(references), bandwidth)


def choose_bandwidth(points: Floats, seed: int = 0) -> float:
    """Bandwidth h that maximises the leave-one-out log likelihood of the points.

        l(h) = mean_i log[ 1/(n_i 2π h²) Σ_{j not at i} exp(-|y_i - y_j|² / 2h²) ]

    A classifier puts many rows on the same place, and a plain leave-one-out likelihood then grows without bound as
    h -> 0. So a whole *place* is left out: references nearer to y_i than R/1000 do not count, R being the radius that
    holds nine tenths of the points, and h stays within [R/1000, 2R]. The hundredth of the queries with the most distant
    neighbours is left out too, because one lost point at distance D costs D²/2h² nats and would set h for all.

    At most 20,000 references and 2,000 queries are drawn. The result is not scaled down to a larger n: the map is read
    by people, and a narrower kernel would buy detail that they cannot see with a larger bundle.

    Parameters
    ----------
    points
        Reference points, (n, 2), finite.
    seed
        Seed of the draw.
    """
    points = _check_references(points)
    rng = np.random.default_rng(seed)
    if len(points) > _DRAWN:
        points = points[rng.choice(len(points), _DRAWN, replace=False)]
    queries = points if len(points) <= 2_000 else points[rng.choice(len(points), 2_000, replace=False)]
    distance = np.hypot(*(points - np.median(points, axis=0)).T)
    radius = float(np.quantile(distance, 0.9)) or float(distance.max())
    if radius == 0.0:
        return 1.0
    place = radius / 1000.0
    squares, counts = _count_squares(queries / place, points / place)
    counts = counts[counts.any(axis=1)]
    nearest = (counts > 0).argmax(axis=1)
    kept = np.argsort(nearest, kind="stable")[: math.ceil(0.99 * len(nearest))]
    counts, nearest = counts[kept], squares[nearest[kept], None]
    offset = np.log(counts.sum(axis=1))

    def likelihood(log_h: float) -> float:
        half_precision = 0.5 * math.exp(-2.0 * log_h)
        kernel = np.exp(np.minimum((nearest - squares) * half_precision, 0.0))
        log_sum = np.log(np.einsum("qb,qb->q", counts, kernel)) - nearest[:, 0] * half_precision
        return float((log_sum - offset).mean()) - 2.0 * log_h

    # Two scales of structure make two maxima, so the bracket comes from a scan.
    scan = np.linspace(0.0, math.log(2000.0), 20)
    best = int(np.argmax([likelihood(log_h) for log_h in scan]))
    low, high = float(scan[max(best - 1, 0)]), float(scan[min(best + 1, len(scan) - 1)])
    golden = 0.5 * (math.sqrt(5.0) - 1.0)
    while high - low > 0.002:
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if likelihood(left) > likelihood(right) else (left, high)
    return place * math.exp(0.5 * (low + high))


def _count_squares(queries: Floats, points: Floats) -> tuple[Floats, Floats]:
    """Centres (B,) of bins of squared distance and how many points each query has in them, (q, B), from 1 upwards.

    The bins are the leading bits of a float32: 32 in each octave, without a logarithm for each of 4e7 distances.
    """
    reach = float((np.ptp(points, axis=0) ** 2).sum())
    first, last = (np.array([1.0, 2.0 * max(reach, 1.0)], dtype=np.float32).view(np.int32) >> 18).tolist()
    bins = last - first + 2
    counts = np.empty((len(queries), bins))
    rows = max(1, 1_000_000 // len(points))
    for start in range(0, len(queries), rows):
        chunk = queries[start : start + rows]
        square = (chunk[:, :1] - points[:, 0]) ** 2
        square += (chunk[:, 1:] - points[:, 1]) ** 2
        index = (square.astype(np.float32).view(np.int32) >> 18) - (first - 1)
        np.maximum(index, 0, out=index)
        index += (bins * np.arange(len(chunk), dtype=np.int32))[:, None]
        counts[start : start + rows] = np.bincount(index.ravel(), minlength=bins * len(chunk)).reshape(-1, bins)
    edges = (np.arange(first, last + 2, dtype=np.int32) << 18).view(np.float32).astype(np.float64)
    used = counts[:, 1:].any(axis=0)
    return (0.5 * (edges[1:] + edges[:-1]))[used], counts[:, 1:][:, used]


@dataclass(frozen=True, slots=True)
class Kde:
    """Log density of the reference points, in arrays that any kernel can walk; made by `fit`.

    Leaves 0..L-1 are the cells of the quadtree in Morton order (x holds the even bits), the last 64 are the cones. A
    point inside the frame belongs to the last leaf whose key is not above its own.

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
        α, γ_x, γ_y of the affine functions, (N, 3); γ multiplies the place in the cell, measured from its centre in
        units of its side. For a cone it is the place in the frame.
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
            and self.tiles.shape[1:] == (SQUARES + 3, SQUARES + 3)
            and self.terms.shape[1:] == (3,)
        )
        if fits:
            ends = self.starts + np.maximum(self.counts, 1)
            limits = np.where(self.counts > 0, len(self.terms), len(self.tiles))
            fits = bool((self.starts >= 0).all() and (self.counts >= 0).all() and (ends <= limits).all())
        if not fits:
            raise ConfigError("the arrays of the density do not belong together")
        for array in self.tensors().values():
            array.flags.writeable = False

    @classmethod
    def fit(cls, points: Floats, *, bandwidth: float | None = None, seed: int = 0, crew: Crew | None = None) -> Kde:
        """Density of reference points.

        Parameters
        ----------
        points
            Reference points, (n, 2), finite.
        bandwidth
            Standard deviation h of the kernel. By default `choose_bandwidth`, raised by fifths until the arrays take at
            most 1.2 MB; a given value is kept, whatever it takes.
        seed
            Seed of `choose_bandwidth`.
        crew
            Processes that call this with the same arguments and share the work. The result is the same for everyone.
        """
        crew = crew or _Alone()
        points = _check_references(points)
        if bandwidth is not None and not (math.isfinite(bandwidth) and bandwidth > 0.0):
            raise ConfigError(f"bandwidth must be positive and finite, not {bandwidth}")
        places, counts = np.unique(points[:, 0] + 1j * points[:, 1], return_counts=True)
        references, log_weights = np.stack([places.real, places.imag]), np.log(counts)
        if bandwidth is not None:
            return _fit_budget(references, log_weights, bandwidth, math.inf, crew)
        bandwidth = choose_bandwidth(points, seed)
        if len(counts) > _DRAWN:
            # The raising is done on a draw, where it is cheap. More references leave fewer cells to short lists: from
            # 20,000 to 1,000,000 the tree of ten clusters with bridges grew by 2.3 at the same h.
            some = np.random.default_rng(seed).choice(len(counts), _DRAWN, replace=False)
            budget = _BUDGET * (_DRAWN / len(counts)) ** 0.15
            bandwidth = _fit_budget(references[:, some], log_weights[some], bandwidth, budget, crew).bandwidth
        return _fit_budget(references, log_weights, bandwidth, _BUDGET, crew)

    def log_density(self, points: Floats) -> Floats:
        """log p(y) for points (m, 2), as (m,); a row never depends on the others."""
        points = np.asarray(points, dtype=np.float64)
        leaf, place = self._locate(points)
        gap = points - self.anchors[leaf]
        log_density: Floats = (gap[:, 0] ** 2 + gap[:, 1] ** 2) / (-2.0 * self.bandwidth**2)
        listed = self.counts[leaf] > 0
        if listed.any():
            rows = np.flatnonzero(listed)
            # Bounds the memory of a batch that lies wholly on long lists.
            step = max(1, 1_000_000 // int(self.counts[leaf[rows]].max()))
            for part in (rows[start : start + step] for start in range(0, len(rows), step)):
                log_density[part] += self._read_lists(leaf[part], place[part])
            if len(rows) < len(points):
                rows = np.flatnonzero(~listed)
                log_density[rows] += self._read_tiles(leaf[rows], place[rows])
        else:
            log_density += self._read_tiles(leaf, place)
        return log_density

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, with `bandwidth` as (1,)."""
        return {"bandwidth": np.array([self.bandwidth]), **{name: getattr(self, name) for name in _KINDS}}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> Kde:
        """Inverse of `tensors`; ConfigError if an array is missing or does not fit the others."""
        try:
            arrays: dict[str, Any] = {name: np.array(tensors[name], dtype=kind) for name, kind in _KINDS.items()}
            bandwidth = float(tensors["bandwidth"][0])
        except KeyError as missing:
            raise ConfigError(f"the density lacks the array {missing}") from None
        return cls(bandwidth=bandwidth, **arrays)

    def _locate(self, points: Floats) -> tuple[Ints, Floats]:
        """Leaf of each point, (m,), and its place there, (m, 2)."""
        across = (points - self.frame[:2]) / self.frame[2]
        inside = (across >= 0.0) & (across < 1.0)
        fine = np.minimum(np.maximum(across, 0.0), 1.0 - 2.0**-LEVELS) * 2.0**LEVELS
        cell = fine.astype(np.int64)
        spread = _SPREAD[cell & 4095] | _SPREAD[cell >> 12] << 24
        leaf = np.searchsorted(self.keys, spread[:, 0] | spread[:, 1] << 1, side="right") - 1
        width = self.widths[leaf, None]
        place = (fine - (cell & -width)) / width - 0.5
        if not inside.all():
            outer = np.flatnonzero(~inside.all(axis=1))
            place[outer] = across[outer] - 0.5
            x, y = place[outer].T
            flat = np.abs(x) >= np.abs(y)
            along, towards = np.where(flat, y, x), np.where(flat, x, y)
            segment = ((along / np.abs(towards) + 1.0) * (0.5 * CONES)).astype(np.int64)
            side = np.where(flat, 0, 2) + (towards < 0.0)
            leaf[outer] = len(self.keys) + side * CONES + np.minimum(segment, CONES - 1)
        return leaf, place

    def _read_tiles(self, leaf: Ints, place: Floats) -> Floats:
        """r at places (m, 2) of tiles: 4 x 4 coefficients under the cubic B-spline."""
        knots = (place + 0.5) * SQUARES
        square = np.minimum(knots.astype(np.int64), SQUARES - 1)
        weights = _b_spline(knots - square)
        corner = (self.starts[leaf] * (SQUARES + 3) + square[:, 0]) * (SQUARES + 3) + square[:, 1]
        near = self.tiles.ravel()[corner + _NEIGHBOURS[:, None]].reshape(4, 4, -1)
        value: Floats = np.einsum("im,ijm,jm->m", weights[:, :, 0], near, weights[:, :, 1])
        return value

    def _read_lists(self, leaf: Ints, place: Floats) -> Floats:
        """r at places (m, 2) of lists: log Σ exp(α + γ·place), over lists of unequal length."""
        counts = self.counts[leaf]
        first = np.cumsum(counts) - counts
        row = np.repeat(np.arange(len(leaf)), counts)
        terms = self.terms[np.arange(len(row)) + (self.starts[leaf] - first)[row]]
        scores = terms[:, 0] + terms[:, 1] * place[row, 0] + terms[:, 2] * place[row, 1]
        top = np.maximum.reduceat(scores, first)
        value: Floats = np.log(np.add.reduceat(np.exp(scores - top[row]), first)) + top
        return value


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


class Crew(Protocol):
    """Processes that build one density together, each of which has all references."""

    @property
    def rank(self) -> int:
        """Number of this process."""

    @property
    def size(self) -> int:
        """How many there are."""

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """Arrays (n, ...) of all processes one after the other, on every process."""


class _Alone:
    rank, size = 0, 1

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        return array


def _fit_budget(references: Floats, log_weights: Floats, bandwidth: float, budget: float, crew: Crew) -> Kde:
    """Density with the bandwidth raised so often that its arrays fit, while raised once less they do not.

    The number of rises is doubled until they fit, then searched by halving.
    """
    extent = float(np.ptp(references, axis=1).max())
    failed, best = -1, None
    while best is None or best[0] - failed > 1:
        rises = max(0, 2 * failed + 1) if best is None else (failed + best[0]) // 2
        raised = bandwidth * _RISE**rises
        found = _Build(references, log_weights, raised, budget if raised < extent else math.inf, crew).run()
        if found is None:
            failed = rises
        else:
            best = rises, found
    return best[1]


class _Leaf(NamedTuple):
    """A cell of the tree or a cone, which has no key: a tile (11, 11) or the terms of a list (n, 3)."""

    anchor: Floats
    values: Floats
    key: int = -1
    width: int = 0

    @property
    def is_tile(self) -> bool:
        return len(self.values[0]) != 3

    @property
    def size(self) -> int:
        """Bytes that its arrays take."""
        return 40 + (4 if self.is_tile else 8) * self.values.size


class _Build:
    """One density, built by the processes of a crew."""

    def __init__(self, references: Floats, log_weights: Floats, bandwidth: float, budget: float, crew: Crew) -> None:
        self.references = references
        self.log_weights = log_weights
        self.bandwidth = bandwidth
        self.budget = budget
        self.crew = crew
        total = float(np.exp(log_weights).sum())
        self.log_norm = _log_norm(total, bandwidth)
        low, high = references.min(axis=1), references.max(axis=1)
        # Seen from 100 h away few references are outermost, and few cones face a long rim of them.
        self.side = 1.25 * float((high - low).max()) + 200.0 * bandwidth
        self.centre = 0.5 * (low + high)

    def run(self) -> Kde | None:
        """All leaves as arrays, or nothing if they take more than the budget."""
        tree = self.grow_tree()
        if tree is None:
            return None
        leaves = tree + self.grow_cones(self.budget - sum(leaf.size for leaf in tree))
        is_tile = np.array([leaf.is_tile for leaf in leaves])
        counts = np.array([0 if leaf.is_tile else len(leaf.values) for leaf in leaves])
        none = np.empty((0, SQUARES + 3, SQUARES + 3))
        return Kde(
            bandwidth=self.bandwidth,
            frame=np.array([*(self.centre - 0.5 * self.side), self.side]),
            keys=np.array([leaf.key for leaf in tree], dtype=np.int64),
            widths=np.array([leaf.width for leaf in tree], dtype=np.int64),
            anchors=np.array([leaf.anchor for leaf in leaves]),
            starts=np.where(is_tile, is_tile.cumsum() - 1, counts.cumsum() - counts).astype(np.int32),
            counts=counts.astype(np.int32),
            tiles=np.array([leaf.values for leaf in leaves if leaf.is_tile] or none, dtype=np.float32),
            terms=np.concatenate([leaf.values for leaf in leaves if not leaf.is_tile]),
        )

    def grow_tree(self) -> list[_Leaf] | None:
        """The leaves of the tree in the order of their keys, or nothing if they take more than its share of the budget.

        Each process stops at its part of that share, and goes on if the others did not need theirs.
        """
        limit, size, busy = _TREE * self.budget, 0, True
        quota, grown, own = limit / self.crew.size, self.grow_leaves(), []
        while True:
            busy = False
            for leaf in grown:
                own.append(leaf)
                size += leaf.size
                if size > quota:
                    busy = True
                    break
            total, still_busy = self.crew.gather(np.array([[size, busy]])).sum(axis=0).tolist()
            if total > limit:
                return None
            if not still_busy:
                return self.gather_leaves(own)
            quota = size + (limit - total) / still_busy

    def gather_leaves(self, own: list[_Leaf]) -> list[_Leaf]:
        """The leaves of all processes in the order of their keys."""
        gather = self.crew.gather
        anchors = gather(np.array([leaf.anchor for leaf in own]).reshape(-1, 2))
        shapes = [(leaf.key, leaf.width, *leaf.values.shape) for leaf in own]
        # A process without a leaf must still read the others' numbers as what they are.
        heads = gather(np.array(shapes, dtype=np.int64).reshape(-1, 4))
        values = gather(np.concatenate([np.empty(0), *(leaf.values.ravel() for leaf in own)]))
        parts = np.split(values, np.cumsum(heads[:, 2] * heads[:, 3]))
        leaves = [
            _Leaf(anchor, part.reshape(rows, columns), key, width)
            for anchor, part, (key, width, rows, columns) in zip(anchors, parts[:-1], heads.tolist(), strict=True)
        ]
        return sorted(leaves, key=lambda leaf: leaf.key)

    def grow_leaves(self) -> Iterator[_Leaf]:
        """The leaves of this process: the frame is split, depth first, until a cell is a list or a tile."""
        h = self.bandwidth
        core = self.core_level()
        stack = [(0, 0, 0, self.references, self.log_weights, False)]
        while stack:
            level, x, y, references, log_weights, condensed = stack.pop()
            key, width = _morton(x << (LEVELS - level), y << (LEVELS - level)), 1 << (LEVELS - level)
            is_own = (key >> 2 * (LEVELS - _DEALT)) % self.crew.size == self.crew.rank
            if level >= _DEALT and not is_own:
                continue
            side = self.side / (1 << level)
            centre = self.centre + self.side * ((np.array([x, y]) + 0.5) / (1 << level) - 0.5)
            if len(log_weights) > _MANY:
                square = (references[0] - centre[0]) ** 2 + (references[1] - centre[1]) ** 2
                near = np.flatnonzero(square < self.reach(square, log_weights, side))
                references, log_weights = references.take(near, axis=1), log_weights[near]
                if side <= 64.0 * h and not condensed:
                    references, log_weights = self.condense(references, log_weights, centre, side)
                    condensed = True
            gap = references - centre[:, None]
            log_shares = log_weights - _square(gap) / (2.0 * h**2)
            log_total = float(logsumexp(log_shares))
            log_shares -= log_total
            mean = gap @ np.exp(log_shares)
            slopes = (gap - mean[:, None]) * (side / h**2)
            # r lies above its tangent at the centre, so a term below the tangent everywhere in the cell by this much
            # changes r by less than _DROPPED even together with all others like it.
            top = log_shares + 0.5 * (np.abs(slopes[0]) + np.abs(slopes[1]))
            kept = np.flatnonzero(top > math.log(_DROPPED / len(top)))
            if len(kept) < len(top):
                references, log_weights = references.take(kept, axis=1), log_weights[kept]
                log_shares, slopes = log_shares[kept], slopes.take(kept, axis=1)
            offset = log_total + float(mean @ mean) / (2.0 * h**2) - self.log_norm
            tile, is_core = None, True
            # Among many references a large tile hardly ever fits, and trying is what costs.
            crowded = len(log_shares) > _MANY and float(mean @ mean) < (side + 4.0 * h) ** 2
            if len(log_shares) > _SHORT and side <= (4.0 if crowded else 24.0) * h:
                tile, is_core = self.try_tile(log_shares, slopes, mean, side, offset, core)
            short = len(log_shares) <= _LONG or level == LEVELS
            if tile is None and not short and side <= h and log_shares.min() > -600.0:
                # The tilted mean of a bin is exact to first order everywhere in the cell, whatever its distance.
                bins = _bin(log_shares, slopes, 0.25 if is_core else 0.8)
                if len(bins[0]) <= _LONG:
                    log_shares, slopes = bins
                    short = True
            if tile is None and not short:
                for quarter in (3, 2, 1, 0):
                    child = (level + 1, 2 * x + (quarter & 1), 2 * y + (quarter >> 1))
                    stack.append((*child, references, log_weights, condensed))
            elif is_own:
                if tile is None:
                    kept = _matter(log_shares, slopes)
                    tile = np.column_stack([log_shares[kept] + offset, *slopes[:, kept]])
                yield _Leaf(centre + mean, tile, key, width)

    def reach(self, square: Floats, log_weights: Floats, side: float) -> float:
        """Squared distance from the centre of a cell beyond which no reference matters in it.

        A cheap form of the rule in `grow_tree`, with the nearest reference at distance d in place of the tangent: one
        at distance ρ is below it by (ρ + d)(ρ - d - √2 side) / 2h² nats or more, everywhere in the cell.
        """
        nearest, half = math.sqrt(float(square.min())), side / math.sqrt(2.0)
        nats = math.log(len(square) / _DROPPED) + float(log_weights.max())
        return (half + math.sqrt((nearest + half) ** 2 + 2.0 * self.bandwidth**2 * nats)) ** 2

    def condense(self, references: Floats, log_weights: Floats, centre: Floats, side: float) -> tuple[Floats, Floats]:
        """References of a cell merged in squares of h / 16, if that makes them far fewer and none is missed there.

        It helps where they lie on a curve, as all rows of a classifier with two classes do: the squares then lie across
        the view from most cells, and the density sees only their weight. It fails in front of the end of a curve.
        """
        column, row = np.floor(references * (16.0 / self.bandwidth))
        merged, weights = _merge(references, log_weights, column + 1j * row)
        if 4 * len(weights) > len(log_weights):
            return references, log_weights
        steps = side * np.linspace(-0.5, 0.5, 5)
        points = np.stack(np.meshgrid(steps, steps)).reshape(2, -1).T

        def read(point: Floats, references: Floats, log_weights: Floats) -> float:
            square = (references[0] - point[0]) ** 2 + (references[1] - point[1]) ** 2
            return float(logsumexp(log_weights - square / (2.0 * self.bandwidth**2)))

        for point in centre + points:
            if abs(read(point, merged, weights) - read(point, references, log_weights)) > 0.1 * CORE_ERROR:
                return references, log_weights
        return merged, weights

    def core_level(self) -> float:
        """Log density down to which the tighter promise holds, from a lower bound of the maximum."""
        rows = max(16, min(256, 4_000_000 // len(self.log_weights)))
        some = self.references[:, :: max(1, len(self.log_weights) // rows)].T
        scores = [
            float(logsumexp(self.log_weights - _square(self.references - place[:, None]) / (2.0 * self.bandwidth**2)))
            for place in some[self.crew.rank :: self.crew.size]
        ]
        return float(self.crew.gather(np.array(scores)).max()) - self.log_norm - CORE_DEPTH - 0.5

    def try_tile(
        self, log_shares: Floats, slopes: Floats, mean: Floats, side: float, offset: float, core: float
    ) -> tuple[Floats | None, bool]:
        """Coefficients of r + offset over a cell if they are good enough there, and whether it touches the core."""
        # Beyond this a factor of the product below could overflow; such a cell is full of creases anyway.
        if np.abs(slopes).max() > 600.0:
            return None, True
        if len(log_shares) > _MANY:
            log_shares, slopes = _bin(log_shares, slopes, 0.3)
        ticks = np.linspace(-0.5, 0.5, _SAMPLES)
        along = np.exp(np.multiply.outer(ticks, slopes[0]) + 0.5 * log_shares)
        up = np.exp(np.multiply.outer(ticks, slopes[1]) + 0.5 * log_shares)
        exact = np.log(along @ up.T)
        squares = np.add.outer((side * ticks - mean[0]) ** 2, (side * ticks - mean[1]) ** 2)
        is_core = bool((exact - squares / (2.0 * self.bandwidth**2)).max() + offset > core)
        coefficients = _FIT @ exact @ _FIT.T
        error = np.abs(_DESIGN @ coefficients @ _DESIGN.T - exact).max()
        good = error < _SAFETY * (CORE_ERROR if is_core else TAIL_ERROR)
        return coefficients + offset if good else None, is_core

    def grow_cones(self, room: float) -> list[_Leaf]:
        """A list for each cone {t v: t >= 1, v on a segment of the frame}, seen from the centre of the frame.

        If they take more bytes than there is room for, they are made again with a larger tolerance, up to 10 nats.
        """
        tolerance = 0.4 * TAIL_ERROR
        cones = self.cones(tolerance)
        while sum(cone.size for cone in cones) > room and tolerance < 10.0:
            tolerance *= 4.0
            cones = self.cones(tolerance)
        return cones

    def cones(self, tolerance: float) -> list[_Leaf]:
        h = self.bandwidth
        cones = []
        ends = np.array([[[1, 1], [-1, 1]], [[-1, -1], [-1, 1]], [[-1, 1], [1, 1]], [[-1, 1], [-1, -1]]])
        for side in 0.5 * self.side * ends:
            kept = _seen_from(side, self.references - self.centre[:, None], self.log_weights, h)
            places, log_weights = self.references[:, kept] - self.centre[:, None], self.log_weights[kept]
            rim = _along(side, CONES + 1)
            for segment in (rim[:, part : part + 2] for part in range(CONES)):
                kept = _seen_from(segment, places, log_weights, h)
                if len(kept) > _LONG:
                    kept = _seen_in_parts(segment, places, log_weights, h, kept)
                near, weights = places[:, kept], log_weights[kept]
                if len(kept) > _LONG:
                    near, weights = self.thin(segment, near, weights, tolerance)
                anchor = near[:, np.argmax(segment.mean(axis=1) @ near)]
                alpha = weights + (float(anchor @ anchor) - _square(near)) / (2.0 * h**2) - self.log_norm
                slopes = (near - anchor[:, None]) * (self.side / h**2)
                cones.append(_Leaf(self.centre + anchor, np.column_stack([alpha, *slopes])))
        return cones

    def thin(self, segment: Floats, places: Floats, log_weights: Floats, tolerance: float) -> tuple[Floats, Floats]:
        """Fewer references for a cone, if they give the same density within a tolerance out to a thousand frames.

        From afar only the outermost references count, and moving one by e moves log p by e d / h². Those that outweigh
        all others somewhere, or lie on the convex hull, stay as they are. The others are merged in squares that
        grow with the distance from them: where log p changes by one nat over a length, the squares that matter are a
        fraction of that length. If that fails all stay, except that more than 4,096 are merged as finely as is tried.
        Only a rim of that many references, none of them inside the others' hull, gets there.
        """
        many = len(log_weights) > _MANY
        rim = _along(segment, 9 if many else 33).T
        reaches = np.geomspace(1.0, 1000.0, 5 if many else 12)

        def score(rim: Floats, places: Floats, log_weights: Floats) -> Floats:
            # Without |y|², which is the same for all and would swallow the differences.
            points = np.concatenate([rim * reach for reach in reaches])
            scores: Floats = (points @ places - 0.5 * _square(places)) / self.bandwidth**2 + log_weights
            return scores

        scores = score(rim, places, log_weights)
        alone = scores.max(axis=1) - logsumexp(scores) > math.log(0.5)
        hull = (_along(segment, 257).T @ places).argmax(axis=1)
        apart = np.full(len(log_weights), math.inf)
        for place in places[:, np.unique([*scores.argmax(axis=1)[alone], *hull])].T:
            np.minimum(apart, _square(places - place[:, None]), out=apart)
        # Between the places that chose the outermost, where the rest is weakest.
        rim = 0.5 * (rim[1:] + rim[:-1])
        exact = logsumexp(score(rim, places, log_weights))
        merged = places, log_weights
        for widest in (0.5, 0.125, 0.03125):
            top = math.floor(math.log2(widest * self.bandwidth))
            # Powers of two as sides, so that neighbours share a square. The octave is part of its name; 40 are enough.
            octave = np.clip(np.floor(0.5 * np.log2(np.maximum(apart, 4.0 ** (top - 50))) - 3.0), top - 40, top)
            column, row = np.floor(places / 2.0**octave)
            merged = _merge(places, log_weights, 64.0 * column + octave % 64.0 + 1j * row)
            if np.abs(logsumexp(score(rim, *merged)) - exact).max() < tolerance:
                return merged
        return merged if many else (places, log_weights)


def _along(segment: Floats, count: int) -> Floats:
    """Evenly spaced places on a segment with its ends in columns, (2, count)."""
    return segment[:, :1] + (segment[:, 1:] - segment[:, :1]) * np.linspace(0.0, 1.0, count)


def _seen_from(segment: Floats, places: Floats, log_weights: Floats, bandwidth: float) -> Ints:
    """Indices of the references (2, k) that matter in the cone over a segment of the frame.

    A reference is out if one other beats it by enough on the segment and does not lose ground outwards. Both are
    affine along the segment, so its ends decide. The frame is 100 h away from all references and so outside the core:
    more may be dropped here than in a cell.
    """
    scale = 1.0 / bandwidth**2
    bias = log_weights - 0.5 * scale * _square(places)
    seen = np.arange(len(bias))
    for towards in (segment.mean(axis=1), *segment.T):
        for near in (1.0, 0.0):
            rival = int(np.argmax(scale * (towards @ places) + near * bias))
            lead = scale * (segment.T @ (places - places[:, [rival]])).max(axis=0)
            kept = np.flatnonzero((lead > 0.0) | (lead + bias - bias[rival] > math.log(100.0 * _DROPPED / len(bias))))
            places, bias, seen = places.take(kept, axis=1), bias[kept], seen[kept]
    return seen


def _seen_in_parts(segment: Floats, places: Floats, log_weights: Floats, bandwidth: float, kept: Ints) -> Ints:
    """Those of the kept references that matter over some part of a segment, which excludes more than the whole does."""
    rim, near, weights = _along(segment, 9), places[:, kept], log_weights[kept]
    parts = [_seen_from(rim[:, part : part + 2], near, weights, bandwidth) for part in range(8)]
    return kept[np.unique(np.concatenate(parts))]


def _bin(log_shares: Floats, slopes: Floats, width: float) -> tuple[Floats, Floats]:
    """Terms merged in squares of slopes: share and mean slope by share, as (b,) and (2, b).

    A term e^{γ·u}, |u| <= 1/√2, replaced by one at the mean of its square errs by var(γ·u)/2 <= width²/8 of itself,
    and by a third of that when the square is evenly filled.
    """
    cell = ((slopes - slopes.min(axis=1, keepdims=True)) / width).astype(np.int64)
    columns = int(cell[1].max()) + 1
    shares = np.exp(log_shares)
    index = cell[0] * columns + cell[1]
    if columns * (int(cell[0].max()) + 1) > 1_000_000:
        index = np.unique(index, return_inverse=True)[1]
    total = np.bincount(index, shares)
    used = np.flatnonzero(total)
    mean = np.stack([np.bincount(index, shares * slope)[used] for slope in slopes]) / total[used]
    return np.log(total[used]), mean


def _merge(places: Floats, log_weights: Floats, square: NDArray[np.complex128]) -> tuple[Floats, Floats]:
    """References (2, k) with the same name of a square merged into their mean by weight."""
    index = np.unique(square, return_inverse=True)[1]
    weights = np.exp(log_weights)
    total = np.bincount(index, weights)
    return np.stack([np.bincount(index, weights * axis) for axis in places]) / total, np.log(total)


def _matter(log_shares: Floats, slopes: Floats) -> Ints:
    """Indices of the terms of a list that matter somewhere in the cell.

    The rule by which a cell drops terms, applied to each of 9 x 9 parts of it with the tangent of r in its middle.
    """
    ticks = np.linspace(-4.0, 4.0, 9) / 9.0
    rise = np.multiply.outer(slopes[0], ticks) + log_shares[:, None]
    scores = (rise[:, :, None] + np.multiply.outer(slopes[1], ticks)[:, None, :]).reshape(len(log_shares), -1)
    scores -= logsumexp(scores.T)
    tangent = slopes @ np.exp(scores)
    top = scores + np.abs(slopes[:, :, None] - tangent[:, None, :]).sum(axis=0) / 18.0
    return np.flatnonzero(top.max(axis=1) > math.log(10.0 * _DROPPED / len(log_shares)))


def _square(places: Floats) -> Floats:
    """|y|² of places (2, k), as (k,)."""
    square: Floats = places[0] ** 2 + places[1] ** 2
    return square


def _check_references(points: Floats) -> Floats:
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
        raise ConfigError(f"reference points must have shape (n, 2) with n >= 1, not {points.shape}")
    if not np.isfinite(points).all():
        raise ConfigError("reference points must be finite")
    return points


def _log_norm(count: float, bandwidth: float) -> float:
    return math.log(count) + math.log(2.0 * math.pi) + 2.0 * math.log(bandwidth)


def _b_spline(offset: Floats) -> Floats:
    """Weights of the four cubic B-splines over a unit interval, stacked in front."""
    rest = 1.0 - offset
    square, rest_square = offset * offset, rest * rest
    return np.stack(
        [
            rest_square * rest / 6.0,
            (4.0 - (6.0 - 3.0 * offset) * square) / 6.0,
            (4.0 - (6.0 - 3.0 * rest) * rest_square) / 6.0,
            square * offset / 6.0,
        ]
    )


def _design() -> Floats:
    """Value of each B-spline at each sample along one side of a tile, (33, 11)."""
    knots = np.linspace(0.0, SQUARES, _SAMPLES)
    square = np.minimum(knots.astype(np.int64), SQUARES - 1)
    design = np.zeros((_SAMPLES, SQUARES + 3))
    for shift, weight in enumerate(_b_spline(knots - square)):
        design[np.arange(_SAMPLES), square + shift] = weight
    return design


def _morton(x: int, y: int) -> int:
    spread = [int(_SPREAD[value & 4095]) | int(_SPREAD[value >> 12]) << 24 for value in (x, y)]
    return spread[0] | spread[1] << 1


_DESIGN = _design()
_FIT = np.linalg.pinv(_DESIGN)
_NEIGHBOURS = np.add.outer(np.arange(4) * (SQUARES + 3), np.arange(4)).ravel()
_SPREAD: Ints = ((np.arange(4096)[:, None] >> np.arange(12) & 1) << 2 * np.arange(12)).sum(axis=1)
