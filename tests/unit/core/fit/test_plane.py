"""The 2-D problems: parity with numpy, derivatives, and what the search and the steps promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from darksight_core.fit.map import placement as plane
from darksight_core.map.student import Student
from darksight_core.rows import simplex


def make_student(classes: int, *, dof: float = 2.0, seed: int = 0) -> Student:
    """A student with random centres, scales and prior."""
    rng = np.random.default_rng(seed)
    return Student(rng.normal(size=(classes, 2)) * 6, rng.uniform(0.5, 2, classes), rng.normal(size=classes), dof)


def make_rows(classes: int, n: int = 60, *, seed: int = 1) -> tuple[np.ndarray, plane.Rows]:
    """Log-probabilities (n, K) and the same rows class-first in float64."""
    log_pi = simplex.log_softmax(np.random.default_rng(seed).normal(size=(n, classes)) * 4)
    return log_pi, plane.rows_of(torch.tensor(log_pi.T))


def double(student: Student) -> plane.Theta:
    """θ in float64."""
    return plane.Theta.of(student, dtype=torch.float64)


def direct_loss(theta: plane.Theta, rows: plane.Rows, points: torch.Tensor) -> torch.Tensor:
    """KL_sym (S, n) written down plainly, so that automatic differentiation can follow it."""
    log_q = torch.log_softmax(theta.scores(points), dim=1)
    return 0.5 * ((rows.pi - log_q.exp()) * (rows.log_pi - log_q)).sum(dim=1)


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("dof", [1.0, 2.0, 5.0])
def test_torch_student_equals_numpy_student(classes: int, dof: float) -> None:
    """Posteriors in torch and numpy agree to 1e-6 for any K and ν, near and far, and θ survives the round trip."""
    student = make_student(classes, dof=dof)
    points = np.concatenate([np.random.default_rng(2).normal(size=(20, 2)) * 10, [[1e5, -1e5]]])

    scores = double(student).scores(torch.tensor(points.T[None]))
    actual = torch.log_softmax(scores, dim=1)[0].T.numpy()
    back = double(student).to_student()

    np.testing.assert_allclose(actual, student.log_posterior(points), atol=1e-6)
    np.testing.assert_allclose(back.log_density(points), student.log_density(points), atol=1e-9)


def test_local_loss_is_kl_sym() -> None:
    """The loss of `Local` is the KL_sym of numpy to 1e-9."""
    student = make_student(6)
    log_pi, rows = make_rows(6)
    points = np.random.default_rng(3).normal(size=(len(log_pi), 2)) * 6

    local = plane.Local.at(double(student), rows, torch.tensor(points.T[None]))

    np.testing.assert_allclose(local.loss[0], simplex.kl_sym(log_pi, student.log_posterior(points)), atol=1e-9)


def test_newton_direction_solves_with_autograds_hessian() -> None:
    """Where the Hessian is positive definite, the undamped direction is -H⁻¹ g of automatic differentiation."""
    theta = double(make_student(5))
    _, rows = make_rows(5)
    points = torch.tensor(np.random.default_rng(4).normal(size=(1, 2, len(rows))) * 4)
    quadratic = plane.Local.at(theta, rows, points).quadratic(theta.power)
    step = plane._newton_direction(quadratic, torch.zeros(1, len(rows)))
    checked = 0
    for i in range(len(rows)):
        row = rows[torch.tensor([i])]

        def loss(y: torch.Tensor, row: plane.Rows = row) -> torch.Tensor:
            return direct_loss(theta, row, y[None, :, None]).sum()

        y = points[0, :, i]
        hessian = torch.autograd.functional.hessian(loss, y)
        if torch.linalg.eigvalsh(hessian)[0] < 1e-3:
            continue
        gradient = torch.autograd.functional.jacobian(loss, y)
        expected = -torch.linalg.solve(hessian, gradient)
        np.testing.assert_allclose(step[0, :, i], expected, rtol=1e-6, atol=1e-9)
        checked += 1

    assert checked > 10


def test_newton_never_makes_a_row_worse_and_converges() -> None:
    """Every row's loss falls or stays, and thirty steps end where the gradient vanishes."""
    theta = double(make_student(5))
    _, rows = make_rows(5)
    start = torch.zeros(1, 2, len(rows), dtype=torch.float64)
    before = plane.Local.at(theta, rows, start).loss
    bound = plane.map_bound(theta)

    few, _ = plane.newton(theta, rows, start, steps=2, bound=bound)
    points, _ = plane.newton(theta, rows, start, steps=60, bound=bound)

    assert (plane.Local.at(theta, rows, few).loss <= before).all()
    inside = (points[0].abs() < bound[0] - 1e-6).all(dim=0)
    gradient = plane.Local.at(theta, rows, points).quadratic(theta.power)[0, :2]
    assert inside.sum() > 30
    assert gradient[:, inside].abs().max() < 1e-6


def test_nearest_candidate_is_the_argmin_of_kl_sym() -> None:
    """The matrix product picks the candidate that a direct evaluation picks."""
    student = make_student(7)
    log_pi, rows = make_rows(7)
    candidates = np.random.default_rng(5).normal(size=(50, 2)) * 8
    log_q = student.log_posterior(candidates)
    naive = [int(np.argmin([simplex.kl_sym(row[None], q[None])[0] for q in log_q])) for row in log_pi]

    found = plane.nearest_candidate(double(student), rows, torch.tensor(candidates.T[None]))

    np.testing.assert_allclose(found[0].T, candidates[naive])


def test_place_comes_close_to_a_dense_search() -> None:
    """Search plus Newton finds on every row nearly the minimum of a very fine grid, or better."""
    student = make_student(4)
    theta = double(student)
    log_pi, rows = make_rows(4, n=40)
    bound = plane.map_bound(theta)
    ticks = np.linspace(-1, 1, 300) * float(bound[0])
    grid = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)
    log_q = student.log_posterior(grid)
    best = np.array([simplex.kl_sym(row[None], log_q).min() for row in log_pi])

    _, loss = plane.place(theta, rows, plane.candidate_grid(theta, 0.6 * bound, 32), steps=20, bound=bound)

    assert (loss[0].numpy() <= best + 1e-3).mean() > 0.97


def test_place_of_a_row_does_not_depend_on_the_batch() -> None:
    """Rows placed one by one stand where they stand when placed together."""
    theta = double(make_student(5))
    _, rows = make_rows(5)
    bound = plane.map_bound(theta)
    candidates = plane.candidate_grid(theta, bound, 16)

    together, _ = plane.place(theta, rows, candidates, steps=10, bound=bound)
    alone = torch.cat(
        [plane.place(theta, rows[torch.tensor([i])], candidates, steps=10, bound=bound)[0] for i in range(len(rows))],
        dim=2,
    )

    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_faithful_rows_agree_and_others_do_not_move() -> None:
    """After `place_faithful` every row's student class is its own; rows that agreed before stay where they were."""
    student = make_student(6)
    theta = double(student)
    log_pi, rows = make_rows(6, n=400)
    bound = plane.map_bound(theta)
    candidates = plane.candidate_grid(theta, bound, 32)
    points, _ = plane.place(theta, rows, candidates, steps=10, bound=bound)
    agreed = student.log_posterior(points[0].T.numpy()).argmax(axis=1) == log_pi.argmax(axis=1)
    assert 0 < (~agreed).sum() < len(rows)

    moved = plane.place_faithful(theta, rows, points, candidates, steps=20, bound=bound)

    assert (student.log_posterior(moved[0].T.numpy()).argmax(axis=1) == log_pi.argmax(axis=1)).all()
    np.testing.assert_array_equal(moved[0].T[agreed], points[0].T[agreed])


@pytest.mark.parametrize("classes", [2, 1000])
def test_extreme_rows_are_placed_at_finite_points(classes: int) -> None:
    """One-hot rows, entries of 1e-30 and uniform rows all get finite points within the bound."""
    theta = plane.Theta.of(make_student(classes))
    probs = np.zeros((3, classes))
    probs[0, 0] = 1.0
    probs[1] = 1e-30
    probs[1, 1] = 1.0
    probs[2] = 1.0 / classes
    rows = plane.rows_of(torch.tensor(simplex.log_probs(probs).T, dtype=torch.float32))
    bound = plane.map_bound(theta)

    points, loss = plane.place(theta, rows, plane.candidate_grid(theta, bound, 16), steps=10, bound=bound)

    assert torch.isfinite(points).all()
    assert torch.isfinite(loss).all()
    assert (points.abs() <= bound[:, None, None]).all()
