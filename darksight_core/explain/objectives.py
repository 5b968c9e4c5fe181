"""Objectives: functions of points (n, 2) with values (n,), which are explained or raised.

Their values are those of the serving scorer. `evaluate` and `differentiate` apply them to inputs, F(x) = f(y(x)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from darksight_core.errors import ConfigError
from darksight_core.explain.chain import BATCH_ROWS, Chain
from darksight_core.map.density import Kde

__all__ = ["Objective", "batches", "differentiate", "evaluate", "log_class", "log_density", "log_kde", "nearness"]

Objective: TypeAlias = Callable[[Tensor], Tensor]

# Share of the bandwidth: far smaller than the squares of the spline, far larger than rounding.
_STEP = 1e-3


def log_density(chain: Chain) -> Objective:
    """log P(y; θ), the student's density, as in the paper."""
    constant = math.log(chain.embedder.student.dof / (2.0 * math.pi))
    return lambda points: torch.logsumexp(chain.scores(points), dim=1) + constant


def log_class(chain: Chain, column: int) -> Objective:
    """log P_S(k | y), the student's probability of one class.

    Parameters
    ----------
    chain
        The chain.
    column
        The class, as a column of the classifier's outputs.
    """
    columns = chain.embedder.columns or tuple(range(chain.embedder.n_inputs))
    if column not in columns:
        raise ConfigError(f"class {column} is not on the map, which shows {', '.join(map(str, columns))}")
    index = columns.index(column)
    return lambda points: torch.log_softmax(chain.scores(points), dim=1)[:, index]


def log_kde(kde: Kde) -> Objective:
    """Log density of the reference points."""

    def surface(points: Tensor) -> Tensor:
        found: Tensor = _KdeSurface.apply(points, kde)  # type: ignore[no-untyped-call]
        return found

    return surface


def nearness(point: tuple[float, float]) -> Objective:
    """-|y - point|², largest at a given point of the map."""
    return lambda points: -(points - points.new_tensor(point)).square().sum(dim=1)


def evaluate(chain: Chain, objective: Objective, inputs: Tensor) -> Tensor:
    """F of inputs (n, ...), (n,)."""
    with torch.no_grad():
        return objective(chain.points(inputs))


def differentiate(chain: Chain, objective: Objective, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """F of inputs (n, ...), (n,), and ∇F, (n, ...)."""
    inputs = inputs.detach().requires_grad_()
    value = objective(chain.points(inputs))
    (slope,) = torch.autograd.grad(value.sum(), inputs)
    return value.detach(), slope


def batches(rows: int) -> Iterator[slice]:
    """Slices of at most `BATCH_ROWS` rows."""
    for start in range(0, rows, BATCH_ROWS):
        yield slice(start, min(start + BATCH_ROWS, rows))


class _KdeSurface(torch.autograd.Function):
    """The serving density, which is numpy, with its gradient by central differences."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, kde: Kde) -> Tensor:
        values, step = points.detach().numpy(), _STEP * kde.bandwidth
        shifts = step * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        right, left, up, down = (kde.log_density(values + shift) for shift in shifts)
        ctx.save_for_backward(torch.tensor(np.stack([right - left, up - down], axis=1) / (2.0 * step)))
        return torch.tensor(kde.log_density(values))

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return outer[0][:, None] * slope, None
