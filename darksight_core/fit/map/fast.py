"""The second-order fit of the map, min over θ and Y of mean KL_sym(π_i, P_S(. | y_i)).

The Gauss-Newton matrix of the joint problem has block-arrow shape: one 2x2 block per point, a border for θ. Each
`_joint_step` eliminates the points (Schur complement), solves for θ with Levenberg-Marquardt damping, substitutes back,
and lets every point take a few Newton steps of its own. What surrounds it is there against local minima:

1. several random starts on a weighted coreset, half uniform and half by entropy, because the rows that shape the map
   are the few that are not one-hot;
2. temperature 40 -> 1, starting with few rows and dropping the starts that fall behind;
3. between stages every point looks over the whole map for a better place;
4. a class that would fit better elsewhere is moved there, if the map is better for it after a few steps;
5. the winner goes on with the whole coreset, until a step gains less than the tolerance.

All other rows do not move θ: they are placed on the finished map in a stream, at a constant cost per row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from darksight_core.fit.config import FitConfig
from darksight_core.fit.map.placement import Local, Rows, Theta, candidate_grid, map_bound, newton, place
from darksight_core.map.student import default_scale
from darksight_core.progress import Progress, Report

__all__ = ["Coreset", "fit_theta"]


@dataclass(frozen=True, slots=True)
class _Stage:
    temperature: float
    rows: int
    """Rows that take part, in units of `_unit`."""
    steps: int
    survivors: float
    """Share of the starts that go on."""
    relocations: int = 0
    """Classes that may try another place on the map."""


_SCHEDULE = (
    _Stage(40.0, 1, 7, 1.0),
    _Stage(12.0, 1, 7, 1.0),
    _Stage(5.0, 1, 10, 1.0),
    _Stage(2.5, 1, 9, 0.67),
    _Stage(1.6, 1, 10, 0.34, relocations=20),
    _Stage(1.0, 3, 9, 0.0, relocations=24),
    _Stage(1.0, 5, 6, 0.0, relocations=4),
)
_SWEEPS = 30
_GIVE_UP = 10.0
# A moved class gets further steps if the objective is at most this multiple of what it was.
_PROMISING = 1.01
_PRIOR_PENALTY = 1e-3
_SCALE_PENALTY = 1e-3
_INNER_STEPS = 3
# Elements of a (S, K, n) array above which starts run one after the other: beyond it the caches lose.
_CACHED = 1 << 17


@dataclass(frozen=True, slots=True)
class _Problem:
    """Rows, their weights (n,), which sum to one, and the penalties that keep θ in sight."""

    rows: Rows
    weights: Tensor
    config: FitConfig

    @classmethod
    def of(cls, rows: Rows, weights: Tensor, config: FitConfig) -> _Problem:
        return cls(rows, (weights / weights.sum()).to(rows.pi), config)

    def ridge(self, theta: Theta) -> tuple[Tensor, Tensor]:
        """Strength of the ridge on each parameter and the parameter's distance from where it pulls, both (S, G K)."""
        means = theta.means.flatten(1)
        drift = theta.log_spread - _log_spread(self.config, theta.n_classes)
        strength = torch.cat(
            (
                torch.full_like(means, self.config.spread_penalty),
                torch.full_like(theta.offset, _PRIOR_PENALTY),
                torch.full_like(drift, _SCALE_PENALTY),
            ),
            dim=1,
        )
        return strength, torch.cat((means, theta.offset, drift), dim=1)

    def objective(self, theta: Theta, loss: Tensor) -> Tensor:
        """Weighted mean loss plus penalties, (S,)."""
        strength, distance = self.ridge(theta)
        return (loss * self.weights).sum(dim=1) + 0.5 * (strength * distance.square()).sum(dim=1)


@dataclass(frozen=True, slots=True)
class _State:
    """S students, their points (S, 2, n), the facts there, the objective (S,) and the damping (S,)."""

    theta: Theta
    points: Tensor
    local: Local
    objective: Tensor
    damping: Tensor

    @classmethod
    def enter(cls, theta: Theta, problem: _Problem, points: Tensor) -> _State:
        local = Local.at(theta, problem.rows, points)
        return cls(
            theta, points, local, problem.objective(theta, local.loss), torch.full_like(theta.offset[:, 0], 1e-2)
        )


@dataclass(frozen=True, slots=True)
class _Maps:
    """What stages hand on: S students, their points (S, 2, n) or None before the first, and their objective (S,)."""

    theta: Theta
    points: Tensor | None
    objective: Tensor

    def best(self, count: int) -> _Maps:
        """The `count` best students, best first."""
        return self.pick(torch.argsort(self.objective, stable=True)[:count])

    def pick(self, starts: Tensor) -> _Maps:
        return _Maps(
            self.theta.pick(starts), None if self.points is None else self.points[starts], self.objective[starts]
        )


def _log_spread(config: FitConfig, n_classes: int) -> float:
    return math.log(config.dof * default_scale(n_classes) ** 2)


def _unit(n_classes: int) -> int:
    """Rows with which starts begin."""
    return max(500, 10 * n_classes)


@dataclass(frozen=True, slots=True)
class Coreset:
    """Rows in an order of which every prefix is a weighted sample of all rows.

    Row i has odds o_i, half uniform and half proportional to entropy, and the priority u_i / o_i with u_i uniform on
    (0, 1). The m rows of smallest priority are a sample in which row i is included with probability min(1, o_i τ), τ
    being the next priority: with the inverse as weight, sums over the sample are unbiased (priority sampling).

    `rows` (m,) are indices of the chosen rows in this order, `odds` (m,) theirs, `priorities` (m + 1,) theirs and that
    of the next row, infinite when there is none; `stands` (m,) is how many rows each one stands for.
    """

    rows: Tensor
    odds: Tensor
    priorities: Tensor
    stands: Tensor

    @classmethod
    def draw(cls, entropy: Tensor, size: int, generator: torch.Generator, counts: Tensor | None = None) -> Coreset:
        """Choose `size` rows by their entropy (n,), or all if there are no more.

        A row that stands for `counts` (n,) rows has so many times the odds and the weight of one of them.
        """
        entropy = entropy.double().cpu().clamp_min(0.0)
        stands = torch.ones_like(entropy) if counts is None else counts.double()
        odds = stands * (0.5 / stands.sum() + 0.5 * entropy / (stands * entropy).sum().clamp_min(1e-300))
        priorities, order = torch.sort(torch.rand(len(odds), generator=generator, dtype=torch.float64) / odds)
        priorities = torch.cat((priorities, priorities.new_full((1,), math.inf)))
        first = order[:size]
        return cls(first, odds[first], priorities[: min(size, len(odds)) + 1], stands[first])

    def weights(self, count: int | None = None) -> Tensor:
        """Weights of the first `count` rows, by default of all."""
        count = len(self.rows) if count is None else min(count, len(self.rows))
        return self.stands[:count] / (self.odds[:count] * self.priorities[count]).clamp_max(1.0)


def fit_theta(
    rows: Rows, core: Coreset, config: FitConfig, generator: torch.Generator, report: Report
) -> tuple[Theta, Tensor, list[float]]:
    """Fit one student to the rows of a coreset, in its order: θ (S = 1), points (1, 2, n), the objective as it fell."""
    classes = rows.pi.shape[0]
    # A start costs O(K³) for its solves: with many classes there is time for few.
    starts = config.starts or (8 if classes < 30 else 2 if classes < 200 else 1)
    maps = _initial(config, starts, rows, generator)
    history = []
    for number, stage in enumerate(_SCHEDULE):
        count = min(stage.rows * _unit(classes), len(rows))
        problem = _Problem.of(rows[slice(0, count)].tempered(stage.temperature), core.weights(count), config)
        maps = _run(maps, problem, stage.steps, generator).best(max(1, round(stage.survivors * starts)))
        maps = _relocate(maps, problem, stage.relocations, generator)
        history.append(float(maps.objective[0]))
        report(Progress("start", number + 1, len(_SCHEDULE), history[-1]))
    theta, points, sweeps = _polish(maps, _Problem.of(rows, core.weights(), config), report)
    return theta, points, history + sweeps


def _initial(config: FitConfig, starts: int, rows: Rows, generator: torch.Generator) -> _Maps:
    """Random centres about ten units wide and a flat prior."""
    like, classes = rows.pi, rows.pi.shape[0]
    means = 10.0 * torch.randn(starts, 2, classes, generator=generator).to(like)
    flat = like.new_zeros(starts, classes)
    theta = Theta(means, flat, flat + _log_spread(config, classes), 0.5 * (config.dof + 2.0))
    return _Maps(theta, None, like.new_zeros(starts))


def _run(maps: _Maps, problem: _Problem, steps: int, generator: torch.Generator) -> _Maps:
    """Search, then joint steps, a few starts at a time so that their arrays stay in cache."""
    group = max(1, _CACHED // problem.rows.pi.numel())
    done = []
    for some in torch.arange(len(maps.objective), device=maps.objective.device).split(group):
        mine = maps.pick(some)
        state = _State.enter(mine.theta, problem, _search(mine, problem, generator))
        for _ in range(steps):
            state = _joint_step(state, problem)
        done.append(state)
    return _Maps(
        Theta.joined([state.theta for state in done]),
        torch.cat([state.points for state in done]),
        torch.cat([state.objective for state in done]),
    )


def _search(maps: _Maps, problem: _Problem, generator: torch.Generator) -> Tensor:
    """Points (S, 2, n) at the best place found on the whole map, or where they are if that is better."""
    theta, points = maps.theta, maps.points
    bound = map_bound(theta)
    candidates = candidate_grid(theta, 0.6 * bound, 20)
    if points is not None:
        some = torch.randperm(points.shape[2], generator=generator)[:250].to(points.device)
        candidates = torch.cat((candidates, points[:, :, some]), dim=2)
    found, loss = place(theta, problem.rows, candidates, steps=2, bound=bound)
    if points is None:
        return found
    known = min(points.shape[2], found.shape[2])
    stay = Local.at(theta, problem.rows[slice(0, known)], points[:, :, :known]).loss < loss[:, :known]
    found[:, :, :known] = torch.where(stay[:, None, :], points[:, :, :known], found[:, :, :known])
    return found


def _relocate(maps: _Maps, problem: _Problem, tries: int, generator: torch.Generator) -> _Maps:
    """Move single classes of each map to where their rows would fit better, keeping what proves to be better."""
    if tries == 0 or problem.rows.pi.shape[0] < 3:
        return maps
    done = []
    for start in range(len(maps.objective)):
        mine = maps.pick(torch.tensor([start], device=maps.objective.device))
        left = tries
        while left > 0:
            moved = False
            for label, place_there in _better_homes(mine, problem):
                means = mine.theta.means.clone()
                means[0, :, label] = place_there
                trial = _run(replace(mine, theta=replace(mine.theta, means=means)), problem, 2, generator)
                if trial.objective[0] < mine.objective[0] * _PROMISING:
                    trial = _run(trial, problem, 2, generator)
                left -= 1
                if trial.objective[0] < mine.objective[0] * (1.0 - 1e-4):
                    mine, moved = trial, True
                    break
                if left == 0:
                    break
            if not moved:
                break
        done.append(mine)
    points = [one.points for one in done if one.points is not None]
    return _Maps(
        Theta.joined([one.theta for one in done]), torch.cat(points), torch.cat([one.objective for one in done])
    )


def _better_homes(maps: _Maps, problem: _Problem) -> list[tuple[int, Tensor]]:
    """Classes and places (2,) where their rows would have a lower loss, the largest gain first; S = 1.

    If centre k stood at a place m of a coarse grid, its rows would stand near m, where the other classes have the
    scores they have now and class k any score below its peak: one matrix product gives the loss of all its rows at all
    places. Rows of other classes that would be in the way are ignored here; the trial that follows counts them.
    """
    theta, rows = maps.theta, problem.rows
    assert maps.points is not None
    loss = Local.at(theta, rows, maps.points).loss[0] * problem.weights
    labels = rows.labels
    per_class = torch.zeros_like(theta.offset[0]).index_add(0, labels, loss)
    grid = candidate_grid(theta, 0.6 * map_bound(theta), 24)[:, :, : 24 * 24]
    scores = theta.scores(grid)[0]
    peak = (theta.offset - theta.power * theta.log_spread)[0]
    below_peak = scores.new_tensor([0.0, -1.5, -3.0, -5.0])
    homes = []
    for label in torch.argsort(per_class, descending=True, stable=True)[:20].tolist():
        own = torch.nonzero(labels == label)[:, 0]
        if len(own) == 0:
            continue
        part = rows[own]
        there = scores[:, :, None].repeat(1, 1, len(below_peak))
        there[label] = peak[label] + below_peak
        log_q = torch.log_softmax(there.flatten(1), dim=0)
        q = log_q.exp()
        cost = (q * log_q).sum(dim=0)[:, None] - log_q.T @ part.pi - q.T @ part.log_pi
        cost = 0.5 * (cost + (part.pi * part.log_pi).sum(dim=0))
        total = cost.reshape(-1, len(below_peak), len(own)).amin(dim=1) @ problem.weights[own]
        at = int(total.argmin())
        homes.append((float(per_class[label] - total[at]), label, grid[0, :, at]))
    homes.sort(key=lambda home: -home[0])
    return [(label, there) for gain, label, there in homes[:6] if gain > 0.0]


def _polish(maps: _Maps, problem: _Problem, report: Report) -> tuple[Theta, Tensor, list[float]]:
    """Checkpoints over the whole coreset until one improves the objective by less than the tolerance."""
    assert maps.points is not None
    bound = map_bound(maps.theta)
    candidates = torch.cat((candidate_grid(maps.theta, 0.6 * bound, 32), maps.points[:, :, :500]), dim=2)
    points, _ = place(maps.theta, problem.rows, candidates, steps=3, bound=bound)
    state = _State.enter(maps.theta, problem, points)
    history = [float(state.objective[0])]
    for sweep in range(_SWEEPS):
        state = _joint_step(state, problem)
        now = float(state.objective[0])
        report(Progress("sweep", sweep + 1, _SWEEPS, now))
        # A rejected step only raises the damping: it says nothing about how much there is left to gain.
        if now < history[-1]:
            history.append(now)
            if history[-2] - now <= problem.config.tolerance * now:
                break
        elif float(state.damping[0]) > _GIVE_UP:
            break
    return state.theta, state.points, history


def _joint_step(state: _State, problem: _Problem) -> _State:
    """One damped Gauss-Newton step on (θ, Y) with the points eliminated, then Newton steps of the points."""
    theta, local, weights = state.theta, state.local, problem.weights
    starts, classes, _ = local.q.shape

    # ∂s_k/∂(μ_x, μ_y, b, log v) of each class, and that times the Fisher information diag(q) - q q' of the scores.
    groups = [-local.along, torch.ones_like(local.along[:, :1])]
    if problem.config.scale != "fixed":
        groups.append((0.5 * local.slope * theta.log_spread.exp()[..., None])[:, None])
    jacobian = torch.cat(groups, dim=1)
    fisher = jacobian * local.q[:, None]
    size = jacobian.shape[1] * classes

    # The 2x2 block of each point, damped and inverted, and its border with θ.
    weighted = local.q[:, None] * local.along
    mean = weighted.sum(dim=2)
    b = (weighted[:, 0] * local.along[:, 1]).sum(dim=1) - mean[:, 0] * mean[:, 1]
    a, d = (weighted.mul_(local.along).sum(dim=2) - mean.square()).unbind(dim=1)
    damp = 0.5 * state.damping[:, None] * (a + d) + 1e-6
    a, d = a + damp, d + damp
    det = a * d - b * b
    i_xx, i_xy, i_yy = d / det, -b / det, a / det
    grad_x, grad_y = (local.pull[:, None] * local.along).sum(dim=2).unbind(dim=1)
    border_x = (fisher * (local.along[:, :1] - mean[:, :1, None])).flatten(1, 2)
    border_y = (fisher * (local.along[:, 1:] - mean[:, 1:, None])).flatten(1, 2)
    solved_x = border_x * (i_xx * weights)[:, None] + border_y * (i_xy * weights)[:, None]
    solved_y = border_x * (i_xy * weights)[:, None] + border_y * (i_yy * weights)[:, None]

    # θ's own block, then the Schur complement: what is left of it once the points follow.
    flat = fisher.flatten(1, 2)
    heavy = fisher * weights
    own = torch.stack([(heavy * jacobian[:, g : g + 1]).sum(dim=3) for g in range(jacobian.shape[1])], dim=2)
    matrix = torch.diag_embed(own).permute(0, 1, 3, 2, 4).reshape(starts, size, size)
    matrix = torch.baddbmm(matrix, heavy.flatten(1, 2), flat.transpose(1, 2), alpha=-1.0)
    diagonal = matrix.diagonal(dim1=1, dim2=2).abs()
    matrix = torch.baddbmm(matrix, solved_x, border_x.transpose(1, 2), alpha=-1.0)
    matrix = torch.baddbmm(matrix, solved_y, border_y.transpose(1, 2), alpha=-1.0)
    gradient = (jacobian * (local.pull * weights)[:, None]).sum(dim=3).flatten(1)
    gradient = gradient - (solved_x @ grad_x[..., None] + solved_y @ grad_y[..., None])[..., 0]
    strength, distance = (part[:, :size] for part in problem.ridge(theta))
    matrix = matrix + torch.diag_embed(strength + state.damping[:, None] * diagonal + 1e-8)
    step = _solve(matrix, -gradient - strength * distance, problem.config.scale == "shared", classes)

    # Back to the points.
    e_x = -(grad_x + (step[:, None, :] @ border_x)[:, 0])
    e_y = -(grad_y + (step[:, None, :] @ border_y)[:, 0])
    move = torch.stack((i_xx * e_x + i_xy * e_y, i_xy * e_x + i_yy * e_y), dim=1)
    longest = 0.1 * map_bound(theta)[:, None, None]
    move = move * (longest / torch.hypot(move[:, :1], move[:, 1:]).clamp_min(1e-20)).clamp_max(1.0)
    trial = theta.moved(step.reshape(starts, -1, classes))
    bound = map_bound(trial)
    edge = bound[:, None, None]
    start = torch.clamp(state.points + move, -edge, edge)
    points, _ = newton(trial, problem.rows, start, steps=_INNER_STEPS, bound=bound)
    return _accept(state, problem, trial, points, Local.at(trial, problem.rows, points))


def _solve(matrix: Tensor, right: Tensor, tie_scales: bool, classes: int) -> Tensor:
    """Solve for the step of θ in float64; a start whose matrix is not positive definite gets a zero step."""
    kind = right.dtype
    matrix, right = matrix.double(), right.double()
    free = matrix.shape[1] - classes
    if tie_scales:
        tie = matrix.new_zeros(free + classes, free + 1)
        tie[:free, :free] = torch.eye(free, device=matrix.device)
        tie[free:, free] = 1.0
        matrix, right = tie.T @ matrix @ tie, right @ tie
    factor, failed = torch.linalg.cholesky_ex(matrix)
    step = torch.cholesky_solve(right[..., None], factor)[..., 0]
    sound = (failed == 0)[:, None] & torch.isfinite(step).all(dim=1, keepdim=True)
    step = torch.where(sound, step, 0.0)
    if tie_scales:
        step = step @ tie.T
    return step.to(kind)


def _accept(state: _State, problem: _Problem, theta: Theta, points: Tensor, local: Local) -> _State:
    """Take the step in the starts where it lowers the objective, and adapt their damping."""
    objective = problem.objective(theta, local.loss)
    better = objective < state.objective
    damping = torch.where(better, state.damping * 0.3, state.damping * 5.0).clamp(1e-5, 1e4)
    if bool(better.all()):
        return _State(theta, points, local, objective, damping)
    if not bool(better.any()):
        return replace(state, damping=damping)
    return _State(
        state.theta.merged(theta, better),
        torch.where(better[:, None, None], points, state.points),
        state.local.merged(local, better),
        torch.where(better, objective, state.objective),
        damping,
    )
