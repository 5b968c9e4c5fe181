"""The published algorithm as its appendix reads: torch.optim.Adam over θ and all of Y, by automatic differentiation.

`darksight_core.fit.map.paper` is the same descent with closed-form gradients and an Adam that touches a batch's points;
this is what it and `fast` are timed against.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from darksight_core.fit.map.paper import Rates
from darksight_core.map.student import default_scale
from darksight_core.rows.simplex import FLOOR


def fit_published(probs: NDArray[np.float32], *, epochs: int, batch_rows: int = 1_000, seed: int = 0) -> float:
    """Fit by plain SGD and return the final mean KL_sym."""
    torch.manual_seed(seed)
    n, classes = probs.shape
    spread = 2.0 * default_scale(classes) ** 2
    pi = torch.tensor(probs).clamp_min(FLOOR)
    log_pi = pi.log()
    means = torch.randn(classes, 2, requires_grad=True)
    prior = torch.zeros(classes, requires_grad=True)
    points = means.detach()[pi.argmax(dim=1)].clone().requires_grad_()
    rates = Rates()
    adam = torch.optim.Adam(
        [
            {"params": [means], "lr": rates.means},
            {"params": [prior], "lr": rates.prior},
            {"params": [points], "lr": rates.points},
        ]
    )

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        distance = (points[rows, None, :] - means).square().sum(dim=2)
        log_q = torch.log_softmax(torch.log_softmax(prior, dim=0) - 2.0 * torch.log1p(distance / spread), dim=1)
        return 0.5 * ((pi[rows] - log_q.exp()) * (log_pi[rows] - log_q)).sum(dim=1).mean()

    for _ in range(epochs):
        for rows in torch.randperm(n).split(batch_rows):
            adam.zero_grad()
            loss_of(rows).backward()
            adam.step()
    with torch.no_grad():
        return float(loss_of(torch.arange(n)))
