"""Inputs that are made to move on the map: projected gradient ascent under an L∞ budget.

    x <- clip(x + α sign ∇F(x)),    |x - x0| <= budget in every coordinate, low <= x <= high

(Madry et al. 2018.) The gradient only leads the way: what became of an input is said by the scorer and the gate that
serve. The input itself is among the candidates, so F never gets worse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from darksight_core.errors import ConfigError
from darksight_core.explain.chain import Chain
from darksight_core.explain.objectives import Objective
from darksight_core.fit.config import Progress, Report, silent
from darksight_core.judge import Judge, Judged
from darksight_core.simplex import Floats

__all__ = ["Attack", "attack"]

_BATCH_ROWS = 64
# Steps add up to this many budgets, so that every corner of the box can be reached from every place in it.
_REACH = 2.5


@dataclass(frozen=True, slots=True, eq=False)
class Attack:
    """What became of n inputs.

    Parameters
    ----------
    inputs
        The changed inputs, (n, ...).
    moved
        Largest change of a coordinate, (n,).
    before, after
        What the serving scorer and gate say about the inputs and about the changed ones.
    """

    inputs: NDArray[Any]
    moved: Floats
    before: Judged
    after: Judged


def attack(
    chain: Chain,
    objective: Objective,
    judge: Judge,
    inputs: NDArray[Any],
    *,
    budget: float,
    low: float = 0.0,
    high: float = 1.0,
    steps: int = 40,
    starts: int = 1,
    seed: int = 0,
    report: Report = silent,
) -> Attack:
    """Raise F by changing each input within its budget.

    Parameters
    ----------
    chain
        Classifier and map.
    objective
        F, of the place.
    judge
        Scorer and gate of the same bundle.
    inputs
        (n, ...), floats within the range.
    budget
        Largest change of a coordinate.
    low, high
        Range of valid inputs.
    steps
        Steps from each start.
    starts
        Where to begin: at the input itself, then at random places within the budget.
    seed
        Seed of these. An input gets them by its number, whatever comes with it.
    report
        Told about progress.
    """
    if not (math.isfinite(budget) and budget > 0.0) or not low < high or steps < 1 or starts < 1:
        raise ConfigError("an attack needs a positive budget, low < high, and at least one step from one start")
    rows = chain.tensor(inputs)
    if inputs.min() < low or inputs.max() > high:
        raise ConfigError(
            f"inputs go from {inputs.min():g} to {inputs.max():g}, beyond the range {low:g} to {high:g}; name theirs"
        )
    found = torch.empty_like(rows)
    for start in range(0, len(rows), _BATCH_ROWS):
        box = _Box(rows[start : start + _BATCH_ROWS], budget, low, high)
        best, value = box.centre, _value(chain, objective, box.centre)
        for number in range(starts):
            begin = box.centre if number == 0 else box.random(seed, start, number)
            best, value = _climb(chain, objective, box, begin, steps, best, value)
            done = start * starts + len(best) * (number + 1)
            report(Progress("attack", done, len(rows) * starts, math.nan))
        found[start : start + _BATCH_ROWS] = best
    moved = (found.double() - rows.double()).abs().reshape(len(rows), -1).amax(dim=1).numpy()
    return Attack(found.numpy(), moved, chain.judged(judge, rows), chain.judged(judge, found))


@dataclass(frozen=True, slots=True, eq=False)
class _Box:
    """Where an input may go."""

    centre: Tensor
    budget: float
    low: float
    high: float

    def clip(self, inputs: Tensor) -> Tensor:
        near = torch.minimum(torch.maximum(inputs, self.centre - self.budget), self.centre + self.budget)
        return near.clamp(self.low, self.high)

    def random(self, seed: int, first: int, number: int) -> Tensor:
        shifts = [
            np.random.default_rng((seed, number, first + row)).uniform(-1.0, 1.0, size=self.centre.shape[1:])
            for row in range(len(self.centre))
        ]
        return self.clip(self.centre + self.budget * torch.tensor(np.stack(shifts), dtype=self.centre.dtype))


def _climb(
    chain: Chain, objective: Objective, box: _Box, begin: Tensor, steps: int, best: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """The best inputs met on the way up from `begin`, and F there; no worse than `best`."""
    here = begin
    for _ in range(steps):
        here = here.detach().requires_grad_()
        reached = objective(chain.points(here))
        (slope,) = torch.autograd.grad(reached.sum(), here)
        best, value = _better(best, value, here.detach(), reached.detach())
        here = box.clip(here.detach() + _REACH * box.budget / steps * torch.nan_to_num(slope).sign())
    return _better(best, value, here, _value(chain, objective, here))


def _better(best: Tensor, value: Tensor, there: Tensor, reached: Tensor) -> tuple[Tensor, Tensor]:
    wins = reached > value
    return torch.where(wins.reshape(-1, *[1] * (best.dim() - 1)), there, best), torch.where(wins, reached, value)


def _value(chain: Chain, objective: Objective, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return objective(chain.points(inputs))
