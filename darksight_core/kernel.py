"""The arrays of a scorer, laid out for the compiled loops.

numpy needs a microsecond or more for each call, whatever its size, and a row needs several hundred calls. `loops` has
the same computation as plain loops for numba. Rows that come one at a time take their whole way there; a batch takes
logarithms and matrix products from numpy and BLAS and only the rest from there.
"""

from __future__ import annotations

import math

import numpy as np

from darksight_core import kde as kde_module
from darksight_core.combined import GAMMA, TOP_CLASSES, Combined
from darksight_core.embed import BISECTIONS, FEATURES, MARGIN, REST, SLACK, Embedder
from darksight_core.kde import Kde
from darksight_core.loops import (
    BLOCK,
    Density,
    Outlier,
    Plane,
    Ranking,
    finish_rows,
    nearest_rows,
    score_rows,
    soften_rows,
)
from darksight_core.simplex import FLOOR, Floats

__all__ = ["Kernel"]

# Rows whose products with all stored rows are made at a time: a few hundred kilobytes, which stay in cache.
_ROWS = 64

# Further from every softened row than two of them can be from each other.
_FAR = 9.0


class Kernel:
    """Scores rows by compiled loops.

    Parameters
    ----------
    embedder, kde, combined
        As for `Scorer`.
    calibration
        Calibration scores in ascending order, (n,).
    outlier_column
        Which result the calibration scores belong to: 0 for the log density, 1 for the log KDE, 3 for the combined.
    """

    def __init__(
        self, embedder: Embedder, kde: Kde, combined: Combined, calibration: Floats, outlier_column: int
    ) -> None:
        network = embedder.network
        log_norm, outlier = math.log(embedder.student.dof / (2.0 * math.pi)), _outlier(combined)
        # Everything is copied, because numba compiles once more for arrays that cannot be written to.
        self._arrays = (
            *Ranking(np.array(calibration), outlier_column, log_norm),
            *_plane(embedder),
            *_density(kde),
            *outlier,
        )
        self._neighbours = combined.neighbours.neighbours, combined.neighbours.temperature
        self._stored, self._screen = outlier.rows, outlier.screen.transpose(1, 0, 2).reshape(embedder.n_inputs, -1)
        self._inputs = (
            np.array(range(embedder.n_inputs) if embedder.columns is None else embedder.columns, dtype=np.int64),
            embedder.temperature,
            FLOOR,
            np.concatenate([array.ravel() for layer in network.layers for array in layer]),
            np.array([network.layers[0][0].shape[0], *(weight.shape[1] for weight, _ in network.layers)]),
            FEATURES.index(network.features),
        )

    def score(self, probs: Floats, points: Floats, results: Floats) -> None:
        """Score rows one after the other.

        Parameters
        ----------
        probs
            Rows as they came in, (n, n_inputs), in C order.
        points
            Where the points go, (n, 2).
        results
            Where log density, log KDE, KL_sym, combined score and p-value go, (n, 5); a bad row is NaN throughout.
        """
        score_rows(probs, points, results, *self._inputs, *self._arrays)

    def finish(self, logs: Floats, rows: Floats, guesses: Floats, points: Floats, results: Floats) -> None:
        """Score rows from log π (n, n_inputs), what `Embedder` prepared of it (n, 2K + 1) and guessed (n, 2)."""
        finish_rows(logs, rows, guesses, self._square_distances(logs), points, results, *self._arrays)

    def _square_distances(self, logs: Floats) -> Floats:
        """Square distance of softened rows to the k-th nearest stored row, (n,)."""
        neighbours, temperature = self._neighbours
        soft, squares = np.empty_like(logs), np.empty(len(logs))
        soften_rows(logs, temperature, soft)
        single = soft.astype(np.float32)
        products = np.empty((_ROWS, self._screen.shape[1]), dtype=np.float32)
        for start in range(0, len(logs), _ROWS):
            part = slice(start, start + _ROWS)
            found = np.matmul(single[part], self._screen, out=products[: len(single[part])])
            nearest_rows(soft[part], found.reshape(len(found), -1, BLOCK), self._stored, neighbours, squares[part])
        return squares


def _plane(embedder: Embedder) -> Plane:
    theta, power = embedder.theta(), 0.5 * (embedder.student.dof + 2.0)
    weights, classes = embedder.anchor_weights, embedder.student.n_classes
    log_q, q = -weights[:classes], -weights[classes : 2 * classes]
    # 1 - q has no digits left where q is nearly one; the sum of the others has.
    others = 1.0 - q
    top, anchors = q.argmax(axis=0), np.arange(q.shape[1])
    rest = q.copy()
    rest[top, anchors] = 0.0
    others[top, anchors] = rest.sum(axis=0)
    log_odds = log_q - np.log(np.maximum(others, 1e-300))
    order = np.argsort(log_odds, axis=1, kind="stable")
    return Plane(
        theta=np.concatenate([theta, np.exp(theta[2:3]) / (4.0 * power**2)]),
        anchors=embedder.anchors.copy(),
        anchor_weights=weights.T.copy(),
        anchor_class=embedder.anchor_class.copy(),
        order=order.astype(np.int32),
        log_odds=np.take_along_axis(log_odds, order, axis=1).astype(np.float32),
        others=np.take_along_axis(others, order, axis=1).astype(np.float32),
        numbers=np.array([power, embedder.bound, MARGIN, SLACK, REST]),
        counts=np.array([embedder.refine_steps, embedder.inside_steps, BISECTIONS]),
    )


def _density(kde: Kde) -> Density:
    return Density(
        **{name: array.copy() for name, array in kde.tensors().items()},
        constants=np.array([kde_module._LEVELS, kde_module._SQUARES, kde_module._CONES]),
    )


def _outlier(combined: Combined) -> Outlier:
    neighbours = combined.neighbours
    stored, classes = neighbours.rows.shape
    blocks = -(-stored // BLOCK)
    rows = np.full((blocks * BLOCK, classes), _FAR)
    rows[:stored] = neighbours.rows
    screen = np.zeros((blocks * BLOCK, classes), dtype=np.float32)
    screen[:stored] = neighbours.rows
    return Outlier(
        rows=rows,
        screen=screen.reshape(blocks, BLOCK, classes).transpose(0, 2, 1).copy(),
        gen_scores=combined.gen_rank.scores.copy(),
        gen_log_ranks=combined.gen_rank.log_ranks.copy(),
        soft_scores=combined.soft_rank.scores.copy(),
        soft_log_ranks=combined.soft_rank.log_ranks.copy(),
        numbers=np.array([neighbours.temperature, combined.gen_rank.slope, combined.soft_rank.slope, GAMMA]),
        counts=np.array([neighbours.neighbours, TOP_CLASSES]),
    )
