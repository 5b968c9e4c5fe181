"""A question about inputs: what is asked about the place that classifier and map give them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from darksight_core.explain.chain import Chain
from darksight_core.explain.objectives import Objective

__all__ = ["Question", "batches"]

_BATCH_ROWS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """F(x) = objective(y(x)) of inputs (n, ...)."""

    chain: Chain
    objective: Objective

    def value(self, inputs: Tensor) -> Tensor:
        """F, (n,)."""
        with torch.no_grad():
            return self.objective(self.chain.points(inputs))

    def value_and_slope(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """F, (n,), and ∇F, (n, ...)."""
        inputs = inputs.detach().requires_grad_()
        value = self.objective(self.chain.points(inputs))
        (slope,) = torch.autograd.grad(value.sum(), inputs)
        return value.detach(), slope


def batches(rows: int) -> Iterator[slice]:
    """Rows in parts of a size that memory holds."""
    for start in range(0, rows, _BATCH_ROWS):
        yield slice(start, min(start + _BATCH_ROWS, rows))
