"""Placing rows on the plane when the student is known: the 2-D problems, many at once.

Given θ, each row's point solves a problem of its own, min_y KL_sym(π, P_S(. | y)). The class score of the student is

    s_k(y) = b_k - c log(|y - μ_k|² + v_k),     c = (ν + 2) / 2,   v_k = ν s_k²,

and P_S(. | y) = softmax(s(y)), so gradient and Hessian are closed forms of a few class-sized arrays. The problems have
several local minima: `nearest_candidate` looks the whole map over first (one matrix product), `newton` then finishes
with damped 2x2 steps on the absolute Hessian, each row with its own damping. A row's result depends on no other row.

Arrays are class-first, `(S, K, n)`: S students side by side (the starts of a fit), K classes, n rows. Reductions over
the classes then run along contiguous rows, which is several times faster than row-first at K = 10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from darksight_core.map.anchors import MARGIN
from darksight_core.map.placement import BISECTIONS, REST, SLACK
from darksight_core.map.student import Student
from darksight_core.rows.simplex import log_softmax

__all__ = [
    "Local",
    "Rows",
    "Theta",
    "best_candidate",
    "candidate_grid",
    "find_astray",
    "map_bound",
    "nearest_candidate",
    "newton",
    "place",
    "place_faithful",
    "place_inside",
    "rows_of",
]

# Elements per chunk of (K, n): small enough that a dozen arrays of it stay in cache.
_CHUNK = 1 << 16
# Rows whose costs at all candidates are held at a time.
_SEARCH_ROWS = 512


@dataclass(frozen=True, slots=True)
class Theta:
    """Parameters of S students: `means` (S, 2, K), `offset` b (S, K), `log_spread` log v (S, K), `power` c."""

    means: Tensor
    offset: Tensor
    log_spread: Tensor
    power: float

    @property
    def radius(self) -> Tensor:
        """Largest coordinate of a centre in each student, (S,)."""
        return self.means.abs().amax(dim=(1, 2)).clamp_min(1.0)

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return self.offset.shape[1]

    def pick(self, starts: Tensor) -> Theta:
        """The students at these indices."""
        return Theta(self.means[starts], self.offset[starts], self.log_spread[starts], self.power)

    def merged(self, other: Theta, take: Tensor) -> Theta:
        """`other` where `take` (S,), self elsewhere."""
        return Theta(
            torch.where(take[:, None, None], other.means, self.means),
            torch.where(take[:, None], other.offset, self.offset),
            torch.where(take[:, None], other.log_spread, self.log_spread),
            self.power,
        )

    def moved(self, step: Tensor) -> Theta:
        """θ after a step (S, 3, K) in means and offset, or (S, 4, K) in log spread too."""
        log_spread = self.log_spread + step[:, 3] if step.shape[1] == 4 else self.log_spread
        return Theta(self.means + step[:, :2], self.offset + step[:, 2], log_spread, self.power)

    @classmethod
    def joined(cls, several: list[Theta]) -> Theta:
        """Students of several sets in one."""
        return cls(
            torch.cat([one.means for one in several]),
            torch.cat([one.offset for one in several]),
            torch.cat([one.log_spread for one in several]),
            several[0].power,
        )

    def scores(self, points: Tensor) -> Tensor:
        """Class scores s (S, K, n) at points (S, 2, n); log P(k | y) up to a constant of the row."""
        gap = points[:, :, None, :] - self.means[..., None]
        distance = gap.square().sum(dim=1) + self.log_spread.exp()[..., None]
        return self.offset[..., None] - self.power * distance.log()

    def to_student(self) -> Student:
        """The only student (S = 1) as the numpy one."""
        log_spread = self.log_spread[0].double().cpu().numpy()
        dof = 2.0 * self.power - 2.0
        # b_k = log prior_k + (c - 1) log v_k + constant, from the normaliser of the Student-t density.
        log_prior = self.offset[0].double().cpu().numpy() - (self.power - 1.0) * log_spread
        return Student(
            means=self.means[0].double().cpu().numpy().T,
            scales=np.sqrt(np.exp(log_spread) / dof),
            log_prior=log_softmax(log_prior),
            dof=dof,
        )

    @classmethod
    def of(cls, student: Student, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Theta:
        """A single student (S = 1) as tensors."""
        power = 0.5 * (student.dof + 2.0)
        log_spread = np.log(student.dof * student.scales**2)

        def tensor(array: np.ndarray) -> Tensor:
            return torch.tensor(array, device=device, dtype=dtype)[None]

        return cls(
            tensor(student.means.T), tensor(student.log_prior + (power - 1.0) * log_spread), tensor(log_spread), power
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to place, class-first: `log_pi` and `pi`, both (K, n)."""

    log_pi: Tensor
    pi: Tensor

    def __len__(self) -> int:
        return self.pi.shape[1]

    def __getitem__(self, columns: slice | Tensor) -> Rows:
        return Rows(self.log_pi[:, columns], self.pi[:, columns])

    def tempered(self, temperature: float) -> Rows:
        """softmax(log π / T)."""
        return self if temperature == 1.0 else rows_of(self.log_pi / temperature)

    @property
    def entropy(self) -> Tensor:
        """H(π) of each row in nats, (n,)."""
        return -(self.pi * self.log_pi).sum(dim=0)

    @property
    def labels(self) -> Tensor:
        """The watched classifier's class of each row, (n,)."""
        return self.pi.argmax(dim=0)


def rows_of(scores: Tensor) -> Rows:
    """Rows from class-first scores (K, n): logits or log-probabilities."""
    log_pi = torch.log_softmax(scores, dim=0)
    return Rows(log_pi, log_pi.exp())


@dataclass(frozen=True, slots=True)
class Local:
    """First-order facts at the points: everything that Newton and the joint step share.

    `along` ∂s/∂y = u (y - μ), (S, 2, K, n), with `slope` u = -2c / (|y - μ|² + v); `q` the student's posterior,
    `surprise` ρ = r - Σ q r with r = log π - log q, `pull` ∂KL_sym/∂s, all (S, K, n); `loss` KL_sym (S, n).
    """

    along: Tensor
    slope: Tensor
    q: Tensor
    surprise: Tensor
    pull: Tensor
    loss: Tensor

    @classmethod
    def at(cls, theta: Theta, rows: Rows, points: Tensor) -> Local:
        """Evaluate at points (S, 2, n)."""
        along = points[:, :, None, :] - theta.means[..., None]
        distance = along.square().sum(dim=1).add_(theta.log_spread.exp()[..., None])
        log_q = torch.log_softmax(torch.sub(theta.offset[..., None], distance.log(), alpha=theta.power), dim=1)
        q = log_q.exp()
        surprise = rows.log_pi - log_q
        excess = q - rows.pi
        loss = (excess * surprise).sum(dim=1).mul_(-0.5)
        surprise.sub_((q * surprise).sum(dim=1, keepdim=True))
        pull = torch.addcmul(excess, q, surprise, value=-1.0).mul_(0.5)
        slope = distance.reciprocal_().mul_(-2.0 * theta.power)
        return cls(along.mul_(slope[:, None]), slope, q, surprise, pull, loss)

    def merged(self, other: Local, take: Tensor) -> Local:
        """`other` where `take` (S,), self elsewhere."""
        wide = take[:, None, None]
        return Local(
            torch.where(wide[..., None], other.along, self.along),
            torch.where(wide, other.slope, self.slope),
            torch.where(wide, other.q, self.q),
            torch.where(wide, other.surprise, self.surprise),
            torch.where(wide, other.pull, self.pull),
            torch.where(take[:, None], other.loss, self.loss),
        )

    def quadratic(self, power: float) -> Tensor:
        """Gradient (g_x, g_y) and Hessian (h_xx, h_yy, h_xy) of every row's loss, (S, 5, n)."""
        weighted = self.q[:, None] * self.along
        mean = weighted.sum(dim=2)
        tilt = weighted.mul_(self.surprise[:, None]).sum(dim=2)
        gradient = (self.pull[:, None] * self.along).sum(dim=2)
        # J'diag(q(1 - ρ/2))J from the divergence, plus Σ pull_k ∇²s_k = Σ pull_k (u I + J_k J_k' / c).
        weight = torch.addcmul(self.q, self.q, self.surprise, value=-0.5).add_(self.pull, alpha=1.0 / power)
        bend = (self.pull * self.slope).sum(dim=1, keepdim=True)
        curved = weight[:, None] * self.along
        off = (curved[:, 0] * self.along[:, 1]).sum(dim=1) - mean[:, 0] * mean[:, 1]
        off += 0.5 * (tilt[:, 0] * mean[:, 1] + tilt[:, 1] * mean[:, 0])
        diagonal = curved.mul_(self.along).sum(dim=2).add_(bend).sub_(mean * (mean - tilt))
        return torch.cat((gradient, diagonal, off[:, None]), dim=1)


def _newton_direction(quadratic: Tensor, damping: Tensor) -> Tensor:
    """The step -|H|⁻¹ g of every row, (S, 2, n): eigenvalues are made positive and raised by `damping` (S, n)."""
    gradient, (h_xx, h_yy, h_xy) = quadratic[:, :2], quadratic[:, 2:].unbind(dim=1)
    middle, half = 0.5 * (h_xx + h_yy), 0.5 * (h_xx - h_yy)
    split = torch.hypot(half, h_xy).clamp_min_(1e-20)
    inverse_1 = ((middle + split).abs_() + damping).reciprocal_()
    inverse_2 = ((middle - split).abs_() + damping).reciprocal_()
    even, odd = 0.5 * (inverse_1 + inverse_2), 0.5 * (inverse_1 - inverse_2) / split
    turned = torch.stack(
        (half * gradient[:, 0] + h_xy * gradient[:, 1], h_xy * gradient[:, 0] - half * gradient[:, 1]), dim=1
    )
    return -(even[:, None] * gradient + odd[:, None] * turned)


def _agrees(local: Local, labels: Tensor) -> Tensor:
    """Where the student's class is the wanted one by a margin, (S, n)."""
    own = local.q.gather(1, labels.expand(local.q.shape[0], 1, -1))
    others = local.q.scatter(1, labels.expand(local.q.shape[0], 1, -1), 0.0)
    return own[:, 0] > others.amax(dim=1) * math.exp(MARGIN)


def newton(
    theta: Theta, rows: Rows, points: Tensor, *, steps: int, bound: Tensor, labels: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Improve points (S, 2, n) by damped Newton steps; a step that does not improve is not taken.

    Returns the points and their KL_sym (S, n).

    Parameters
    ----------
    theta, rows, points
        Students, rows and where the rows stand now.
    steps
        Number of steps.
    bound
        Largest coordinate allowed, (S,): rows near uniform would otherwise walk to infinity.
    labels
        If given, a step that leaves the region where the student predicts this class (n,) is not taken either.
    """
    local = Local.at(theta, rows, points)
    loss = local.loss
    damping = torch.full_like(loss, 1e-3)
    longest, edge = 0.1 * bound[:, None], bound[:, None, None]
    quadratic, better = local.quadratic(theta.power), torch.ones_like(loss, dtype=torch.bool)
    for step in range(steps):
        # Only what a direction needs is kept of the rows whose last step was not taken: n numbers, not K n.
        if step > 0:
            quadratic = torch.where(better[:, None], local.quadratic(theta.power), quadratic)
        move = _newton_direction(quadratic, damping + 1e-6)
        length = torch.hypot(move[:, 0], move[:, 1]).clamp_min_(1e-20)
        moves = length >= REST * bound[:, None]
        trial = torch.clamp(points + move * (longest / length).clamp_max_(1.0)[:, None], -edge, edge)
        local = Local.at(theta, rows, trial)
        better = moves & (local.loss < loss + SLACK)
        if labels is not None:
            better &= _agrees(local, labels)
        points = torch.where(better[:, None], trial, points)
        loss = torch.where(better, local.loss, loss)
        damping = torch.where(better, 0.2 * damping, torch.where(moves, 10.0 * damping, damping)).clamp_(1e-6, 1e4)
    return points, loss


def map_bound(theta: Theta) -> Tensor:
    """Largest coordinate a point may have, (S,)."""
    return 2.0 * theta.radius


def candidate_grid(theta: Theta, bound: Tensor, per_side: int) -> Tensor:
    """A square grid over [-bound, bound]² with the class centres added, (S, 2, per_side² + K)."""
    ticks = torch.linspace(-1.0, 1.0, per_side, device=bound.device, dtype=bound.dtype)
    grid = torch.stack(torch.meshgrid(ticks, ticks, indexing="ij")).reshape(2, -1)
    return torch.cat((bound[:, None, None] * grid, theta.means), dim=2)


def nearest_candidate(theta: Theta, rows: Rows, candidates: Tensor, *, faithful: bool = False) -> Tensor:
    """The place (S, 2, n) of every row's best candidate."""
    best = best_candidate(theta, rows, candidates, faithful=faithful)
    return candidates.gather(2, best[:, None, :].expand(-1, 2, -1))


def best_candidate(theta: Theta, rows: Rows, candidates: Tensor, *, faithful: bool = False) -> Tensor:
    """For every row the number (S, n) of the candidate (S, 2, M) of least KL_sym.

    KL_sym(π, q) = (π·log π - π·log q + q·log q - q·log π) / 2 is linear in (π, log π): one matrix product decides.
    With `faithful`, only candidates where the student predicts the row's own class count, if there is one.
    """
    log_q = torch.log_softmax(theta.scores(candidates), dim=1)
    q = log_q.exp()
    weights = torch.cat((log_q, q), dim=1)
    base = (q * log_q).sum(dim=1)[:, None]
    found = []
    for start in range(0, len(rows), _SEARCH_ROWS):
        part = rows[start : start + _SEARCH_ROWS]
        stacked = torch.cat((part.pi, part.log_pi)).T.expand(q.shape[0], -1, -1)
        cost = torch.baddbmm(base, stacked, weights, alpha=-1.0)
        if faithful:
            cost += 1e6 * (q.argmax(dim=1)[:, None] != part.labels[:, None])
        # min is several times as fast as argmin, and along the last axis again as fast.
        found.append(cost.min(dim=2).indices)
    return torch.cat(found, dim=1)


def place(theta: Theta, rows: Rows, candidates: Tensor, *, steps: int, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Global search and Newton steps: points (S, 2, n) and their KL_sym (S, n), in chunks that stay in cache."""
    size = max(64, _CHUNK // rows.pi.shape[0])
    points, losses = [], []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        placed, loss = newton(theta, part, nearest_candidate(theta, part, candidates), steps=steps, bound=bound)
        points.append(placed)
        losses.append(loss)
    return torch.cat(points, dim=2), torch.cat(losses, dim=1)


def place_faithful(
    theta: Theta, rows: Rows, points: Tensor, candidates: Tensor, *, steps: int, bound: Tensor
) -> Tensor:
    """Move the rows whose student class is not their own to the best place where it is; S = 1, points (1, 2, n)."""
    labels = rows.labels
    astray = find_astray(theta, rows, points)
    if len(astray) == 0:
        return points
    part, outside = rows[astray], points[:, :, astray]
    inside = nearest_candidate(theta, part, candidates, faithful=True)
    moved = place_inside(theta, part, inside, outside, steps=steps, bound=bound)
    # A class that wins nowhere on the map cannot be obeyed: such rows stay at their unconstrained optimum.
    obeyed = _agrees(Local.at(theta, part, moved), labels[astray])[:, None, :]
    result = points.clone()
    result[:, :, astray] = torch.where(obeyed, moved, outside)
    return result


def find_astray(theta: Theta, rows: Rows, points: Tensor) -> Tensor:
    """Numbers of the rows whose class the student does not predict at their points (1, 2, n)."""
    return torch.nonzero(~_agrees(Local.at(theta, rows, points), rows.labels)[0])[:, 0]


def place_inside(theta: Theta, rows: Rows, inside: Tensor, outside: Tensor, *, steps: int, bound: Tensor) -> Tensor:
    """The best places (1, 2, n) where the student predicts the rows' own classes.

    The search starts from the better of two places: `inside`, where it does, and the last such point on the segment
    from there to the row's unconstrained optimum `outside`.
    """
    wanted = rows.labels
    low, high = torch.zeros_like(inside[:, :1]), torch.ones_like(inside[:, :1])
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        agrees = _agrees(Local.at(theta, rows, inside + middle * (outside - inside)), wanted)[:, None, :]
        low, high = torch.where(agrees, middle, low), torch.where(agrees, high, middle)
    edge = inside + low * (outside - inside)
    at_edge, at_inside = Local.at(theta, rows, edge), Local.at(theta, rows, inside)
    start = torch.where((at_edge.loss < at_inside.loss)[:, None, :], edge, inside)
    return newton(theta, rows, start, steps=steps, bound=bound, labels=wanted)[0]
