"""The arrays of a scorer, laid out for the compiled loops.

numpy needs a microsecond or more for each call, whatever its size, and a row needs several hundred calls. `loops` has
the same computation as plain loops for numba. Rows that come one at a time take their whole way there; a batch takes
matrix products from BLAS and only the rest from there.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from darksight_core.map import density as kde_module
from darksight_core.map.density import Kde
from darksight_core.map.placement import BISECTIONS, CHUNK, FEATURES, MARGIN, REST, SLACK, Embedder, Network
from darksight_core.runtime.compiled.loops import (
    BLOCK,
    CONFIDENCES,
    DTYPES,
    STEPS,
    WIDE,
    Density,
    Outlier,
    Packed,
    Plane,
    Ranking,
    Start,
    finish_rows,
    nearest_rows,
    prepare_rows,
    score_rows,
    sheet_writer,
    single_error,
)
from darksight_core.runtime.result_block import ROW_BYTES, SECTIONS, ResultBlock
from darksight_core.scored import ScoredBatch
from darksight_core.scores.outlier import GAMMA, TOP_CLASSES, OutlierScore
from darksight_core.simplex import FLOOR, Floats

__all__ = ["BATCH", "Kernel", "Rule"]

BATCH = 8
"""From so many rows on matrix products by BLAS make up for the calls of numpy around them: they meet at 5 to 6 rows."""

# Rows whose products with all stored rows are made at a time: a few hundred kilobytes, which stay in cache.
_ROWS = 64

# Further from every softened row than two of them can be from each other.
_FAR = 9.0

# From so many classes on anchors are screened by groups of classes, from `WIDE` on by more levels of them: the coarsest
# has so many groups, each further one so many times as many, up to a share of the classes. A level takes as long as it
# has groups and leaves about half of the anchors to the next.
_GROUPED, _FEWEST, _FEW, _FINER, _FINEST = 96, 16, 32, 4, 0.6

# Inputs up to which a rough guess of f_p leaves them out: of a row of 1,000 classes some 70 are above.
_LEAST = 1e-5

# Directions in which stored rows are looked at; from twice as many classes on, up to `WIDE`.
_DIRECTIONS = 48

# Numbers of 16 bits that are worked on at a time.
_LANES = 32

# The cost of anchors that are none: not below any limit, not even an infinite one.
_NEVER = math.nan


class Rule(NamedTuple):
    """A gate as numbers.

    `numbers` are the place of the reject score in `CONFIDENCES` from 1, or 0 for none, the threshold, how close to it
    rounding may decide, the p-value at and below which a row is an outlier, and what a learned score needs: a, b, c, m,
    five numbers for each of four features, and the offsets of classes. `table` has decision and reason of rows that are
    accepted, low in confidence, unscored, outliers and invalid, (2, 5).
    """

    numbers: Floats
    table: NDArray[np.int8]

    @classmethod
    def of(
        cls,
        score: str | None,
        threshold: float,
        *,
        closeness: float,
        level: float,
        table: NDArray[np.int8],
        learned: Iterable[float] = (),
    ) -> Rule:
        """The rule of a score by name, with the numbers of a learned score one after the other."""
        code = 0 if score is None else 1 + CONFIDENCES.index(score)
        return cls(np.array([code, threshold, closeness, level, *learned]), np.array(table, dtype=np.int8))


class _Scored(NamedTuple):
    """What the loops say about n rows.

    `columns` are log density, log KDE, KL_sym, combined score, p-value, reject score and largest probability, (7, n),
    `points` are (n, 2), `verdicts` are decisions and reasons, (2, n), `predicted` is the largest class or -1 for a bad
    row, (n,), and `close` the number of rows so close to the threshold that numpy may judge otherwise.
    """

    points: Floats
    columns: Floats
    verdicts: NDArray[np.int8]
    predicted: NDArray[np.int32]
    close: int


class _Room(threading.local):
    """Where each thread has its sheets written, and its address."""

    def __init__(self) -> None:
        self.room = bytearray(ROW_BYTES * BATCH)
        self.start = np.frombuffer(self.room, np.uint8).ctypes.data


_NO_RULE = Rule.of(None, -math.inf, closeness=-1.0, level=-math.inf, table=np.zeros((2, 5), dtype=np.int8))


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
        self, embedder: Embedder, kde: Kde, combined: OutlierScore, calibration: Floats, outlier_column: int
    ) -> None:
        log_norm, outlier = math.log(embedder.student.dof / (2.0 * math.pi)), _outlier(combined)
        ranking = Ranking(calibration, np.array([log_norm]), np.array([outlier_column]))
        start = _start(embedder)
        self._packed = _pack(*start, *_plane(embedder), *_density(kde), *outlier, *ranking)
        self._embedder = embedder
        self._rounding = start.numbers[-1]
        self._neighbours, self._stored, self._directions = combined.neighbours.neighbours, *outlier[:2]
        self._screen = _screen(combined.neighbours.rows, outlier.directions).T.copy()

    def blocks(self, rule: Rule) -> Callable[[bytes, int], ResultBlock | None]:
        """A function that makes the result block of rows of float32; None for many rows or one close to the threshold.

        The results are those of `score`. Everything that the compiled code reads is found once, here.
        """
        kept = (*self._packed, rule.numbers, rule.table)
        write = partial(sheet_writer(), *(array.ctypes.data for array in kept))
        local = _Room()

        def make(values: bytes, rows: int) -> ResultBlock | None:
            if not 0 < rows < BATCH:
                return None
            bad = write(values, *(local.start + section * rows for section in SECTIONS), rows)
            return None if bad < 0 else ResultBlock(bytes(local.room[: ROW_BYTES * rows]), rows, bad == 0)

        # The addresses are good for as long as the arrays are there.
        make.kept = kept  # type: ignore[attr-defined]  # for that alone
        return make

    def score(self, probs: Floats, rule: Rule = _NO_RULE) -> tuple[ScoredBatch, int]:
        """Score rows as they came in, (n, n_inputs) in C order, and decide on them by a rule.

        Returns
        -------
        The scores, and the number of rows that are so close to the threshold that rounding may have decided.
        """
        rows = len(probs)
        points, columns = np.empty((rows, 2)), np.empty((7, rows))
        decided, predicted = np.empty((2, rows), dtype=np.int8), np.empty(rows, dtype=np.int32)
        if rows < BATCH:
            close = score_rows(probs, points, columns, decided, predicted, rule.numbers, rule.table, *self._packed)
        else:
            close = 0
            for start in range(0, rows, CHUNK):
                part = slice(start, start + CHUNK)
                scored = self._score_batch(probs[part], rule)
                points[part], columns[:, part], decided[:, part], predicted[part] = scored[:4]
                close += scored.close
        log_density, log_kde, fidelity, outlier_score, p_value, confidence, top = columns
        batch = ScoredBatch(
            points, log_density, log_kde, fidelity, outlier_score, p_value, confidence, top,
            predicted, decided[0], decided[1], predicted >= 0,
        )  # fmt: skip
        return batch, close

    def _score_batch(self, probs: Floats, rule: Rule) -> _Scored:
        count, classes = len(probs), self._embedder.student.n_classes
        pis, logs, soft = np.empty((3, *probs.shape))
        rows, squares = np.empty((count, 2 * classes + 1)), np.empty(count)
        points, columns = np.empty((count, 2)), np.empty((7, count))
        verdicts, predicted = np.empty((2, count), dtype=np.int8), np.empty(count, dtype=np.int32)
        prepare_rows(probs, pis, logs, soft, rows, predicted, *self._packed)
        guesses = self._guess(rows[:, :classes])
        self._square_distances(soft, squares)
        close = finish_rows(
            pis,
            logs,
            rows,
            guesses,
            squares,
            points,
            columns,
            verdicts,
            predicted,
            rule.numbers,
            rule.table,
            *self._packed,
        )
        return _Scored(points, columns, verdicts, predicted, close)

    def _guess(self, probs: Floats) -> Floats:
        """f_p of rows (n, K) in float32, and how far off it may be, (n, 3)."""
        network, guesses = self._embedder.network, np.empty((len(probs), 3))
        values = network.inputs(probs).astype(np.float32)
        for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
            if layer:
                np.maximum(values, 0.0, out=values)
            values = values @ weight
            values += bias
        np.clip(values, -self._embedder.bound, self._embedder.bound, out=guesses[:, :2])
        guesses[:, 2] = self._rounding
        return guesses

    def _square_distances(self, soft: Floats, squares: Floats) -> None:
        """Write the square distance of softened rows to the k-th nearest stored row to `squares`, (n,)."""
        single = _parts(soft, self._directions) if self._directions.size else soft.astype(np.float32)
        products = np.empty((_ROWS, self._screen.shape[1]), dtype=np.float32)
        for start in range(0, len(soft), _ROWS):
            part = slice(start, start + _ROWS)
            found = np.matmul(single[part], self._screen, out=products[: len(single[part])])
            nearest_rows(
                soft[part], found.reshape(len(found), -1, BLOCK), self._stored, self._neighbours, squares[part]
            )


def _pack(*arrays: NDArray[Any]) -> Packed:
    """All arrays of each dtype one after the other, and where each of them starts, with its shape, (m, 4)."""
    flat = [[array.ravel() for array in arrays if array.dtype == dtype] for dtype in DTYPES]
    places, ends = np.zeros((len(arrays), 4), dtype=np.int64), dict.fromkeys(map(np.dtype, DTYPES), 0)
    for place, array in zip(places, arrays, strict=True):
        place[: array.ndim + 1] = ends[array.dtype], *array.shape
        ends[array.dtype] += array.size
    lines = [np.concatenate([*some, np.empty(0, kind)]) for some, kind in zip(flat, DTYPES, strict=True)]
    # Then how long each of them is, for those who have addresses only.
    places = np.concatenate([places, [[len(line) for line in lines]]])
    return cast(Packed, (*lines, places))


def _start(embedder: Embedder) -> Start:
    network = embedder.network
    layers = zip(network.weights, network.biases, strict=True)
    return Start(
        columns=np.array(range(embedder.n_inputs) if embedder.columns is None else embedder.columns, dtype=np.int64),
        network=np.concatenate([array.ravel() for layer in layers for array in layer]),
        sizes=np.array([network.weights[0].shape[0], *(weight.shape[1] for weight in network.weights)], dtype=np.int64),
        numbers=np.array([embedder.temperature, FLOOR, *_doubts(network)]),
        counts=np.array([FEATURES.index(network.features)]),
    )


def _doubts(network: Network) -> tuple[float, float, float]:
    """For a rough guess: the inputs that it leaves out, how far it moves for what they sum to, and for float32.

    The norms of the layers bound how far it moves, and tell how far if roundings are as often up as down. Measured were
    a hundredth and a thousandth of that at most; a tenth of the first is taken. A start that is missed for it is as
    good as the one that is taken, but for that much.
    """
    weights, biases = zip(*network.layers, strict=True)
    # Probabilities sum to one; of logarithms each is below two and a half.
    size = 1.0 if network.features == "probs" else 2.5 * len(weights[0])
    slope, longest, error = 1.0, float(np.sqrt((weights[0] ** 2).sum(axis=1).max())), 0.0
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        norm = float(np.linalg.norm(weight)) if layer else longest
        slope *= float(np.linalg.norm(weight, 2)) if layer else longest
        size = norm * size + float(np.linalg.norm(bias))
        error = norm * error + math.sqrt(len(weight) + 2) * 2.0**-24 * size
    return (_LEAST if network.features == "probs" else -math.inf), 0.1 * slope, error


def _plane(embedder: Embedder) -> Plane:
    theta, power = embedder.theta(), 0.5 * (embedder.student.dof + 2.0)
    inside = np.argsort(embedder.anchor_class, kind="stable").astype(np.int32)
    starts = np.searchsorted(embedder.anchor_class[inside], np.arange(embedder.student.n_classes + 1))
    order, log_odds, others = _odds(embedder.anchor_weights[:, : 0 if embedder.student.n_classes >= WIDE else None])
    levels, parents, coarse, screens = _levels(embedder)
    return Plane(
        theta=np.concatenate([theta, np.exp(theta[2:3]) / (4.0 * power**2), np.exp(theta[2:3] / power)]),
        anchors=embedder.anchors,
        anchor_weights=embedder.anchor_weights.T,
        inside=inside,
        inside_starts=starts.astype(np.int32),
        order=order,
        log_odds=log_odds,
        others=others,
        levels=levels,
        parents=parents,
        coarse=coarse,
        screens=screens,
        numbers=np.array([power, embedder.bound, MARGIN, SLACK, REST]),
        counts=np.array([embedder.refine_steps, embedder.inside_steps, BISECTIONS]),
    )


def _odds(weights: Floats) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """For each class the anchors by its log-odds, these, and the probability of all others, (K, M) each."""
    classes = len(weights) // 2
    log_q, q = -weights[:classes], -weights[classes : 2 * classes]
    # 1 - q has no digits left where q is nearly one; the sum of the others has.
    others = 1.0 - q
    top, anchors = q.argmax(axis=0), np.arange(q.shape[1])
    rest = q.copy()
    rest[top, anchors] = 0.0
    others[top, anchors] = rest.sum(axis=0)
    log_odds = log_q - np.log(np.maximum(others, 1e-300))
    order = np.argsort(log_odds, axis=1, kind="stable")
    sort = partial(np.take_along_axis, indices=order, axis=1)
    return order.astype(np.int32), sort(log_odds).astype(np.float32), sort(others).astype(np.float32)


_Levels = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]


def _levels(embedder: Embedder) -> _Levels:
    """`levels`, `parents`, `coarse` and `screens` of a `Plane`."""
    means, classes, weights = embedder.student.means, embedder.student.n_classes, embedder.anchor_weights
    coarse, screens = np.zeros((0, 1, BLOCK), dtype=np.float32), np.zeros(0, dtype=np.float32)
    if classes < _GROUPED:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), coarse, screens
    sizes = [_FEWEST if classes >= WIDE else _FEW]
    while _FINER * sizes[-1] < _FINEST * classes:
        sizes.append(_FINER * sizes[-1])
    # Which group of each level every class is in; on the last it is its own.
    groups = [*(_groups(means, size) for size in sizes), np.arange(classes)]
    firsts = [np.unique(group, return_index=True)[1] for group in groups]
    parents = [coarser[first] for coarser, first in zip(groups[:-1], firsts[1:], strict=True)]
    tables = [*(_group_weights(-weights[classes : 2 * classes], group) for group in groups[:-1]), weights.T]
    if classes >= WIDE:
        coarse = _blocks(tables.pop(0))
        sizes.pop(0)
    return (
        np.array([*sizes, classes]),
        np.concatenate(parents[::-1]),
        coarse,
        np.concatenate([table.astype(np.float32).ravel() for table in tables]),
    )


def _blocks(weights: Floats) -> NDArray[np.float32]:
    """Weights of anchors, (M, n), in blocks of them and turned, (B, n, 64)."""
    blocks = np.zeros((-(-len(weights) // BLOCK) * BLOCK, weights.shape[1]), dtype=np.float32)
    blocks[:, -1] = _NEVER
    blocks[: len(weights)] = weights
    return blocks.reshape(-1, BLOCK, weights.shape[1]).transpose(0, 2, 1)


def _groups(means: Floats, size: int) -> NDArray[np.int64]:
    """Numbers of groups of classes that are neighbours on the map, (K,): the largest is halved, again and again.

    More groups are parts of fewer ones.
    """
    groups = [np.arange(len(means))]
    while len(groups) < size:
        largest = groups.pop(int(np.argmax([len(group) for group in groups])))
        axis = int(np.ptp(means[largest], axis=0).argmax())
        largest = largest[np.argsort(means[largest, axis], kind="stable")]
        groups += [largest[: len(largest) // 2], largest[len(largest) // 2 :]]
    numbers = np.empty(len(means), dtype=np.int64)
    for number, group in enumerate(groups):
        numbers[group] = number
    return numbers


def _group_weights(q: Floats, group: NDArray[np.int64]) -> Floats:
    """What `Embedder.anchor_weights` are for classes, for groups of them, (M, 2G + 1), from posteriors (K, M)."""
    sums = np.zeros((int(group.max()) + 1, q.shape[1]))
    np.add.at(sums, group, q)
    # With many degrees of freedom whole groups are too improbable for a number.
    logs = np.log(np.maximum(sums, 1e-300))
    return np.concatenate([-logs, -sums, (sums * logs).sum(axis=0, keepdims=True)]).T


def _density(kde: Kde) -> Density:
    return Density(**kde.tensors(), constants=np.array([kde_module._LEVELS, kde_module._SQUARES, kde_module._CONES]))


def _outlier(combined: OutlierScore) -> Outlier:
    neighbours = combined.neighbours
    stored, classes = neighbours.rows.shape
    blocks = -(-stored // BLOCK)
    rows = np.full((blocks * BLOCK, classes), _FAR)
    rows[:stored] = neighbours.rows
    is_wide, directions = classes >= WIDE, _directions(neighbours.rows)
    screen = _screen(neighbours.rows[: 0 if is_wide else None], directions)
    # Filled up so that all of a row can be worked on several at a time.
    wide = np.zeros((blocks * BLOCK if is_wide else 0, -(-classes // _LANES) * _LANES), dtype=np.int16)
    if is_wide:
        wide[:stored, :classes] = np.rint(neighbours.rows * STEPS)
    return Outlier(
        rows=rows,
        directions=directions,
        screen=screen.reshape(-1, BLOCK, screen.shape[1]).transpose(0, 2, 1),
        wide=wide.view(np.int32),
        gen_scores=combined.gen_rank.scores,
        gen_log_ranks=combined.gen_rank.log_ranks,
        soft_scores=combined.soft_rank.scores,
        soft_log_ranks=combined.soft_rank.log_ranks,
        numbers=np.array([neighbours.temperature, combined.gen_rank.slope, combined.soft_rank.slope, GAMMA]),
        counts=np.array([neighbours.neighbours, TOP_CLASSES]),
    )


def _directions(rows: Floats) -> NDArray[np.float32]:
    """The directions in which rows (m, K) are longest, (K, D); none where that would not pay."""
    classes = rows.shape[1]
    if not 2 * _DIRECTIONS <= classes < WIDE:
        return np.empty((0, 0), dtype=np.float32)
    turned = np.linalg.eigh(rows.T @ rows)[1]
    return np.ascontiguousarray(turned[:, : -_DIRECTIONS - 1 : -1], dtype=np.float32)


def _parts(soft: Floats, directions: NDArray[np.float32]) -> NDArray[np.float32]:
    """Parts of softened rows (n, K) in some directions, and the length of the rest, (n, D + 1); see `loops._parts`."""
    parts = np.empty((len(soft), directions.shape[1] + 1), dtype=np.float32)
    np.matmul(soft.astype(np.float32), directions, out=parts[:, :-1])
    square = np.einsum("ij,ij->i", parts[:, :-1], parts[:, :-1])
    parts[:, -1] = np.sqrt(np.maximum(1.0 - square + single_error(soft.shape[1]), 0.0))
    return parts


def _screen(rows: Floats, directions: NDArray[np.float32]) -> NDArray[np.float32]:
    """Stored rows (m, K), or their parts, in float32, filled up to whole blocks with zeros."""
    shown = _parts(rows, directions) if directions.size else rows.astype(np.float32)
    screen = np.zeros((-(-len(rows) // BLOCK) * BLOCK, shown.shape[1]), dtype=np.float32)
    screen[: len(rows)] = shown
    return screen
