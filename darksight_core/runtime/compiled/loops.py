"""The way of a row through scorer and gate as plain loops, which numba compiles.

The same formulas as in `embed`, `student`, `kde`, `combined`, `confidence`, `learned` and `gate`, over the arrays that
`kernel` lays out. Two searches are cut short without changing what they find:

    anchors      KL_sym is at least that of fewer classes (data processing). With two, "the row's own" and "any other",
                 anchors in the order of their log-odds are tried from the row's outwards until no other can win; where
                 classes are many, groups of neighbours on the map, few and then more, tell which need not be tried
    neighbours   products in float32, of rows rounded to 16 bits, or of their parts in a few directions, leave few
                 stored rows that can be the k-th nearest; float64 decides among them

Logarithms and exponentials in loops are those of `_log_and_inverse` and `_exp`, which are worked on several at a time;
those of the C library numba calls one by one.

numba is optional: without it `COMPILED` is false, and the functions here would work, but slowly. Compiled code is kept
beside this file, or in the user's cache directory if that is read-only; without both it is compiled in each process.
Every array and constant of another file comes in as an argument, and no function of another file is called, because
what numba keeps is not renewed when that file changes. Arrays that stay the same come in as few as there are dtypes and
are taken apart by `_unpack`, because each array takes numba as long as twenty classes of a row. Loops run over a row of
an array, not over a row and an offset in it, because numba cannot tell that an offset is never negative, and then
nothing is worked on several at a time.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from darksight_core.simplex import Floats

try:
    from numba import carray, cfunc, njit, types  # type: ignore[attr-defined]  # numba does not list carray
except ImportError:
    njit = None  # type: ignore[assignment]  # numba is optional

__all__ = [
    "BLOCK",
    "CLOSE",
    "COMPILED",
    "COMPUTED",
    "CONFIDENCES",
    "DTYPES",
    "STEPS",
    "WIDE",
    "Density",
    "Outlier",
    "Packed",
    "Plane",
    "Ranking",
    "Start",
    "finish_rows",
    "nearest_rows",
    "prepare_rows",
    "score_rows",
    "sheet_writer",
    "single_error",
]

COMPILED = njit is not None
"""Whether numba is there."""

BLOCK = 64
"""Stored rows that are looked at together."""

WIDE = 256
"""Classes from which on stored rows are looked at one by one."""

STEPS = 32767
"""Steps to which the entries of such rows are rounded, from 0 to 1: the products of two rows fit into 32 bits."""

COMPUTED = ("msp", "entropy", "margin", "doctor", "gen", "learned")
"""Reject scores that are computed here, and may differ from numpy's by rounding."""

CONFIDENCES = (*COMPUTED, "log_density", "log_kde", "outlier_score")
"""Reject scores that a rule can name, by their place from 1, or 0 for none."""

CLOSE = 1e-9
"""By this much of itself, or of one, a computed score may differ; measured are 1e-12."""

DTYPES = (np.float64, np.float32, np.int64, np.int32)
"""Kinds of arrays that a scorer is made of."""

Ints: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.int8]
Local: TypeAlias = tuple[float, float, float, float, float, float, float]
Place: TypeAlias = tuple[float, float, float, float]
Packed: TypeAlias = tuple[Floats, NDArray[np.float32], Ints, Words, Ints]
Function = TypeVar("Function", bound=Callable[..., Any])

# A product and a sum may be rounded once instead of twice, and sums may be taken in any order, so that several terms
# are worked on at once; NaN stays NaN.
_FASTMATH = {"contract", "reassoc"}


def _compiled(function: Function, *, nogil: bool = True) -> Function:
    """Let numba compile the function at its first call."""
    if njit is None:
        return function
    try:
        compiled: Any = njit(cache=True, nogil=nogil, fastmath=_FASTMATH, error_model="numpy")(function)
    except RuntimeError:  # there is no place to keep compiled code
        compiled = njit(nogil=nogil, fastmath=_FASTMATH, error_model="numpy")(function)
    return compiled  # type: ignore[no-any-return]  # numba's dispatcher is called like the function


def _compiled_short(function: Function) -> Function:
    """For what takes microseconds: to let go of the interpreter and get it back takes longer in a busy server."""
    return _compiled(function, nogil=False)


class Start(NamedTuple):
    """Arrays that lead to a first guess.

    `columns` are those that the map shows, `network` has the layers of f_p one after the other, and `sizes` how many
    numbers go into each of them and come out of the last. Among `numbers` are what an input must be above to count for
    a rough guess, how far a guess may move for what is left out of the inputs, and how far for rounding.
    """

    columns: Ints
    network: NDArray[np.float32]
    sizes: Ints
    numbers: Floats
    counts: Ints


# Places in Start.numbers and Start.counts.
_TEMPERATURE, _FLOOR, _LEAST, _SLOPE, _ROUNDING = range(5)
(_FEATURES,) = range(1)


class Plane(NamedTuple):
    """Arrays of an `Embedder`.

    `theta` has μ_x, μ_y, b, v, exp(b) / 4c² and exp(b / c) of its scores, (6, K). `anchor_weights` are (M, 2K + 1).
    `inside` has the anchors at which the student predicts a class, class after class, those of class k from
    `inside_starts[k]` to `inside_starts[k + 1]`.

    For each class `order` has the anchors by its log-odds there, which are `log_odds`, and `others` the probability of
    all other classes, (K, M) each. Where classes are many, neighbours on the map are grouped, on several levels:
    `levels` has the number of groups on each, the last is K, and `parents` which group each belongs to on the next
    coarser level, from the classes on. `screens` are for groups what the anchors' weights are for classes, coarser
    levels first, one (M, 2G + 1) after the other. Where classes are very many, a still coarser level is apart in
    `coarse`, in blocks of anchors, (B, 2G + 1, 64), filled up with some that are none, and `order`,
    `log_odds` and `others` are empty. What is not there has length 0.
    """

    theta: Floats
    anchors: Floats
    anchor_weights: Floats
    inside: Words
    inside_starts: Words
    order: NDArray[np.int32]
    log_odds: NDArray[np.float32]
    others: NDArray[np.float32]
    levels: Ints
    parents: Ints
    coarse: NDArray[np.float32]
    screens: NDArray[np.float32]
    numbers: Floats
    counts: Ints


# Places in Plane.numbers and Plane.counts.
_POWER, _BOUND, _MARGIN, _SLACK, _REST = range(5)
_STEPS, _INSIDE_STEPS, _BISECTIONS = range(3)


class Density(NamedTuple):
    """Arrays of a `Kde`; `constants` are its levels, squares and cones."""

    bandwidth: Floats
    frame: Floats
    keys: Ints
    widths: Ints
    anchors: Floats
    starts: NDArray[np.int32]
    counts: NDArray[np.int32]
    tiles: NDArray[np.float32]
    terms: Floats
    constants: Ints


class Outlier(NamedTuple):
    """Arrays of a `OutlierScore`.

    `rows` are the stored rows, (64 B, K), filled up to whole blocks with places that are far from any row, and `screen`
    has them in float32 and turned, (B, K, 64), filled up with zeros. Where classes are many, `directions` are those in
    which the rows are longest, (K, D), and the screen has `_parts` of them, (B, D + 1, 64). From `WIDE` classes on both
    are empty, and `wide` has them in `STEPS`, (64 B, K and some zeros), two in each number of 32 bits.
    """

    rows: Floats
    directions: NDArray[np.float32]
    screen: NDArray[np.float32]
    wide: Words
    gen_scores: Floats
    gen_log_ranks: Floats
    soft_scores: Floats
    soft_log_ranks: Floats
    numbers: Floats
    counts: Ints


# Places in Outlier.numbers and Outlier.counts.
_SOFTNESS, _GEN_SLOPE, _SOFT_SLOPE, _GAMMA = range(4)
_NEIGHBOURS, _TOP_CLASSES = range(2)


class Ranking(NamedTuple):
    """Calibration scores in ascending order, (n,), log ν / 2π of the student, and the result that they belong to."""

    calibration: Floats
    numbers: Floats
    counts: Ints


class _Results(NamedTuple):
    """Where results go: `points` (n, 2), `columns` (7, n), `verdicts` (2, n); `rule` and `table` say which verdicts."""

    points: Floats
    columns: Floats
    verdicts: Bytes
    rule: Floats
    table: Bytes


# How many arrays `_unpack` makes, and which of them has the stored rows.
_ARRAYS, _STORED_ROWS = 42, 29

# Classes of a row whose anchors are tried first where classes are very many, and bits above those of any number.
_LIKELY, _ALL = 3, 2**63 - 1

# Below so many classes a row has too few of them to work on several at a time.
_FEW = 32

# From so many rows on they are placed together, and so many at a time, whose arrays stay in cache.
_MANY, _TOGETHER = 8, 128

# Rows of the columns, places in a rule, and what a verdict may be, as columns of the table of verdicts.
_LOG_DENSITY, _LOG_KDE, _FIDELITY, _COMBINED, _P_VALUE, _CONFIDENCE, _TOP = range(7)
_SCORE, _THRESHOLD, _CLOSENESS, _LEVEL, _LEARNED = range(5)
_ACCEPTED, _LOW, _UNSCORED, _OUTLYING, _INVALID = range(5)
_MSP, _ENTROPY, _MARGIN_SCORE, _DOCTOR, _GEN, _LEARNED_SCORE, _FIRST_COLUMN = range(1, 8)
# In a rule, after what every rule has: a, b, c and m, then w, mean, spread, least and largest of four features, then
# the offsets of the classes; see `learned`.
_FEATURE_COUNT = 4
_WEIGHTS = _LEARNED + 4
_OFFSETS = _WEIGHTS + 5 * _FEATURE_COUNT


@_compiled_short
def score_rows(
    probs: Floats,
    points: Floats,
    columns: Floats,
    verdicts: Bytes,
    predicted: Words,
    rule: Floats,
    table: Bytes,
    doubles: Floats,
    singles: NDArray[np.float32],
    longs: Ints,
    words: Words,
    places: Ints,
) -> int:
    """Score and judge rows as they came in, (n, n_inputs); the number of rows that are close to the threshold.

    Parameters
    ----------
    probs
        The rows.
    points, columns, verdicts, predicted
        Where the results go: (n, 2), (7, n), (2, n) and (n,). A row that cannot be used is NaN throughout.
    rule, table
        As `Kernel` lays them out.
    doubles, singles, longs, words, places
        The scorer, packed.
    """
    start, plane, density, outlier, ranking = _unpack(doubles, singles, longs, words, places)
    results = _Results(points, columns, verdicts, rule, table)
    count, inputs, classes = len(probs), probs.shape[1], len(start.columns)
    pis, logs, soft = np.empty((count, inputs)), np.empty((count, inputs)), np.empty((count, inputs))
    rows, guesses = np.empty((count, 2 * classes + 1)), np.empty((count, 3))
    values = np.empty((2, start.sizes.max()), dtype=np.float32)
    affinity = np.empty((len(outlier.rows) // BLOCK, BLOCK), dtype=np.float32)
    lanes, single = np.empty(BLOCK, dtype=np.float32), np.empty(inputs + 1, dtype=np.float32)
    squares, best = np.empty(count), np.empty(outlier.counts[_NEIGHBOURS])
    _prepare(probs, start, outlier.numbers[_SOFTNESS], pis, logs, soft, rows, predicted)
    for i in range(count):
        if predicted[i] >= 0:
            left_out = _guess(rows[i], start, start.numbers[_LEAST], plane.numbers[_BOUND], values, guesses[i])
            guesses[i, 2] = start.numbers[_ROUNDING] + start.numbers[_SLOPE] * left_out
            if len(outlier.wide):
                error = _wide_affinity(soft[i], outlier.wide, affinity)
            elif len(outlier.directions):
                parts = single[: outlier.screen.shape[1]]
                _parts(soft[i], outlier.directions, parts)
                _affinity(parts, outlier.screen, affinity)
                error = single_error(inputs)
            else:
                for k in range(inputs):
                    single[k] = soft[i, k]
                _affinity(single[:inputs], outlier.screen, affinity)
                error = single_error(inputs)
            squares[i] = _square_distance(soft[i], affinity, error, outlier.rows, lanes, best)
    return _finish(pis, logs, rows, guesses, squares, predicted, results, ranking, start, plane, density, outlier)


@lru_cache(maxsize=1)
def sheet_writer() -> Callable[..., int]:
    """`_write_sheet` for callers that have addresses: to check a dozen arrays takes numba as long as it takes a row.

    It keeps the interpreter, as `score_rows` does. Made when it is first asked for, because it is compiled at once.
    """
    scorer = (types.float64, types.float32, types.int64, types.int32, types.int64, types.float64, types.int8)
    sheet = (types.float64, types.float32, types.int32, types.int8)
    pointers = map(types.CPointer, (*scorer, types.float32, *sheet))
    signature = types.int64(*pointers, types.int64)
    try:
        compiled = cfunc(signature, cache=True, fastmath=_FASTMATH, error_model="numpy")(_write_sheet_at)
    except RuntimeError:  # there is no place to keep compiled code
        compiled = cfunc(signature, fastmath=_FASTMATH, error_model="numpy")(_write_sheet_at)
    arguments = (*[ctypes.c_void_p] * 7, ctypes.c_char_p, *[ctypes.c_void_p] * 4, ctypes.c_int64)
    address: Any = compiled.address
    call: Callable[..., int] = ctypes.PYFUNCTYPE(ctypes.c_int64, *arguments)(address)
    return call


def _write_sheet_at(  # type: ignore[no-untyped-def]  # pointers, and the number of rows
    doubles, singles, longs, words, places, rule, table, values, f8, f4, i4, i1, count
):
    where = carray(places, (_ARRAYS + 1, 4))
    sizes, inputs = where[_ARRAYS], where[_STORED_ROWS, 2]
    return _write_sheet(
        carray(values, (count, inputs)),
        (carray(f8, (5 * count,)), carray(f4, (8 * count,)), carray(i4, (count,)), carray(i1, (2, count))),
        carray(rule, (_OFFSETS + inputs,)),
        carray(table, (2, 5)),
        carray(doubles, (sizes[0],)),
        carray(singles, (sizes[1],)),
        carray(longs, (sizes[2],)),
        carray(words, (sizes[3],)),
        where[:_ARRAYS],
    )


@_compiled_short
def _write_sheet(
    values: NDArray[np.float32],
    sheet: tuple[Floats, NDArray[np.float32], Words, Bytes],
    rule: Floats,
    table: Bytes,
    doubles: Floats,
    singles: NDArray[np.float32],
    longs: Ints,
    words: Words,
    places: Ints,
) -> int:
    """Write the parts of a `ResultBlock`; -1 if a row is close to the threshold, else the number of bad rows."""
    count, inputs = values.shape
    probs, points, columns, bad = np.empty((count, inputs)), np.empty((count, 2)), np.empty((7, count)), 0
    f8, f4, predicted, verdicts = sheet
    for i in range(count):
        for k in range(inputs):
            probs[i, k] = values[i, k]
    close = score_rows(probs, points, columns, verdicts, predicted, rule, table, doubles, singles, longs, words, places)
    for i in range(count):
        bad += 1 if predicted[i] < 0 else 0
        for j, column in enumerate((_LOG_DENSITY, _LOG_KDE, _P_VALUE)):
            f8[(2 + j) * count + i] = columns[column, i]
        for j in range(2):
            f8[2 * i + j] = points[i, j]
            f4[2 * i + j] = points[i, j]
        for j, column in enumerate((_LOG_DENSITY, _LOG_KDE, _COMBINED, _P_VALUE, _CONFIDENCE, _TOP)):
            f4[(2 + j) * count + i] = columns[column, i]
    return -1 if close else bad


@_compiled
def prepare_rows(
    probs: Floats,
    pis: Floats,
    logs: Floats,
    soft: Floats,
    rows: Floats,
    predicted: Words,
    doubles: Floats,
    singles: NDArray[np.float32],
    longs: Ints,
    words: Words,
    places: Ints,
) -> None:
    """Write what is made of rows as they came in, (n, n_inputs).

    Parameters
    ----------
    probs
        The rows.
    pis, logs, soft
        Where π, log π and √softmax(log π / T) go, of the shape of the rows.
    rows, predicted
        Where what `Embedder.prepare` makes of them goes, (n, 2K + 1), and the largest class, (n,): -1 for a bad row.
    doubles, singles, longs, words, places
        The scorer, packed.
    """
    start, _, _, outlier, _ = _unpack(doubles, singles, longs, words, places)
    _prepare(probs, start, outlier.numbers[_SOFTNESS], pis, logs, soft, rows, predicted)


@_compiled
def nearest_rows(
    soft: Floats, affinities: NDArray[np.float32], stored: Floats, neighbours: int, squares: Floats
) -> None:
    """Write the square distance of softened rows (n, K) to the k-th nearest stored row to `squares`, (n,).

    Parameters
    ----------
    soft, affinities
        The rows, and their products with the stored ones, (n, B, 64).
    stored, neighbours
        The stored rows as in `Outlier`, and k.
    squares
        Where the square distances go.
    """
    lanes, best = np.empty(BLOCK, dtype=np.float32), np.empty(neighbours)
    for i in range(len(soft)):
        squares[i] = _square_distance(soft[i], affinities[i], single_error(soft.shape[1]), stored, lanes, best)


@_compiled
def finish_rows(
    pis: Floats,
    logs: Floats,
    rows: Floats,
    guesses: Floats,
    squares: Floats,
    points: Floats,
    columns: Floats,
    verdicts: Bytes,
    predicted: Words,
    rule: Floats,
    table: Bytes,
    doubles: Floats,
    singles: NDArray[np.float32],
    longs: Ints,
    words: Words,
    places: Ints,
) -> int:
    """Score and judge rows from what was made of them; the number of rows that are close to the threshold.

    Parameters
    ----------
    pis, logs, rows, predicted
        From `prepare_rows`.
    guesses, squares
        Rough guesses of f_p and how far off they may be, (n, 3), and from `nearest_rows`.
    points, columns, verdicts, rule, table, doubles, singles, longs, words, places
        As in `score_rows`.
    """
    start, plane, density, outlier, ranking = _unpack(doubles, singles, longs, words, places)
    results = _Results(points, columns, verdicts, rule, table)
    return _finish(pis, logs, rows, guesses, squares, predicted, results, ranking, start, plane, density, outlier)


@_compiled
def _unpack(
    doubles: Floats, singles: NDArray[np.float32], longs: Ints, words: Words, places: Ints
) -> tuple[Start, Plane, Density, Outlier, Ranking]:
    """The parts of a scorer, whose arrays stand one after the other; `places` has their starts and shapes."""
    start = Start(
        _line(longs, places[0]),
        _line(singles, places[1]),
        _line(longs, places[2]),
        _line(doubles, places[3]),
        _line(longs, places[4]),
    )
    plane = Plane(
        _table(doubles, places[5]),
        _table(doubles, places[6]),
        _table(doubles, places[7]),
        _line(words, places[8]),
        _line(words, places[9]),
        _table(words, places[10]),
        _table(singles, places[11]),
        _table(singles, places[12]),
        _line(longs, places[13]),
        _line(longs, places[14]),
        _cube(singles, places[15]),
        _line(singles, places[16]),
        _line(doubles, places[17]),
        _line(longs, places[18]),
    )
    density = Density(
        _line(doubles, places[19]),
        _line(doubles, places[20]),
        _line(longs, places[21]),
        _line(longs, places[22]),
        _table(doubles, places[23]),
        _line(words, places[24]),
        _line(words, places[25]),
        _cube(singles, places[26]),
        _table(doubles, places[27]),
        _line(longs, places[28]),
    )
    outlier = Outlier(
        _table(doubles, places[29]),
        _table(singles, places[30]),
        _cube(singles, places[31]),
        _table(words, places[32]),
        _line(doubles, places[33]),
        _line(doubles, places[34]),
        _line(doubles, places[35]),
        _line(doubles, places[36]),
        _line(doubles, places[37]),
        _line(longs, places[38]),
    )
    ranking = Ranking(_line(doubles, places[39]), _line(doubles, places[40]), _line(longs, places[41]))
    return start, plane, density, outlier, ranking


@_compiled
def _line(flat: NDArray[Any], place: Ints) -> NDArray[Any]:
    return flat[place[0] : place[0] + place[1]]


@_compiled
def _table(flat: NDArray[Any], place: Ints) -> NDArray[Any]:
    return flat[place[0] : place[0] + place[1] * place[2]].reshape((place[1], place[2]))


@_compiled
def _cube(flat: NDArray[Any], place: Ints) -> NDArray[Any]:
    return flat[place[0] : place[0] + place[1] * place[2] * place[3]].reshape((place[1], place[2], place[3]))


@_compiled
def _finish(
    pis: Floats,
    logs: Floats,
    rows: Floats,
    guesses: Floats,
    squares: Floats,
    predicted: Words,
    results: _Results,
    ranking: Ranking,
    start: Start,
    plane: Plane,
    density: Density,
    outlier: Outlier,
) -> int:
    """Place rows, score and judge them; the number of rows that are close to the threshold."""
    calibration, column, columns = ranking.calibration, ranking.counts[0], results.columns
    work, gens, close = np.empty((3, plane.theta.shape[1])), np.empty(len(rows)), 0
    # One row or many classes are better looked at by classes, many rows of few classes by rows.
    are_many = len(rows) >= _MANY and plane.theta.shape[1] < _FEW and plane.numbers[_POWER] == 2.0
    places = np.empty((len(rows), 4))
    if are_many:
        for first in range(0, len(rows), _TOGETHER):
            part = slice(first, first + _TOGETHER)
            _place_many(guesses[part], rows[part], predicted[part], start, plane, places[part])
    _gen(pis, logs, predicted, outlier.numbers[_GAMMA], outlier.counts[_TOP_CLASSES], gens)
    for i in range(len(rows)):
        label = predicted[i]
        if label < 0:
            results.points[i, 0] = results.points[i, 1] = np.nan
            for j in range(len(columns)):
                columns[j, i] = np.nan
            _judge(_INVALID, i, results)
            continue
        if not are_many:
            places[i, 0], places[i, 1], places[i, 2], places[i, 3] = _place(guesses[i], rows[i], start, plane, work)
        x, y, loss, log_total = places[i, 0], places[i, 1], places[i, 2], places[i, 3]
        results.points[i, 0], results.points[i, 1] = x, y
        columns[_LOG_DENSITY, i] = log_total + ranking.numbers[0]
        columns[_LOG_KDE, i] = _log_kde(x, y, density)
        columns[_FIDELITY, i] = loss
        columns[_COMBINED, i] = _combined(gens[i], -math.sqrt(squares[i]), outlier)
        columns[_P_VALUE, i] = (1.0 + _rank(columns[column, i], calibration)) / (1.0 + len(calibration))
        columns[_TOP, i] = pis[i, label]
        columns[_CONFIDENCE, i] = _confidence(pis[i], logs[i], label, gens[i], columns[:, i], results.rule)
        close += _decide(i, results)
    return close


@_compiled
def _decide(i: int, results: _Results) -> bool:
    """Write the verdict on a row that was scored; whether it is close to the threshold. See `Gate.decide`."""
    rule = results.rule
    p_value, confidence, threshold = results.columns[_P_VALUE, i], results.columns[_CONFIDENCE, i], rule[_THRESHOLD]
    verdict, has_score = _ACCEPTED, rule[_SCORE] != 0.0
    if p_value <= rule[_LEVEL]:
        verdict = _OUTLYING
    elif math.isnan(p_value) or (has_score and math.isnan(confidence)):
        verdict = _UNSCORED
    elif has_score and not confidence > threshold:
        verdict = _LOW
    _judge(verdict, i, results)
    return bool(abs(confidence - threshold) <= rule[_CLOSENESS])


@_compiled
def _judge(verdict: int, i: int, results: _Results) -> None:
    results.verdicts[0, i], results.verdicts[1, i] = results.table[0, verdict], results.table[1, verdict]


@_compiled
def _confidence(pi: Floats, logs: Floats, label: int, gen: float, column: Floats, rule: Floats) -> float:
    """The reject score that the rule names, NaN for none; see `confidence` and `Learned.log_odds`."""
    score = int(rule[_SCORE])
    if score == 0:
        return math.nan
    if score >= _FIRST_COLUMN:
        return float(column[(_LOG_DENSITY, _LOG_KDE, _COMBINED)[score - _FIRST_COLUMN]])
    if score == _GEN:
        return gen
    first, others, second, minus_entropy, squares = pi[label], 0.0, 0.0, 0.0, 0.0
    for k in range(len(pi)):
        # The sum of the others keeps the digits that 1 - p₁ has not.
        p = pi[k] if k != label else 0.0
        others += p
        second = max(second, p)
        minus_entropy += p * logs[k]
        squares += p * p
    msp, margin = logs[label] - math.log(others), -math.log(others + second)
    minus_entropy += first * (math.log1p(-others) if others < 0.5 else logs[label])
    if score == _MSP:
        return float(msp)
    if score == _ENTROPY:
        return float(minus_entropy)
    if score == _MARGIN_SCORE:
        return float(margin)
    if score == _DOCTOR:
        return float(-(first * others + (others - squares)) / (first * first + squares))
    log_odds = rule[_LEARNED] + rule[_LEARNED + 1] * msp + rule[_LEARNED + 2] * min(msp, rule[_LEARNED + 3])
    features = (-math.log(max(-minus_entropy, 1e-300)), margin, column[_LOG_DENSITY], column[_LOG_KDE])
    for j in range(_FEATURE_COUNT):
        weight, mean = rule[_WEIGHTS + j], rule[_WEIGHTS + _FEATURE_COUNT + j]
        spread, least = rule[_WEIGHTS + 2 * _FEATURE_COUNT + j], rule[_WEIGHTS + 3 * _FEATURE_COUNT + j]
        if weight != 0.0:
            cut = min(max(features[j], least), rule[_WEIGHTS + 4 * _FEATURE_COUNT + j])
            log_odds += weight * (cut - mean) / spread
    return float(log_odds + rule[_OFFSETS + label])


@_compiled
def _prepare(
    probs: Floats,
    start: Start,
    softness: float,
    pis: Floats,
    logs: Floats,
    soft: Floats,
    rows: Floats,
    predicted: Words,
) -> None:
    """Write what `prepare_rows` says."""
    count, inputs, classes = len(probs), probs.shape[1], len(start.columns)
    temperature, floor, sharpness = start.numbers[_TEMPERATURE], start.numbers[_FLOOR], 0.5 / softness
    for i in range(count):
        predicted[i] = _top_class(probs[i]) if _lift(probs[i], floor, pis[i]) else -1
    _log(pis.reshape(count * inputs), logs.reshape(count * inputs))
    for i in range(count):
        pi, log, hot, row, total = pis[i], logs[i], soft[i], rows[i], 0.0
        for k in range(inputs):
            total += pi[k]
        log_total, scale = math.log(total), 1.0 / total
        for k in range(inputs):
            log[k] -= log_total
        for k in range(inputs):
            pi[k] *= scale
        top = log[max(predicted[i], 0)]
        for k in range(inputs):
            hot[k] = (log[k] - top) * sharpness
        if classes == inputs and temperature == 1.0:
            shown, its_log = row[:classes], row[classes:]
            for k in range(classes):
                shown[k] = pi[k]
            for k in range(classes):
                its_log[k] = log[k]
        else:
            for k in range(classes):
                row[classes + k] = log[start.columns[k]]
            _temper(row[:classes], row[classes : 2 * classes], temperature)
        row[2 * classes] = 1.0
    _exp(soft.reshape(count * inputs), soft.reshape(count * inputs))
    for i in range(count):
        hot, total = soft[i], 0.0
        for k in range(inputs):
            total += hot[k] * hot[k]
        scale = 1.0 / math.sqrt(total)
        for k in range(inputs):
            hot[k] *= scale


@_compiled
def _lift(probs: Floats, floor: float, pi: Floats) -> bool:
    """Write probabilities, none below the floor, to `pi`; ones, and false, for a row that is not on the simplex."""
    total, low = 0.0, 0
    for k in range(len(probs)):
        p = probs[k]
        # Not "<", so that NaN is caught too.
        low += 0 if p >= -1e-6 else 1
        total += p
        pi[k] = p if p > floor else floor
    if low == 0 and abs(total - 1.0) <= 1e-3:
        return True
    for k in range(len(probs)):
        pi[k] = 1.0
    return False


@_compiled
def _temper(pi: Floats, log: Floats, temperature: float) -> None:
    """Turn log π of some classes into softmax(log π / T) and its logarithm."""
    top, total = log[_largest(log)], 0.0
    for k in range(len(log)):
        log[k] = (log[k] - top) / temperature
    _exp(log, pi)
    for k in range(len(log)):
        total += pi[k]
    log_total, scale = math.log(total), 1.0 / total
    for k in range(len(log)):
        log[k] -= log_total
        pi[k] *= scale


@_compiled
def _log(values: Floats, logs: Floats) -> None:
    """Write the logarithms of positive numbers, none of them tiny, to `logs`; see `_log_and_inverse`."""
    for k in range(len(values)):
        logs[k] = _log_and_inverse(values[k])[0]


@_compiled
def _log_and_inverse(value: float) -> tuple[float, float]:
    """log x and 1 / x of a positive number that is neither tiny nor huge, by one division.

    x = 2ⁿ m with √½ <= m < √2, and log m is a polynomial in (m - 1) / (m + 1) (fdlibm's); right to 1e-15.
    """
    bits = np.float64(value).view(np.int64)
    power = (bits - 0x3FE6A09E667F3BCD) >> 52
    mantissa = np.int64(bits - (power << 52)).view(np.float64)
    inverse = 1.0 / (value * (mantissa + 1.0))
    s = (mantissa - 1.0) * value * inverse
    z = s * s
    far = 0.2222219843214978396 + z * (0.1818357216161805012 + z * (0.1531383769920937332 + z * 0.147981986051165859))
    series = z * (0.666666666666673513 + z * (0.3999999999940941908 + z * (0.2857142874366239149 + z * far)))
    return power * 0.6931471805599453 + s * (2.0 + series), (mantissa + 1.0) * inverse


@_compiled
def _exp(values: Floats, exps: Floats) -> None:
    """Write the exponentials of numbers to `exps`, which may be the same array; what is below -700 counts as that.

    exp x = 2ⁿ exp r with |r| <= log √2, and exp r is its series; right to 1e-14 of itself.
    """
    powers = exps.view(np.int64)
    for k in range(len(values)):
        value = values[k] if values[k] > -700.0 else -700.0
        power = math.floor(value * 1.4426950408889634 + 0.5)
        r = value - power * 0.6931471805599453
        far = 1 / 5040 + r * (1 / 40320 + r * (1 / 362880 + r * (1 / 3628800 + r * (1 / 39916800))))
        near = 0.5 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120 + r * (1 / 720 + r * far))))
        exps[k] = 1.0 + r * (1.0 + r * near)
        powers[k] += np.int64(power) << 52


@_compiled
def _guess(row: Floats, start: Start, least: float, bound: float, values: NDArray[Any], guess: Floats) -> float:
    """Write f_p(π), kept within the bound, to the first two numbers of `guess`; the sum of the inputs left out.

    Those are the ones that are not above `least`. `values` is where numbers between layers stand, (2, widest layer), in
    the precision that the guess is made in.
    """
    network, sizes, features, classes = start.network, start.sizes, start.counts[_FEATURES], len(row) // 2
    inputs, active, first, left_out = values[0], np.empty(sizes.max(), dtype=np.int64), 0, 0.0
    if features != 1:
        for k in range(classes):
            inputs[k] = row[k]
    if features != 0:
        for k in range(classes):
            inputs[sizes[0] - classes + k] = math.log(max(row[k], 1e-8)) / 8.0
    for k in range(sizes[0]):
        left_out += inputs[k] if inputs[k] <= least else 0.0
    for layer in range(len(sizes) - 1):
        width, outputs = sizes[layer], sizes[layer + 1]
        before, after, end = values[layer % 2], values[(layer + 1) % 2][:outputs], first + width * outputs
        # Half of the hidden units rest.
        count, above = 0, least if layer == 0 else 0.0
        for i in range(width):
            active[count] = i
            count += 1 if before[i] > above else 0
        _add_layer(before, active[:count], network[first:end].reshape((width, outputs)), network[end:], after)
        first = end + outputs
    for j in range(2):
        guess[j] = min(max(float(values[(len(sizes) - 1) % 2, j]), -bound), bound)
    return left_out


@_compiled
def _add_layer(
    before: NDArray[Any],
    active: Ints,
    weights: NDArray[np.float32],
    biases: NDArray[np.float32],
    after: NDArray[Any],
) -> None:
    """Write what a layer makes of its active inputs to `after`."""
    count, j = len(active), 0
    for k in range(len(after)):
        after[k] = biases[k]
    # Four inputs at a time, because reading and writing the sums takes longer than adding to them.
    while j + 3 < count:
        a, b, c, d = active[j], active[j + 1], active[j + 2], active[j + 3]
        value_a, value_b, value_c, value_d = before[a], before[b], before[c], before[d]
        from_a, from_b, from_c, from_d = weights[a], weights[b], weights[c], weights[d]
        for k in range(len(after)):
            after[k] += (value_a * from_a[k] + value_b * from_b[k]) + (value_c * from_c[k] + value_d * from_d[k])
        j += 4
    while j < count:
        value_a, from_a = before[active[j]], weights[active[j]]
        for k in range(len(after)):
            after[k] += value_a * from_a[k]
        j += 1


@_compiled
def _cost(row: Floats, weights: Floats) -> float:
    """Twice KL_sym at an anchor, without the row's own entropy."""
    cost = 0.0
    for k in range(len(row)):
        cost += row[k] * weights[k]
    return cost


@_compiled
def _single_cost(row: NDArray[np.float32], weights: NDArray[np.float32]) -> float:
    """The same in float32."""
    cost = np.float32(0.0)
    for k in range(len(row)):
        cost += row[k] * weights[k]
    return float(cost)


@_compiled
def _group(row: Floats, plane: Plane) -> tuple[NDArray[np.float32], NDArray[np.float32], Floats]:
    """(Π, log Π, 1) of the coarsest groups of classes and of those of all other levels, and Σ Π log Π of each level.

    Levels are in the order of `plane.screens`; of the Σ Π log Π that of the coarsest is the last.
    """
    classes, levels, child = len(row) // 2, plane.levels, 0
    coarse = np.empty(plane.coarse.shape[1], dtype=np.float32)
    finer, entropies = np.empty(2 * levels.sum() + len(levels), dtype=np.float32), np.empty(len(levels) + 1)
    sums, logs, end = row[:classes], row[classes : 2 * classes], len(finer)
    for level in range(len(levels) - 1, -2 if len(plane.coarse) else -1, -1):
        groups, minus_entropy = len(sums), 0.0
        part = finer[end - 2 * groups - 1 : end] if level >= 0 else coarse
        for g in range(groups):
            minus_entropy += sums[g] * logs[g]
        for g in range(groups):
            part[g] = sums[g]
        for g in range(groups):
            part[groups + g] = logs[g]
        part[2 * groups] = 1.0
        entropies[level] = minus_entropy
        if child < len(plane.parents):
            end -= 2 * groups + 1
            # Below the smallest probability by far, but it has a logarithm.
            fewer = np.full(levels[level - 1] if level > 0 else len(coarse) // 2, 1e-300)
            parents = plane.parents[child : child + groups]
            for g in range(groups):
                fewer[parents[g]] += sums[g]
            child += groups
            sums, logs = fewer, np.empty(len(fewer))
            _log(sums, logs)
    return coarse, finer, entropies


@_compiled
def _best_anchor(row: Floats, label: int, limit: float, plane: Plane) -> tuple[int, float]:
    """Index of the anchor of least KL_sym, or -1 if none is below the limit, and KL_sym there, or the limit."""
    classes, minus_entropy, other = len(row) // 2, 0.0, 0.0
    for k in range(classes):
        minus_entropy += row[k] * row[classes + k]
        if k != label:
            other += row[k]
    # Below the smallest probability by far, but a row of one class has no other.
    log_odds = row[classes + label] - math.log(max(other, 1e-300))
    order, known, others = plane.order[label], plane.log_odds[label], plane.others[label]
    middle, best = _rank(log_odds, known), -1
    for side in range(2):
        j = middle if side == 0 else middle - 1
        while 0 <= j < len(order):
            # What float32 rounds off is made up for, so that no anchor is missed.
            if 0.5 * (float(others[j]) - other) * (log_odds - float(known[j])) > limit * 1.0001 + 1e-9:
                break
            m = order[j]
            loss = 0.5 * (_cost(row, plane.anchor_weights[m]) + minus_entropy)
            if loss < limit:
                best, limit = m, loss
            j += 1 if side == 0 else -1
    return best, limit


@_compiled
def _best_anchor_of_many(row: Floats, label: int, limit: float, plane: Plane) -> tuple[int, float]:
    """As `_best_anchor`, where groups of classes tell of most anchors that they need not be tried.

    A function by itself, because the other is half as fast with this in it.
    """
    classes, other, count = len(row) // 2, 0.0, 0
    for k in range(classes):
        other += row[k] if k != label else 0.0
    log_odds = row[classes + label] - math.log(max(other, 1e-300))
    order, known, others = plane.order[label], plane.log_odds[label], plane.others[label]
    middle, some = _rank(log_odds, known), np.empty(len(order), dtype=np.int64)
    for side in range(2):
        j = middle if side == 0 else middle - 1
        while 0 <= j < len(order):
            if 0.5 * (float(others[j]) - other) * (log_odds - float(known[j])) > limit * 1.0001 + 1e-9:
                break
            some[count] = order[j]
            count += 1
            j += 1 if side == 0 else -1
    _, finer, entropies = _group(row, plane)
    return _best_of(some[:count], row, limit, finer, entropies, plane)


@_compiled
def _best_anchor_of_most(row: Floats, limit: float, plane: Plane) -> tuple[int, float]:
    """The same where the coarsest groups choose the anchors to try: orders by log-odds would take too much room."""
    coarse, finer, entropies = _group(row, plane)
    costs, count = np.empty((len(plane.coarse), BLOCK), dtype=np.float32), 0
    some = np.empty(len(plane.anchors), np.int64)
    limit = _likely_limit(row, limit, finer, entropies, plane)
    _affinity(coarse, plane.coarse, costs)
    most = np.float32(_most(limit, len(row) // 2, entropies[-1]))
    for block in range(len(costs)):
        part, found = costs[block], np.int32(0)
        for j in range(len(part)):
            found = np.int32(found | np.int32(part[j] <= most))
        if found:
            for j in range(len(part)):
                if part[j] <= most:
                    some[count] = block * BLOCK + j
                    count += 1
    return _best_of(some[:count], row, limit, finer, entropies, plane)


@_compiled
def _likely_limit(row: Floats, limit: float, finer: NDArray[np.float32], entropies: Floats, plane: Plane) -> float:
    """A limit below which the best anchor is, from those where the student predicts a likely class."""
    last, bits = len(plane.levels) - 1, np.int64(_ALL)
    whole, screen = _level(finer, last, plane)
    for _ in range(_LIKELY):
        label, bits = _most_probable(row[: len(row) // 2], bits)
        if label < 0:
            break
        for j in range(plane.inside_starts[label], plane.inside_starts[label + 1]):
            cost = _single_cost(whole, screen[plane.inside[j]])
            limit = min(limit, _loss_at_most(cost, len(row) // 2, entropies[last]))
    return limit


@_compiled
def _level(finer: NDArray[np.float32], level: int, plane: Plane) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A row's (Π, log Π, 1) on one level, and the screen of the anchors there, (M, 2G + 1)."""
    anchors, start = len(plane.anchors), 2 * plane.levels[:level].sum() + level
    end = start + 2 * plane.levels[level] + 1
    return finer[start:end], plane.screens[anchors * start : anchors * end].reshape((anchors, end - start))


@_compiled
def _best_of(
    some: Ints, row: Floats, limit: float, finer: NDArray[np.float32], entropies: Floats, plane: Plane
) -> tuple[int, float]:
    """What `_best_anchor` says of some anchors, whose array is written to."""
    count, last, best = len(some), len(plane.levels) - 1, -1
    costs, (whole, screen) = np.empty(count, dtype=np.float32), _level(finer, last, plane)
    for level in range(last + 1):
        part, part_screen = _level(finer, level, plane)
        least, kept = 0, 0
        for j in range(count):
            costs[j] = _single_cost(part, part_screen[some[j]])
            least = j if costs[j] < costs[least] else least
        if count:
            # The likeliest first: the lower the limit, the fewer are left for the next level.
            cost = _single_cost(whole, screen[some[least]])
            limit = min(limit, _loss_at_most(cost, len(row) // 2, entropies[last]))
        most = _most(limit, len(row) // 2, entropies[level])
        for j in range(count):
            if costs[j] <= most:
                some[kept] = some[j]
                kept += 1
        count = kept
    for j in range(count):
        loss = 0.5 * (_cost(row, plane.anchor_weights[some[j]]) + entropies[last])
        if loss < limit:
            best, limit = some[j], loss
    return best, limit


@_compiled
def _loss_at_most(cost: float, classes: int, minus_entropy: float) -> float:
    """What KL_sym of an anchor is below, whose cost in float32 is given; see `_most`."""
    share = (2 * classes + 9) * 2.0**-24
    return 0.5 * (cost + share * (abs(cost) + 2.0 * (math.log(classes) + 1.0)) + minus_entropy) * 1.0001 + 1e-9


@_compiled
def _most(limit: float, classes: int, minus_entropy: float) -> float:
    """What the cost in float32 is at most of an anchor whose KL_sym is below the limit, on a level of groups."""
    # All terms of a cost but Q·log Q are positive, so their sizes sum to at most cost + 2 log K. Both factors and each
    # of the 2K + 1 sums are rounded to 24 bits. What float32 rounds off is made up for, so that no anchor is missed.
    share = (2 * classes + 9) * 2.0**-24
    rounding = share * 2.0 * (math.log(classes) + 1.0)
    return (2.0 * (limit * 1.0001 + 1e-9) + rounding - minus_entropy) / (1.0 - share)


@_compiled
def _posterior(x: float, y: float, theta: Floats, power: float, work: Floats) -> tuple[float, float]:
    """Write -2c / (|y - μ|² + v), s and exp(s), up to a factor, to `work`; log Σ exp s, and what makes the sum one."""
    at_x, at_y, offset, spread, factor = theta[0], theta[1], theta[2], theta[3], theta[4]
    slope, score, q, top, total = work[0], work[1], work[2], 0.0, 0.0
    for k in range(len(q)):
        gap_x, gap_y = x - at_x[k], y - at_y[k]
        log, inverse = _log_and_inverse(gap_x * gap_x + gap_y * gap_y + spread[k])
        slope[k] = -2.0 * power * inverse
        score[k] = offset[k] - power * log
    if power == 2.0:
        # ν = 2 is the default, and there exp(s) takes no exponential.
        for k in range(len(q)):
            q[k] = factor[k] * slope[k] * slope[k]
    else:
        top = score[_largest(score)]
        for k in range(len(q)):
            q[k] = score[k] - top
        _exp(q, q)
    for k in range(len(q)):
        total += q[k]
    return top + math.log(total), 1.0 / total


@_compiled
def _look(x: float, y: float, pair: Floats, theta: Floats, power: float, work: Floats) -> Local:
    """KL_sym, log Σ exp s, gradient x, y and Hessian xx, yy, xy at a point, for (π, log π); see `embed._look`."""
    log_total, scale = _posterior(x, y, theta, power, work)
    pi, log_pi, at_x, at_y, slope, score, q = pair[0], pair[1], theta[0], theta[1], work[0], work[1], work[2]
    loss, mean = 0.0, 0.0
    for k in range(len(q)):
        surprise = log_pi[k] - score[k] + log_total
        loss += (pi[k] - q[k] * scale) * surprise
        mean += q[k] * scale * surprise
    g_x, g_y, mean_x, mean_y, tilt_x, tilt_y = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    h_xx, h_yy, h_xy, bend = 0.0, 0.0, 0.0, 0.0
    share, level = 1.0 / power, log_total - mean
    for k in range(len(q)):
        own = q[k] * scale
        along_x, along_y = slope[k] * (x - at_x[k]), slope[k] * (y - at_y[k])
        tilt = own * (log_pi[k] - score[k] + level)
        pull = 0.5 * (own - pi[k] - tilt)
        weight = own - 0.5 * tilt + share * pull
        mean_x += own * along_x
        mean_y += own * along_y
        tilt_x += tilt * along_x
        tilt_y += tilt * along_y
        g_x += pull * along_x
        g_y += pull * along_y
        bend += pull * slope[k]
        h_xx += weight * along_x * along_x
        h_yy += weight * along_y * along_y
        h_xy += weight * along_x * along_y
    h_xx += bend - mean_x * (mean_x - tilt_x)
    h_yy += bend - mean_y * (mean_y - tilt_y)
    h_xy += 0.5 * (tilt_x * mean_y + tilt_y * mean_x) - mean_x * mean_y
    return 0.5 * loss, log_total, g_x, g_y, h_xx, h_yy, h_xy


@_compiled
def _rival(x: float, y: float, label: int, theta: Floats, reach: float, hint: int) -> int:
    """A class over which a class does not lead at a point by log-odds above c log `reach`, or the class itself if none.

    s_l - s_k > c log reach is d_k exp(b_l / c) > reach d_l exp(b_k / c) with d = |y - μ|² + v, without logarithms. The
    hint is asked first: near the edge of a region it is the same class again and again.
    """
    at_x, at_y, spread, ratio, rivals = theta[0], theta[1], theta[3], theta[5], 0
    own = reach * _spread_square(x - at_x[label], y - at_y[label], spread[label]) / ratio[label]
    if hint != label and _spread_square(x - at_x[hint], y - at_y[hint], spread[hint]) <= own * ratio[hint]:
        return hint
    for k in range(len(ratio)):
        rivals += 1 if _spread_square(x - at_x[k], y - at_y[k], spread[k]) <= own * ratio[k] else 0
    # One of them is the class itself.
    if rivals > 1:
        for k in range(len(ratio)):
            if k != label and _spread_square(x - at_x[k], y - at_y[k], spread[k]) <= own * ratio[k]:
                return k
    return label


@_compiled
def _spread_square(gap_x: float, gap_y: float, spread: float) -> float:
    return gap_x * gap_x + gap_y * gap_y + spread


@_compiled
def _newton(
    x: float,
    y: float,
    local: Local,
    pair: Floats,
    label: int,
    reach: float,
    steps: int,
    plane: Plane,
    work: Floats,
) -> Place:
    """Point, KL_sym and log Σ exp s after damped Newton steps from a point and what `_look` says there.

    Steps after which the class has a `_rival` are not taken, unless `reach` is 0; see `Embedder._newton`.
    """
    theta, numbers = plane.theta, plane.numbers
    power, bound, slack, rest = numbers[_POWER], numbers[_BOUND], numbers[_SLACK], numbers[_REST]
    damping, rival = 1e-3, label
    for _ in range(steps):
        _, _, g_x, g_y, h_xx, h_yy, h_xy = local
        step_x, step_y, length = _step(g_x, g_y, h_xx, h_yy, h_xy, damping)
        if length < rest * bound:
            break
        factor = min(0.1 * bound / length, 1.0)
        trial_x = min(max(x + factor * step_x, -bound), bound)
        trial_y = min(max(y + factor * step_y, -bound), bound)
        # First, because it takes a fraction of what the look takes, and on the edge of a region it often fails.
        better = True
        if reach != 0.0:
            rival = _rival(trial_x, trial_y, label, theta, reach, rival)
            better = rival == label
        if better:
            there = _look(trial_x, trial_y, pair, theta, power, work)
            better = there[0] < local[0] + slack
            if better:
                x, y, local = trial_x, trial_y, there
        damping = max(0.2 * damping, 1e-6) if better else min(10.0 * damping, 1e4)
    return x, y, local[0], local[1]


@_compiled
def _look_many(at: Floats, pis: Floats, logs: Floats, theta: Floats, power: float, work: Floats, sums: Floats) -> None:
    """Write what `_look` says of many rows (K, n) at as many points (2, n) to the first seven rows of `sums`; ν = 2.

    `sums` is (14, n) and `work` (3, K, n). Loops run over all rows of a class, several of which are done at a time.
    """
    (classes, n), x, y, share = pis.shape, at[0], at[1], 1.0 / power
    loss, log_total, g_x, g_y, h_xx, h_yy, h_xy = sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6]
    mean_x, mean_y, tilt_x, tilt_y, bend, mean, total = (
        sums[7], sums[8], sums[9], sums[10], sums[11], sums[12], sums[13],
    )  # fmt: skip
    for j in range(len(sums)):
        line = sums[j]
        for i in range(n):
            line[i] = 0.0
    for k in range(classes):
        slope, surprise, q, log_pi = work[0, k], work[1, k], work[2, k], logs[k]
        at_x, at_y, offset, spread, factor = theta[0, k], theta[1, k], theta[2, k], theta[3, k], theta[4, k]
        for i in range(n):
            gap_x, gap_y = x[i] - at_x, y[i] - at_y
            log, inverse = _log_and_inverse(gap_x * gap_x + gap_y * gap_y + spread)
            slope[i] = -2.0 * power * inverse
            surprise[i] = log_pi[i] - offset + power * log
            q[i] = factor * slope[i] * slope[i]
            total[i] += q[i]
    for i in range(n):
        log_total[i], total[i] = _log_and_inverse(total[i])
    for k in range(classes):
        surprise, q, pi = work[1, k], work[2, k], pis[k]
        for i in range(n):
            own, its_surprise = q[i] * total[i], surprise[i] + log_total[i]
            q[i], surprise[i] = own, its_surprise
            loss[i] += 0.5 * (pi[i] - own) * its_surprise
            mean[i] += own * its_surprise
    for k in range(classes):
        slope, surprise, q, pi, at_x, at_y = work[0, k], work[1, k], work[2, k], pis[k], theta[0, k], theta[1, k]
        for i in range(n):
            along_x, along_y = slope[i] * (x[i] - at_x), slope[i] * (y[i] - at_y)
            tilt = q[i] * (surprise[i] - mean[i])
            pull = 0.5 * (q[i] - pi[i] - tilt)
            weight = q[i] - 0.5 * tilt + share * pull
            bend[i] += pull * slope[i]
            mean_x[i] += q[i] * along_x
            mean_y[i] += q[i] * along_y
            tilt_x[i] += tilt * along_x
            tilt_y[i] += tilt * along_y
            g_x[i] += pull * along_x
            g_y[i] += pull * along_y
            h_xx[i] += weight * along_x * along_x
            h_yy[i] += weight * along_y * along_y
            h_xy[i] += weight * along_x * along_y
    for i in range(n):
        h_xx[i] += bend[i] - mean_x[i] * (mean_x[i] - tilt_x[i])
        h_yy[i] += bend[i] - mean_y[i] * (mean_y[i] - tilt_y[i])
        h_xy[i] += 0.5 * (tilt_x[i] * mean_y[i] + tilt_y[i] * mean_x[i]) - mean_x[i] * mean_y[i]


@_compiled
def _step(g_x: float, g_y: float, h_xx: float, h_yy: float, h_xy: float, damping: float) -> tuple[float, float, float]:
    """The damped Newton step and its length; see `embed._direction`."""
    shift = damping + 1e-6
    middle, half = 0.5 * (h_xx + h_yy), 0.5 * (h_xx - h_yy)
    split = max(math.sqrt(half * half + h_xy * h_xy), 1e-20)
    inverse_1 = 1.0 / (abs(middle + split) + shift)
    inverse_2 = 1.0 / (abs(middle - split) + shift)
    even, odd = 0.5 * (inverse_1 + inverse_2), 0.5 * (inverse_1 - inverse_2) / split
    x, y = -(even * g_x + odd * (half * g_x + h_xy * g_y)), -(even * g_y + odd * (h_xy * g_x - half * g_y))
    return x, y, max(math.sqrt(x * x + y * y), 1e-20)


@_compiled
def _newton_many(
    at: Floats, pis: Floats, logs: Floats, labels: Ints, reach: float, steps: int, plane: Plane, here: Floats
) -> None:
    """Move the points (2, n) of many rows (K, n) as `_newton` does; the `sums` of `_look_many` there go to `here`."""
    theta, numbers, (classes, n) = plane.theta, plane.numbers, pis.shape
    power, bound, slack, rest = numbers[_POWER], numbers[_BOUND], numbers[_SLACK], numbers[_REST]
    work, there = np.empty((3, classes, n)), np.empty((14, n))
    trial, moves, damping = np.empty((2, n)), np.empty(n, dtype=np.bool_), np.full(n, 1e-3)
    _look_many(at, pis, logs, theta, power, work, here)
    for _ in range(steps):
        for i in range(n):
            x, y, length = _step(here[2, i], here[3, i], here[4, i], here[5, i], here[6, i], damping[i])
            factor = min(0.1 * bound / length, 1.0)
            moves[i] = length >= rest * bound
            trial[0, i] = min(max(at[0, i] + factor * x, -bound), bound)
            trial[1, i] = min(max(at[1, i] + factor * y, -bound), bound)
        _look_many(trial, pis, logs, theta, power, work, there)
        for i in range(n):
            better = moves[i] and there[0, i] < here[0, i] + slack
            if better and reach != 0.0:
                better = _rival(trial[0, i], trial[1, i], labels[i], theta, reach, labels[i]) == labels[i]
            if better:
                at[0, i], at[1, i] = trial[0, i], trial[1, i]
                for j in range(7):
                    here[j, i] = there[j, i]
                damping[i] = max(0.2 * damping[i], 1e-6)
            elif moves[i]:
                damping[i] = min(10.0 * damping[i], 1e4)


@_compiled
def _place_many(guesses: Floats, rows: Floats, predicted: Words, start: Start, plane: Plane, places: Floats) -> None:
    """Write point, KL_sym and log Σ exp s of many rows to `places`, (n, 4), as `_place` finds them; bad rows too."""
    count, classes, numbers, counts = len(rows), plane.theta.shape[1], plane.numbers, plane.counts
    at, pis, logs = np.zeros((2, count)), np.empty((classes, count)), np.empty((classes, count))
    here, labels = np.empty((14, count)), np.empty(count, dtype=np.int64)
    for i in range(count):
        row = rows[i]
        for k in range(classes):
            pis[k, i], logs[k, i] = row[k], row[classes + k]
        labels[i] = _top_class(row[:classes])
        if predicted[i] >= 0:
            at[0, i], at[1, i] = guesses[i, 0], guesses[i, 1]
    _look_many(at, pis, logs, plane.theta, numbers[_POWER], np.empty((3, classes, count)), here)
    for i in range(count):
        if predicted[i] >= 0:
            at[0, i], at[1, i] = _start(guesses[i], rows[i], labels[i], here[:, i], start, plane)
    _newton_many(at, pis, logs, labels, 0.0, counts[_STEPS], plane, here)
    for i in range(count):
        places[i, 0], places[i, 1], places[i, 2], places[i, 3] = at[0, i], at[1, i], here[0, i], here[1, i]
    _keep_classes(rows, predicted, labels, plane, places)


@_compiled
def _start(guess: Floats, row: Floats, label: int, here: Floats, start: Start, plane: Plane) -> tuple[float, float]:
    """Where `_place` starts, from what `_look_many` says at a rough guess."""
    theta, classes = plane.theta, plane.theta.shape[1]
    doubt = _doubt(here[2], here[3], here[4], here[5], here[6], guess[2])
    best, least = _best_anchor(row, label, here[0] + doubt, plane)
    if best < 0 or not least < here[0] - doubt:
        _exact_guess(row, start, plane.numbers[_BOUND], guess)
        pair = row[: 2 * classes].reshape((2, classes))
        there = _look(guess[0], guess[1], pair, theta, plane.numbers[_POWER], np.empty((3, classes)))
        best = best if least < there[0] else -1
    return (plane.anchors[best, 0], plane.anchors[best, 1]) if best >= 0 else (guess[0], guess[1])


@_compiled
def _keep_classes(rows: Floats, predicted: Words, labels: Ints, plane: Plane, places: Floats) -> None:
    """Do what `_keep_class` does to the places (n, 4) of many rows."""
    theta, numbers, classes = plane.theta, plane.numbers, plane.theta.shape[1]
    reach = math.exp(numbers[_MARGIN] / numbers[_POWER])
    astray, anchors, n = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64), 0
    for i in range(len(rows)):
        rival = _rival(places[i, 0], places[i, 1], labels[i], theta, reach, labels[i])
        if predicted[i] >= 0 and rival != labels[i]:
            astray[n], anchors[n] = i, _inside_anchor(rows[i], labels[i], plane)[0]
            n += 1 if anchors[n] >= 0 else 0
    if n == 0:
        return
    pis, logs, own = np.empty((classes, n)), np.empty((classes, n)), np.empty(n, dtype=np.int64)
    edge, inside = np.empty((2, n)), np.empty((2, n))
    for j in range(n):
        i, row = astray[j], rows[astray[j]]
        for k in range(classes):
            pis[k, j], logs[k, j] = row[k], row[classes + k]
        own[j], inside[0, j], inside[1, j] = labels[i], plane.anchors[anchors[j], 0], plane.anchors[anchors[j], 1]
        edge[0, j], edge[1, j] = _edge(inside[0, j], inside[1, j], places[i, 0], places[i, 1], own[j], reach, plane)
    work, here, there = np.empty((3, classes, n)), np.empty((14, n)), np.empty((14, n))
    _look_many(edge, pis, logs, theta, numbers[_POWER], work, here)
    _look_many(inside, pis, logs, theta, numbers[_POWER], work, there)
    for j in range(n):
        if not here[0, j] < there[0, j]:
            edge[0, j], edge[1, j] = inside[0, j], inside[1, j]
    _newton_many(edge, pis, logs, own, reach, plane.counts[_INSIDE_STEPS], plane, here)
    for j in range(n):
        place = places[astray[j]]
        place[0], place[1], place[2], place[3] = edge[0, j], edge[1, j], here[0, j], here[1, j]


@_compiled
def _place(guess: Floats, row: Floats, start: Start, plane: Plane, work: Floats) -> Place:
    """Point, KL_sym and log Σ exp s of a row, from f_p's guess or the best anchor; see `Embedder._place`.

    The guess is a rough one. It is made again where that may matter; most of the time an anchor is clearly better.
    """
    theta, power, classes = plane.theta, plane.numbers[_POWER], plane.theta.shape[1]
    label, pair = _top_class(row[:classes]), row[: 2 * classes].reshape((2, classes))
    x, y = guess[0], guess[1]
    here = _look(x, y, pair, theta, power, work)
    doubt = _doubt(here[2], here[3], here[4], here[5], here[6], guess[2])
    if len(plane.coarse):
        best, least = _best_anchor_of_most(row, here[0] + doubt, plane)
    elif len(plane.levels):
        best, least = _best_anchor_of_many(row, label, here[0] + doubt, plane)
    else:
        best, least = _best_anchor(row, label, here[0] + doubt, plane)
    if best < 0 or not least < here[0] - doubt:
        _exact_guess(row, start, plane.numbers[_BOUND], guess)
        x, y = guess[0], guess[1]
        here = _look(x, y, pair, theta, power, work)
        best = best if least < here[0] else -1
    if best >= 0:
        x, y = plane.anchors[best, 0], plane.anchors[best, 1]
        here = _look(x, y, pair, theta, power, work)
    place = _newton(x, y, here, pair, label, 0.0, plane.counts[_STEPS], plane, work)
    return _keep_class(place, row, label, plane, work)


@_compiled
def _doubt(g_x: float, g_y: float, h_xx: float, h_yy: float, h_xy: float, distance: float) -> float:
    """How much KL_sym may change over a distance, by its derivatives, twice."""
    slope, bend = math.sqrt(g_x * g_x + g_y * g_y), abs(h_xx) + abs(h_yy) + abs(h_xy)
    return (2.0 * slope + bend * distance) * distance


@_compiled
def _exact_guess(row: Floats, start: Start, bound: float, guess: Floats) -> None:
    """Write f_p(π) in float64 to `guess`."""
    _guess(row, start, -np.inf, bound, np.empty((2, start.sizes.max())), guess)


@_compiled
def _keep_class(place: Place, row: Floats, label: int, plane: Plane, work: Floats) -> Place:
    """The place itself, or the best one where the student predicts the row's class if it does not do so there."""
    theta, power = plane.theta, plane.numbers[_POWER]
    reach, pair = math.exp(plane.numbers[_MARGIN] / power), row[: len(row) - 1].reshape((2, len(row) // 2))
    if _rival(place[0], place[1], label, theta, reach, label) == label:
        return place
    inside, _ = _inside_anchor(row, label, plane)
    if inside < 0:
        return place
    from_x, from_y = plane.anchors[inside, 0], plane.anchors[inside, 1]
    x, y = _edge(from_x, from_y, place[0], place[1], label, reach, plane)
    here, there = _look(x, y, pair, theta, power, work), _look(from_x, from_y, pair, theta, power, work)
    if not here[0] < there[0]:
        x, y, here = from_x, from_y, there
    return _newton(x, y, here, pair, label, reach, plane.counts[_INSIDE_STEPS], plane, work)


@_compiled
def _inside_anchor(row: Floats, label: int, plane: Plane) -> tuple[int, float]:
    """The anchor of least `_cost` among those where the student predicts the class, -1 if there is none, and that."""
    best, least = -1, np.inf
    for j in range(plane.inside_starts[label], plane.inside_starts[label + 1]):
        cost = _cost(row, plane.anchor_weights[plane.inside[j]])
        if cost < least:
            best, least = plane.inside[j], cost
    return best, least


@_compiled
def _edge(
    from_x: float, from_y: float, to_x: float, to_y: float, label: int, reach: float, plane: Plane
) -> tuple[float, float]:
    """The last point found by halving at which the class leads, on the way from one where it does to another."""
    low, high, rival = 0.0, 1.0, label
    for _ in range(plane.counts[_BISECTIONS]):
        middle = 0.5 * (low + high)
        x, y = from_x + middle * (to_x - from_x), from_y + middle * (to_y - from_y)
        found = _rival(x, y, label, plane.theta, reach, rival)
        if found == label:
            low = middle
        else:
            high, rival = middle, found
    return from_x + low * (to_x - from_x), from_y + low * (to_y - from_y)


@_compiled
def _combined(gen: float, soft_knn: float, outlier: Outlier) -> float:
    """Sum of the two log ranks; see `OutlierScore.score`."""
    numbers = outlier.numbers
    gen_rank = _log_rank(gen, outlier.gen_scores, outlier.gen_log_ranks, numbers[_GEN_SLOPE])
    return gen_rank + _log_rank(soft_knn, outlier.soft_scores, outlier.soft_log_ranks, numbers[_SOFT_SLOPE])


@_compiled
def _gen(pis: Floats, logs: Floats, predicted: Words, gamma: float, top_classes: int, gens: Floats) -> None:
    """Write the generalised entropy of the most probable classes, negated, to `gens`; see `confidence.gen`."""
    count, inputs = pis.shape
    kept = min(inputs, top_classes)
    rests, terms = np.empty((count, kept)), np.empty((count, kept))
    for i in range(count):
        pi, rest, term, top, others = pis[i], rests[i], terms[i], max(predicted[i], 0), 0.0
        for k in range(inputs):
            others += pi[k] if k != top else 0.0
        if kept < inputs:
            _select(pi, rest)
            top = _largest(rest)
        else:
            for k in range(inputs):
                rest[k] = pi[k]
        for k in range(kept):
            term[k] = rest[k] * (1.0 - rest[k])
        # The sum of the others keeps the digits that 1 - p₁ has not.
        term[top] = rest[top] * others
    _log(terms.reshape(count * kept), rests.reshape(count * kept))
    for i in range(count):
        rest = rests[i]
        for k in range(kept):
            rest[k] *= gamma
    _exp(rests.reshape(count * kept), rests.reshape(count * kept))
    for i in range(count):
        rest, total = rests[i], 0.0
        for k in range(kept):
            total += rest[k]
        gens[i] = -total


@_compiled
def _select(values: Floats, largest: Floats) -> None:
    """Write the largest of positive numbers, as many as there is room for, to `largest`."""
    # Positive floats are in the order of their bits, the first of which are sorted into bins.
    bits, kept, shift = values.view(np.int64), len(largest), 0
    low, high = bits[0], bits[0]
    for k in range(len(bits)):
        low, high = min(low, bits[k]), max(high, bits[k])
    while (high - low) >> shift > 511:
        shift += 1
    counts = np.zeros(512, dtype=np.int64)
    for k in range(len(bits)):
        counts[(bits[k] - low) >> shift] += 1
    edge, found, met = 511, 0, 0
    while found + counts[edge] < kept:
        found += counts[edge]
        edge -= 1
    needed, on_edge, found = kept - found, np.empty(counts[edge]), 0
    for k in range(len(bits)):
        place = (bits[k] - low) >> shift
        if place > edge:
            largest[found] = values[k]
            found += 1
        elif place == edge:
            on_edge[met] = values[k]
            met += 1
    if needed < met and on_edge.min() < on_edge.max():
        on_edge = np.partition(on_edge, met - needed)
    for k in range(needed):
        largest[found + k] = on_edge[met - needed + k]


@_compiled
def _affinity(row: NDArray[np.float32], screen: NDArray[np.float32], affinity: NDArray[np.float32]) -> None:
    """Write the products of a row with all rows of a screen to `affinity`."""
    classes = len(row)
    for block in range(len(screen)):
        rows, sums, k = screen[block], affinity[block], 0
        for m in range(len(sums)):
            sums[m] = 0.0
        # Four classes at a time, because reading and writing the sums takes longer than adding to them.
        while k + 3 < classes:
            a, b, c, d = row[k], row[k + 1], row[k + 2], row[k + 3]
            row_a, row_b, row_c, row_d = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
            for m in range(len(sums)):
                sums[m] += (a * row_a[m] + b * row_b[m]) + (c * row_c[m] + d * row_d[m])
            k += 4
        while k < classes:
            a, row_a = row[k], rows[k]
            for m in range(len(sums)):
                sums[m] += a * row_a[m]
            k += 1


@_compiled
def single_error(classes: int) -> float:
    """What a product of rows of length one in float32 is off at most: factors and each sum are rounded to 24 bits.

    Four times that, so that it holds for products of `_parts` as well, which are rounded before: those are too large by
    more than the product itself, but for this.
    """
    return (classes + 8) * 2.0**-22


@_compiled
def _parts(soft: Floats, directions: NDArray[np.float32], parts: NDArray[np.float32]) -> None:
    """Write the parts of a row of length one in some directions, and the length of the rest, to `parts`.

    Of two rows the products of these sum to at least the product of the rows, because that of their rests is at most
    that of the rests' lengths.
    """
    inside, square, k = parts[: directions.shape[1]], 0.0, 0
    for j in range(len(inside)):
        inside[j] = 0.0
    while k + 3 < len(soft):
        a, b, c, d = np.float32(soft[k]), np.float32(soft[k + 1]), np.float32(soft[k + 2]), np.float32(soft[k + 3])
        from_a, from_b, from_c, from_d = directions[k], directions[k + 1], directions[k + 2], directions[k + 3]
        for j in range(len(inside)):
            inside[j] += (a * from_a[j] + b * from_b[j]) + (c * from_c[j] + d * from_d[j])
        k += 4
    while k < len(soft):
        a, from_a = np.float32(soft[k]), directions[k]
        for j in range(len(inside)):
            inside[j] += a * from_a[j]
        k += 1
    for j in range(len(inside)):
        square += inside[j] * inside[j]
    parts[len(inside)] = math.sqrt(max(1.0 - square + single_error(len(soft)), 0.0))


@_compiled
def _wide_affinity(soft: Floats, wide: Words, affinity: NDArray[np.float32]) -> float:
    """Write the products of a long row with all stored rows to `affinity`; what they are off at most.

    16 bits are half of the memory of float32, from which rows so long are read cold. With each entry off by half a step
    at most, and Σ a <= √K for rows of length one, a product is off by √K / S + K / 4S², and by float32.
    """
    rows = wide.view(np.int16)
    row, root = np.zeros(rows.shape[1], dtype=np.int16), math.sqrt(len(soft))
    for k in range(len(soft)):
        row[k] = int(soft[k] * STEPS + 0.5)
    for m in range(len(rows)):
        stored, total = rows[m], np.int32(0)
        for k in range(len(row)):
            total = np.int32(total + np.int32(np.int32(row[k]) * np.int32(stored[k])))
        affinity[m // BLOCK, m % BLOCK] = total / STEPS**2
    return root / STEPS * (1.0 + root / (4 * STEPS)) + 2.0**-24


@_compiled
def _square_distance(
    soft: Floats, affinity: NDArray[np.float32], error: float, rows: Floats, lanes: NDArray[np.float32], best: Floats
) -> float:
    """Square distance to the k-th nearest stored row, k being the length of `best`; see `SoftNeighbours.score`.

    `affinity` has the products with all stored rows, none of them below its true value by more than `error`; it is
    written to. Rows of length one have the square distance 2 - 2 a·b, so that after a few rows only those can be nearer
    whose product is large enough. `lanes` gets the largest product at each place of the blocks.
    """
    # No product is negative, so they are in the order of their bits, whose largest are found several at a time.
    bits, tops = affinity.view(np.int32), lanes.view(np.int32)
    for j in range(len(tops)):
        tops[j] = 0
    for block in range(len(bits)):
        part = bits[block]
        for j in range(len(tops)):
            tops[j] = max(tops[j], part[j])
    for j in range(len(best)):
        best[j] = np.inf
    # The most promising rows first, each of another lane.
    top = np.int32(2**31 - 1)
    for _ in range(len(best)):
        limit, top, lane, block = top, np.int32(0), 0, 0
        for j in range(len(tops)):
            top = max(top, tops[j] if tops[j] < limit else np.int32(0))
        while lane < len(tops) - 1 and tops[lane] != top:
            lane += 1
        while block < len(bits) - 1 and bits[block, lane] != top:
            block += 1
        if bits[block, lane] == top:
            _insert(_square(soft, rows[block * BLOCK + lane]), best)
            affinity[block, lane] = np.nan
    for j in range(len(lanes)):
        if 1.0 - 0.5 * best[-1] - error <= lanes[j]:
            for block in range(len(affinity)):
                if 1.0 - 0.5 * best[-1] - error <= affinity[block, j]:
                    _insert(_square(soft, rows[block * BLOCK + j]), best)
    return float(best[-1])


@_compiled
def _square(first: Floats, second: Floats) -> float:
    """Square distance of two rows."""
    square = 0.0
    for k in range(len(first)):
        square += (first[k] - second[k]) * (first[k] - second[k])
    return square


@_compiled
def _insert(value: float, ascending: Floats) -> None:
    """Put a value among the smallest ones."""
    j = len(ascending) - 1
    if value < ascending[j]:
        while j > 0 and ascending[j - 1] > value:
            ascending[j] = ascending[j - 1]
            j -= 1
        ascending[j] = value


@_compiled
def _log_rank(score: float, known: Floats, log_ranks: Floats, slope: float) -> float:
    """log r of a score; see `RankTransform`."""
    last = len(known) - 1
    if score <= known[0]:
        return float(log_ranks[0] + slope * (score - known[0]))
    if score >= known[last]:
        width = known[last] - known[0]
        return float(log_ranks[last] / (1.0 + (score - known[last]) / (width if width > 0.0 else 1.0)))
    j = _rank(score, known) - 1
    share = (score - known[j]) / (known[j + 1] - known[j])
    return float(log_ranks[j] + share * (log_ranks[j + 1] - log_ranks[j]))


@_compiled
def _log_kde(x: float, y: float, density: Density) -> float:
    """log p(y) of the kernel density; see `Kde.log_density`."""
    levels, squares, cones = density.constants[0], density.constants[1], density.constants[2]
    across_x = (x - density.frame[0]) / density.frame[2]
    across_y = (y - density.frame[1]) / density.frame[2]
    if 0.0 <= across_x < 1.0 and 0.0 <= across_y < 1.0:
        scale = float(1 << levels)
        fine_x, fine_y = min(across_x * scale, scale - 1.0), min(across_y * scale, scale - 1.0)
        cell_x, cell_y = int(fine_x), int(fine_y)
        leaf = _rank(_spread_bits(cell_x) | (_spread_bits(cell_y) << 1), density.keys) - 1
        width = density.widths[leaf]
        place_x = (fine_x - float(cell_x & -width)) / float(width) - 0.5
        place_y = (fine_y - float(cell_y & -width)) / float(width) - 0.5
    else:
        place_x, place_y = across_x - 0.5, across_y - 0.5
        flat = abs(place_x) >= abs(place_y)
        along, towards = (place_y, place_x) if flat else (place_x, place_y)
        segment = min(int((along / abs(towards) + 1.0) * 0.5 * float(cones)), cones - 1)
        side = (0 if flat else 2) + (1 if towards < 0.0 else 0)
        leaf = len(density.keys) + side * cones + segment
    gap_x, gap_y = x - density.anchors[leaf, 0], y - density.anchors[leaf, 1]
    square = (gap_x * gap_x + gap_y * gap_y) / (2.0 * density.bandwidth[0] * density.bandwidth[0])
    first, count = density.starts[leaf], density.counts[leaf]
    if count > 0:
        log_sum = _read_list(place_x, place_y, density.terms, first, count)
    else:
        log_sum = _read_tile(place_x, place_y, density.tiles, first, squares)
    return log_sum - float(square)


@_compiled
def _spread_bits(value: int) -> int:
    """The low 32 bits of a number, moved to the even places."""
    value = (value | (value << 16)) & 0x0000FFFF0000FFFF
    value = (value | (value << 8)) & 0x00FF00FF00FF00FF
    value = (value | (value << 4)) & 0x0F0F0F0F0F0F0F0F
    value = (value | (value << 2)) & 0x3333333333333333
    return (value | (value << 1)) & 0x5555555555555555


@_compiled
def _read_list(x: float, y: float, terms: Floats, first: int, count: int) -> float:
    """log Σ exp(α + γ·place) over a list."""
    top = -np.inf
    for j in range(first, first + count):
        top = max(top, terms[j, 0] + terms[j, 1] * x + terms[j, 2] * y)
    total = 0.0
    for j in range(first, first + count):
        total += math.exp(terms[j, 0] + terms[j, 1] * x + terms[j, 2] * y - top)
    return math.log(total) + top


@_compiled
def _read_tile(x: float, y: float, tiles: NDArray[np.float32], tile: int, squares: int) -> float:
    """A bicubic B-spline at a place of its cell."""
    knot_x, knot_y = (x + 0.5) * float(squares), (y + 0.5) * float(squares)
    square_x, square_y = min(int(knot_x), squares - 1), min(int(knot_y), squares - 1)
    weights_x, weights_y = _b_spline(knot_x - float(square_x)), _b_spline(knot_y - float(square_y))
    value = 0.0
    for i in range(4):
        line = 0.0
        for j in range(4):
            line += weights_y[j] * float(tiles[tile, square_x + i, square_y + j])
        value += weights_x[i] * line
    return value


@_compiled
def _b_spline(offset: float) -> tuple[float, float, float, float]:
    """Weights of the four cubic B-splines over a unit interval."""
    rest = 1.0 - offset
    square, rest_square = offset * offset, rest * rest
    return (
        rest_square * rest / 6.0,
        (4.0 - (6.0 - 3.0 * offset) * square) / 6.0,
        (4.0 - (6.0 - 3.0 * rest) * rest_square) / 6.0,
        square * offset / 6.0,
    )


@_compiled
def _largest(values: Floats) -> int:
    """Where the first of the largest of some numbers is."""
    best = 0
    for k in range(1, len(values)):
        if values[k] > values[best]:
            best = k
    return best


@_compiled
def _most_probable(probs: Floats, less_than: np.int64) -> tuple[int, np.int64]:
    """The first of the most probable of some classes, -1 if there is none, and its probability as bits.

    None of the classes counts whose probability is not less than one given as bits. Positive numbers are in the order
    of their bits, the largest of which is found several at a time.
    """
    bits, top = probs.view(np.int64), np.int64(0)
    for k in range(len(bits)):
        top = max(top, bits[k] if bits[k] < less_than else np.int64(0))
    for k in range(len(bits)):
        if bits[k] == top:
            return k, top
    return -1, top


@_compiled
def _top_class(probs: Floats) -> int:
    """The first of the most probable of some classes."""
    return _most_probable(probs, np.int64(_ALL))[0]


@_compiled
def _rank(value: float, ascending: NDArray[Any]) -> int:
    """How many entries are not above the value."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low
