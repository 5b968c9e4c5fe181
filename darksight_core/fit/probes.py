"""Probe rows: rows in the bundle with their scores by torch, which loading compares with the scores of numpy."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from darksight_core.bundle import Probes
from darksight_core.errors import FitError
from darksight_core.fit.map.placement import Theta
from darksight_core.fit.served import place_served
from darksight_core.map.density import Kde
from darksight_core.map.placement import Embedder
from darksight_core.map.student import Student
from darksight_core.rows.simplex import log_probs
from darksight_core.scores.outlier import OutlierScore

__all__ = ["make_probes", "spread_by_confidence"]

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
