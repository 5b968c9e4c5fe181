"""One step of the second-order fit: all of θ and all of the points Y at once.

The objective is the weighted mean of KL_sym(π_i, P_S(. | y_i; θ)) and a ridge on θ. A row has K scores s, and the loss
depends on θ and y_i through them alone. With ρ_k = r_k - Σ_j q_j r_j, r = log π - log q, its Hessian in the scores is

    diag(h) - h h' + (q ρ)(q ρ)' / 4,     h_k = q_k (1 - ρ_k / 2),     Σ_k h_k = 1.

The step uses H = diag(h) - h h' / Σ h, with h_k at least q_k / 10, which is positive semi-definite. The Fisher matrix,
with q for h, underestimates the curvature where π and q differ, and most of its steps had to be rejected. With J the
derivative of the scores in θ and A that in y, the Gauss-Newton matrix has block-arrow shape: one 2x2 block per point
and a border. The points are eliminated, which leaves the Schur complement

    Σ_i w_i (J_i' H_i J_i - J_i' H_i A_i (A_i' H_i A_i + λ)⁻¹ A_i' H_i J_i)

for θ. It has (3K)² entries and is never formed. J has three entries per class, so a product with a vector costs O(n K),
and conjugate gradients need few: the preconditioner, the 3x3 block of each class, is exact but for the other classes,
and a step that is not exact is as good as one that is. The points then follow by substitution and take a few Newton
steps of their own. Levenberg-Marquardt damping falls when a step lowers the objective and rises when it does not.

Rows are worked through in chunks whose arrays stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from darksight_core.fit.config import FitConfig
from darksight_core.fit.map.placement import Local, Rows, Theta, map_bound, newton
from darksight_core.map.student import default_scale

__all__ = ["Maps", "Problem", "default_log_spread", "joint_step"]

_PRIOR_PENALTY = 1e-2
_SCALE_PENALTY = 1e-2
_SMALLEST_CURVATURE = 0.1
_NEWTON_STEPS = 3
_SOLVER_STEPS = 10
_SOLVER_TOLERANCE = 0.2
# Longest move of a point in a step, in units of bound / √K: about the distance of neighbouring centres.
_LONGEST = 0.3
# Elements of (S, K, n) in a chunk: on a CPU a dozen arrays of them stay in cache, a GPU wants many.
_CHUNK_CPU, _CHUNK_GPU = 1 << 18, 1 << 24


@dataclass(frozen=True, slots=True)
class Problem:
    """Rows, their weights (n,), which sum to one, and the penalties on θ."""

    rows: Rows
    weights: Tensor
    config: FitConfig

    @classmethod
    def of(cls, rows: Rows, weights: Tensor, config: FitConfig) -> Problem:
        """A problem with the weights scaled to one."""
        return cls(rows, (weights / weights.sum()).to(rows.pi), config)

    def ridge(self, theta: Theta) -> tuple[Tensor, Tensor]:
        """Strength of the ridge on each parameter and the parameter's distance from its target, both (S, 4, K).

        The penalty is a mean over classes, so that it weighs the same against the loss for few classes and many.
        """
        drift = theta.log_spread - default_log_spread(self.config, theta.n_classes)
        distance = torch.cat((theta.means, theta.offset[:, None], drift[:, None]), dim=1)
        spread = self.config.spread_penalty
        strength = distance.new_tensor([spread, spread, _PRIOR_PENALTY, _SCALE_PENALTY]) / theta.n_classes
        return strength[:, None].expand_as(distance), distance

    def objective(self, theta: Theta, loss: Tensor) -> Tensor:
        """Weighted mean of the loss (S, n) plus penalties, (S,)."""
        strength, distance = self.ridge(theta)
        return (loss * self.weights).sum(dim=1) + 0.5 * (strength * distance.square()).sum(dim=(1, 2))

    def chunks(self, starts: int) -> Iterator[slice]:
        """Slices of the rows that are worked on together."""
        classes, count = self.rows.pi.shape
        elements = _CHUNK_CPU if self.rows.pi.device.type == "cpu" else _CHUNK_GPU
        size = max(64, elements // (classes * starts))
        return (slice(start, min(start + size, count)) for start in range(0, count, size))


def default_log_spread(config: FitConfig, n_classes: int) -> float:
    """log v of a class with the paper's scale."""
    return math.log(config.dof * default_scale(n_classes) ** 2)


@dataclass(frozen=True, slots=True)
class Maps:
    """S maps: θ, points (S, 2, n), the objective (S,) and the damping (S,)."""

    theta: Theta
    points: Tensor
    objective: Tensor
    damping: Tensor

    def pick(self, starts: Tensor) -> Maps:
        """The maps at these indices."""
        return Maps(self.theta.pick(starts), self.points[starts], self.objective[starts], self.damping[starts])

    def best(self, count: int) -> Maps:
        """The `count` best maps, best first."""
        return self.pick(torch.argsort(self.objective, stable=True)[:count])

    def merged(self, other: Maps, take: Tensor) -> Maps:
        """`other` where `take` (S,), self elsewhere."""
        return Maps(
            self.theta.merged(other.theta, take),
            torch.where(take[:, None, None], other.points, self.points),
            torch.where(take, other.objective, self.objective),
            torch.where(take, other.damping, self.damping),
        )

    @classmethod
    def joined(cls, several: list[Maps]) -> Maps:
        """Maps of several sets in one."""
        return cls(
            Theta.joined([one.theta for one in several]),
            torch.cat([one.points for one in several]),
            torch.cat([one.objective for one in several]),
            torch.cat([one.damping for one in several]),
        )


def joint_step(maps: Maps, problem: Problem) -> Maps:
    """The maps after a step, or where they are with more damping if it does not lower their objective."""
    system = _System(maps, problem)
    step = system.solve()
    move = system.moves(step)
    bound = map_bound(maps.theta)[:, None, None]
    longest = _LONGEST / math.sqrt(maps.theta.n_classes) * bound
    move = move * (longest / torch.hypot(move[:, :1], move[:, 1:]).clamp_min(1e-20)).clamp_max(1.0)
    theta = maps.theta.moved(step)
    bound = map_bound(theta)
    start = torch.clamp(maps.points + move, -bound[:, None, None], bound[:, None, None])
    settled = [
        newton(theta, problem.rows[chunk], start[:, :, chunk], steps=_NEWTON_STEPS, bound=bound)
        for chunk in problem.chunks(len(step))
    ]
    objective = problem.objective(theta, torch.cat([loss for _, loss in settled], dim=1))
    better = objective < maps.objective
    damping = torch.where(better, 0.3 * maps.damping, 5.0 * maps.damping).clamp(1e-5, 1e4)
    moved = Maps(theta, torch.cat([points for points, _ in settled], dim=2), objective, damping)
    return replace(maps, damping=damping).merged(moved, better)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The rows of a chunk as the system needs them.

    `border` (S, 3, G K, n) is J'H times 1, a_x and a_y, the last two centred: what θ shares with a shift of all scores
    and with the point. `shift` w / Σ h and `inverse` (A'HA + λ)⁻¹ = (xx, xy, yy) belong to them; `gradient` is that of
    the point, (S, 2, n).
    """

    border: Tensor
    weights: Tensor
    shift: Tensor
    inverse: tuple[Tensor, Tensor, Tensor]
    gradient: Tensor

    def solve_points(self, right: Tensor) -> Tensor:
        """(A'HA + λ)⁻¹ times (S, 2, n)."""
        xx, xy, yy = self.inverse
        x, y = right.unbind(dim=1)
        return torch.stack((xx * x + xy * y, xy * x + yy * y), dim=1)

    def eliminate(self, vector: Tensor) -> Tensor:
        """What the elimination of shifts and points takes from J'HJ v, both (S, G K)."""
        shared = (vector[:, None, None] @ self.border)[:, :, 0]
        solved = torch.cat(
            ((self.shift * shared[:, 0])[:, None], self.solve_points(shared[:, 1:]) * self.weights), dim=1
        )
        return (self.border @ solved[..., None])[..., 0].sum(dim=1)

    def class_blocks(self, groups: int) -> Tensor:
        """The same matrix between the parameters of each class, (S, G, G, K)."""
        starts, _, _, count = self.border.shape
        parts = self.border.view(starts, 3, groups, -1, count)
        xx, xy, yy = (part[:, None, None] * self.weights for part in self.inverse)
        solved = parts.clone()
        solved[:, 0] *= self.shift[:, None, None]
        solved[:, 1] = xx * parts[:, 1] + xy * parts[:, 2]
        solved[:, 2] = xy * parts[:, 1] + yy * parts[:, 2]
        columns = [(solved * parts[:, :, g : g + 1]).sum(dim=(1, 4)) for g in range(groups)]
        return torch.stack(columns, dim=2)


class _System:
    """The linear system of a step: matrix-free products with the damped Schur complement, and its right-hand side."""

    def __init__(self, maps: Maps, problem: Problem) -> None:
        theta = maps.theta
        starts, classes = theta.offset.shape
        self._tied = problem.config.scale == "shared"
        groups = 3 if problem.config.scale == "fixed" else 4
        own = theta.offset.new_zeros(starts, groups, groups, classes)
        gradient, fisher = torch.zeros_like(own[:, 0]), torch.zeros_like(own[:, 0])
        blocks = torch.zeros_like(own)
        self._chunks = []
        for part in problem.chunks(starts):
            weights = problem.weights[part]
            local = Local.at(theta, problem.rows[part], maps.points[:, :, part])
            jacobian = _jacobian(theta, local, groups)
            curvature = local.q * (1.0 - 0.5 * local.surprise).clamp_min_(_SMALLEST_CURVATURE)
            chunk = _chunk(local, jacobian, curvature, weights, maps.damping)
            heavy = chunk.border[:, 0].view_as(jacobian)
            own += torch.stack([(heavy * jacobian[:, g : g + 1]) @ weights for g in range(groups)], dim=2)
            fisher += (heavy.square() @ chunk.shift[:, None, :, None])[..., 0]
            blocks += chunk.class_blocks(groups)
            gradient += (jacobian * local.pull[:, None]) @ weights
            solved = chunk.solve_points(chunk.gradient) * weights
            gradient -= (chunk.border[:, 1:] @ solved[..., None])[..., 0].sum(dim=1).view_as(gradient)
            self._chunks.append(chunk)
        strength, distance = (part[:, :groups] for part in problem.ridge(theta))
        # Damping is relative to the curvature of each parameter alone.
        damping = maps.damping[:, None, None] * (own.diagonal(dim1=1, dim2=2).transpose(1, 2) - fisher).abs()
        self._own = own + torch.diag_embed((strength + damping + 1e-8).transpose(1, 2)).permute(0, 2, 3, 1)
        self._right = -gradient - strength * distance
        self._inverse = torch.linalg.inv((self._own - blocks).permute(0, 3, 1, 2))

    def solve(self) -> Tensor:
        """The step of θ, (S, G, K), by preconditioned conjugate gradients."""
        residual = self._tie(self._right)
        step, ahead = torch.zeros_like(residual), self._precondition(residual)
        direction, norm = ahead, _dot(residual, ahead)
        enough = _SOLVER_TOLERANCE**2 * norm
        for _ in range(_SOLVER_STEPS):
            product = self._multiply(direction)
            curvature = _dot(direction, product)
            running = (curvature > 0.0) & (norm > enough)
            if not bool(running.any()):
                break
            length = torch.where(running, norm / curvature.clamp_min(1e-30), 0.0)[:, None, None]
            step, residual = step + length * direction, residual - length * product
            ahead = self._precondition(residual)
            before, norm = norm, torch.where(running, _dot(residual, ahead), norm)
            direction = ahead + (norm / before.clamp_min(1e-30))[:, None, None] * direction
        finite = torch.isfinite(step).all(dim=2, keepdim=True).all(dim=1, keepdim=True)
        return torch.where(finite, step, 0.0)

    def moves(self, step: Tensor) -> Tensor:
        """How the points follow a step of θ, (S, 2, n)."""
        vector = step.flatten(1)[:, None, None]
        found = [
            -chunk.solve_points(chunk.gradient + (vector @ chunk.border[:, 1:])[:, :, 0]) for chunk in self._chunks
        ]
        return torch.cat(found, dim=2)

    def _multiply(self, vector: Tensor) -> Tensor:
        product = (self._own * vector[:, None]).sum(dim=2)
        flat = vector.flatten(1)
        for chunk in self._chunks:
            product -= chunk.eliminate(flat).view_as(product)
        return self._tie(product)

    def _precondition(self, residual: Tensor) -> Tensor:
        return self._tie((self._inverse @ residual.transpose(1, 2)[..., None])[..., 0].transpose(1, 2))

    def _tie(self, vector: Tensor) -> Tensor:
        """The part of a vector (S, G, K) that moves all scales alike, if they are one."""
        if not self._tied:
            return vector
        return torch.cat((vector[:, :3], vector[:, 3:].mean(dim=2, keepdim=True).expand_as(vector[:, 3:])), dim=1)


def _jacobian(theta: Theta, local: Local, groups: int) -> Tensor:
    """∂s_k/∂(μ_x, μ_y, b, log v) of each class, (S, G, K, n)."""
    starts, _, classes, count = local.along.shape
    jacobian = local.along.new_ones(starts, groups, classes, count)
    torch.neg(local.along, out=jacobian[:, :2])
    if groups == 4:
        torch.mul(0.5 * local.slope, theta.log_spread.exp()[..., None], out=jacobian[:, 3])
    return jacobian


def _chunk(local: Local, jacobian: Tensor, curvature: Tensor, weights: Tensor, damping: Tensor) -> _Chunk:
    """Border and point blocks at the points of a chunk."""
    starts, groups, classes, count = jacobian.shape
    border = jacobian.new_empty(starts, 3, groups, classes, count)
    heavy = torch.mul(jacobian, curvature[:, None], out=border[:, 0])
    total = curvature.sum(dim=1)
    mean = -heavy[:, :2].sum(dim=2) / total[:, None]
    centred = local.along - mean[:, :, None]
    torch.mul(heavy, centred[:, :1], out=border[:, 1])
    torch.mul(heavy, centred[:, 1:], out=border[:, 2])
    xx, xy, yy = -border[:, 1, 0].sum(dim=1), -border[:, 1, 1].sum(dim=1), -border[:, 2, 1].sum(dim=1)
    raised = 0.5 * damping[:, None] * (xx + yy) + 1e-6
    xx, yy = xx + raised, yy + raised
    determinant = xx * yy - xy * xy
    inverse = (yy / determinant, -xy / determinant, xx / determinant)
    gradient = (local.pull[:, None] * local.along).sum(dim=2)
    return _Chunk(border.flatten(2, 3), weights, weights / total, inverse, gradient)


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(dim=(1, 2))
