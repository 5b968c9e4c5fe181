"""What the compiled code reads and writes, by name."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from darksight_core.gate.gate import Gate
from darksight_core.map.density import Kde
from darksight_core.map.placement import Embedder
from darksight_core.rows.schema import Reason
from darksight_core.rows.simplex import Floats
from darksight_core.scores.outlier import AXES, ClassGaussians, OutlierScore
from darksight_core.scores.ranks import RankTransform
from darksight_core.scores.registry import KERNEL_NUMBERS

__all__ = [
    "Density",
    "Model",
    "Outlier",
    "Plane",
    "Results",
    "Rule",
    "Start",
    "blank_arguments",
    "blank_results",
    "model_of",
    "rule_of",
]

# Float64 results of a row: x, y, the further columns of floats in `KERNEL_COLUMNS`, and whether it looks rounded.
_RESULTS = 10

_REASONS = (Reason.NONE, Reason.LOW_CONFIDENCE, Reason.UNSCORED, Reason.OUTLIER, Reason.INVALID)
ACCEPTED, LOW_CONFIDENCE, UNSCORED, OUTLIER, INVALID = range(len(_REASONS))
"""Columns of `Rule.table`."""

Results: TypeAlias = tuple[Floats, NDArray[np.int32], NDArray[np.int8]]


class Plane(NamedTuple):
    """The student: `theta` has μ_x, μ_y, b, v, exp(b) / 4c² and exp(b / c) of its class scores, (6, K)."""

    theta: Floats
    power: float
    bound: float
    steps: int
    inside_steps: int


class Start(NamedTuple):
    """Where searches start: the arrays of `Anchors` and of a `Network`.

    `weights` has the weights of the anchors, then their points, (K, 2L + 5, M). `inputs` has the input weights of f_p,
    then its biases, (2K + 1, H), and `heads` its output weights, then its output biases, (K, H + 1, 2).
    """

    neighbours: NDArray[np.int64]
    weights: Floats
    inputs: NDArray[np.float32]
    heads: NDArray[np.float32]
    network_above: float


class Density(NamedTuple):
    """The grid of a `Kde` with the position of its first node, and the normaliser of the student's density."""

    values: NDArray[np.float32]
    x: float
    y: float
    bandwidth: float
    log_norm: float


class Outlier(NamedTuple):
    """The arrays of an `OutlierScore`: Gaussians of log-ratios, then of directions, and ranks.

    The last entry of each of the `axes` is the precision along it, and the last of all that of the other axes,
    (2, r + 1, K + 1). `ranks` are scores over log ranks, of GEN, of log-ratios and of directions, (3, 2, m). `offsets`
    are those of classes, (K,).
    """

    means: NDArray[np.float32]
    axes: Floats
    ranks: Floats
    offsets: Floats
    gen_slope: float
    log_ratio_slope: float
    direction_slope: float


class Rule(NamedTuple):
    """A gate: decision and reason of each outcome, (2, 5), the number of its reject score, and its thresholds.

    `lowest` has the lowest reject score that is accepted, of each class or of all, (K,) or (1,).
    """

    table: NDArray[np.int8]
    score: int
    lowest: Floats
    p_value: float


class Model(NamedTuple):
    """Everything that one scorer reads; `calibration` are the scores that give ranks, ascending."""

    plane: Plane
    start: Start
    density: Density
    outlier: Outlier
    calibration: Floats


def model_of(embedder: Embedder, kde: Kde, outlier_score: OutlierScore, calibration: Floats) -> Model:
    """The arrays of a scorer."""
    power, theta = 0.5 * (embedder.student.dof + 2.0), embedder.theta()
    plane = Plane(
        theta=np.concatenate([theta, np.exp(theta[2:3]) / (4.0 * power**2), np.exp(theta[2:3] / power)]),
        power=power,
        bound=float(embedder.bound),
        steps=embedder.refine_steps,
        inside_steps=embedder.inside_steps,
    )
    anchors, network = embedder.starts, embedder.network
    start = Start(
        neighbours=anchors.neighbours,
        weights=np.concatenate([anchors.weights, anchors.points.transpose(0, 2, 1)], axis=1),
        inputs=np.concatenate([network.inputs, network.second]),
        heads=np.concatenate([network.heads, network.centres[:, None]], axis=1),
        network_above=float(embedder.network_above),
    )
    x, y = kde.origin.tolist()
    density = Density(
        values=kde.values,
        x=x,
        y=y,
        bandwidth=float(kde.bandwidth),
        log_norm=math.log(embedder.student.dof / (2.0 * math.pi)),
    )
    ranks = outlier_score.ranks()
    gen_slope, log_ratio_slope, direction_slope = (float(rank.slope) for rank in ranks.values())
    pair = (outlier_score.log_ratios, outlier_score.directions)
    outlier = Outlier(
        means=np.stack([gaussians.means for gaussians in pair]),
        axes=np.stack([_axes(gaussians) for gaussians in pair]),
        ranks=_ranks(list(ranks.values())),
        offsets=outlier_score.class_offsets,
        gen_slope=gen_slope,
        log_ratio_slope=log_ratio_slope,
        direction_slope=direction_slope,
    )
    return _fixed(Model(plane, start, density, outlier, calibration))


def _axes(gaussians: ClassGaussians) -> Floats:
    """Axes and precisions as in `Outlier`, (r + 1, K + 1), with zeros for axes that are not there."""
    count, classes = gaussians.axes.shape
    axes = np.zeros((AXES + 1, classes + 1))
    axes[:count, :classes], axes[:count, classes] = gaussians.axes, gaussians.precisions[:-1]
    axes[AXES, classes] = gaussians.precisions[-1]
    return axes


def _ranks(ranks: list[RankTransform]) -> Floats:
    """Scores and log ranks, (k, 2, m): shorter ones go on with their last."""
    length = max(len(rank.scores) for rank in ranks)
    pairs = [np.stack([rank.scores, rank.log_ranks]) for rank in ranks]
    return np.stack([np.pad(pair, ((0, 0), (0, length - pair.shape[1])), mode="edge") for pair in pairs])


def rule_of(gate: Gate, *, is_decided: bool = True) -> Rule:
    """A gate without regions, limits of classes and thresholds of segments, which the compiled code does not know.

    Without a decision all outcomes are 0.
    """
    reasons = np.array(_REASONS, dtype=np.int8)
    table = np.stack([gate.decisions(reasons), reasons])
    rule = Rule(
        table=table if is_decided else np.zeros_like(table),
        score=KERNEL_NUMBERS[gate.reject_score],
        lowest=gate.lowest_by_class,
        p_value=-math.inf if gate.outlier is None or gate.class_limits is not None else float(gate.outlier.p_value),
    )
    return _fixed(rule)


def blank_arguments() -> tuple[Any, ...]:
    """Empty arguments of the kernel, which numba compiles it by: it reads their types alone."""
    line, table, cube = np.empty(0), np.empty((0, 0)), np.empty((0, 0, 0))
    longs = np.empty((0, 0), dtype=np.int64)
    floats = cube.astype(np.float32)
    plane = Plane(table, power=0.0, bound=0.0, steps=0, inside_steps=0)
    flat = table.astype(np.float32)
    start = Start(longs, cube, flat, floats, network_above=0.0)
    density = Density(flat, x=0.0, y=0.0, bandwidth=0.0, log_norm=0.0)
    outlier = Outlier(floats, cube, cube, line, gen_slope=0.0, log_ratio_slope=0.0, direction_slope=0.0)
    rule = Rule(table.astype(np.int8), score=0, lowest=line, p_value=0.0)
    model = _fixed(Model(plane, start, density, outlier, line.copy()))
    return (table, table, *blank_results(0), model, _fixed(rule))


def blank_results(n: int) -> Results:
    """Arrays that the kernel writes the results of n rows into."""
    return np.empty((_RESULTS, n)), np.empty(n, dtype=np.int32), np.empty((2, n), dtype=np.int8)


_Tuple = TypeVar("_Tuple", bound=tuple[Any, ...])


def _fixed(values: _Tuple) -> _Tuple:
    """The same with arrays that are read-only and in C order, because numba compiles anew for other kinds."""

    def fix(value: Any) -> Any:
        if isinstance(value, tuple):
            return _fixed(value)
        if isinstance(value, np.ndarray):
            value = np.ascontiguousarray(value)[...]
            value.flags.writeable = False
        return value

    return type(values)(*map(fix, values))
