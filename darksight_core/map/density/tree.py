"""All leaves of a density as arrays, within a limit of bytes."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from darksight_core.map.density.cells import Cloud, grow_cells
from darksight_core.map.density.cones import grow_cones
from darksight_core.map.density.layout import TILE, Ints, Leaf
from darksight_core.rows.simplex import Floats

__all__ = ["TreeArrays", "build_within"]

# Step by which a bandwidth is raised until the arrays fit.
_RISE = 1.2

# Share of the bytes for the tree; the cones get the rest.
_TREE_SHARE = 0.7


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


def build_within(references: Floats, log_weights: Floats, bandwidth: float, limit: float) -> TreeArrays:
    """The arrays for the smallest bandwidth `bandwidth` · 1.2^k, k = 0, 1, ..., with which they fit into `limit` bytes.

    The number of rises k is doubled until they fit, then found by bisection.
    """
    extent = float(np.ptp(references, axis=1).max())
    failed, best = -1, None
    while best is None or best[0] - failed > 1:
        rises = max(0, 2 * failed + 1) if best is None else (failed + best[0]) // 2
        raised = bandwidth * _RISE**rises
        cloud = Cloud(references, log_weights, raised)
        found = _build(cloud, limit if raised < extent else math.inf)
        if found is None:
            failed = rises
        else:
            best = rises, found
    return best[1]


def _build(cloud: Cloud, limit: float) -> TreeArrays | None:
    """All leaves as arrays, or None if the tree takes more than its share of `limit` bytes."""
    tree = _grow_tree(cloud, _TREE_SHARE * limit)
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


def _grow_tree(cloud: Cloud, limit: float) -> list[Leaf] | None:
    """The leaves of the tree in the order of their keys, or None if they take more than `limit` bytes."""
    leaves, size = [], 0
    for leaf in grow_cells(cloud):
        leaves.append(leaf)
        size += leaf.size
        if size > limit:
            return None
    return leaves
