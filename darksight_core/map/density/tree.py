"""All leaves of a density as arrays, built by one process or several, within a limit of bytes.

Processes share the tree: cells of level 3 are dealt to them in turn. The result is the same as that of one process.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from darksight_core.map.density.cells import Cloud, grow_cells
from darksight_core.map.density.cones import grow_cones
from darksight_core.map.density.layout import TILE, Ints, Leaf
from darksight_core.rows.simplex import Floats

__all__ = ["Alone", "Group", "TreeArrays", "build_within"]

# Step by which a bandwidth is raised until the arrays fit.
_RISE = 1.2

# Share of the bytes for the tree; the cones get the rest.
_TREE_SHARE = 0.7


class Group(Protocol):
    """Processes that build one density together; each has all references."""

    @property
    def rank(self) -> int:
        """Number of this process."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """Arrays (n, ...) of all processes, one after the other, on every process."""


class Alone:
    """A group of one process."""

    rank, size = 0, 1

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array itself."""
        return array


class TreeArrays(NamedTuple):
    """The arrays of a `Kde`, which documents them."""

    bandwidth: float
    frame: Floats
    keys: Ints
    widths: Ints
    anchors: Floats
    starts: NDArray[np.int32]
    counts: NDArray[np.int32]
    tiles: NDArray[np.float32]
    terms: Floats


def build_within(references: Floats, log_weights: Floats, bandwidth: float, limit: float, group: Group) -> TreeArrays:
    """The arrays for the smallest bandwidth `bandwidth` · 1.2^k, k = 0, 1, ..., with which they fit into `limit` bytes.

    The number of rises k is doubled until they fit, then found by bisection.
    """
    extent = float(np.ptp(references, axis=1).max())
    failed, best = -1, None
    while best is None or best[0] - failed > 1:
        rises = max(0, 2 * failed + 1) if best is None else (failed + best[0]) // 2
        raised = bandwidth * _RISE**rises
        cloud = Cloud(references, log_weights, raised)
        found = _build(cloud, limit if raised < extent else math.inf, group)
        if found is None:
            failed = rises
        else:
            best = rises, found
    return best[1]


def _build(cloud: Cloud, limit: float, group: Group) -> TreeArrays | None:
    """All leaves as arrays, or None if the tree takes more than its share of `limit` bytes."""
    tree = _grow_tree(cloud, _TREE_SHARE * limit, group)
    if tree is None:
        return None
    leaves = tree + grow_cones(cloud, limit - sum(leaf.size for leaf in tree))
    is_tile = np.array([leaf.is_tile for leaf in leaves])
    counts = np.array([0 if leaf.is_tile else len(leaf.values) for leaf in leaves])
    return TreeArrays(
        bandwidth=cloud.bandwidth,
        frame=np.array([*(cloud.centre - 0.5 * cloud.side), cloud.side]),
        keys=np.array([leaf.key for leaf in tree], dtype=np.int64),
        widths=np.array([leaf.width for leaf in tree], dtype=np.int64),
        anchors=np.array([leaf.anchor for leaf in leaves]),
        starts=np.where(is_tile, is_tile.cumsum() - 1, counts.cumsum() - counts).astype(np.int32),
        counts=counts.astype(np.int32),
        tiles=np.array([leaf.values for leaf in leaves if leaf.is_tile], dtype=np.float32).reshape(-1, TILE, TILE),
        terms=np.concatenate([leaf.values for leaf in leaves if not leaf.is_tile]),
    )


def _grow_tree(cloud: Cloud, limit: float, group: Group) -> list[Leaf] | None:
    """The leaves of the tree in the order of their keys, or None if they take more than `limit` bytes.

    Each process pauses at its part of the limit, and continues if the others did not need theirs.
    """
    peak = float(group.gather(np.array([cloud.peak(group.rank, group.size)])).max())
    grown, own, size, quota = grow_cells(cloud, peak, group.rank, group.size), [], 0, limit / group.size
    while True:
        is_busy = False
        for leaf in grown:
            own.append(leaf)
            size += leaf.size
            if size > quota:
                is_busy = True
                break
        total, busy = group.gather(np.array([[size, is_busy]])).sum(axis=0).tolist()
        if total > limit:
            return None
        if not busy:
            return _gather_leaves(own, group)
        quota = size + (limit - total) / busy


def _gather_leaves(own: list[Leaf], group: Group) -> list[Leaf]:
    """The leaves of all processes in the order of their keys."""
    anchors = group.gather(np.array([leaf.anchor for leaf in own]).reshape(-1, 2))
    # With a dtype and shape that a process without leaves has too.
    shapes = np.array([(leaf.key, leaf.width, *leaf.values.shape) for leaf in own], dtype=np.int64).reshape(-1, 4)
    heads = group.gather(shapes)
    values = group.gather(np.concatenate([np.empty(0), *(leaf.values.ravel() for leaf in own)]))
    parts = np.split(values, np.cumsum(heads[:, 2] * heads[:, 3]))
    leaves = [
        Leaf(anchor, part.reshape(rows, columns), key, width)
        for anchor, part, (key, width, rows, columns) in zip(anchors, parts[:-1], heads.tolist(), strict=True)
    ]
    return sorted(leaves, key=lambda leaf: leaf.key)
