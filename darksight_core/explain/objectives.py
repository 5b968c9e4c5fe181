"""What is asked about a place: functions of points (n, 2) with values (n,), to be explained or to be raised.

All are read where the serving scorer reads them, so that their values are its columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from darksight_core.errors import ConfigError
from darksight_core.explain.chain import Chain
from darksight_core.map.density import Kde

__all__ = ["Objective", "log_class", "log_density", "log_kde", "nearness"]

Objective: TypeAlias = Callable[[Tensor], Tensor]

# Of the bandwidth: far below the squares of the spline, far above rounding.
_STEP = 1e-3


def log_density(chain: Chain) -> Objective:
    """log P(y; θ), the student's density: the paper's question."""
    constant = math.log(chain.embedder.student.dof / (2.0 * math.pi))
    return lambda points: torch.logsumexp(chain.scores(points), dim=1) + constant


def log_class(chain: Chain, column: int) -> Objective:
    """log P_S(k | y), what the map says about one class.

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
    place = columns.index(column)
    return lambda points: torch.log_softmax(chain.scores(points), dim=1)[:, place]


def log_kde(kde: Kde) -> Objective:
    """Log density of the reference points."""

    def surface(points: Tensor) -> Tensor:
        found: Tensor = _KdeSurface.apply(points, kde)  # type: ignore[no-untyped-call]
        return found

    return surface


def nearness(point: tuple[float, float]) -> Objective:
    """-|y - point|², largest at a given point of the map."""
    return lambda points: -(points - points.new_tensor(point)).square().sum(dim=1)


class _KdeSurface(torch.autograd.Function):
    """The density that serves, which is numpy, with its slope by central differences in the plane."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, kde: Kde) -> Tensor:
        places, step = points.detach().numpy(), _STEP * kde.bandwidth
        shifts = step * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        right, left, up, down = (kde.log_density(places + shift) for shift in shifts)
        ctx.save_for_backward(torch.tensor(np.stack([right - left, up - down], axis=1) / (2.0 * step)))
        return torch.tensor(kde.log_density(places))

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return outer[0][:, None] * slope, None
