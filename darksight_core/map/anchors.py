"""Points from which the search for a row's place may start, class by class.

An anchor y_m belongs to the class that the student predicts there. The best anchor of a class for a row π is the one of
least KL_sym(π, Q_m), Q_m = P_S(. | y_m), which is linear in (π, log π) when Q_m is known,

    KL_sym(π, Q_m) = (π·log π - π·log Q_m + Q_m·log Q_m - Q_m·log π) / 2,

so that one small matrix product compares all anchors of a class. Where classes are many, an anchor is compared on the
`NEIGHBOURS` classes that matter around its own, and the others count as one class: that changes which of two nearly
equal anchors is taken, and with 1,000 classes it takes a twentieth of the memory and time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.map.student import Student
from darksight_core.rows.simplex import Floats

__all__ = ["LEAST_REST", "MARGIN", "NEIGHBOURS", "Anchors", "anchor_classes"]

MARGIN = 1e-4
"""Log-odds by which the student must prefer a class to predict it, so that rounding cannot undo it."""

NEIGHBOURS = 24
"""Classes on which anchors of one class are compared."""

LEAST_REST = 1e-9
"""Least probability of all other classes together, which would otherwise be a difference without digits."""

# Exact ties between anchors, as on symmetric maps, go to the first; rounding is far below this, differences above it.
_TIE = 1e-11
_CHUNK = 256
# Anchors of a class are filled up to a multiple of this, so that the compiled code works on as many at a time.
_FILLED = 8
# Every class is filled up to the most anchors of one: 200 MB of weights.
_MAX_ENTRIES = 500_000


@dataclass(frozen=True, slots=True, eq=False)
class Anchors:
    """Anchors of a map, filled up to M for each of K classes; made by `of`.

    Parameters
    ----------
    points
        Anchors of each class, (K, M, 2).
    neighbours
        The L classes on which the anchors of each class are compared, ascending, (K, L).
    weights
        What a row (π, rest, log π, log rest, 1) of these is multiplied with, (K, 2L + 3, M): 2 KL_sym but for the
        entropy of the row, infinite where there is no anchor.
    """

    points: Floats
    neighbours: NDArray[np.int64]
    weights: Floats

    @classmethod
    def of(cls, student: Student, anchors: Floats) -> Anchors:
        """Anchors (m, 2) by class; one at which the student prefers no class by `MARGIN` is left out."""
        anchors = np.array(anchors, dtype=np.float64)
        if anchors.ndim != 2 or anchors.shape[1] != 2 or len(anchors) == 0 or not np.isfinite(anchors).all():
            raise ConfigError(f"anchors must be finite points of shape (m, 2) with m >= 1, not {anchors.shape}")
        owner = anchor_classes(student, anchors)
        classes = student.n_classes
        listed, most = min(NEIGHBOURS, classes), int(np.bincount(owner[owner >= 0], minlength=1).max())
        most = max(-(-most // _FILLED), 1) * _FILLED
        if classes * most > _MAX_ENTRIES:
            raise ConfigError(f"{most} anchors of one class are too many for {classes} classes")
        points = np.zeros((classes, most, 2))
        neighbours = np.tile(np.arange(listed), (classes, 1))
        weights = np.zeros((classes, 2 * listed + 3, most))
        weights[:, -1] = np.inf
        for k in range(classes):
            own = anchors[owner == k]
            if len(own) == 0:
                continue
            log_q = student.log_posterior(own)
            q = np.exp(log_q)
            near = np.sort(np.argsort(-q.sum(axis=0), kind="stable")[:listed])
            log_q, q = _merged(log_q, q, near)
            points[k, : len(own)] = own
            neighbours[k] = near
            weights[k, : listed + 1, : len(own)] = -log_q.T
            weights[k, listed + 1 : -1, : len(own)] = -q.T
            weights[k, -1, : len(own)] = (q * log_q).sum(axis=1) + _TIE * np.arange(len(own))
        for array in (points, neighbours, weights):
            array.flags.writeable = False
        return cls(points, neighbours, weights)

    @property
    def has_class(self) -> NDArray[np.bool_]:
        """Which classes have an anchor, (K,)."""
        return np.isfinite(self.weights[:, -1, 0])

    def best_of_two(self, pi: Floats, log_pi: Floats) -> tuple[Floats, Floats]:
        """The best anchor (n, 2) of each row's two most probable classes (n, K), and KL_sym there, (n,)."""
        first = log_pi.argmax(axis=1)
        others = log_pi.copy()
        others[np.arange(len(pi)), first] = -np.inf
        points, losses = self.best(pi, log_pi, first)
        rivals, rival_losses = self.best(pi, log_pi, others.argmax(axis=1))
        closer = rival_losses < losses
        return np.where(closer[:, None], rivals, points), np.where(closer, rival_losses, losses)

    def best(self, pi: Floats, log_pi: Floats, classes: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """The best anchor (n, 2) of one class (n,) for each row (n, K), and KL_sym there, (n,), or infinity."""
        points, losses = np.empty((len(pi), 2)), np.empty(len(pi))
        for k in np.unique(classes).tolist():
            rows, near = np.flatnonzero(classes == k), self.neighbours[k]
            some, logs = pi[np.ix_(rows, near)], log_pi[np.ix_(rows, near)]
            rest = np.maximum(1.0 - some.sum(axis=1), LEAST_REST)[:, None]
            negative_entropy = (some * logs).sum(axis=1)
            if len(near) < pi.shape[1]:
                negative_entropy += (rest * np.log(rest))[:, 0]
            row = np.concatenate([some, rest, logs, np.log(rest), np.ones_like(rest)], axis=1)
            costs = row @ self.weights[k]
            best = costs.argmin(axis=1)
            points[rows] = self.points[k, best]
            losses[rows] = 0.5 * (costs[np.arange(len(rows)), best] + negative_entropy)
        return points, losses


def anchor_classes(student: Student, anchors: Floats) -> NDArray[np.int64]:
    """The class that the student predicts at each anchor (m, 2), as (m,); -1 where it prefers none by `MARGIN`."""
    owner = np.empty(len(anchors), dtype=np.int64)
    for start in range(0, len(anchors), _CHUNK):
        scores = student.log_joint(anchors[start : start + _CHUNK])
        second, first = np.partition(scores, -2, axis=1)[:, -2:].T
        owner[start : start + _CHUNK] = np.where(first > second + MARGIN, scores.argmax(axis=1), -1)
    return owner


def _merged(log_q: Floats, q: Floats, near: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Logarithms and probabilities (m, L + 1) of these classes and of all others together; zero if there are none."""
    if len(near) == q.shape[1]:
        nothing = np.zeros((len(q), 1))
        return np.concatenate([log_q, nothing], axis=1), np.concatenate([q, nothing], axis=1)
    others = np.delete(q, near, axis=1).sum(axis=1, keepdims=True)
    log_others = np.log(np.maximum(others, math.exp(-600.0)))
    return np.concatenate([log_q[:, near], log_others], axis=1), np.concatenate([q[:, near], others], axis=1)
