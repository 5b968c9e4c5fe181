"""Adam (Kingma and Ba, 2015), which torch has too, but there its first use takes seconds to import a compiler."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["Adam"]

# Share of the steps in which the step size rises.
_WARM_UP = 0.1


class Adam:
    """Adam whose step size rises at first and then falls to zero as a cosine.

    Parameters
    ----------
    groups
        Parameters, and the largest step of each group.
    total
        Number of steps.
    """

    def __init__(self, groups: list[tuple[list[Tensor], float]], total: int) -> None:
        self.parameters = [parameter for parameters, _ in groups for parameter in parameters]
        self._largest = [largest for parameters, largest in groups for _ in parameters]
        self._means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._count, self._total = 0, total
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take a step by the gradients, and clear them."""
        done = self._count / self._total
        rate = min(1.0, 0.02 + done / _WARM_UP) * 0.5 * (1.0 + math.cos(math.pi * done))
        self._count += 1
        first, second = 1.0 - 0.9**self._count, 1.0 - 0.999**self._count
        for parameter, mean, square, largest in zip(
            self.parameters, self._means, self._squares, self._largest, strict=True
        ):
            gradient = parameter.grad
            assert gradient is not None
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            parameter.addcdiv_(mean, (square / second).sqrt_().add_(1e-8), value=-rate * largest / first)
            parameter.grad = None
