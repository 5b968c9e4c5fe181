"""The way of a row through the scorer as plain loops, which numba compiles.

The same formulas as in `embed`, `student`, `kde`, `combined` and `confidence`, over the arrays that `kernel` lays out.
Two searches are cut short without changing what they find:

    anchors      KL_sym is at least that of two classes, "the row's own" and "any other" (data processing), so anchors
                 in the order of their log-odds are tried from the row's outwards until no other can win
    neighbours   products in float32 leave few stored rows that can be the k-th nearest; float64 decides among them

numba is optional: without it `COMPILED` is false, and the functions here would work, but slowly. Compiled code is kept
beside this file, or in the user's cache directory if that is read-only; without both it is compiled in each process.
Every array and constant of another file comes in as an argument, and no function of another file is called, because
what numba keeps is not renewed when that file changes. The functions take few arguments and copy arrays by loops
because both save seconds of compilation. Loops run over a row of an array, not over a row and an offset in it, because
numba cannot tell that an offset is never negative, and then nothing is worked on several at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from darksight_core.simplex import Floats

try:
    from numba import njit
except ImportError:
    njit = None  # type: ignore[assignment]  # numba is optional

__all__ = [
    "BLOCK",
    "COMPILED",
    "Density",
    "Outlier",
    "Plane",
    "Ranking",
    "finish_rows",
    "nearest_rows",
    "score_rows",
    "soften_rows",
]

COMPILED = njit is not None
"""Whether numba is there."""

BLOCK = 64
"""Stored rows that are looked at together."""

Ints: TypeAlias = NDArray[np.int64]
Local: TypeAlias = tuple[float, float, float, float, float, float, float, float]
Function = TypeVar("Function", bound=Callable[..., Any])

# A product and a sum may be rounded once instead of twice, and sums may be taken in any order, so that several terms
# are worked on at once; NaN stays NaN.
_FASTMATH = {"contract", "reassoc"}


def _compiled(function: Function) -> Function:
    """Let numba compile the function at its first call."""
    if njit is None:
        return function
    try:
        compiled: Any = njit(cache=True, nogil=True, fastmath=_FASTMATH, error_model="numpy")(function)
    except RuntimeError:  # there is no place to keep compiled code
        compiled = njit(nogil=True, fastmath=_FASTMATH, error_model="numpy")(function)
    return compiled  # type: ignore[no-any-return]  # numba's dispatcher is called like the function


class Plane(NamedTuple):
    """Arrays of an `Embedder`.

    `theta` has μ_x, μ_y, b, v and exp(b) / 4c² of its scores, (5, K). `anchor_weights` are (M, 2K + 1). For each class
    `order` has the anchors by its log-odds there, which are `log_odds`, and `others` the probability of all other
    classes, (K, M) each.
    """

    theta: Floats
    anchors: Floats
    anchor_weights: Floats
    anchor_class: Ints
    order: NDArray[np.int32]
    log_odds: NDArray[np.float32]
    others: NDArray[np.float32]
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
    """Arrays of a `Combined`.

    `rows` are the stored rows, (64 B, K), filled up to whole blocks with places that are far from any row, and `screen`
    has them in float32 and turned, (B, K, 64), filled up with zeros.
    """

    rows: Floats
    screen: NDArray[np.float32]
    gen_scores: Floats
    gen_log_ranks: Floats
    soft_scores: Floats
    soft_log_ranks: Floats
    numbers: Floats
    counts: Ints


# Places in Outlier.numbers and Outlier.counts.
_TEMPERATURE, _GEN_SLOPE, _SOFT_SLOPE, _GAMMA = range(4)
_NEIGHBOURS, _TOP_CLASSES = range(2)


class Ranking(NamedTuple):
    """Calibration scores in ascending order, (n,), the result that they belong to, and log ν / 2π of the student."""

    calibration: Floats
    column: int
    log_norm: float


_RANKING, _PLANE, _DENSITY = len(Ranking._fields), len(Plane._fields), len(Density._fields)
_TO_PLANE, _TO_DENSITY = _RANKING + _PLANE, _RANKING + _PLANE + _DENSITY


@_compiled
def score_rows(
    probs: Floats,
    points: Floats,
    results: Floats,
    columns: Ints,
    temperature: float,
    floor: float,
    network: Floats,
    sizes: Ints,
    features: int,
    *arrays: Any,
) -> None:
    """Score rows as they came in, (n, n_inputs); a row that cannot be used is NaN throughout."""
    ranking, plane = Ranking(*arrays[:_RANKING]), Plane(*arrays[_RANKING:_TO_PLANE])
    density, outlier = Density(*arrays[_TO_PLANE:_TO_DENSITY]), Outlier(*arrays[_TO_DENSITY:])
    count, classes = len(probs), len(columns)
    logs, rows = np.empty(probs.shape), np.empty((count, 2 * classes + 1))
    guesses, values = np.empty((count, 2)), np.empty((2, sizes.max()))
    soft, affinity = np.empty(probs.shape[1]), np.empty((len(outlier.screen), BLOCK), dtype=np.float32)
    squares, lanes = np.empty(count), np.empty(BLOCK, dtype=np.float32)
    best = np.empty(outlier.counts[_NEIGHBOURS])
    for i in range(count):
        if _prepare(probs[i], columns, temperature, floor, logs[i], rows[i]):
            _guess(rows[i], network, sizes, features, plane.numbers[_BOUND], values, guesses[i])
            _soften(logs[i], outlier.numbers[_TEMPERATURE], soft)
            _affinity(soft, outlier.screen, affinity)
            squares[i] = _square_distance(soft, affinity, outlier.rows, lanes, best)
    _finish(logs, rows, guesses, squares, points, results, ranking, plane, density, outlier)


@_compiled
def soften_rows(logs: Floats, temperature: float, soft: Floats) -> None:
    """Write √softmax(log π / T) of rows (n, K) to `soft`."""
    for i in range(len(logs)):
        _soften(logs[i], temperature, soft[i])


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
        squares[i] = _square_distance(soft[i], affinities[i], stored, lanes, best)


@_compiled
def finish_rows(
    logs: Floats, rows: Floats, guesses: Floats, squares: Floats, points: Floats, results: Floats, *arrays: Any
) -> None:
    """Score rows from what else was made of them.

    Parameters
    ----------
    logs, rows, guesses
        log π (n, n_inputs), what `Embedder.prepare` makes of it (n, 2K + 1), and the guesses of f_p (n, 2).
    squares
        From `nearest_rows`.
    points, results
        Where the scores go.
    """
    ranking, plane = Ranking(*arrays[:_RANKING]), Plane(*arrays[_RANKING:_TO_PLANE])
    density, outlier = Density(*arrays[_TO_PLANE:_TO_DENSITY]), Outlier(*arrays[_TO_DENSITY:])
    _finish(logs, rows, guesses, squares, points, results, ranking, plane, density, outlier)


@_compiled
def _finish(
    logs: Floats,
    rows: Floats,
    guesses: Floats,
    squares: Floats,
    points: Floats,
    results: Floats,
    ranking: Ranking,
    plane: Plane,
    density: Density,
    outlier: Outlier,
) -> None:
    """Place rows and score them; a row whose last number is not one is bad."""
    calibration, last = ranking.calibration, results.shape[1] - 1
    work, spare = np.empty((6, plane.theta.shape[1])), np.empty(logs.shape[1])
    for i in range(len(rows)):
        if rows[i, -1] != 1.0:
            points[i, 0] = points[i, 1] = np.nan
            for j in range(last + 1):
                results[i, j] = np.nan
            continue
        x, y, loss, log_total = _place(guesses[i], rows[i], plane, work)
        points[i, 0], points[i, 1] = x, y
        results[i, 0] = log_total + ranking.log_norm
        results[i, 1] = _log_kde(x, y, density)
        results[i, 2] = loss
        gen = _gen(logs[i], outlier.numbers[_GAMMA], outlier.counts[_TOP_CLASSES], spare)
        results[i, 3] = _combined(gen, -math.sqrt(squares[i]), outlier)
        results[i, last] = (1.0 + _rank(results[i, ranking.column], calibration)) / (1.0 + len(calibration))


@_compiled
def _prepare(probs: Floats, columns: Ints, temperature: float, floor: float, logs: Floats, row: Floats) -> bool:
    """Write log π of all classes to `logs` and (π, log π, 1) of the student's to `row`; false if they are unusable."""
    total, lifted, classes = 0.0, 0.0, len(columns)
    row[2 * classes] = 0.0
    for k in range(len(probs)):
        # Not "<", so that NaN is caught too.
        if not probs[k] >= -1e-6:
            return False
        total += probs[k]
        lifted += max(probs[k], floor)
    if not abs(total - 1.0) <= 1e-3:
        return False
    log_total = math.log(lifted)
    for k in range(len(probs)):
        logs[k] = math.log(max(probs[k], floor)) - log_total
    top = -np.inf
    for k in range(classes):
        row[classes + k] = logs[columns[k]]
        top = max(top, row[classes + k])
    if classes < len(probs) or temperature != 1.0:
        lifted = 0.0
        for k in range(classes):
            row[classes + k] = (row[classes + k] - top) / temperature
            lifted += math.exp(row[classes + k])
        log_total = math.log(lifted)
        for k in range(classes):
            row[classes + k] -= log_total
    for k in range(classes):
        row[k] = math.exp(row[classes + k])
    row[2 * classes] = 1.0
    return True


@_compiled
def _guess(
    row: Floats, network: Floats, sizes: Ints, features: int, bound: float, values: Floats, guess: Floats
) -> None:
    """Write f_p(π), kept within the bound, to `guess`."""
    classes = len(row) // 2
    for k in range(sizes[0]):
        p = row[k % classes]
        values[0, k] = p if features == 0 or (features == 2 and k < classes) else math.log(max(p, 1e-8)) / 8.0
    start = 0
    for layer in range(len(sizes) - 1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        before, after = values[layer % 2], values[(layer + 1) % 2]
        for j in range(outputs):
            after[j] = network[start + inputs * outputs + j]
        for i in range(inputs):
            # Half of the hidden units rest.
            if layer == 0 or before[i] > 0.0:
                for j in range(outputs):
                    after[j] += before[i] * network[start + i * outputs + j]
        start += (inputs + 1) * outputs
    for j in range(2):
        guess[j] = min(max(values[(len(sizes) - 1) % 2, j], -bound), bound)


@_compiled
def _cost(row: Floats, weights: Floats) -> float:
    """Twice KL_sym at an anchor, without the row's own entropy."""
    cost = 0.0
    for k in range(len(row)):
        cost += row[k] * weights[k]
    return cost


@_compiled
def _best_anchor(row: Floats, label: int, limit: float, plane: Plane) -> int:
    """Index of the anchor of least KL_sym, or -1 if none is below the limit."""
    classes = len(row) // 2
    negative_entropy, other = 0.0, 0.0
    for k in range(classes):
        negative_entropy += row[k] * row[classes + k]
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
            loss = 0.5 * (_cost(row, plane.anchor_weights[m]) + negative_entropy)
            if loss < limit:
                best, limit = m, loss
            j += 1 if side == 0 else -1
    return best


@_compiled
def _loss(x: float, y: float, row: Floats, theta: Floats, power: float, work: Floats) -> float:
    """KL_sym at a point, the first number of `_look` by itself."""
    classes, total, top = theta.shape[1], 0.0, -np.inf
    for k in range(classes):
        gap_x, gap_y = x - theta[0, k], y - theta[1, k]
        distance = gap_x * gap_x + gap_y * gap_y + theta[3, k]
        work[2, k], work[3, k] = -2.0 * power / distance, theta[2, k] - power * math.log(distance)
        top = max(top, work[3, k])
    if power == 2.0:
        top = 0.0
        for k in range(classes):
            work[4, k] = theta[4, k] * work[2, k] * work[2, k]
            total += work[4, k]
    else:
        for k in range(classes):
            work[4, k] = math.exp(work[3, k] - top)
            total += work[4, k]
    log_total, scale, loss = top + math.log(total), 1.0 / total, 0.0
    for k in range(classes):
        loss += (row[k] - work[4, k] * scale) * (row[classes + k] - work[3, k] + log_total)
    return 0.5 * loss


@_compiled
def _look(x: float, y: float, row: Floats, label: int, theta: Floats, power: float, work: Floats) -> Local:
    """KL_sym, log Σ exp s, gradient x, y, Hessian xx, yy, xy and the label's lead at a point; see `embed._look`."""
    classes = theta.shape[1]
    top, other = -np.inf, -np.inf
    for k in range(classes):
        gap_x, gap_y = x - theta[0, k], y - theta[1, k]
        distance = gap_x * gap_x + gap_y * gap_y + theta[3, k]
        slope = -2.0 * power / distance
        score = theta[2, k] - power * math.log(distance)
        work[0, k], work[1, k], work[2, k], work[3, k] = slope * gap_x, slope * gap_y, slope, score
        if k != label:
            other = max(other, score)
    top = max(other, work[3, label])
    total = 0.0
    if power == 2.0:
        # ν = 2 is the default, and there exp(s) takes no exponential.
        top = 0.0
        for k in range(classes):
            work[4, k] = theta[4, k] * work[2, k] * work[2, k]
            total += work[4, k]
    else:
        for k in range(classes):
            work[4, k] = math.exp(work[3, k] - top)
            total += work[4, k]
    log_total, scale = top + math.log(total), 1.0 / total
    loss, mean = 0.0, 0.0
    for k in range(classes):
        q, surprise = work[4, k] * scale, row[classes + k] - work[3, k] + log_total
        loss += (row[k] - q) * surprise
        mean += q * surprise
        work[4, k], work[5, k] = q, surprise
    g_x, g_y, mean_x, mean_y, tilt_x, tilt_y = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    h_xx, h_yy, h_xy, bend = 0.0, 0.0, 0.0, 0.0
    share = 1.0 / power
    for k in range(classes):
        along_x, along_y, slope, q = work[0, k], work[1, k], work[2, k], work[4, k]
        tilt = q * (work[5, k] - mean)
        pull = 0.5 * (q - row[k] - tilt)
        weight = q - 0.5 * tilt + share * pull
        mean_x += q * along_x
        mean_y += q * along_y
        tilt_x += tilt * along_x
        tilt_y += tilt * along_y
        g_x += pull * along_x
        g_y += pull * along_y
        bend += pull * slope
        h_xx += weight * along_x * along_x
        h_yy += weight * along_y * along_y
        h_xy += weight * along_x * along_y
    h_xx += bend - mean_x * (mean_x - tilt_x)
    h_yy += bend - mean_y * (mean_y - tilt_y)
    h_xy += 0.5 * (tilt_x * mean_y + tilt_y * mean_x) - mean_x * mean_y
    return 0.5 * loss, log_total, g_x, g_y, h_xx, h_yy, h_xy, work[3, label] - other


@_compiled
def _newton(
    x: float,
    y: float,
    local: Local,
    row: Floats,
    label: int,
    least_lead: float,
    steps: int,
    theta: Floats,
    numbers: Floats,
    work: Floats,
) -> tuple[float, float, Local]:
    """Point and what is known there after damped Newton steps that keep this lead; see `Embedder._newton`."""
    power, bound, slack, rest = numbers[_POWER], numbers[_BOUND], numbers[_SLACK], numbers[_REST]
    damping = 1e-3
    for _ in range(steps):
        _, _, g_x, g_y, h_xx, h_yy, h_xy, _ = local
        shift = damping + 1e-6
        middle, half = 0.5 * (h_xx + h_yy), 0.5 * (h_xx - h_yy)
        split = max(math.sqrt(half * half + h_xy * h_xy), 1e-20)
        inverse_1 = 1.0 / (abs(middle + split) + shift)
        inverse_2 = 1.0 / (abs(middle - split) + shift)
        even, odd = 0.5 * (inverse_1 + inverse_2), 0.5 * (inverse_1 - inverse_2) / split
        step_x = -(even * g_x + odd * (half * g_x + h_xy * g_y))
        step_y = -(even * g_y + odd * (h_xy * g_x - half * g_y))
        length = max(math.sqrt(step_x * step_x + step_y * step_y), 1e-20)
        if length < rest * bound:
            break
        factor = min(0.1 * bound / length, 1.0)
        trial_x = min(max(x + factor * step_x, -bound), bound)
        trial_y = min(max(y + factor * step_y, -bound), bound)
        there = _look(trial_x, trial_y, row, label, theta, power, work)
        if there[0] < local[0] + slack and there[7] > least_lead:
            x, y, local = trial_x, trial_y, there
            damping = max(0.2 * damping, 1e-6)
        else:
            damping = min(10.0 * damping, 1e4)
    return x, y, local


@_compiled
def _place(guess: Floats, row: Floats, plane: Plane, work: Floats) -> tuple[float, float, float, float]:
    """Point, KL_sym and log Σ exp s of a row, from f_p's guess or the best anchor; see `Embedder._place`."""
    theta, numbers, classes = plane.theta, plane.numbers, plane.theta.shape[1]
    power, margin = numbers[_POWER], numbers[_MARGIN]
    label, inside = _largest(row, classes, 2 * classes), -1
    x, y = guess[0], guess[1]
    best = _best_anchor(row, label, _loss(x, y, row, theta, power, work), plane)
    if best >= 0:
        x, y = plane.anchors[best, 0], plane.anchors[best, 1]
    local = _look(x, y, row, label, theta, power, work)
    x, y, local = _newton(x, y, local, row, label, -np.inf, plane.counts[_STEPS], theta, numbers, work)
    if local[7] > margin:
        return x, y, local[0], local[1]
    least = np.inf
    for m in range(len(plane.anchors)):
        if plane.anchor_class[m] == label:
            cost = _cost(row, plane.anchor_weights[m])
            if cost < least:
                inside, least = m, cost
    if inside < 0:
        return x, y, local[0], local[1]
    from_x, from_y = plane.anchors[inside, 0], plane.anchors[inside, 1]
    low, high = 0.0, 1.0
    for _ in range(plane.counts[_BISECTIONS]):
        middle = 0.5 * (low + high)
        x_there, y_there = from_x + middle * (x - from_x), from_y + middle * (y - from_y)
        if _look(x_there, y_there, row, label, theta, power, work)[7] > margin:
            low = middle
        else:
            high = middle
    x, y = from_x + low * (x - from_x), from_y + low * (y - from_y)
    local = _look(x, y, row, label, theta, power, work)
    at_anchor = _look(from_x, from_y, row, label, theta, power, work)
    if not local[0] < at_anchor[0]:
        x, y, local = from_x, from_y, at_anchor
    x, y, local = _newton(x, y, local, row, label, margin, plane.counts[_INSIDE_STEPS], theta, numbers, work)
    return x, y, local[0], local[1]


@_compiled
def _combined(gen: float, soft_knn: float, outlier: Outlier) -> float:
    """Sum of the two log ranks; see `Combined.score`."""
    numbers = outlier.numbers
    gen_rank = _log_rank(gen, outlier.gen_scores, outlier.gen_log_ranks, numbers[_GEN_SLOPE])
    return gen_rank + _log_rank(soft_knn, outlier.soft_scores, outlier.soft_log_ranks, numbers[_SOFT_SLOPE])


@_compiled
def _gen(logs: Floats, gamma: float, top_classes: int, spare: Floats) -> float:
    """Generalised entropy of the most probable classes, negated; see `confidence.gen`."""
    top, first, count, rest = _largest(logs, 0, len(logs)), 0, len(logs) - 1, 0.0
    for k in range(count):
        spare[k] = logs[k + (k >= top)]
    others = spare[:count]
    if count >= top_classes:
        for k in range(count):
            rest += math.exp(others[k])
        first = count - (top_classes - 1)
        others = np.partition(others, first)
    total = 0.0
    for k in range(first, count):
        p = math.exp(others[k])
        # Most probabilities are so small that three terms of log(1 - p) are all that there is.
        log_rest = math.log1p(-p) if p > 1e-4 else -p * (1.0 + p * (0.5 + p / 3.0))
        total += math.exp(gamma * (others[k] + log_rest))
        if first == 0:
            rest += p
    return -total - math.exp(gamma * (logs[top] + math.log(rest)))


@_compiled
def _soften(logs: Floats, temperature: float, soft: Floats) -> None:
    """Write √softmax(log π / T) to `soft`."""
    top, total = logs[_largest(logs, 0, len(logs))], 0.0
    for k in range(len(logs)):
        soft[k] = math.exp((logs[k] - top) / temperature)
        total += soft[k]
    for k in range(len(logs)):
        soft[k] = math.sqrt(soft[k] / total)


@_compiled
def _affinity(soft: Floats, screen: NDArray[np.float32], affinity: NDArray[np.float32]) -> None:
    """Write the products with all stored rows to `affinity`."""
    classes = len(soft)
    for block in range(len(screen)):
        rows, sums, k = screen[block], affinity[block], 0
        for m in range(len(sums)):
            sums[m] = 0.0
        # Four classes at a time, because reading and writing the sums takes longer than adding to them.
        while k + 3 < classes:
            a, b = np.float32(soft[k]), np.float32(soft[k + 1])
            c, d = np.float32(soft[k + 2]), np.float32(soft[k + 3])
            row_a, row_b, row_c, row_d = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
            for m in range(len(sums)):
                sums[m] += (a * row_a[m] + b * row_b[m]) + (c * row_c[m] + d * row_d[m])
            k += 4
        while k < classes:
            a, row_a = np.float32(soft[k]), rows[k]
            for m in range(len(sums)):
                sums[m] += a * row_a[m]
            k += 1


@_compiled
def _square_distance(
    soft: Floats, affinity: NDArray[np.float32], rows: Floats, lanes: NDArray[np.float32], best: Floats
) -> float:
    """Square distance to the k-th nearest stored row, k being the length of `best`; see `SoftNeighbours.score`.

    `lanes` gets the largest product at each place of the blocks. The k-th largest of these is at most the k-th largest
    of all, so only rows whose product is not below it, but for rounding, can be among the k nearest.
    """
    for j in range(len(lanes)):
        lanes[j] = -1.0
    for block in range(len(affinity)):
        part = affinity[block]
        for j in range(len(lanes)):
            lanes[j] = part[j] if part[j] > lanes[j] else lanes[j]
    for j in range(len(best)):
        best[j] = np.inf
    for j in range(len(lanes)):
        _insert(-float(lanes[j]), best)
    # Both factors and each of the K sums are rounded to 24 bits.
    least = np.float32(-best[-1] - (len(soft) + 8) * 2.0**-23)
    for j in range(len(best)):
        best[j] = np.inf
    for block in range(len(affinity)):
        part, found = affinity[block], np.int32(0)
        for j in range(len(part)):
            found = np.int32(found | np.int32(part[j] >= least))
        if found:
            for j in range(len(part)):
                if part[j] >= least:
                    row, square = rows[block * BLOCK + j], 0.0
                    for k in range(len(soft)):
                        square += (soft[k] - row[k]) * (soft[k] - row[k])
                    _insert(square, best)
    return float(best[-1])


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
def _largest(values: Floats, start: int, end: int) -> int:
    """Where the largest of some values is, counted from the start of them."""
    best = start
    for k in range(start + 1, end):
        if values[k] > values[best]:
            best = k
    return best - start


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
