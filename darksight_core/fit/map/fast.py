"""The second-order fit of the map, min over θ and Y of mean KL_sym(π_i, P_S(. | y_i)).

1. `layout_classes` gives the class centres a first layout, once per start, in the scale that fits best.
2. `_round`: every point looks over the whole map for a better place, because each 2-D problem has several local minima;
   then θ and all points take a few steps together (`joint_step`). The first rounds have softened rows.
3. The better starts go on, with more rows, until a step over the whole coreset gains less than the tolerance.

Only the rows of a coreset decide θ. All other rows are placed on the finished map in a stream, at a constant cost per
row. A step costs O(n K), so a fit of 1,000 classes takes less than a minute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from darksight_core.evaluation.progress import Progress, Report
from darksight_core.fit.config import FitConfig
from darksight_core.fit.map.coreset import Coreset
from darksight_core.fit.map.joint_step import Maps, Problem, default_log_spread, joint_step
from darksight_core.fit.map.layout import ITERATIONS, layout_classes
from darksight_core.fit.map.placement import Local, Rows, Theta, candidate_grid, map_bound, nearest_candidate, newton

__all__ = ["fit_theta"]


@dataclass(frozen=True, slots=True)
class _Round:
    """A search for better places and steps after it; `rows` in units of max(500, 10 K), `kept` starts go on."""

    temperature: float
    rows: int
    steps: int
    kept: int


_ROUNDS = (
    _Round(1.3, 1, 3, 10),
    _Round(1.0, 1, 3, 6),
    _Round(1.0, 3, 3, 4),
    _Round(1.0, 3, 3, 1),
)
_SWEEPS = 30
_GIVE_UP = 10.0
_FIRST_DAMPING = 1e-2
# Distances of neighbouring centres that a layout is tried with, in units of √v.
_SCALES = (0.4, 0.6, 0.9, 1.4, 2.1, 3.2, 4.8)
# A start is compared with others on this many rows, plus K / 2.
_SCALE_ROWS = 500
_GRID, _POINTS, _SEARCH_STEPS = 20, 250, 2
# Elements of a (S, K, n) array above which starts run one after the other: larger arrays do not stay in the cache.
_CACHED = 1 << 17
# The layout reports progress after every so many iterations.
_REPORTED = 20


def fit_theta(
    rows: Rows, core: Coreset, config: FitConfig, generator: torch.Generator, report: Report
) -> tuple[Theta, Tensor, list[float]]:
    """Fit one student to the rows of a coreset, in its order: θ (S = 1), points (1, 2, n), the objective as it fell."""
    classes = rows.pi.shape[0]
    starts = config.starts or (12 if classes < 30 else 2 if classes < 200 else 1)
    tick = _Counter(report, ITERATIONS // _REPORTED + sum(stage.steps for stage in _ROUNDS))
    maps = _first_maps(rows, core, config, starts, generator, tick)
    history = []
    for stage in _ROUNDS:
        count = min(stage.rows * max(500, 10 * classes), len(rows))
        problem = Problem.of(rows[slice(0, count)].tempered(stage.temperature), core.weights(count), config)
        maps = _round(maps, problem, stage.steps, generator, tick).best(stage.kept)
        history.append(float(maps.objective[0]))
    return _polish(maps, Problem.of(rows, core.weights(), config), history, generator, report)


class _Counter:
    """Reports one more unit of the starts each time it is called."""

    def __init__(self, report: Report, total: int) -> None:
        self._report, self._done, self._total = report, 0, total

    def __call__(self, loss: float) -> None:
        self._done += 1
        self._report(Progress("start", self._done, self._total, loss))


def _first_maps(
    rows: Rows, core: Coreset, config: FitConfig, starts: int, generator: torch.Generator, tick: _Counter
) -> Maps:
    """Maps with the classes laid out by similarity, a flat prior, and the scale of the layout that fits best."""
    classes = rows.pi.shape[0]
    iterations = iter(range(1, ITERATIONS + 1))

    def count_iteration() -> None:
        if next(iterations) % _REPORTED == 0:
            tick(float("nan"))

    layout = layout_classes(rows, core.weights().to(rows.pi), starts, generator, count_iteration)
    flat = rows.pi.new_zeros(starts, classes)
    log_spread = default_log_spread(config, classes)
    count = min(_SCALE_ROWS + classes // 2, len(rows))
    problem = Problem.of(rows[slice(0, count)].tempered(_ROUNDS[0].temperature), core.weights(count), config)
    found = []
    for scale in _SCALES:
        means = scale * math.exp(0.5 * log_spread) * layout
        theta = Theta(means, flat, flat + log_spread, 0.5 * (config.dof + 2.0))
        nowhere = Maps(theta, means[:, :, :0], flat[:, 0], flat[:, 0] + _FIRST_DAMPING)
        found.append(_search(nowhere, problem, generator))
    best = found[0]
    for other in found[1:]:
        best = best.merged(other, other.objective < best.objective)
    return best


def _round(maps: Maps, problem: Problem, steps: int, generator: torch.Generator, tick: _Counter) -> Maps:
    """A search and steps, a few starts at a time so that their arrays stay in the cache."""
    group = max(1, _CACHED // problem.rows.pi.numel())
    done = []
    for number, some in enumerate(torch.arange(len(maps.objective), device=maps.objective.device).split(group)):
        mine = _search(maps.pick(some), problem, generator)
        for _ in range(steps):
            mine = joint_step(mine, problem)
            if number == 0:
                tick(float(mine.objective[0]))
        done.append(mine)
    return Maps.joined(done)


def _search(
    maps: Maps, problem: Problem, generator: torch.Generator, *, per_side: int = _GRID, others: int = _POINTS
) -> Maps:
    """The maps with every point at the best place found on the whole map, or where it is if that is better.

    Candidates are a grid of `per_side`² places, the class centres, and where `others` of the points are.
    """
    theta, known, rows = maps.theta, maps.points, problem.rows
    bound = map_bound(theta)
    some = torch.randperm(known.shape[2], generator=generator)[:others].to(known.device)
    candidates = torch.cat((candidate_grid(theta, 0.6 * bound, per_side), known[:, :, some]), dim=2)
    start = nearest_candidate(theta, rows, candidates)
    points, losses = [], []
    for chunk in problem.chunks(len(start)):
        found, loss = newton(theta, rows[chunk], start[:, :, chunk], steps=_SEARCH_STEPS, bound=bound)
        old = known[:, :, chunk]
        if (count := old.shape[2]) > 0:
            before = Local.at(theta, rows[chunk][slice(0, count)], old).loss
            stays = before < loss[:, :count]
            found[:, :, :count] = torch.where(stays[:, None], old, found[:, :, :count])
            loss[:, :count] = torch.where(stays, before, loss[:, :count])
        points.append(found)
        losses.append(loss)
    objective = problem.objective(theta, torch.cat(losses, dim=1))
    return Maps(theta, torch.cat(points, dim=2), objective, maps.damping)


def _polish(
    maps: Maps, problem: Problem, history: list[float], generator: torch.Generator, report: Report
) -> tuple[Theta, Tensor, list[float]]:
    """Steps over the whole coreset until one improves the objective by less than the tolerance."""
    maps = _search(maps, problem, generator, per_side=32, others=500)
    sweeps = [float(maps.objective[0])]
    for sweep in range(_SWEEPS):
        maps = joint_step(maps, problem)
        now = float(maps.objective[0])
        report(Progress("sweep", sweep + 1, _SWEEPS, now))
        # A rejected step only raises the damping: it says nothing about how much there is left to gain.
        if now < sweeps[-1]:
            sweeps.append(now)
            if sweeps[-2] - now <= problem.config.tolerance * now:
                break
        elif float(maps.damping[0]) > _GIVE_UP:
            break
    return maps.theta, maps.points, history + sweeps
