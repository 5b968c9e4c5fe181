"""f_p in torch, for rows that need its gradient or check the numpy one."""

from __future__ import annotations

import torch
from torch import Tensor

from darksight_core.map.placement import Network

__all__ = ["forward"]


def forward(network: Network, log_pi: Tensor) -> Tensor:
    """f_p of log-probabilities (n, K) in float64, as points (n, 2)."""
    pi = log_pi.exp()
    logs = pi.clamp_min(1e-8).log() / 8.0
    values = torch.cat({"probs": [pi], "log_probs": [logs], "both": [pi, logs]}[network.features], dim=1)
    *hidden, last = ((torch.tensor(weight), torch.tensor(bias)) for weight, bias in network.layers)
    for weight, bias in hidden:
        values = torch.relu(values @ weight + bias)
    return values @ last[0] + last[1]
