"""Distillation: f_p learns the map, fine-tuning never makes it worse, and θ is moved only where the map allows it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.evaluation.progress import Progress
from darksight_core.fit.config import FitConfig
from darksight_core.fit.map.fitting import MapFit, fit_map, place_rows
from darksight_core.fit.map.placement import Local, Theta, rows_of
from darksight_core.fit.network import training as module
from darksight_core.fit.network.config import DistilConfig
from darksight_core.fit.network.distil import Distilled, distil
from darksight_core.fit.network.forward import Weights
from darksight_core.fit.network.forward import forward as forward_in_torch
from darksight_core.map.student import Student
from darksight_core.rows.simplex import Floats, kl_sym, log_probs
from tests.support.builders import make_probs
from tests.support.maps import extreme_probs, random_network


@cache
def make_map(classes: int = 5) -> tuple[NDArray[np.float32], MapFit]:
    """Rows and their map."""
    probs = make_probs(n=600, classes=classes)
    return probs, fit_map(probs, FitConfig(device="cpu", starts=2))


def run(probs: NDArray[np.float32], fitted: MapFit, **options: object) -> Distilled:
    """A short distillation on the CPU."""
    assert isinstance(fitted.student, Student)
    defaults: dict[str, object] = {
        "epochs": 10,
        "tune_epochs": 10,
        "joint_epochs": 3,
        "epoch_rows": 2_048,
        "device": "cpu",
    }
    config = DistilConfig(**(defaults | options))  # type: ignore[arg-type]
    return distil(probs, fitted.points, fitted.student, fitted.bound, config)


def forward(result: Distilled, probs: NDArray[np.float32]) -> Floats:
    """Points of f_p alone."""
    return result.network(np.exp(log_probs(probs)))


def test_distillation_learns_the_points() -> None:
    """Where rows are a student's own posteriors, f_p finds their points; untrained it gives the class centres."""
    rng = np.random.default_rng(0)
    student = Student(8.0 * rng.normal(size=(5, 2)), np.ones(5), np.zeros(5))
    points = student.means[rng.integers(5, size=600)] + rng.normal(size=(600, 2))
    probs = np.exp(student.log_posterior(points)).astype(np.float32)
    fitted = MapFit(student, points, points, 30.0, (), 0.0)

    untrained, trained = (run(probs, fitted, epochs=epochs, tune_epochs=0, joint_epochs=0) for epochs in (0, 20))

    variance = points.var(axis=0).sum()
    errors = [((forward(one, probs) - points) ** 2).sum(axis=1).mean() / variance for one in (untrained, trained)]
    assert errors[1] < 0.5 * errors[0] < 0.05


def test_fine_tuning_lowers_kl_sym_of_rows_held_out() -> None:
    """The second stage improves f_p alone, which stays above what exact placement reaches."""
    probs, fitted = make_map()

    result = run(probs, fitted, tune_theta=False)

    distilled, tuned = result.stages
    assert (distilled.name, tuned.name) == ("distil", "fine-tune p")
    assert tuned.kl_sym_held < distilled.kl_sym_held
    assert tuned.kl_sym_exact < tuned.kl_sym_held


def test_a_stage_that_only_harms_is_undone() -> None:
    """With steps that tear the network apart, fine-tuning ends where it began."""
    probs, fitted = make_map()

    result = run(probs, fitted, tune_lr=1e3, theta_lr=1e3, tune_epochs=2)

    distilled, tuned, joint = result.stages
    assert tuned.kl_sym_held == distilled.kl_sym_held
    assert tuned.kl_sym_fit == distilled.kl_sym_fit
    assert not joint.kept
    assert result.student is fitted.student


def test_a_free_theta_that_is_not_worth_it_is_recorded_and_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no gain is enough, θ and p are exactly those of a run without a free θ; both figures are there."""
    probs, fitted = make_map()
    monkeypatch.setattr(module, "_WORTH", 1.0)

    both = run(probs, fitted, tune_epochs=1, joint_epochs=8)
    fixed = run(probs, fitted, tune_epochs=1, joint_epochs=8, tune_theta=False)

    assert [(stage.name, stage.kept) for stage in both.stages[1:]] == [
        ("fine-tune p", True),
        ("fine-tune theta, p", False),
    ]
    assert both.stages[2].kl_sym_exact != both.stages[1].kl_sym_exact
    assert both.student is fitted.student
    for name, array in both.network.tensors().items():
        np.testing.assert_array_equal(array, getattr(fixed.network, name))


def test_gradient_of_theta_is_that_of_autograd() -> None:
    """The closed form agrees with automatic differentiation of KL_sym, in centres and offsets."""
    probs, fitted = make_map()
    assert isinstance(fitted.student, Student)
    rows = rows_of(torch.tensor(log_probs(probs).T))
    points = torch.tensor(fitted.points.T[None]) + 0.5
    weights = torch.linspace(0.0, 1.0, len(probs), dtype=torch.float64)
    theta = Theta.of(fitted.student, dtype=torch.float64)
    means, offset = theta.means.clone().requires_grad_(), theta.offset.clone().requires_grad_()
    log_q = torch.log_softmax(replace(theta, means=means, offset=offset).scores(points), dim=1)
    loss = 0.5 * ((rows.pi - log_q.exp()) * (rows.log_pi - log_q)).sum(dim=1)

    expected = torch.autograd.grad((loss * weights).sum(), (means, offset))
    actual = module._theta_gradient(Local.at(theta, rows, points), weights)

    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_free_theta_is_kept_where_it_helps() -> None:
    """A map that was shrunk is too narrow for sharp rows: a free θ widens it, and is kept with its p."""
    probs, fitted = make_map()
    assert isinstance(fitted.student, Student)
    small = replace(fitted.student, means=0.3 * fitted.student.means)

    result = run(probs, replace(fitted, student=small, points=0.3 * fitted.points), joint_epochs=10, theta_lr=1e-3)

    _, fixed, free = result.stages
    assert (fixed.kept, free.kept) == (False, True)
    assert free.kl_sym_held < 0.99 * fixed.kl_sym_held
    assert free.kl_sym_exact <= 1.01 * fixed.kl_sym_exact
    assert np.abs(result.student.means).max() > np.abs(small.means).max()
    np.testing.assert_allclose(result.student.scales, fitted.student.scales, rtol=1e-6)
    loss = kl_sym(log_probs(probs), result.student.log_posterior(forward(result, probs))).mean()
    assert loss == pytest.approx((540 * free.kl_sym_fit + 60 * free.kl_sym_held) / 600, rel=1e-4)


def test_a_free_theta_with_no_step_equals_a_fixed_one() -> None:
    """Both trials see the same batches, so that their difference is θ's alone."""
    probs, fitted = make_map()

    result = run(probs, fitted, tune_epochs=1, theta_lr=1e-12)

    _, fixed, free = result.stages
    assert free.kl_sym_held == pytest.approx(fixed.kl_sym_held, rel=1e-5)
    assert fixed.kept


def test_theta_is_the_same_object_when_it_is_not_tuned() -> None:
    """`tune_theta=False` hands the student back untouched."""
    probs, fitted = make_map()

    result = run(probs, fitted, tune_theta=False)

    assert result.student is fitted.student


def test_same_seed_same_network() -> None:
    """The seed decides all of it; torch's own random state is neither read nor needed."""
    probs, fitted = make_map()

    first, again, other = (run(probs, fitted, epochs=2, tune_epochs=2, seed=seed) for seed in (3, 3, 4))

    for name, array in first.network.tensors().items():
        np.testing.assert_array_equal(array, getattr(again.network, name))
    assert not np.array_equal(first.network.inputs, other.network.inputs)
    assert [stage.kl_sym_held for stage in first.stages] == [stage.kl_sym_held for stage in again.stages]


@pytest.mark.parametrize("classes", [2, 5, 40])
def test_numpy_network_equals_torch_network(classes: int) -> None:
    """Torch has the same points to 1e-9, also for one-hot rows, ties and the uniform row."""
    network = random_network(classes, np.random.default_rng(0))
    rows = log_probs(np.concatenate([make_probs(n=50, classes=classes), extreme_probs(classes)]))

    points = forward_in_torch(Weights.of(network), torch.tensor(rows)).numpy()

    np.testing.assert_allclose(points, network(np.exp(rows)), atol=1e-9)


def test_torch_network_has_the_gradient_of_its_points() -> None:
    """Central differences in log π give the gradient that explanations use."""
    network = Weights.of(random_network(5, np.random.default_rng(0)))
    log_pi = torch.tensor(log_probs(make_probs(n=20, classes=5)), requires_grad=True)

    (gradient,) = torch.autograd.grad(forward_in_torch(network, log_pi).sum(), log_pi)

    for k in range(5):
        shift = 1e-6 * torch.eye(5, dtype=torch.float64)[k]
        above, below = (forward_in_torch(network, log_pi.detach() + sign * shift).sum(dim=1) for sign in (1, -1))
        torch.testing.assert_close(gradient[:, k], (above - below) / 2e-6, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("classes", "limit"), [(2, 2.0), (10, 1.25)])
def test_f_p_alone_is_close_to_solved_rows(classes: int, limit: float) -> None:
    """On rows that no stage has seen, f_p alone has at most this multiple of the KL_sym of rows placed exactly."""
    probs = make_probs(n=3_000, classes=classes)
    seen, new = probs[:2_000], probs[2_000:]
    fitted = fit_map(seen, FitConfig(device="cpu", starts=2, faithful=False))
    assert isinstance(fitted.student, Student)
    config = DistilConfig(tune_epochs=30, tune_theta=False, device="cpu")

    result = distil(seen, fitted.points, fitted.student, fitted.bound, config)

    solved = place_rows(new, fitted, FitConfig(device="cpu", faithful=False))
    alone, best = (
        kl_sym(log_probs(new), fitted.student.log_posterior(points)).mean() for points in (forward(result, new), solved)
    )
    assert alone <= limit * best + 1e-4


def test_served_network_gives_the_figures_of_training() -> None:
    """The numpy network of serving has the KL_sym that torch measured, to 1e-4."""
    probs, fitted = make_map()

    result = run(probs, fitted, epochs=4, tune_epochs=4, tune_theta=False)
    loss = kl_sym(log_probs(probs), result.student.log_posterior(forward(result, probs))).mean()

    tuned = result.stages[-1]
    assert loss == pytest.approx((540 * tuned.kl_sym_fit + 60 * tuned.kl_sym_held) / 600, rel=1e-4)


def test_zeros_and_one_hot_rows_stay_finite() -> None:
    """Rows with exact zeros, one-hot and uniform rows give finite weights and figures."""
    probs, _ = make_map()
    probs = np.where(probs < 0.01, 0.0, probs)
    probs[:40] = np.eye(5, dtype=np.float32)[np.arange(40) % 5]
    probs[40:50] = 0.2
    probs = (probs / probs.sum(axis=1, keepdims=True)).astype(np.float32)
    fitted = fit_map(probs, FitConfig(device="cpu", starts=1))

    result = run(probs, fitted, epochs=2, tune_epochs=2)

    assert all(np.isfinite(array).all() for array in result.network.tensors().values())
    assert all(np.isfinite([stage.kl_sym_fit, stage.kl_sym_held, stage.kl_sym_exact]).all() for stage in result.stages)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_handful_of_rows(count: int) -> None:
    """Too few rows to hold fifty out: half of them are, and a single row serves both purposes."""
    probs, fitted = make_map()
    assert isinstance(fitted.student, Student)
    config = DistilConfig(epochs=1, tune_epochs=1, joint_epochs=1, device="cpu")

    result = distil(probs[:count], fitted.points[:count], fitted.student, fitted.bound, config)

    assert np.isfinite(forward(result, probs)).all()


def test_two_classes() -> None:
    """K = 2: f_p alone reproduces the rows closely."""
    probs, fitted = make_map(2)

    result = run(probs, fitted)

    loss = kl_sym(log_probs(probs), result.student.log_posterior(forward(result, probs)))
    assert loss.mean() < 0.02


def test_more_rows_than_the_pool() -> None:
    """A pool smaller than the rows is a weighted sample whose figures stand for all rows."""
    probs, fitted = make_map()

    result = run(probs, fitted, pool_rows=300, tune_theta=False)

    loss = kl_sym(log_probs(probs), result.student.log_posterior(forward(result, probs)))
    assert result.stages[-1].kl_sym_fit == pytest.approx(loss.mean(), rel=0.3)


def test_progress_counts_each_stage_to_its_end() -> None:
    """One report for each epoch, with both trials of the last epochs counted as fine-tuning."""
    probs, fitted = make_map()
    assert isinstance(fitted.student, Student)
    seen: list[Progress] = []
    config = DistilConfig(epochs=2, tune_epochs=2, joint_epochs=1, device="cpu")

    distil(probs, fitted.points, fitted.student, fitted.bound, config, report=seen.append)

    counted = [(progress.stage, progress.done, progress.total) for progress in seen]
    assert counted == [("distil", 1, 2), ("distil", 2, 2), *(("fine-tune", done, 4) for done in (1, 2, 3, 4))]


@pytest.mark.parametrize(
    "options",
    [{"hidden": 0}, {"epochs": -1}, {"batch_rows": 0}, {"lr": 0.0}, {"seed": -1}],
    ids=lambda options: next(iter(options)),
)
def test_impossible_options_are_refused(options: dict[str, object]) -> None:
    """An option that cannot work is named."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        DistilConfig(**options)  # type: ignore[arg-type]


def test_rows_of_another_map_are_refused() -> None:
    """Rows, points and student must belong together."""
    probs, fitted = make_map()
    assert isinstance(fitted.student, Student)

    with pytest.raises(ConfigError, match="do not belong"):
        distil(probs[:, :4], fitted.points, fitted.student, fitted.bound)
