"""Leaves outside the frame: a list for each cone {t v: t >= 1, v on a segment of the frame}, seen from its centre.

A list that is right on the segment stays right outwards, because the references that matter in a cone are those that
lie furthest in its direction. All points here are measured from the centre of the frame.
"""

from __future__ import annotations

import math

import numpy as np

from darksight_core.map.density.cells import DROPPED, LONG, MANY, Cloud, merge, squared_norms
from darksight_core.map.density.exact import TAIL_ERROR
from darksight_core.map.density.layout import CONES, Ints, Leaf
from darksight_core.rows.simplex import Floats, logsumexp

__all__ = ["grow_cones"]


def grow_cones(cloud: Cloud, room: float) -> list[Leaf]:
    """The lists of all cones, the sides of the frame in the order right, left, top, bottom.

    If they take more than `room` bytes they are built again with a larger tolerance, up to 10 nats.
    """
    tolerance = 0.4 * TAIL_ERROR
    cones = _build(cloud, tolerance)
    while sum(cone.size for cone in cones) > room and tolerance < 10.0:
        tolerance *= 4.0
        cones = _build(cloud, tolerance)
    return cones


def _build(cloud: Cloud, tolerance: float) -> list[Leaf]:
    h, centre, frame_side, log_norm = cloud.bandwidth, cloud.centre, cloud.side, cloud.log_norm
    cones = []
    ends = np.array([[[1, 1], [-1, 1]], [[-1, -1], [-1, 1]], [[-1, 1], [1, 1]], [[-1, 1], [-1, -1]]])
    for side in 0.5 * frame_side * ends:
        kept = _relevant(side, cloud.references - centre[:, None], cloud.log_weights, h)
        references, log_weights = cloud.references[:, kept] - centre[:, None], cloud.log_weights[kept]
        corners = _along(side, CONES + 1)
        for segment in (corners[:, part : part + 2] for part in range(CONES)):
            kept = _relevant(segment, references, log_weights, h)
            if len(kept) > LONG:
                kept = _relevant_in_parts(segment, references, log_weights, h, kept)
            near, weights = references[:, kept], log_weights[kept]
            if len(kept) > LONG:
                near, weights = _thin(segment, near, weights, h, tolerance)
            anchor = near[:, np.argmax(segment.mean(axis=1) @ near)]
            alpha = weights + (float(anchor @ anchor) - squared_norms(near)) / (2.0 * h**2) - log_norm
            slopes = (near - anchor[:, None]) * (frame_side / h**2)
            cones.append(Leaf(centre + anchor, np.column_stack([alpha, *slopes])))
    return cones


def _relevant(segment: Floats, references: Floats, log_weights: Floats, h: float) -> Ints:
    """Indices of the references (2, k) that matter in the cone over a segment of the frame.

    A reference is dropped if one other exceeds it by enough on the segment and does not fall behind outwards. Both are
    affine along the segment, so its ends decide. The frame is 100 h away from all references and so outside the core,
    and more may be dropped than in a cell.
    """
    scale = 1.0 / h**2
    bias = log_weights - 0.5 * scale * squared_norms(references)
    kept = np.arange(len(bias))
    for direction in (segment.mean(axis=1), *segment.T):
        for weight in (1.0, 0.0):
            rival = int(np.argmax(scale * (direction @ references) + weight * bias))
            lead = scale * (segment.T @ (references - references[:, [rival]])).max(axis=0)
            matters = (lead > 0.0) | (lead + bias - bias[rival] > math.log(100.0 * DROPPED / len(bias)))
            some = np.flatnonzero(matters)
            references, bias, kept = references.take(some, axis=1), bias[some], kept[some]
    return kept


def _relevant_in_parts(segment: Floats, references: Floats, log_weights: Floats, h: float, kept: Ints) -> Ints:
    """Those of the kept references that matter over an eighth of the segment, which drops more than the whole does."""
    corners, near, weights = _along(segment, 9), references[:, kept], log_weights[kept]
    parts = [_relevant(corners[:, part : part + 2], near, weights, h) for part in range(8)]
    return kept[np.unique(np.concatenate(parts))]


def _thin(
    segment: Floats, references: Floats, log_weights: Floats, h: float, tolerance: float
) -> tuple[Floats, Floats]:
    """Fewer references for a cone, if their density is the same within a tolerance out to a thousand frames.

    From far away only the outermost references count, and moving one by e changes log p by e d / h². References that
    outweigh all others somewhere, or lie on the convex hull, are kept. The others are merged in squares that grow with
    the distance from them: where log p changes by one nat over a length, the squares are a fraction of that length.

    If the tolerance is not met, all references are kept; but more than 4,096 are merged in the smallest squares tried.
    Only a rim of that many references, none of them inside the hull of the others, gets there.
    """
    is_crowded = len(log_weights) > MANY
    rim = _along(segment, 9 if is_crowded else 33).T
    scales = np.geomspace(1.0, 1000.0, 5 if is_crowded else 12)

    def score(rim: Floats, references: Floats, log_weights: Floats) -> Floats:
        # Without |y|², which is the same for all references and would swallow the differences.
        points = np.concatenate([rim * scale for scale in scales])
        scores: Floats = (points @ references - 0.5 * squared_norms(references)) / h**2 + log_weights
        return scores

    scores = score(rim, references, log_weights)
    outweighs = scores.max(axis=1) - logsumexp(scores) > math.log(0.5)
    hull = (_along(segment, 257).T @ references).argmax(axis=1)
    squared_distance = np.full(len(log_weights), math.inf)
    for outer in references[:, np.unique([*scores.argmax(axis=1)[outweighs], *hull])].T:
        np.minimum(squared_distance, squared_norms(references - outer[:, None]), out=squared_distance)
    # The check is made between the points that chose the outermost references, where the others matter most.
    rim = 0.5 * (rim[1:] + rim[:-1])
    exact = logsumexp(score(rim, references, log_weights))
    merged = references, log_weights
    for largest in (0.5, 0.125, 0.03125):
        top = math.floor(math.log2(largest * h))
        # Sides are powers of two, so that neighbours share a square; the octave is part of the name of a square.
        octave = np.clip(np.floor(0.5 * np.log2(np.maximum(squared_distance, 4.0 ** (top - 50))) - 3.0), top - 40, top)
        column, row = np.floor(references / 2.0**octave)
        merged = merge(references, log_weights, 64.0 * column + octave % 64.0 + 1j * row)
        if np.abs(logsumexp(score(rim, *merged)) - exact).max() < tolerance:
            return merged
    return merged if is_crowded else (references, log_weights)


def _along(segment: Floats, count: int) -> Floats:
    """Evenly spaced points on a segment with its ends in columns, (2, count)."""
    return segment[:, :1] + (segment[:, 1:] - segment[:, :1]) * np.linspace(0.0, 1.0, count)
