"""Probe rows: rows in the bundle with their scores by torch, which loading compares with the scores of numpy.

`place_served` is `Embedder.embed` in torch and float64, written a second time to check the first.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from darksight_core.bundle import Probes
from darksight_core.errors import FitError
from darksight_core.fit.map.placement import Theta, find_astray, newton, place_inside, rows_of
from darksight_core.fit.network.forward import Weights, forward
from darksight_core.map.anchors import LEAST_REST
from darksight_core.map.density import Kde
from darksight_core.map.placement import Embedder
from darksight_core.map.student import Student
from darksight_core.rows.simplex import Floats, log_probs
from darksight_core.scores.outlier import OutlierScore

__all__ = ["make_probes", "place_served", "spread_by_confidence"]

_PROBES = 48


def spread_by_confidence(top: NDArray[np.float32]) -> NDArray[np.int64]:
    """Indices of rows spread from the most to the least confident, by their largest probability (n,)."""
    order = np.argsort(-top, kind="stable")
    spread: NDArray[np.int64] = order[np.unique(np.linspace(0, len(order) - 1, 4 * _PROBES).astype(int))]
    return spread


def make_probes(embedder: Embedder, kde: Kde, outlier_score: OutlierScore, probs: NDArray[np.float32]) -> Probes:
    """Some of the rows, with the scores that torch computes for them.

    The search for a row that is moved back into the region of its class begins at the end of a bisection, which two
    libraries may round differently. Such rows are left out if they differ.
    """
    log_pi = log_probs(probs)
    points = place_served(embedder, log_pi)
    numpy_points = embedder.embed(log_pi)[0]
    same = np.abs(points - numpy_points).max(axis=1) < 1e-6 * (1.0 + np.abs(points).max())
    if same.mean() < 0.9:
        raise FitError("numpy and torch place the same rows at different points; please report this")
    chosen = np.flatnonzero(same)[:: max(1, int(same.sum()) // _PROBES)][:_PROBES]
    theta = Theta.of(embedder.student, dtype=torch.float64)
    density = torch.logsumexp(theta.scores(torch.tensor(points[chosen].T[None])), dim=1)[0].numpy()
    return Probes.of(
        probs[chosen],
        points[chosen],
        density + _log_constant(embedder.student),
        kde.log_density(points[chosen]),
        outlier_score.score(log_pi[chosen]),
    )


def _log_constant(student: Student) -> float:
    """What class scores leave out of log P(y, k): the part of the normaliser that all classes share."""
    # log t_ν = -log 2π - log s² + c log v - c log(|y - μ|² + v) with v = ν s², and -log s² = log ν - log v.
    return float(np.log(student.dof) - np.log(2.0 * np.pi))


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
