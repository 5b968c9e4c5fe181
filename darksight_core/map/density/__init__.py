"""A Gaussian kernel density of the map, evaluated at a cost that does not grow with the number of references.

    log p(y) = log 1/(n (2π h²)^(d/2)) Σ_j exp(-|y - y_j|² / 2h²)

with d = 2, or d = 1 if all references are on one horizontal line, as those of a map of two classes. Only the bandwidth
h is estimated: it maximises the leave-one-out likelihood (`bandwidth`).

The sum over n references is too slow for requests, and a plain grid is not accurate enough: between two clusters at
distance D, log p has a crease of width h² / D, and far from all references it falls like a parabola. Both become easy
after a rewriting. For any anchor a and centre c,

    log p(y) = -|y - a|² / 2h² + r(y),      r(y) = log Σ_j exp(α_j + γ_j·(y - c)),      γ_j = (y_j - a) / h²,

so r is the log-sum-exp of *affine* functions. It is convex, lies above its tangents, and in a small cell of the plane
either few j matter or r is smooth. A quadtree splits the plane until each cell is one of two kinds of leaf (`cells`):

    list    the affine functions that matter in the cell, at most a few dozen: exact, also at creases
    tile    r as a bicubic B-spline on 8 x 8 squares, checked against the exact sum on 33 x 33 points

Outside the frame of the tree the plane is divided into cones with a list each (`cones`). They hold at any distance,
because only references near the convex hull matter there.

Accuracy, against `exact_log_kde`: within `CORE_ERROR` nats where log p is at most `CORE_DEPTH` nats below its maximum
over the references, and within `TAIL_ERROR` elsewhere, at any distance. The exception is a cloud of tens of thousands
of references none of which is inside the convex hull of the others: outside the frame, 100 h away, the error may be
larger.

    exact        the sum over all references
    bandwidth    the choice of h
    layout       the format of the arrays
    cells        leaves inside the frame
    cones        leaves outside the frame
    tree         all leaves as arrays, within a limit of bytes
    kde          `Kde`: fits, stores and evaluates the arrays
"""

from __future__ import annotations

from darksight_core.map.density.bandwidth import choose_bandwidth
from darksight_core.map.density.exact import CORE_DEPTH, CORE_ERROR, TAIL_ERROR, exact_log_kde
from darksight_core.map.density.kde import Kde
from darksight_core.map.density.layout import CONES, LEVELS, SQUARES

__all__ = [
    "CONES",
    "CORE_DEPTH",
    "CORE_ERROR",
    "LEVELS",
    "SQUARES",
    "TAIL_ERROR",
    "Kde",
    "choose_bandwidth",
    "exact_log_kde",
]
