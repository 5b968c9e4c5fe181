"""f_p in torch, for its training, its gradient, and to check the numpy one; see `darksight_core.map.network`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from darksight_core.map.network import LARGEST_LOG_ODDS, LEAST_ROOT, Network

__all__ = ["Weights", "forward"]


class Weights(NamedTuple):
    """The arrays of a `Network`."""

    inputs: Tensor
    second: Tensor
    heads: Tensor
    centres: Tensor

    @classmethod
    def of(cls, network: Network) -> Weights:
        """In float64."""
        return cls(**{name: torch.tensor(array, dtype=torch.float64) for name, array in network.tensors().items()})


def forward(weights: Weights, log_pi: Tensor) -> Tensor:
    """f_p of log-probabilities (n, K), as points (n, 2)."""
    first = log_pi.argmax(dim=1, keepdim=True)
    second = log_pi.scatter(1, first, -torch.inf).argmax(dim=1, keepdim=True)
    log_odds = log_pi.gather(1, first) - log_pi.gather(1, second)
    roots = ((log_pi / 4.0).exp() - LEAST_ROOT).clamp_min(0.0)
    values = torch.cat((roots, (log_odds / LARGEST_LOG_ODDS).clamp_max(1.0)), dim=1)
    hidden = (values @ weights.inputs + weights.second[second[:, 0]]).relu()
    return torch.bmm(hidden[:, None], weights.heads[first[:, 0]])[:, 0] + weights.centres[first[:, 0]]
