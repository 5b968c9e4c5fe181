"""Attacks: inputs changed so that they move on the map, by projected gradient ascent under an L∞ budget.

    x <- clip(x + α sign ∇F(x)),    |x - x0| <= budget in every coordinate, low <= x <= high

(Madry et al. 2018.) The result is scored by the serving scorer and gate. The input itself is a candidate, so F never
falls.
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
from darksight_core.evaluation.progress import Progress, Report, silent
from darksight_core.explain.chain import Chain
from darksight_core.explain.objectives import Objective, batches, differentiate, evaluate
from darksight_core.rows.schema import ScoredBatch
from darksight_core.rows.simplex import Floats
from darksight_core.runtime.policy import ScoringPolicy

__all__ = ["Attack", "attack"]

# Steps add up to this many budgets, so that every corner of the box can be reached from every point in it.
_REACH = 2.5


@dataclass(frozen=True, slots=True, eq=False)
class Attack:
    """The result for n inputs.

    Parameters
    ----------
    inputs
        The changed inputs, (n, ...).
    moved
        Largest change of a coordinate, (n,).
    before, after
        Scores and decisions of the inputs and of the changed inputs.
    """

    inputs: NDArray[Any]
    moved: Floats
    before: ScoredBatch
    after: ScoredBatch


def attack(
    chain: Chain,
    objective: Objective,
    policy: ScoringPolicy,
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
        f, of the point.
    policy
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
        Number of starts: the input itself, then random points within the budget.
    seed
        Seed of the random starts, which depend on the number of an input but not on the other inputs.
    report
        Called with the progress.
    """
    if not (math.isfinite(budget) and budget > 0.0) or not low < high or steps < 1 or starts < 1:
        raise ConfigError("an attack needs a positive budget, low < high, and at least one step and one start")
    rows = chain.tensor(inputs)
    if inputs.min() < low or inputs.max() > high:
        raise ConfigError(
            f"inputs range from {inputs.min():g} to {inputs.max():g}, beyond {low:g} to {high:g}; give their range"
        )
    found = torch.empty_like(rows)
    for part in batches(len(rows)):
        box = _Box(rows[part], budget, low, high)
        best = _Best(box.centre, evaluate(chain, objective, box.centre))
        for number in range(starts):
            begin = box.centre if number == 0 else box.random(seed, part.start, number)
            best = _climb(chain, objective, box, begin, steps, best)
            done = part.start * starts + len(best.inputs) * (number + 1)
            report(Progress("attack", done, len(rows) * starts, math.nan))
        found[part] = best.inputs
    moved = (found.double() - rows.double()).abs().reshape(len(rows), -1).amax(dim=1).numpy()
    return Attack(found.numpy(), moved, chain.scored(policy, rows), chain.scored(policy, found))


@dataclass(frozen=True, slots=True, eq=False)
class _Box:
    """The set of allowed inputs."""

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


@dataclass(frozen=True, slots=True, eq=False)
class _Best:
    """The best inputs so far, and F there."""

    inputs: Tensor
    value: Tensor

    def or_better(self, inputs: Tensor, value: Tensor) -> _Best:
        wins = value > self.value
        each = wins.reshape(-1, *[1] * (inputs.dim() - 1))
        return _Best(torch.where(each, inputs, self.inputs), torch.where(wins, value, self.value))


def _climb(chain: Chain, objective: Objective, box: _Box, begin: Tensor, steps: int, best: _Best) -> _Best:
    """The best of `best` and of all inputs visited from `begin`."""
    here = begin
    for _ in range(steps):
        value, slope = differentiate(chain, objective, here)
        best = best.or_better(here, value)
        here = box.clip(here + _REACH * box.budget / steps * torch.nan_to_num(slope).sign())
    return best.or_better(here, evaluate(chain, objective, here))
