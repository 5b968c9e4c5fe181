"""Distilling a finished map into a network f_p: π -> y, the paper's parametric DarkSight.

Each stage goes on from the last one and ends at its best epoch on rows that it has not trained on:

1. *distil*: f_p learns the points of the map, min_p mean |f_p(π_i) - y_i|²;
2. *fine-tune p*: f_p learns what the points are for, min_p mean KL_sym(π_i, P_S(. | f_p(π_i); θ));
3. *fine-tune (θ, p)*: the last epochs of 2 once more, on the same batches, with θ free. Whatever this gains over the
   fixed θ is θ's doing, not that of more epochs. The new θ is kept if f_p gains by it and rows placed exactly do not
   lose, because a served point is the end of a search and not f_p's guess alone. On the classifiers we measured it
   gained nothing, so expect θ to stay.

The second loss needs no point y, so it can be asked for on any row of the simplex. Half of every batch are made rows,
mixtures of two real ones with noise on their logarithms. Without them a network of this size learns its rows by heart;
with them KL_sym of new rows was lower by 15 to 33%. θ never sees a made row.

An epoch is a fixed number of rows, drawn without replacement from a pool of bounded size: the cost does not grow
with n.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from darksight_core.errors import ConfigError
from darksight_core.fit.device import choose_device, one_thread
from darksight_core.fit.map.coreset import Coreset
from darksight_core.fit.map.fitting import entropies
from darksight_core.fit.map.placement import Local, Rows, Theta, candidate_grid, place, rows_of
from darksight_core.map.placement import Network
from darksight_core.map.student import Student
from darksight_core.progress import Progress, Report, silent
from darksight_core.simplex import FLOOR, Floats

__all__ = ["DistilConfig", "Distilled", "Features", "Lessons", "Stage", "distil"]

Features: TypeAlias = Literal["probs", "log_probs", "both"]

_FEATURES = ("probs", "log_probs", "both")
_HELD_SHARE = 0.1
_HELD_LEAST, _HELD_MOST = 50, 2_000
_CHUNK_ROWS = 2_048
_WARM_UP = 0.1
# Standard deviation of the noise on the log-probabilities of made rows.
_NOISE = 1.0
# A new θ must lower KL_sym of f_p alone by this share of it, and may raise that of rows placed exactly by as much.
_WORTH = 0.01
# Largest step of the last epochs, as a share of that before.
_LAST = 0.2
_EXACT_GRID, _EXACT_POINTS, _EXACT_STEPS = 32, 500, 20


@dataclass(frozen=True, slots=True)
class DistilConfig:
    """Options of the distillation; the defaults are what we recommend.

    Parameters
    ----------
    hidden
        Widths of the hidden layers.
    features
        What the network reads: `probs` π, `log_probs` log max(π, 1e-8) / 8, or `both`.
    epochs, tune_epochs, joint_epochs
        Epochs of distilling, of fine-tuning p, and of its last part with small steps, which is tried with θ free too.
    epoch_rows, batch_rows
        Rows in an epoch and in a mini-batch.
    pool_rows
        Rows that training draws from; of more than that a sample is taken, half uniform and half by entropy.
    lr, tune_lr, theta_lr
        Largest step of Adam when distilling, when fine-tuning p, and for θ as a share of the map's bound.
    tune_theta
        Whether to try a free θ at the end.
    seed
        Same rows, seed and machine give the same network.
    device
        `auto` takes a GPU when there is one.
    """

    hidden: tuple[int, ...] = (128, 128)
    features: Features = "probs"
    epochs: int = 30
    tune_epochs: int = 60
    joint_epochs: int = 15
    epoch_rows: int = 4_096
    batch_rows: int = 256
    pool_rows: int = 20_000
    lr: float = 1e-2
    tune_lr: float = 5e-3
    theta_lr: float = 1e-4
    tune_theta: bool = True
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.features not in _FEATURES:
            raise ConfigError(f"features is {self.features!r}; it must be one of {', '.join(_FEATURES)}")
        if any(width < 1 for width in self.hidden):
            raise ConfigError(f"hidden is {self.hidden}; every width must be at least 1")
        for name in ("epochs", "tune_epochs", "joint_epochs"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must not be negative")
        for name in ("epoch_rows", "batch_rows", "pool_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("lr", "tune_lr", "theta_lr"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive and finite")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}; it must be between 0 and 2**63 - 1")


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


@dataclass(frozen=True, slots=True)
class Distilled:
    """A network and the student it goes with.

    `weights` (inputs, outputs) and `biases` (outputs,) of each layer, with ReLU between layers; `features` says what
    the first layer reads. If `student` is not the one that was passed in, rows must be placed again under it.
    """

    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]
    features: Features
    student: Student
    stages: tuple[Stage, ...]

    def network(self) -> Network:
        """f_p in numpy."""
        return Network(self.weights, self.biases, self.features)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name; features and stages as JSON in bytes."""
        text = json.dumps({"features": self.features, "stages": [asdict(stage) for stage in self.stages]})
        layers = {f"weight{i}": weight for i, weight in enumerate(self.weights)}
        layers |= {f"bias{i}": bias for i, bias in enumerate(self.biases)}
        return {**self.student.tensors(), **layers, "facts": np.frombuffer(text.encode(), dtype=np.uint8)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> Distilled:
        """Inverse of `tensors`."""
        facts = json.loads(tensors["facts"].tobytes())
        layers = range(sum(name.startswith("weight") for name in tensors))
        weights, biases = (tuple(tensors[f"{name}{i}"] for i in layers) for name in ("weight", "bias"))
        stages = tuple(Stage(**stage) for stage in facts["stages"])
        return cls(weights, biases, facts["features"], Student.from_tensors(tensors), stages)


def distil(
    probs: NDArray[np.floating],
    points: Floats,
    student: Student,
    bound: float,
    config: DistilConfig | None = None,
    *,
    lessons: Lessons | None = None,
    report: Report = silent,
) -> Distilled:
    """Fit f_p to the points of a map, then fine-tune it and θ end to end.

    Parameters
    ----------
    probs
        Rows as the map was fitted to them, tempered if it was, (n, K).
    points
        Their points on the map, (n, 2).
    student
        θ of the map.
    bound
        Largest coordinate of a point.
    config
        Network and options.
    lessons
        Which of the rows to learn from; drawn here by default.
    report
        Called with a `Progress` after each epoch.
    """
    config = config or DistilConfig()
    if probs.shape != (len(points), student.n_classes) or points.shape != (len(probs), 2) or len(probs) < 1:
        raise ConfigError(
            f"rows of shape {probs.shape} and points of shape {points.shape} "
            f"do not belong to a map of {student.n_classes} classes"
        )
    device = choose_device(config.device)
    with one_thread(device):
        lessons = lessons or Lessons.draw(entropies(probs), config)
        training = _Training(probs, points, lessons, Theta.of(student, device=device), bound, config)
        stages = [training.distil(report), *training.tune(report)]
    moved = len(stages) == 3 and stages[-1].kept
    weights, biases = training.network.folded(training.centre, training.scale)
    return Distilled(weights, biases, config.features, training.theta.to_student() if moved else student, tuple(stages))


@dataclass(frozen=True, slots=True)
class Lessons:
    """Places of the rows that f_p learns from, `pool` (m,) with weights (m,) of mean one, and that judge it, `held`."""

    pool: NDArray[np.int64]
    weights: Tensor
    held: NDArray[np.int64]

    @classmethod
    def draw(cls, entropy: Tensor, config: DistilConfig, counts: Tensor | None = None) -> Lessons:
        """Choose among rows by their entropy (n,); `counts` (n,) says how many rows each stands for, by default one.

        Rows are held out at random, so among rows that stand for different numbers they judge with a weight of their
        own for each; f_p is compared with itself there, and needs no more.
        """
        generator = torch.Generator().manual_seed(config.seed)
        n = len(entropy)
        order = torch.randperm(n, generator=generator)
        count = min(max(_HELD_LEAST, round(_HELD_SHARE * n)), _HELD_MOST, n // 2)
        # A single row is held out from itself: there is nothing to generalise from.
        held, rest = (order[:count], order[count:]) if count else (order, order)
        core = Coreset.draw(entropy[rest], config.pool_rows, generator, None if counts is None else counts[rest])
        weights = core.weights()
        return cls(rest[core.rows].numpy(), (weights / weights.mean()).float(), held.numpy())

    @property
    def rows(self) -> NDArray[np.int64]:
        """Places of all of them, pool first."""
        return np.concatenate([self.pool, self.held])

    @property
    def alone(self) -> Lessons:
        """The same lessons when there are no other rows: places in `rows`."""
        places = np.arange(len(self.pool) + len(self.held))
        return Lessons(places[: len(self.pool)], self.weights, places[len(self.pool) :])


class _Network:
    """The layers as leaf tensors; the map's points are learned with mean zero and spread one."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], generator: torch.Generator, device: torch.device) -> None:
        self.weights, self.biases = [], []
        for width, following in pairwise((inputs, *hidden, 2)):
            weight = math.sqrt(2.0 / width) * torch.randn(width, following, generator=generator)
            self.weights.append(weight.to(device).requires_grad_())
            self.biases.append(torch.zeros(following, device=device, requires_grad=True))

    @property
    def parameters(self) -> list[Tensor]:
        return [*self.weights, *self.biases]

    def __call__(self, inputs: Tensor) -> Tensor:
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            inputs = torch.addmm(bias, inputs, weight).relu()
        return torch.addmm(self.biases[-1], inputs, self.weights[-1])

    def folded(
        self, centre: Tensor, scale: Tensor
    ) -> tuple[tuple[NDArray[np.float32], ...], tuple[NDArray[np.float32], ...]]:
        """Arrays of a network whose output is `centre` + `scale` times this one's."""
        weights = [weight.detach() for weight in self.weights]
        biases = [bias.detach() for bias in self.biases]
        weights[-1] = scale * weights[-1]
        biases[-1] = scale * biases[-1] + centre
        return tuple(weight.cpu().numpy().copy() for weight in weights), tuple(b.cpu().numpy().copy() for b in biases)


class _Training:
    """The rows, the network and θ through the three stages."""

    def __init__(
        self,
        probs: NDArray[np.floating],
        points: Floats,
        lessons: Lessons,
        theta: Theta,
        bound: float,
        config: DistilConfig,
    ) -> None:
        self.config, self.theta, self.bound = config, theta, bound
        self.device = theta.means.device
        self.generator = torch.Generator().manual_seed(config.seed)
        self.weights = lessons.weights.to(self.device)
        self.pool, self.held = self._load(probs[lessons.pool]), self._load(probs[lessons.held])
        self.points, self.held_points = self._tensor(points[lessons.pool]), self._tensor(points[lessons.held])
        self.centre = self.points.mean(dim=0)
        self.scale = (self.points - self.centre).square().mean().sqrt().clamp_min(1e-6)
        inputs = probs.shape[1] * (2 if config.features == "both" else 1)
        self.network = _Network(inputs, config.hidden, self.generator, self.device)

    def _tensor(self, array: NDArray[np.floating]) -> Tensor:
        return torch.tensor(array, device=self.device, dtype=torch.float32)

    def _load(self, probs: NDArray[np.floating]) -> Rows:
        return rows_of(self._tensor(probs).T.contiguous().clamp_min(FLOOR).log())

    def distil(self, report: Report) -> Stage:
        """Stage 1: mean squared distance to the map's points."""
        target = (self.points - self.centre) / self.scale
        held_target = (self.held_points - self.centre) / self.scale

        def step(some: Tensor) -> None:
            gap = self.network(self._inputs(self.pool[some])) - target[some]
            (gap.square().sum(dim=1) * self.weights[some]).mean().backward()

        def check() -> tuple[float, float]:
            guess = self.network(self._inputs(self.held))
            return float((guess - held_target).square().sum(dim=1).mean()), self._kl_sym(self.held)

        started = time.perf_counter()
        groups = [(self.network.parameters, self.config.lr)]
        self._descend(groups, self.config.epochs, step, check, self._announcer(report, "distil", 0, self.config.epochs))
        return self._stage("distil", started)

    def tune(self, report: Report) -> list[Stage]:
        """Stage 2, KL_sym of f_p under a fixed θ, and stage 3, its last epochs again with θ free."""
        started = time.perf_counter()
        config, network = self.config, self.network.parameters
        trials = 1 + int(config.tune_theta and config.joint_epochs > 0)
        total = config.tune_epochs + trials * config.joint_epochs
        slow = (network, _LAST * config.tune_lr)
        announce = self._announcer(report, "fine-tune", 0, total)
        self._descend([(network, config.tune_lr)], config.tune_epochs, self._tune_step, self._tune_check, announce)
        fork, dice = _copies(network), self.generator.get_state()
        announce = self._announcer(report, "fine-tune", config.tune_epochs, total)
        self._descend([slow], config.joint_epochs, self._tune_step, self._tune_check, announce)
        fixed = self._stage("fine-tune p", started)
        if trials == 1:
            return [fixed]

        started = time.perf_counter()
        theta, tuned = self.theta, _copies(network)
        _restore(network, fork)
        self.generator.set_state(dice)
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
        _restore(network, tuned)
        return [fixed, free]

    def _tune_step(self, some: Tensor) -> tuple[Local, Tensor]:
        """Gradient of KL_sym over real rows and as many made ones; the facts there, and what they weigh for θ."""
        real = self.pool[some]
        made = self._made(real)
        rows = Rows(torch.cat((real.log_pi, made.log_pi), dim=1), torch.cat((real.pi, made.pi), dim=1))
        weights = torch.cat((self.weights[some], torch.ones_like(self.weights[some]))) / len(rows)
        guess = self.network(self._inputs(rows))
        with torch.no_grad():
            local = Local.at(self.theta, rows, self._places(guess))
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

    def _inputs(self, rows: Rows) -> Tensor:
        """What the network reads of rows, (n, inputs)."""
        if self.config.features == "probs":
            return rows.pi.T
        logs = rows.log_pi.clamp_min(math.log(1e-8)).T / 8.0
        return logs if self.config.features == "log_probs" else torch.cat((rows.pi.T, logs), dim=1)

    def _places(self, guess: Tensor) -> Tensor:
        """Outputs (n, 2) of the network as points of the map, (1, 2, n)."""
        return (guess * self.scale + self.centre).T[None]

    @torch.no_grad()
    def _kl_sym(self, rows: Rows, weights: Tensor | None = None) -> float:
        """Mean KL_sym of f_p alone."""
        losses = []
        for start in range(0, len(rows), _CHUNK_ROWS):
            part = rows[start : start + _CHUNK_ROWS]
            losses.append(Local.at(self.theta, part, self._places(self.network(self._inputs(part)))).loss[0])
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
        """Endless mini-batches; every row of the pool comes up before any comes again."""
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
        """Adam with a warm-up and a cosine decay; ends at the parameters of the epoch where `check` was least.

        `step` sets gradients for a batch; `check` gives what decides between epochs, and KL_sym to be announced.
        """
        optimiser = _Adam(groups)
        parameters = optimiser.parameters
        steps = max(1, self.config.epoch_rows // self.config.batch_rows)
        total = epochs * steps
        batches = self._batches()
        with torch.no_grad():
            least = check()[0]
        best = _copies(parameters)
        for epoch in range(epochs):
            for number in range(epoch * steps, (epoch + 1) * steps):
                step(next(batches))
                optimiser.step(_rate(number / total))
            with torch.no_grad():
                reached, loss = check()
            if reached < least:
                least, best = reached, _copies(parameters)
            announce(epoch + 1, loss)
        _restore(parameters, best)


class _Adam:
    """Adam (Kingma and Ba, 2015), which torch has too, but there its first use takes seconds to import a compiler."""

    def __init__(self, groups: list[tuple[list[Tensor], float]]) -> None:
        self.parameters = [parameter for parameters, _ in groups for parameter in parameters]
        self._rates = [rate for parameters, rate in groups for _ in parameters]
        self._means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._count = 0
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """A step with a share `rate` of the largest, by the gradients, which are used up."""
        self._count += 1
        first, second = 1.0 - 0.9**self._count, 1.0 - 0.999**self._count
        for parameter, mean, square, largest in zip(
            self.parameters, self._means, self._squares, self._rates, strict=True
        ):
            gradient = parameter.grad
            assert gradient is not None
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            parameter.addcdiv_(mean, (square / second).sqrt_().add_(1e-8), value=-rate * largest / first)
            parameter.grad = None


def _rate(done: float) -> float:
    """Share of the largest step when `done` of the stage is over."""
    return min(1.0, 0.02 + done / _WARM_UP) * 0.5 * (1.0 + math.cos(math.pi * done))


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
