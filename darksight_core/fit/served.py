"""The placement of served rows in torch, float64: what `Embedder.embed` does, written a second time to check it."""

from __future__ import annotations

import torch
from torch import Tensor

from darksight_core.fit.map.placement import Theta, find_astray, newton, place_inside, rows_of
from darksight_core.fit.network.forward import Weights, forward
from darksight_core.map.anchors import LEAST_REST
from darksight_core.map.placement import Embedder
from darksight_core.rows.simplex import Floats

__all__ = ["place_served"]


def place_served(embedder: Embedder, log_pi: Floats) -> Floats:
    """Points (n, 2) of rows that come in, given as log-probabilities (n, n_inputs)."""
    theta = Theta.of(embedder.student, dtype=torch.float64)
    logs = torch.tensor(embedder.shown(log_pi))
    rows, bound = rows_of(logs.T), torch.tensor([embedder.bound], dtype=torch.float64)
    # Not topk: ties go to the first class, as in numpy.
    first = logs.argmax(dim=1)
    second = logs.scatter(1, first[:, None], -torch.inf).argmax(dim=1)
    pairs = [_best_anchor(embedder, logs, classes) for classes in (first, second)]
    (points, losses), (rivals, rival_losses) = pairs
    anchor = torch.where((rival_losses < losses)[:, None], rivals, points).T[None]
    least = torch.minimum(losses, rival_losses)
    guess = forward(Weights.of(embedder.network), logs).clamp(-embedder.bound, embedder.bound).T[None]
    at_guess, at_anchor = (newton(theta, rows, start, steps=0, bound=bound)[1] for start in (guess, anchor))
    asked = (least > embedder.network_above) & ((at_guess < at_anchor)[0] | least.isinf())
    start = torch.where(asked, guess, anchor)
    placed, _ = newton(theta, rows, start, steps=embedder.refine_steps, bound=bound)
    astray = find_astray(theta, rows, placed)
    inside, losses = _best_anchor(embedder, logs[astray], first[astray])
    has_anchor = losses.isfinite()
    astray, inside = astray[has_anchor], inside[has_anchor].T[None]
    if len(astray):
        placed[:, :, astray] = place_inside(
            theta, rows[astray], inside, placed[:, :, astray], steps=embedder.inside_steps, bound=bound
        )
    found: Floats = placed[0].T.numpy()
    return found


def _best_anchor(embedder: Embedder, logs: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """The best anchor (n, 2) of one class (n,) for each row (n, K), and KL_sym there, (n,)."""
    starts = embedder.starts
    near = torch.tensor(starts.neighbours)[classes]
    weights, points = torch.tensor(starts.weights)[classes], torch.tensor(starts.points)[classes]
    log_some = logs.gather(1, near)
    some = log_some.exp()
    rest = (1.0 - some.sum(dim=1, keepdim=True)).clamp_min(LEAST_REST)
    row = torch.cat([some, rest, log_some, rest.log(), torch.ones_like(rest)], dim=1)
    least, best = torch.bmm(row[:, None], weights)[:, 0].min(dim=1)
    entropy = (some * log_some).sum(dim=1)
    if near.shape[1] < logs.shape[1]:
        entropy = entropy + (rest * rest.log())[:, 0]
    return points[torch.arange(len(best)), best], 0.5 * (least + entropy)
