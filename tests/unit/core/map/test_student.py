"""The student against closed forms: density, posterior, tails."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy.stats import multivariate_t

from darksight_core.errors import ConfigError
from darksight_core.map.student import Student, default_scale


def make_student(classes: int = 4, *, dof: float = 2.0, seed: int = 0) -> Student:
    """A student with random centres, scales and prior."""
    rng = np.random.default_rng(seed)
    return Student(
        means=rng.normal(size=(classes, 2)) * 5,
        scales=rng.uniform(0.5, 2.0, classes),
        log_prior=rng.normal(size=classes),
        dof=dof,
    )


@pytest.mark.parametrize("dof", [1.0, 2.0, 3.5])
def test_log_density_equals_scipys_mixture(dof: float) -> None:
    """P(y; θ) is the prior-weighted sum of scipy's multivariate t densities, to 1e-9."""
    student = make_student(dof=dof)
    points = np.random.default_rng(1).normal(size=(30, 2)) * 8
    expected = sum(
        math.exp(prior) * multivariate_t(mean, scale**2 * np.eye(2), df=dof).pdf(points)
        for mean, scale, prior in zip(student.means, student.scales, student.log_prior, strict=True)
    )

    np.testing.assert_allclose(student.log_density(points), np.log(expected), atol=1e-9)


def test_density_integrates_to_one() -> None:
    """The mass on a wide grid plus the known tail is one."""
    student = Student(means=np.array([[0.0, 0.0], [1.0, 0.0]]), scales=np.array([0.2, 0.3]), log_prior=np.zeros(2))
    edge, steps = 30.0, 1501
    ticks = np.linspace(-edge, edge, steps)
    grid = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)

    mass = np.exp(student.log_density(grid)).sum() * (ticks[1] - ticks[0]) ** 2

    # For ν = 2 the mass beyond radius r is 1 / (1 + r² / 2s²), below 2e-4 here.
    assert mass == pytest.approx(1.0, abs=1e-3)


def test_density_at_a_lone_centre_is_the_closed_form() -> None:
    """t_2(y; μ, s² I) = (1 + |y - μ|² / 2s²)⁻² / (2π s²)."""
    scale = 1.7
    student = Student(np.array([[1.0, 2.0], [1.0, 2.0]]), np.full(2, scale), np.zeros(2))
    points = np.array([[1.0, 2.0], [4.0, 6.0]])

    expected = -2 * np.log1p(np.array([0.0, 25.0]) / (2 * scale**2)) - np.log(2 * np.pi * scale**2)

    np.testing.assert_allclose(student.log_density(points), expected, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_posterior_sums_to_one_and_stays_finite_far_out(classes: int) -> None:
    """Posteriors are distributions at any distance and any number of classes."""
    student = make_student(classes)
    points = np.array([[0.0, 0.0], [1e6, -1e6], [1e150, 0.0]])

    log_posterior = student.log_posterior(points)

    assert np.isfinite(log_posterior).all()
    assert np.isfinite(student.log_density(points)).all()
    np.testing.assert_allclose(np.exp(log_posterior).sum(axis=1), 1.0, atol=1e-12)


def test_default_scale_is_the_papers_covariance() -> None:
    """The covariance √(log K) I means s² = √(log K)."""
    assert default_scale(10) ** 2 == pytest.approx(math.sqrt(math.log(10)))


@pytest.mark.parametrize(
    "change",
    [
        {"means": np.zeros((3, 3))},
        {"scales": np.array([1.0, 0.0, 1.0])},
        {"scales": np.ones(2)},
        {"log_prior": np.array([0.0, np.nan, 0.0])},
        {"dof": 0.0},
    ],
    ids=["three dimensions", "zero scale", "wrong length", "nan prior", "no degrees of freedom"],
)
def test_nonsense_parameters_are_refused(change: dict[str, object]) -> None:
    """Parameters that describe no density raise ConfigError."""
    good: dict[str, object] = {"means": np.zeros((3, 2)), "scales": np.ones(3), "log_prior": np.zeros(3), "dof": 2.0}

    with pytest.raises(ConfigError):
        Student(**(good | change))  # type: ignore[arg-type]  # wrong on purpose


def test_arrays_are_copied_and_read_only() -> None:
    """A student does not change when the caller's arrays do, nor can it be changed through its own."""
    means = np.zeros((2, 2))
    student = Student(means, np.ones(2), np.zeros(2))
    means[:] = 7.0

    assert student.means.max() == 0.0
    with pytest.raises(ValueError, match="read-only"):
        student.means[0, 0] = 1.0


def test_the_posterior_of_many_classes_takes_little_memory() -> None:
    """No array of rows times classes times coordinates is made: the peak is the result and two arrays of its size."""
    rng = np.random.default_rng(0)
    student = Student(rng.normal(size=(1_000, 2)), np.ones(1_000), np.zeros(1_000))
    points = rng.normal(size=(2_000, 2))
    tracemalloc.start()

    found = student.log_posterior(points)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 3.2 * found.nbytes


def test_the_density_of_a_grid_takes_little_memory() -> None:
    """The contours of a map of 1,100 classes took 5.1 GB; now points are taken in blocks, with the same result."""
    rng = np.random.default_rng(0)
    student = Student(rng.normal(size=(1_100, 2)), np.ones(1_100), np.zeros(1_100))
    points = rng.normal(size=(10_000, 2))
    tracemalloc.start()

    found = student.log_density(points)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 50e6
    assert found[-5:].tolist() == student.log_density(points[-5:]).tolist()
