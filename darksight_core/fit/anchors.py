"""Which points of a map become anchors: from where the search for a new row's place starts.

Anchors of a class are chosen one after the other, each the candidate that lowers the sum of KL_sym between rows of the
class and their best anchor the most. That reaches with 32 anchors a class what takes 100 of the most popular ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from darksight_core.evaluation.progress import Progress, Report, silent
from darksight_core.map.anchors import Anchors, anchor_classes
from darksight_core.map.student import Student
from darksight_core.rows.simplex import Floats, log_probs

__all__ = ["choose_anchors", "network_threshold"]

_TOTAL, _LEAST = 400, 16
# Candidates and rows of a class that are looked at.
_CANDIDATES, _ROWS = 6, 500
# Share of rows for which f_p is not asked, because an anchor is as close as it gets.
_CLOSE = 0.9
# Of equal rows the quantile is the very loss of a row, and rounding would decide for it.
_ROUNDING = 1e-9


def choose_anchors(
    student: Student, candidates: Floats, probs: NDArray[np.floating], seed: int = 0, report: Report = silent
) -> Floats:
    """Anchors (m, 2) among candidates, class after class: 400 in all, and at least 16 a class.

    A class gets fewer if fewer help, and one if the student predicts it at a candidate but no row has it. If the
    student prefers no class at any candidate, as after a fit of uniform rows, the first candidate is returned.

    Parameters
    ----------
    student
        θ of the map.
    candidates
        Points, (c, 2).
    probs
        Rows of the student's classes, (n, K); where there are many, the first of each class are taken.
    seed
        Seed of the draw of candidates where there are many.
    report
        Called after each class.
    """
    candidates = candidates.astype(np.float32).astype(np.float64)
    wanted = max(_LEAST, _TOTAL // student.n_classes)
    owner, predicted = anchor_classes(student, candidates), probs.argmax(axis=1)
    rng = np.random.default_rng(seed)
    chosen = []
    for k in range(student.n_classes):
        own = np.flatnonzero(owner == k)
        if len(own) > _CANDIDATES * wanted:
            own = np.sort(rng.choice(own, _CANDIDATES * wanted, replace=False))
        if len(own):
            rows = log_probs(probs[np.flatnonzero(predicted == k)[:_ROWS]])
            chosen.append(candidates[own[_choose(student.log_posterior(candidates[own]), rows, k, wanted)]])
        report(Progress("anchors", k + 1, student.n_classes, float("nan")))
    return np.concatenate(chosen or [candidates[:1]])


def network_threshold(student: Student, anchors: Floats, probs: NDArray[np.floating]) -> float:
    """KL_sym at the best anchor above which f_p makes a second guess: nine in ten rows (n, K) are below."""
    log_pi = log_probs(probs)
    _, losses = Anchors.of(student, anchors).best_of_two(np.exp(log_pi), log_pi)
    finite = losses[np.isfinite(losses)]
    return (float(np.quantile(finite, _CLOSE)) if len(finite) else 0.0) + _ROUNDING


def _choose(log_q: Floats, rows: Floats, own: int, wanted: int) -> list[int]:
    """Numbers of the chosen among candidates with log-probabilities (c, K), for log-probabilities (n, K) of rows."""
    if len(rows) == 0:
        return [int(log_q[:, own].argmax())]
    q, pi = np.exp(log_q), np.exp(rows)
    entropies = ((pi * rows).sum(axis=1)[:, None] + (q * log_q).sum(axis=1)) / 2.0
    losses = entropies - 0.5 * (pi @ log_q.T + rows @ q.T)
    chosen = [int(losses.sum(axis=0).argmin())]
    least = losses[:, chosen[0]]
    while len(chosen) < wanted:
        gains = np.maximum(least[:, None] - losses, 0.0).sum(axis=0)
        best = int(gains.argmax())
        if gains[best] <= 0.0:
            break
        chosen.append(best)
        least = np.minimum(least, losses[:, best])
    return chosen
