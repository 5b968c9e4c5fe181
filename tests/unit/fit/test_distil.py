"""Distillation: f_p learns the map, fine-tuning never makes it worse, and θ is moved only where the map allows it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from darksight_core.embed import Network
from darksight_core.errors import ConfigError
from darksight_core.fit import distil as module
from darksight_core.fit.config import FitConfig, Progress
from darksight_core.fit.distil import DistilConfig, Distilled, Features, distil
from darksight_core.fit.fitting import MapFit, fit_map
from darksight_core.simplex import Floats, kl_sym, log_probs
from darksight_core.student import Student
from tests.builders import make_probs


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
    """f_p on π, layer by layer in numpy."""
    values = np.asarray(probs, dtype=np.float64)
    for weight, bias in zip(result.weights[:-1], result.biases[:-1], strict=True):
        values = np.maximum(values @ weight + bias, 0.0)
    return np.asarray(values @ result.weights[-1] + result.biases[-1])


def test_distillation_learns_the_points() -> None:
    """Where rows are a student's own posteriors, f_p finds their points with a small part of the points' variance."""
    rng = np.random.default_rng(0)
    student = Student(8.0 * rng.normal(size=(5, 2)), np.ones(5), np.zeros(5))
    points = student.means[rng.integers(5, size=600)] + rng.normal(size=(600, 2))
    probs = np.exp(student.log_posterior(points)).astype(np.float32)
    fitted = MapFit(student, points, points, 30.0, (), 0.0)

    untrained, trained = (
        run(probs, fitted, epochs=epochs, tune_epochs=0, tune_theta=False, hidden=(64, 64)) for epochs in (0, 20)
    )

    variance = points.var(axis=0).sum()
    errors = [((forward(one, probs) - points) ** 2).sum(axis=1).mean() / variance for one in (untrained, trained)]
    assert errors[0] > 0.5
    assert errors[1] < 0.05


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


def test_theta_stays_when_exact_placement_would_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    """A θ that helps f_p but harms exactly placed rows is recorded and not kept; p goes back with it."""
    probs, fitted = make_map()
    monkeypatch.setattr(module, "_TOLERATED", -1.0)

    both = run(probs, fitted, tune_epochs=1, joint_epochs=8)
    fixed = run(probs, fitted, tune_epochs=1, tune_theta=False)

    assert [stage.kept for stage in both.stages] == [True, True, False]
    assert both.stages[2].kl_sym_held < both.stages[1].kl_sym_held
    assert both.student is fitted.student
    for one, other in zip(both.weights + both.biases, fixed.weights + fixed.biases, strict=True):
        np.testing.assert_array_equal(one, other)


def test_theta_moves_with_p_where_it_helps() -> None:
    """The third stage changes θ a little, and both of its figures stand beside those it had before."""
    probs, fitted = make_map()
    assert isinstance(fitted.student, Student)

    result = run(probs, fitted, tune_epochs=1, joint_epochs=8)

    _, before, after = result.stages
    assert after.name == "fine-tune theta, p"
    assert after.kept
    assert after.kl_sym_held < before.kl_sym_held
    assert after.kl_sym_exact <= 1.01 * before.kl_sym_exact
    moved = np.abs(result.student.means - fitted.student.means).max()
    assert 0.0 < moved < 0.05 * fitted.bound
    np.testing.assert_allclose(result.student.scales, fitted.student.scales, rtol=1e-6)


def test_theta_is_the_same_object_when_it_is_not_tuned() -> None:
    """`tune_theta=False` hands the student back untouched."""
    probs, fitted = make_map()

    result = run(probs, fitted, tune_theta=False)

    assert result.student is fitted.student


def test_same_seed_same_network() -> None:
    """The seed decides all of it; torch's own random state is neither read nor needed."""
    probs, fitted = make_map()

    first, again, other = (run(probs, fitted, epochs=2, tune_epochs=2, seed=seed) for seed in (3, 3, 4))

    for one, two in zip(first.weights + first.biases, again.weights + again.biases, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first.weights[0], other.weights[0])
    assert [stage.kl_sym_held for stage in first.stages] == [stage.kl_sym_held for stage in again.stages]


@pytest.mark.parametrize("features", ["probs", "log_probs", "both"])
def test_served_network_gives_the_figures_of_training(features: Features) -> None:
    """The numpy network of serving, with rows of all features, has the KL_sym that torch measured, to 1e-5."""
    probs, fitted = make_map()

    result = run(probs, fitted, features=features, epochs=4, tune_epochs=4, tune_theta=False)
    network = Network(result.weights, result.biases, result.features)
    points = network(probs.astype(np.float64))
    loss = kl_sym(log_probs(probs), result.student.log_posterior(points)).mean()

    tuned = result.stages[-1]
    assert loss == pytest.approx((540 * tuned.kl_sym_fit + 60 * tuned.kl_sym_held) / 600, rel=1e-5)
    assert [weight.dtype for weight in result.weights] == [np.float32] * 3


@pytest.mark.parametrize("features", ["probs", "log_probs", "both"])
def test_zeros_and_one_hot_rows_stay_finite(features: Features) -> None:
    """Rows with exact zeros, one-hot and uniform rows give finite weights and figures."""
    probs, _ = make_map()
    probs = np.where(probs < 0.01, 0.0, probs)
    probs[:40] = np.eye(5, dtype=np.float32)[np.arange(40) % 5]
    probs[40:50] = 0.2
    probs = (probs / probs.sum(axis=1, keepdims=True)).astype(np.float32)
    fitted = fit_map(probs, FitConfig(device="cpu", starts=1))

    result = run(probs, fitted, features=features, epochs=2, tune_epochs=2)

    assert all(np.isfinite(array).all() for array in result.weights + result.biases)
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
    """One report for each epoch, with θ's epochs counted as fine-tuning."""
    probs, fitted = make_map()
    assert isinstance(fitted.student, Student)
    seen: list[Progress] = []
    config = DistilConfig(epochs=2, tune_epochs=2, joint_epochs=1, device="cpu")

    distil(probs, fitted.points, fitted.student, fitted.bound, config, report=seen.append)

    counted = [(progress.stage, progress.done, progress.total) for progress in seen]
    assert counted == [("distil", 1, 2), ("distil", 2, 2), *(("fine-tune", done, 3) for done in (1, 2, 3))]


@pytest.mark.parametrize(
    "options",
    [{"features": "logits"}, {"hidden": (0,)}, {"epochs": -1}, {"batch_rows": 0}, {"lr": 0.0}, {"seed": -1}],
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
