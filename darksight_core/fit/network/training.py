"""The three stages of training f_p; see `darksight_core.fit.network.distil`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from darksight_core.evaluation.progress import Progress, Report
from darksight_core.fit.map.placement import Local, Rows, Theta, candidate_grid, place, rows_of
from darksight_core.fit.network.config import DistilConfig
from darksight_core.fit.network.forward import Weights, forward
from darksight_core.fit.network.training_rows import TrainingRows
from darksight_core.map.network import Network
from darksight_core.rows.simplex import FLOOR, Floats

__all__ = ["Stage", "Training"]

_CHUNK_ROWS = 2_048
# Largest number of probabilities in an epoch: with many classes an epoch has fewer rows.
_EPOCH_SIZE = 1 << 20
# Standard deviations of the first weights of inputs and of biases. Few inputs are not zero, whatever their number.
_INPUTS, _SECOND = 0.2, 0.3
# Standard deviation of the noise on the log-probabilities of made rows.
_NOISE = 1.0
# A new θ must lower KL_sym of f_p alone by this share of it, and may raise that of rows placed exactly by as much.
_WORTH = 0.01
# Largest step of the last epochs, as a share of that before.
_LAST = 0.2
# Share of the steps in which the step size rises.
_WARM_UP = 0.1
_EXACT_GRID, _EXACT_POINTS, _EXACT_STEPS = 32, 500, 20


@dataclass(frozen=True, slots=True)
class Stage:
    """How good f_p was after a stage.

    `kl_sym_fit` and `kl_sym_held` are KL_sym of f_p alone on the rows it trains on and on those held out from it;
    `kl_sym_exact` is KL_sym of the held-out rows placed exactly under the stage's θ. Of the two kinds of fine-tuning
    the one that is `kept` is the result.
    """

    name: Literal["distil", "fine-tune p", "fine-tune theta, p"]
    kl_sym_fit: float
    kl_sym_held: float
    kl_sym_exact: float
    kept: bool
    seconds: float


class Training:
    """The rows, the parameters of f_p and θ through the three stages.

    Points are learned with mean zero and spread one. The output weights of a class are the sum of its own and of those
    that all classes share, so that a class with few rows learns from the others. At first f_p sends every row to the
    centre of its class.
    """

    def __init__(
        self,
        probs: NDArray[np.floating],
        points: Floats,
        rows: TrainingRows,
        theta: Theta,
        bound: float,
        config: DistilConfig,
    ) -> None:
        self.config, self.theta, self.bound = config, theta, bound
        self.device = theta.means.device
        self.generator = torch.Generator().manual_seed(config.seed)
        self.weights = rows.weights.to(self.device)
        self.pool, self.held = self._load(probs[rows.pool]), self._load(probs[rows.held])
        self.points, self.held_points = self._tensor(points[rows.pool]), self._tensor(points[rows.held])
        self.centre = self.points.mean(dim=0)
        self.scale = (self.points - self.centre).square().mean().sqrt().clamp_min(1e-6)
        classes, units = theta.n_classes, config.hidden
        inputs, second = (
            size * torch.randn(count, units, generator=self.generator)
            for size, count in ((_INPUTS, classes + 1), (_SECOND, classes))
        )
        centres = (theta.means[0].T - self.centre) / self.scale
        parts = (inputs, second, torch.zeros(classes, units, 2), centres, torch.zeros(units, 2))
        self.parameters = [part.to(self.device).requires_grad_() for part in parts]

    def network(self) -> Network:
        """f_p in numpy, in the units of the map."""
        with torch.no_grad():
            inputs, second, heads, centres = self._layers()
            scaled = (inputs, second, self.scale * heads, self.scale * centres + self.centre)
            return Network(*(array.cpu().numpy() for array in scaled))

    def distil(self, report: Report) -> Stage:
        """Stage 1: mean squared distance to the map's points."""
        target = (self.points - self.centre) / self.scale
        held_target = (self.held_points - self.centre) / self.scale

        def step(some: Tensor) -> None:
            gap = self._forward(self.pool[some]) - target[some]
            (gap.square().sum(dim=1) * self.weights[some]).mean().backward()

        def check() -> tuple[float, float]:
            guess = self._forward(self.held)
            return float((guess - held_target).square().sum(dim=1).mean()), self._kl_sym(self.held)

        started = time.perf_counter()
        groups = [(self.parameters, self.config.lr)]
        announce = self._announcer(report, "distil", 0, self.config.epochs)
        self._descend(groups, self.config.epochs, step, check, announce)
        return self._stage("distil", started)

    def tune(self, report: Report) -> list[Stage]:
        """Stage 2, KL_sym of f_p under a fixed θ, and stage 3, its last epochs again with θ free."""
        started = time.perf_counter()
        config, parameters = self.config, self.parameters
        # The line of two classes is not fitted, so there is no better θ.
        trials = 1 + int(config.tune_theta and config.joint_epochs > 0 and self.theta.n_classes > 2)
        total = config.tune_epochs + trials * config.joint_epochs
        slow = (parameters, _LAST * config.tune_lr)
        announce = self._announcer(report, "fine-tune", 0, total)
        self._descend([(parameters, config.tune_lr)], config.tune_epochs, self._tune_step, self._tune_check, announce)
        fork, random_state = _copies(parameters), self.generator.get_state()
        announce = self._announcer(report, "fine-tune", config.tune_epochs, total)
        self._descend([slow], config.joint_epochs, self._tune_step, self._tune_check, announce)
        fixed = self._stage("fine-tune p", started)
        if trials == 1:
            return [fixed]

        started = time.perf_counter()
        theta, tuned = self.theta, _copies(parameters)
        _restore(parameters, fork)
        self.generator.set_state(random_state)
        means, offset = theta.means.clone(), theta.offset.clone()
        self.theta = Theta(means, offset, theta.log_spread, theta.power)

        def step(some: Tensor) -> None:
            means.grad, offset.grad = _theta_gradient(*self._tune_step(some))

        groups = [slow, ([means], config.theta_lr * self.bound), ([offset], config.theta_lr)]
        announce = self._announcer(report, "fine-tune", config.tune_epochs + config.joint_epochs, total)
        self._descend(groups, config.joint_epochs, step, self._tune_check, announce)
        free = self._stage("fine-tune theta, p", started, fixed)
        if free.kept:
            return [replace(fixed, kept=False), free]
        self.theta = theta
        _restore(parameters, tuned)
        return [fixed, free]

    def _tensor(self, array: NDArray[np.floating]) -> Tensor:
        return torch.tensor(array, device=self.device, dtype=torch.float32)

    def _load(self, probs: NDArray[np.floating]) -> Rows:
        return rows_of(self._tensor(probs).T.contiguous().clamp_min(FLOOR).log())

    def _layers(self) -> Weights:
        inputs, second, heads, centres, shared = self.parameters
        return Weights(inputs, second, heads + shared, centres)

    def _forward(self, rows: Rows) -> Tensor:
        """Outputs (n, 2) for rows."""
        return forward(self._layers(), rows.log_pi.T)

    def _to_map(self, guess: Tensor) -> Tensor:
        """Outputs (n, 2) as points of the map, (1, 2, n)."""
        return (guess * self.scale + self.centre).T[None]

    def _tune_step(self, some: Tensor) -> tuple[Local, Tensor]:
        """Gradient of KL_sym over real rows and as many made ones; the facts there, and their weights for θ."""
        real = self.pool[some]
        made = self._made(real)
        rows = Rows(torch.cat((real.log_pi, made.log_pi), dim=1), torch.cat((real.pi, made.pi), dim=1))
        weights = torch.cat((self.weights[some], torch.ones_like(self.weights[some]))) / len(rows)
        guess = self._forward(rows)
        with torch.no_grad():
            local = Local.at(self.theta, rows, self._to_map(guess))
            gradient = (local.pull[:, None] * local.along).sum(dim=2)[0]
        guess.backward((gradient * weights).T * self.scale)
        weights[len(some) :] = 0.0
        return local, 2.0 * weights

    def _tune_check(self) -> tuple[float, float]:
        reached = self._kl_sym(self.held)
        return reached, reached

    def _made(self, rows: Rows) -> Rows:
        """Mixtures of each row with another of its batch, with noise on their log-probabilities."""
        count = len(rows)
        other = torch.randperm(count, generator=self.generator).to(self.device)
        share = torch.rand(count, generator=self.generator).to(self.device)
        noise = torch.randn(rows.pi.shape, generator=self.generator).to(self.device)
        mixed = (share * rows.pi + (1.0 - share) * rows.pi[:, other]).clamp_min(FLOOR)
        return rows_of(mixed.log() + _NOISE * noise)

    @torch.no_grad()
    def _kl_sym(self, rows: Rows, weights: Tensor | None = None) -> float:
        """Mean KL_sym of f_p alone."""
        losses = []
        for start in range(0, len(rows), _CHUNK_ROWS):
            part = rows[start : start + _CHUNK_ROWS]
            losses.append(Local.at(self.theta, part, self._to_map(self._forward(part))).loss[0])
        loss = torch.cat(losses)
        return float(loss.mean() if weights is None else (loss * weights).mean())

    @torch.no_grad()
    def _exact(self) -> float:
        """Mean KL_sym of the held-out rows, each placed by a search over the whole map."""
        bound = self.theta.means.new_tensor([self.bound])
        known = self.points[:_EXACT_POINTS].T[None]
        candidates = torch.cat((candidate_grid(self.theta, 0.6 * bound, _EXACT_GRID), known), dim=2)
        return float(place(self.theta, self.held, candidates, steps=_EXACT_STEPS, bound=bound)[1].mean())

    def _stage(
        self, name: Literal["distil", "fine-tune p", "fine-tune theta, p"], started: float, fixed: Stage | None = None
    ) -> Stage:
        held, exact = self._kl_sym(self.held), self._exact()
        kept = fixed is None or (
            held < (1.0 - _WORTH) * fixed.kl_sym_held and exact <= (1.0 + _WORTH) * fixed.kl_sym_exact
        )
        return Stage(name, self._kl_sym(self.pool, self.weights), held, exact, kept, time.perf_counter() - started)

    def _announcer(self, report: Report, stage: str, done: int, total: int) -> Callable[[int, float], None]:
        return lambda epoch, loss: report(Progress(stage, done + epoch, total, loss))

    def _batches(self) -> Iterator[Tensor]:
        """Endless mini-batches; every row of the pool is drawn before any is drawn again."""
        count = len(self.pool)
        size = min(self.config.batch_rows, count)
        while True:
            order = torch.randperm(count, generator=self.generator).to(self.device)
            for start in range(0, count - size + 1, size):
                yield order[start : start + size]

    def _descend(
        self,
        groups: list[tuple[list[Tensor], float]],
        epochs: int,
        step: Callable[[Tensor], object],
        check: Callable[[], tuple[float, float]],
        announce: Callable[[int, float], None],
    ) -> None:
        """Train for some epochs, and return to the parameters of the epoch at which `check` was least.

        `step` sets gradients for a batch; `check` gives what decides between epochs, and KL_sym to be announced.
        """
        rows = min(self.config.epoch_rows, _EPOCH_SIZE // self.theta.n_classes)
        steps = max(1, rows // self.config.batch_rows)
        optimiser, batches = _Adam(groups, epochs * steps), self._batches()
        with torch.no_grad():
            least = check()[0]
        best = _copies(optimiser.parameters)
        for epoch in range(epochs):
            for _ in range(steps):
                step(next(batches))
                optimiser.step()
            with torch.no_grad():
                reached, loss = check()
            if reached < least:
                least, best = reached, _copies(optimiser.parameters)
            announce(epoch + 1, loss)
        _restore(optimiser.parameters, best)


class _Adam:
    """Adam (Kingma and Ba, 2015) whose step size rises at first and then falls to zero as a cosine.

    torch has Adam too, but there its first use takes seconds to import a compiler.

    Parameters
    ----------
    groups
        Parameters, and the largest step of each group.
    total
        Number of steps.
    """

    def __init__(self, groups: list[tuple[list[Tensor], float]], total: int) -> None:
        self.parameters = [parameter for parameters, _ in groups for parameter in parameters]
        self._largest = [largest for parameters, largest in groups for _ in parameters]
        self._means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._count, self._total = 0, total
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take a step by the gradients, and clear them."""
        done = self._count / self._total
        rate = min(1.0, 0.02 + done / _WARM_UP) * 0.5 * (1.0 + math.cos(math.pi * done))
        self._count += 1
        first, second = 1.0 - 0.9**self._count, 1.0 - 0.999**self._count
        for parameter, mean, square, largest in zip(
            self.parameters, self._means, self._squares, self._largest, strict=True
        ):
            gradient = parameter.grad
            assert gradient is not None
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            parameter.addcdiv_(mean, (square / second).sqrt_().add_(1e-8), value=-rate * largest / first)
            parameter.grad = None


def _theta_gradient(local: Local, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the weighted sum of KL_sym in the centres (S, 2, K) and in the offsets (S, K)."""
    pull = local.pull * weights
    return -(pull[:, None] * local.along).sum(dim=3), pull.sum(dim=2)


def _copies(parameters: list[Tensor]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


@torch.no_grad()
def _restore(parameters: list[Tensor], values: list[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
