"""A weighted sample of rows that stands for all of them.

The rows that shape a map are the few that are not one-hot, so half of the sample is drawn uniformly and half by
entropy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Coreset"]


@dataclass(frozen=True, slots=True)
class Coreset:
    """Rows in an order of which every prefix is a weighted sample of all rows.

    Row i has odds o_i, half uniform and half proportional to entropy, and the priority u_i / o_i with u_i uniform on
    (0, 1). The m rows of smallest priority are a sample in which row i is included with probability min(1, o_i τ), τ
    being the next priority: with the inverse as weight, sums over the sample are unbiased (priority sampling).

    `rows` (m,) are indices of the chosen rows in this order, `odds` (m,) theirs, `priorities` (m + 1,) theirs and that
    of the next row, infinite when there is none; `stands` (m,) is how many rows each one stands for.
    """

    rows: Tensor
    odds: Tensor
    priorities: Tensor
    stands: Tensor

    @classmethod
    def draw(cls, entropy: Tensor, size: int, generator: torch.Generator, counts: Tensor | None = None) -> Coreset:
        """Choose `size` rows by their entropy (n,), or all if there are no more.

        A row that stands for `counts` (n,) rows has so many times the odds and the weight of one of them.
        """
        entropy = entropy.double().cpu().clamp_min(0.0)
        stands = torch.ones_like(entropy) if counts is None else counts.double()
        odds = stands * (0.5 / stands.sum() + 0.5 * entropy / (stands * entropy).sum().clamp_min(1e-300))
        priorities, order = torch.sort(torch.rand(len(odds), generator=generator, dtype=torch.float64) / odds)
        priorities = torch.cat((priorities, priorities.new_full((1,), math.inf)))
        first = order[:size]
        return cls(first, odds[first], priorities[: min(size, len(odds)) + 1], stands[first])

    def weights(self, count: int | None = None) -> Tensor:
        """Weights of the first `count` rows, by default of all."""
        count = len(self.rows) if count is None else min(count, len(self.rows))
        return self.stands[:count] / (self.odds[:count] * self.priorities[count]).clamp_max(1.0)
