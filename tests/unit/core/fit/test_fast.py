"""The second-order fit: what it promises, on rows small enough for seconds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.evaluation.fidelity import fidelity
from darksight_core.evaluation.progress import Progress
from darksight_core.fit import FitConfig, fit_map, place_rows
from darksight_core.fit.map import fast, joint_step
from darksight_core.fit.map import placement as plane
from darksight_core.fit.map.coreset import Coreset
from darksight_core.map.student import Student
from darksight_core.rows import simplex
from tests.support.builders import make_probs


def log_q(student: object, points: np.ndarray) -> np.ndarray:
    """The student's log posterior at points."""
    assert isinstance(student, Student)
    return student.log_posterior(points)


def test_fit_reaches_a_faithful_map(probs: NDArray[np.float32]) -> None:
    """KL_sym falls far below that of a map whose points are shuffled, and every row keeps its class."""
    fitted = fit_map(probs)
    log_pi = simplex.log_probs(probs)

    good = fidelity(log_pi, log_q(fitted.student, fitted.points))
    shuffled = fidelity(log_pi, log_q(fitted.student, np.random.default_rng(0).permutation(fitted.points)))

    assert good.acc_teacher == 1.0
    assert good.kl_sym < 0.1 * shuffled.kl_sym
    assert shuffled.acc_teacher < 0.5


def test_same_seed_same_map_and_another_seed_another(probs: NDArray[np.float32]) -> None:
    """A fit is repeatable by its seed, and the seed matters."""
    first, again, other = (fit_map(probs, FitConfig(seed=seed)) for seed in (3, 3, 4))

    np.testing.assert_array_equal(first.points, again.points)
    assert not np.allclose(first.points, other.points)


def test_fit_does_not_modify_its_rows(probs: NDArray[np.float32]) -> None:
    """The caller's array is as it was."""
    before = probs.copy()

    fit_map(probs)

    np.testing.assert_array_equal(probs, before)


def test_history_falls_and_progress_is_reported(probs: NDArray[np.float32]) -> None:
    """The sweeps never raise the objective, and progress counts up to its total."""
    seen: list[Progress] = []

    fitted = fit_map(probs, report=seen.append)

    sweeps = fitted.history[len(fast._ROUNDS) :]
    assert all(later <= earlier for earlier, later in pairwise(sweeps))
    assert {progress.stage for progress in seen} == {"start", "sweep", "place"}
    assert all(progress.done <= progress.total for progress in seen)


@pytest.mark.parametrize("scale", ["fixed", "shared", "per-class"])
def test_scale_rules(probs: NDArray[np.float32], scale: str) -> None:
    """Scales are the paper's, one common, or one per class; freer scales fit at least about as well."""
    fixed = fit_map(probs, FitConfig(scale="fixed"))
    fitted = fit_map(probs, FitConfig(scale=scale))  # type: ignore[arg-type]  # parametrised by name
    log_pi = simplex.log_probs(probs)
    assert isinstance(fitted.student, Student)
    assert isinstance(fixed.student, Student)

    spread = np.ptp(fitted.student.scales)

    assert (spread < 1e-6) == (scale != "per-class")
    assert (abs(fitted.student.scales[0] - fixed.student.scales[0]) < 1e-6) == (scale == "fixed")
    assert (
        fidelity(log_pi, log_q(fitted.student, fitted.points)).kl_sym
        < 1.3 * fidelity(log_pi, log_q(fixed.student, fixed.points)).kl_sym
    )


def test_rows_beyond_theta_rows_are_placed_as_well() -> None:
    """With few rows deciding θ, the rest reach nearly the same KL_sym."""
    probs = make_probs(3_000)
    fitted = fit_map(probs, FitConfig(theta_rows=1_000))
    log_pi = simplex.log_probs(probs)

    loss = simplex.kl_sym(log_pi, log_q(fitted.student, fitted.points))
    whole = fit_map(probs)

    assert loss.mean() < 1.2 * simplex.kl_sym(log_pi, log_q(whole.student, whole.points)).mean()


def test_new_rows_are_placed_like_fitted_ones() -> None:
    """Held-out rows reach the KL_sym of fitted rows within sampling error."""
    probs, held_out = make_probs(1_500), make_probs(1_500, seed=9)
    fitted = fit_map(probs)

    on_fit = simplex.kl_sym(simplex.log_probs(probs), log_q(fitted.student, fitted.points))
    points = place_rows(held_out, fitted)
    on_new = simplex.kl_sym(simplex.log_probs(held_out), log_q(fitted.student, points))

    error = np.hypot(on_fit.std(), on_new.std()) / np.sqrt(len(probs))
    assert abs(on_fit.mean() - on_new.mean()) < 4 * error


def test_a_hot_temperature_spreads_confident_rows(probs: NDArray[np.float32]) -> None:
    """T > 1 fits the softened rows: the student's posterior matches temper(π, T)."""
    fitted = fit_map(probs, FitConfig(temperature=3.0))
    posterior = log_q(fitted.student, fitted.points)

    soft = simplex.kl_sym(simplex.temper(simplex.log_probs(probs), 3.0), posterior).mean()
    hard = simplex.kl_sym(simplex.log_probs(probs), posterior).mean()

    assert soft < 0.2 * hard


def test_a_larger_spread_penalty_gives_a_smaller_map(probs: NDArray[np.float32]) -> None:
    """The centres of a penalised map lie closer together."""
    loose, tight = (fit_map(probs, FitConfig(spread_penalty=penalty)) for penalty in (1e-7, 1e-4))
    assert isinstance(loose.student, Student)
    assert isinstance(tight.student, Student)

    assert np.abs(tight.student.means).max() < np.abs(loose.student.means).max()


@pytest.mark.parametrize(
    "probs",
    [
        np.eye(4, dtype=np.float32)[np.arange(40) % 4],
        np.full((30, 3), 1 / 3, dtype=np.float32),
        np.array([[1.0, 0.0]] * 5 + [[0.3, 0.7]] * 5, dtype=np.float32),
        np.array([[0.2, 0.8]], dtype=np.float32),
        make_probs(300, 60),
    ],
    ids=["one-hot", "uniform", "two classes", "one row", "60 classes"],
)
def test_odd_rows_give_finite_maps(probs: NDArray[np.float32]) -> None:
    """Rows without information, with two classes, or with many, still give a finite map."""
    fitted = fit_map(probs)

    assert np.isfinite(fitted.points).all()
    assert np.isfinite(log_q(fitted.student, fitted.points)).all()


@pytest.mark.parametrize("count", [100, 300], ids=["prefix", "whole"])
def test_coreset_weights_are_unbiased(count: int) -> None:
    """Weighted sums over a coreset, and over a prefix of it, match sums over all rows within four standard errors."""
    rows = plane.rows_of(torch.tensor(simplex.log_probs(make_probs(2_000)).T))
    value, entropy = rows.pi[0], -(rows.pi * rows.log_pi).sum(dim=0)
    generator = torch.Generator().manual_seed(0)
    estimates = []
    for _ in range(300):
        core = Coreset.draw(entropy, 300, generator)
        assert len(torch.unique(core.rows)) == 300
        weights = core.weights(count)
        estimates.append(float((value[core.rows[:count]] * weights).sum() / len(entropy)))

    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - float(value.mean())) < 4 * error
    assert weights.max() > 1.2 * weights.min()


def test_a_coreset_of_all_rows_weighs_them_equally() -> None:
    """Asking for more rows than there are gives each once, with weight one."""
    core = Coreset.draw(torch.rand(50), 80, torch.Generator().manual_seed(0))

    assert sorted(core.rows.tolist()) == list(range(50))
    assert (core.weights() == 1.0).all()


def test_joint_step_uses_the_true_gradient(probs: NDArray[np.float32]) -> None:
    """At large damping the step of θ points down the gradient that automatic differentiation finds."""
    rows = plane.rows_of(torch.tensor(simplex.log_probs(probs).T))
    config = FitConfig(scale="per-class")
    problem = joint_step.Problem.of(rows, torch.ones(len(probs), dtype=torch.float64), config)
    generator = torch.Generator().manual_seed(1)
    classes = probs.shape[1]
    means = 10.0 * torch.randn(1, 2, classes, generator=generator, dtype=torch.float64)
    flat = torch.zeros(1, classes, dtype=torch.float64)
    theta = plane.Theta(means, flat, flat + 1.0, 2.0)
    points = 5.0 * torch.randn(1, 2, len(probs), generator=generator, dtype=torch.float64)
    leaves = [part.clone().requires_grad_() for part in (theta.means, theta.offset, theta.log_spread)]
    moving = plane.Theta(*leaves, theta.power)
    log_q = torch.log_softmax(moving.scores(points), dim=1)
    loss = 0.5 * ((rows.pi - log_q.exp()) * (rows.log_pi - log_q)).sum(dim=1)
    objective = problem.objective(moving, loss)
    objective.sum().backward()
    heavy = joint_step.Maps(theta, points, objective.detach() + 1.0, torch.full((1,), 1e6, dtype=torch.float64))

    stepped = joint_step.joint_step(heavy, problem)

    for leaf, before, after in zip(
        leaves,
        (theta.means, theta.offset, theta.log_spread),
        (stepped.theta.means, stepped.theta.offset, stepped.theta.log_spread),
        strict=True,
    ):
        step = (after - before).flatten()
        assert leaf.grad is not None
        assert (torch.sign(step) == -torch.sign(leaf.grad.flatten())).all()


@pytest.mark.parametrize(
    "change",
    [{"method": "magic"}, {"scale": "free"}, {"dof": 0.0}, {"temperature": -1.0}, {"starts": 0}, {"seed": -1}],
    ids=lambda change: next(iter(change)),
)
def test_options_that_cannot_work_are_refused(change: dict[str, object]) -> None:
    """A bad option is named in the error."""
    with pytest.raises(ConfigError, match=next(iter(change))):
        FitConfig(**change)  # type: ignore[arg-type]  # wrong on purpose


def test_a_missing_gpu_is_said(probs: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for a GPU where there is none says what to do."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no GPU"):
        fit_map(probs, FitConfig(device="cuda"))
