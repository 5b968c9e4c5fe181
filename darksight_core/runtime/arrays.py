"""What the compiled code reads and writes, by name."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from darksight_core.gate.gate import Gate
from darksight_core.map.density import Kde
from darksight_core.map.placement import Embedder
from darksight_core.scored import Reason
from darksight_core.scores.outlier import AXES, OutlierScore
from darksight_core.simplex import Floats

__all__ = [
    "Density",
    "Model",
    "Outlier",
    "Plane",
    "Rule",
    "Start",
    "blank_arguments",
    "blank_results",
    "model_of",
    "rule_of",
]

# Float64 results of a row but for its point, in the order of the fields of `ScoredBatch`.
_COLUMNS = 7

_REASONS = (Reason.NONE, Reason.LOW_CONFIDENCE, Reason.UNSCORED, Reason.OUTLIER, Reason.INVALID)
ACCEPTED, LOW_CONFIDENCE, UNSCORED, OUTLIER, INVALID = range(len(_REASONS))
"""Columns of `Rule.table`."""

REJECT_SCORES = (None, "msp", "gen", "log_density", "log_kde", "outlier_score")
"""Reject scores that a rule can have; the gate itself decides by the others."""

# Those that are computed here may differ from numpy's by this much of themselves, or of one; measured are 1e-12.
_COMPUTED, _CLOSE = ("msp", "gen"), 1e-9


class Plane(NamedTuple):
    """The student: `theta` has μ_x, μ_y, b, v, exp(b) / 4c² and exp(b / c) of its class scores, (6, K)."""

    theta: Floats
    power: float
    bound: float
    steps: int
    inside_steps: int


class Start(NamedTuple):
    """Where searches start: the arrays of `Anchors` and of a `Network`."""

    points: Floats
    neighbours: NDArray[np.int64]
    weights: Floats
    inputs: NDArray[np.float32]
    second: NDArray[np.float32]
    heads: NDArray[np.float32]
    centres: NDArray[np.float32]
    network_above: float


class Density(NamedTuple):
    """The arrays of a `Kde`; `leaves` has starts and counts, (2, L + 64), and `cells` keys and widths, (2, L)."""

    frame: Floats
    cells: NDArray[np.int64]
    leaves: NDArray[np.int64]
    anchors: Floats
    tiles: NDArray[np.float32]
    terms: Floats
    bandwidth: float
    log_norm: float


class Outlier(NamedTuple):
    """The arrays of an `OutlierScore`: Gaussians of log-ratios, then of directions; a rank is scores over log ranks."""

    means: NDArray[np.float32]
    axes: Floats
    precisions: Floats
    gen_rank: Floats
    log_ratio_rank: Floats
    direction_rank: Floats
    gen_slope: float
    log_ratio_slope: float
    direction_slope: float


class Rule(NamedTuple):
    """A gate: decision and reason of each outcome, (2, 5), the number of its reject score, and its thresholds.

    `closeness` says how close to the threshold rounding may decide, -1 where it never does.
    """

    table: NDArray[np.int8]
    score: int
    threshold: float
    closeness: float
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
    start = Start(
        points=embedder.starts.points,
        neighbours=embedder.starts.neighbours,
        weights=embedder.starts.weights,
        **embedder.network.tensors(),
        network_above=float(embedder.network_above),
    )
    density = Density(
        frame=kde.frame,
        cells=np.stack([kde.keys, kde.widths]),
        leaves=np.stack([kde.starts, kde.counts]).astype(np.int64),
        anchors=kde.anchors,
        tiles=kde.tiles,
        terms=kde.terms,
        bandwidth=float(kde.bandwidth),
        log_norm=math.log(embedder.student.dof / (2.0 * math.pi)),
    )
    pair = (outlier_score.log_ratios, outlier_score.directions)
    gen_rank, log_ratio_rank, direction_rank = outlier_score.ranks().values()
    outlier = Outlier(
        means=np.stack([gaussians.means for gaussians in pair]),
        axes=np.stack([_filled(gaussians.axes, AXES) for gaussians in pair]),
        precisions=np.stack([_filled(gaussians.precisions, AXES + 1, before=1) for gaussians in pair]),
        gen_rank=np.stack([gen_rank.scores, gen_rank.log_ranks]),
        log_ratio_rank=np.stack([log_ratio_rank.scores, log_ratio_rank.log_ranks]),
        direction_rank=np.stack([direction_rank.scores, direction_rank.log_ranks]),
        gen_slope=float(gen_rank.slope),
        log_ratio_slope=float(log_ratio_rank.slope),
        direction_slope=float(direction_rank.slope),
    )
    return _fixed(Model(plane, start, density, outlier, calibration))


def _filled(values: Floats, length: int, before: int = 0) -> Floats:
    """An array (m, ...) filled up with zeros to a length, in front of its last entries."""
    return np.insert(values, len(values) - before, np.zeros((length - len(values), *values.shape[1:])), axis=0)


def rule_of(gate: Gate, *, is_decided: bool = True) -> Rule:
    """A gate but for its regions, of which the compiled code knows nothing; without a decision all outcomes are 0."""
    reasons = np.array(_REASONS, dtype=np.int8)
    table = np.stack([gate.decisions(reasons), reasons])
    is_computed = gate.reject_score in _COMPUTED and not math.isinf(gate.threshold)
    rule = Rule(
        table=table if is_decided else np.zeros_like(table),
        score=REJECT_SCORES.index(gate.reject_score),
        threshold=float(gate.threshold),
        closeness=_CLOSE * max(1.0, abs(gate.threshold)) if is_computed else -1.0,
        p_value=-math.inf if gate.outlier is None else float(gate.outlier.p_value),
    )
    return _fixed(rule)


def blank_arguments() -> tuple[Any, ...]:
    """Arguments of the kernel that say nothing but their types."""
    line, table, cube = np.empty(0), np.empty((0, 0)), np.empty((0, 0, 0))
    longs = np.empty((0, 0), dtype=np.int64)
    single = cube.astype(np.float32)
    plane = Plane(table, power=0.0, bound=0.0, steps=0, inside_steps=0)
    flat = table.astype(np.float32)
    start = Start(cube, longs, cube, flat, flat, single, flat, network_above=0.0)
    density = Density(line, longs, longs, table, single, table, bandwidth=0.0, log_norm=0.0)
    outlier = Outlier(single, cube, table, table, table, table, 0.0, 0.0, 0.0)
    rule = Rule(table.astype(np.int8), score=0, threshold=0.0, closeness=0.0, p_value=0.0)
    model = _fixed(Model(plane, start, density, outlier, line.copy()))
    return (table, table, *blank_results(0), model, _fixed(rule))


def blank_results(n: int) -> tuple[Floats, Floats, NDArray[np.int32], NDArray[np.int8]]:
    """Room for what the kernel says about n rows."""
    return np.empty((n, 2)), np.empty((_COLUMNS, n)), np.empty(n, dtype=np.int32), np.empty((2, n), dtype=np.int8)


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
