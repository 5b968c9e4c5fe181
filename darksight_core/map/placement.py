"""Places rows of probabilities on a fitted map: the reference implementation, in numpy.

Given θ, the point of a row π solves its own problem in the plane,

    y(π) = argmin_y KL_sym(π, P_S(. | y)),      s_k(y) = b_k - c log(|y - μ_k|² + v_k),      P_S = softmax(s),

which has several local minima. The search starts from the best stored anchor of the row's two most probable classes
(`darksight_core.map.anchors`). Where KL_sym there is above `network_above`, the network f_p makes a second guess, and
the better of the two is the start. A few damped Newton steps on the exact 2 x 2 Hessian finish. A row whose class the
student then does not predict is placed again inside the region where it does, so that the map never contradicts the
watched classifier.

A row's result depends on no other row: all of it is float64, where the matrix products of a batch and of a single row
differ too little to change a decision. `darksight_core.runtime.compiled` is the same computation compiled,
`darksight_core.fit.map.placement` has it in torch; tests hold the three equal.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.map.anchors import MARGIN, Anchors
from darksight_core.map.network import Network
from darksight_core.map.student import Student
from darksight_core.rows.simplex import Floats, log_softmax, temper

__all__ = ["BISECTIONS", "CHUNK", "REST", "SLACK", "Embedder"]

SLACK = 1e-13
"""Rise of KL_sym that counts as rounding: near its end a search would otherwise take or leave steps by chance."""

REST = 1e-8
"""A step shorter than this share of the bound ends a search: Newton steps after it would be shorter still."""

CHUNK = 256
"""Rows that are worked on at a time, so that their arrays stay in cache."""

BISECTIONS = 12
"""Halvings of the segment on which a row is led back to the region of its class."""


class _Theta(NamedTuple):
    """The student as arrays of its class scores: `x`, `y`, `offset` b and `spread` v, each (K, 1); `power` c."""

    x: Floats
    y: Floats
    offset: Floats
    spread: Floats
    power: float


class _Local(NamedTuple):
    """KL_sym at the points of n rows: `loss` (n,), `gradient` (2, n), and `hessian` xx, yy, xy (3, n)."""

    loss: Floats
    gradient: Floats
    hessian: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Embedder:
    """Everything needed to place new rows on a map.

    Parameters
    ----------
    student
        θ of the map.
    network
        f_p, for rows of the student's classes.
    anchors
        Points from which a search may start, (m, 2).
    bound
        Largest coordinate of a point: rows near uniform would otherwise walk to infinity.
    n_inputs
        Number of probabilities in a row that comes in.
    refine_steps
        Newton steps after the start.
    network_above
        KL_sym at the best anchor above which f_p is asked for a second start.
    temperature
        Rows are softened to softmax(log π / T) before they are placed.
    columns
        The classes that the map shows, as columns of the rows that come in, or None for all. The others are left out
        and the rest is scaled to sum to one.
    """

    student: Student
    network: Network
    anchors: Floats
    bound: float
    n_inputs: int
    refine_steps: int = 5
    temperature: float = 1.0
    columns: tuple[int, ...] | None = None
    network_above: float = 0.0
    starts: Anchors = field(init=False, repr=False)

    def __post_init__(self) -> None:
        anchors = np.array(self.anchors, dtype=np.float64)
        classes = self.student.n_classes
        chosen = range(self.n_inputs) if self.columns is None else self.columns
        if len(chosen) != classes or self.network.n_classes != classes:
            raise ConfigError(
                f"a student of {classes} classes cannot read {len(chosen)} columns, "
                f"nor go with a network for {self.network.n_classes}"
            )
        if len(set(chosen)) != len(chosen) or not all(0 <= column < self.n_inputs for column in chosen):
            raise ConfigError(f"columns must be different and below {self.n_inputs}")
        if not (math.isfinite(self.bound) and self.bound > 0.0 and np.abs(anchors).max(initial=0.0) <= self.bound):
            raise ConfigError(f"bound must be positive and no anchor beyond it, not {self.bound}")
        if not (math.isfinite(self.temperature) and self.temperature > 0.0) or self.refine_steps < 0:
            raise ConfigError("temperature must be positive and refine_steps not negative")
        if not self.network_above >= 0.0:
            raise ConfigError(f"network_above must not be negative, not {self.network_above}")
        object.__setattr__(self, "starts", Anchors.of(self.student, anchors))
        anchors.flags.writeable = False
        object.__setattr__(self, "anchors", anchors)
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(int(column) for column in self.columns))

    def with_steps(self, refine_steps: int) -> Embedder:
        """The same with another number of Newton steps; it shares the arrays."""
        other = copy.copy(self)
        object.__setattr__(other, "refine_steps", refine_steps)
        return other

    @property
    def inside_steps(self) -> int:
        """Newton steps for a row that is led back to the region of its class."""
        return max(self.refine_steps, 8)

    @property
    def is_whole(self) -> bool:
        """Whether rows are placed as they come in: with all of their classes, at temperature 1."""
        return self.columns is None and self.temperature == 1.0

    def embed(self, log_pi: Floats) -> tuple[Floats, Floats]:
        """Points (n, 2) of rows and how far the student's classes there are from theirs, KL_sym (n,).

        Parameters
        ----------
        log_pi
            Logarithms of the rows that came in, (n, n_inputs), finite.
        """
        points, losses = np.empty((len(log_pi), 2)), np.empty(len(log_pi))
        for start in range(0, len(log_pi), CHUNK):
            part = slice(start, start + CHUNK)
            points[part], losses[part] = self._place(self.shown(log_pi[part]))
        return points, losses

    def shown(self, log_pi: Floats) -> Floats:
        """log π over the student's classes at the map's temperature, (n, K), for rows (n, n_inputs) that came in."""
        if self.columns is not None:
            log_pi = log_softmax(log_pi[:, self.columns])
        return temper(log_pi, self.temperature)

    def guess(self, pi: Floats) -> Floats:
        """Where f_p sends rows (n, K) of the student's classes, (n, 2), kept within the bound."""
        guesses: Floats = np.clip(self.network(pi), -self.bound, self.bound)
        return guesses

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        student = self.student
        theta = {"means": student.means, "scales": student.scales, "log_prior": student.log_prior}
        return {**theta, "anchors": self.anchors, **self.network.tensors("network_")}

    def settings(self) -> dict[str, Any]:
        """All that is not an array, as JSON knows it."""
        return {
            "dof": self.student.dof,
            "bound": self.bound,
            "n_inputs": self.n_inputs,
            "refine_steps": self.refine_steps,
            "temperature": self.temperature,
            "columns": None if self.columns is None else list(self.columns),
            "network_above": self.network_above,
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Embedder:
        """Inverse of `tensors` and `settings`; ConfigError if something is missing or does not fit."""
        columns = settings.get("columns")
        try:
            return cls(
                student=Student(tensors["means"], tensors["scales"], tensors["log_prior"], float(settings["dof"])),
                network=Network.from_tensors(tensors, "network_"),
                anchors=tensors["anchors"],
                bound=float(settings["bound"]),
                n_inputs=int(settings["n_inputs"]),
                refine_steps=int(settings["refine_steps"]),
                temperature=float(settings["temperature"]),
                columns=None if columns is None else tuple(int(column) for column in columns),
                network_above=float(settings["network_above"]),
            )
        except KeyError as missing:
            raise ConfigError(f"the embedder lacks {missing}") from None

    def theta(self) -> Floats:
        """μ_x, μ_y, b and v of the class scores, (4, K)."""
        student = self.student
        spread = student.dof * student.scales**2
        return np.stack([*student.means.T, student.log_prior + 0.5 * student.dof * np.log(spread), spread])

    def _place(self, log_pi: Floats) -> tuple[Floats, Floats]:
        """Points (n, 2) and KL_sym (n,) of rows (n, K) of the student's classes."""
        x, y, offset, spread = self.theta()[:, :, None]
        theta = _Theta(x, y, offset, spread, 0.5 * (self.student.dof + 2.0))
        pi = np.exp(log_pi)
        starts, losses = self.starts.best_of_two(pi, log_pi)
        asked = np.flatnonzero(losses > self.network_above)
        guesses = self.guess(pi[asked])
        # Class-first from here on: sums over classes then run along rows of memory.
        by_class, log_by_class, points = np.ascontiguousarray(pi.T), np.ascontiguousarray(log_pi.T), starts.T.copy()
        if len(asked):
            some, log_some = by_class[:, asked], log_by_class[:, asked]
            at_guess, at_anchor = (_look(theta, some, log_some, at).loss for at in (guesses.T, points[:, asked]))
            better = (at_guess < at_anchor) | np.isinf(losses[asked])
            points[:, asked[better]] = guesses[better].T
        points, losses = self._newton(theta, by_class, log_by_class, points, self.refine_steps)
        labels = log_pi.argmax(axis=1)
        astray = np.flatnonzero((_lead(theta, points, labels) <= MARGIN) & self.starts.has_class[labels])
        if len(astray):
            inside = self.starts.best(pi[astray], log_pi[astray], labels[astray])[0].T
            points[:, astray], losses[astray] = self._place_inside(
                theta, by_class[:, astray], log_by_class[:, astray], labels[astray], inside, points[:, astray]
            )
        return points.T, losses

    def _place_inside(
        self, theta: _Theta, pi: Floats, log_pi: Floats, labels: NDArray[np.int64], inside: Floats, outside: Floats
    ) -> tuple[Floats, Floats]:
        """Best points (2, n) where the student predicts `labels`, and KL_sym there (n,).

        The search starts from the better of two places: the anchor `inside`, and the last agreeing point on the segment
        from it to the unconstrained optimum `outside`.
        """
        low, high = np.zeros(len(labels)), np.ones(len(labels))
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            agrees = _lead(theta, inside + middle * (outside - inside), labels) > MARGIN
            low, high = np.where(agrees, middle, low), np.where(agrees, high, middle)
        edge = inside + low * (outside - inside)
        at_edge, at_inside = (_look(theta, pi, log_pi, at).loss for at in (edge, inside))
        start = np.where(at_edge < at_inside, edge, inside)
        return self._newton(theta, pi, log_pi, start, self.inside_steps, labels)

    def _newton(
        self,
        theta: _Theta,
        pi: Floats,
        log_pi: Floats,
        points: Floats,
        steps: int,
        labels: NDArray[np.int64] | None = None,
    ) -> tuple[Floats, Floats]:
        """Points (2, n) after `steps` damped Newton steps and KL_sym there (n,).

        A step that does not lower KL_sym, or leaves the region where the student predicts `labels`, is not taken; one
        that is shorter than `REST` ends the search of its row.
        """
        local = _look(theta, pi, log_pi, points)
        damping = np.full(points.shape[1], 1e-3)
        for _ in range(steps):
            move = _direction(local, damping + 1e-6)
            length = np.maximum(np.hypot(*move), 1e-20)
            moves = length >= REST * self.bound
            trial = np.clip(points + move * np.minimum(0.1 * self.bound / length, 1.0), -self.bound, self.bound)
            there = _look(theta, pi, log_pi, trial)
            better = moves & (there.loss < local.loss + SLACK)
            if labels is not None:
                better &= _lead(theta, trial, labels) > MARGIN
            points = np.where(better, trial, points)
            local = _Local(*(np.where(better, new, old) for new, old in zip(there, local, strict=True)))
            damping = np.clip(damping * np.where(better, 0.2, np.where(moves, 10.0, 1.0)), 1e-6, 1e4)
        return points, local.loss


def _scores(theta: _Theta, points: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """y - μ along x and along y, |y - μ|² + v, and the class scores s, all (K, n), for points (2, n)."""
    gap_x, gap_y = points[0] - theta.x, points[1] - theta.y
    distance = gap_x * gap_x + gap_y * gap_y + theta.spread
    return gap_x, gap_y, distance, theta.offset - theta.power * np.log(distance)


def _lead(theta: _Theta, points: Floats, labels: NDArray[np.int64]) -> Floats:
    """Log-odds of each row's class against the best other one at points (2, n), as (n,)."""
    *_, scores = _scores(theta, points)
    rows = np.arange(len(labels))
    own = scores[labels, rows]
    scores[labels, rows] = -np.inf
    lead: Floats = own - scores.max(axis=0)
    return lead


def _look(theta: _Theta, pi: Floats, log_pi: Floats, points: Floats) -> _Local:
    """KL_sym, its gradient and its Hessian for rows (K, n) at points (2, n)."""
    gap_x, gap_y, distance, scores = _scores(theta, points)
    scores -= scores.max(axis=0)
    q = np.exp(scores)
    total = q.sum(axis=0)
    q /= total
    surprise = log_pi - scores + np.log(total)
    excess = q - pi
    loss = -0.5 * (excess * surprise).sum(axis=0)
    surprise -= (q * surprise).sum(axis=0)
    pull = 0.5 * (excess - q * surprise)
    slope = (-2.0 * theta.power) / distance
    along_x, along_y = slope * gap_x, slope * gap_y
    q_x, q_y = q * along_x, q * along_y
    mean_x, mean_y = q_x.sum(axis=0), q_y.sum(axis=0)
    tilt_x, tilt_y = (surprise * q_x).sum(axis=0), (surprise * q_y).sum(axis=0)
    # J'diag(q(1 - ρ/2))J from the divergence, plus Σ pull_k ∇²s_k = Σ pull_k (u I + J_k J_k' / c).
    weight = q - 0.5 * q * surprise + pull / theta.power
    bend = (pull * slope).sum(axis=0)
    gradient = np.stack([(pull * along_x).sum(axis=0), (pull * along_y).sum(axis=0)])
    hessian = np.stack(
        [
            (weight * along_x * along_x).sum(axis=0) - mean_x * (mean_x - tilt_x) + bend,
            (weight * along_y * along_y).sum(axis=0) - mean_y * (mean_y - tilt_y) + bend,
            (weight * along_x * along_y).sum(axis=0) - mean_x * mean_y + 0.5 * (tilt_x * mean_y + tilt_y * mean_x),
        ]
    )
    return _Local(loss, gradient, hessian)


def _direction(local: _Local, damping: Floats) -> Floats:
    """The step -(|H| + damping)⁻¹ g of every row, (2, n), with the eigenvalues of H made positive."""
    (g_x, g_y), (h_xx, h_yy, h_xy) = local.gradient, local.hessian
    middle, half = 0.5 * (h_xx + h_yy), 0.5 * (h_xx - h_yy)
    split = np.maximum(np.hypot(half, h_xy), 1e-20)
    inverse_1 = 1.0 / (np.abs(middle + split) + damping)
    inverse_2 = 1.0 / (np.abs(middle - split) + damping)
    even, odd = 0.5 * (inverse_1 + inverse_2), 0.5 * (inverse_1 - inverse_2) / split
    return np.stack([-(even * g_x + odd * (half * g_x + h_xy * g_y)), -(even * g_y + odd * (h_xy * g_x - half * g_y))])
