"""Which rows f_p is trained on, and which rows are held out from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from darksight_core.fit.map.coreset import Coreset
from darksight_core.fit.network.config import DistilConfig

__all__ = ["TrainingRows"]

_HELD_SHARE = 0.1
_HELD_LEAST, _HELD_MOST = 50, 2_000


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Numbers of the rows to train on, `pool` (m,), with weights (m,) of mean one, and of those held out, `held`."""

    pool: NDArray[np.int64]
    weights: Tensor
    held: NDArray[np.int64]

    @classmethod
    def draw(cls, entropy: Tensor, config: DistilConfig, counts: Tensor | None = None) -> TrainingRows:
        """Choose among rows by their entropy (n,); `counts` (n,) says how many rows each stands for, by default one.

        Held-out rows are drawn uniformly and are not weighted by `counts`: they only compare f_p with itself.
        """
        generator = torch.Generator().manual_seed(config.seed)
        n = len(entropy)
        order = torch.randperm(n, generator=generator)
        count = min(max(_HELD_LEAST, round(_HELD_SHARE * n)), _HELD_MOST, n // 2)
        # A single row is both: there is nothing to generalise from.
        held, rest = (order[:count], order[count:]) if count else (order, order)
        core = Coreset.draw(entropy[rest], config.pool_rows, generator, None if counts is None else counts[rest])
        weights = core.weights()
        return cls(rest[core.rows].numpy(), (weights / weights.mean()).float(), held.numpy())

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Numbers of all of them, pool first."""
        return np.concatenate([self.pool, self.held])

    @property
    def renumbered(self) -> TrainingRows:
        """The same rows after `numbers` were picked from all rows."""
        numbers = np.arange(len(self.pool) + len(self.held))
        return TrainingRows(numbers[: len(self.pool)], self.weights, numbers[len(self.pool) :])
