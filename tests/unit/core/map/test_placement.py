from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.map.placement import Embedder, _look, _Theta
from darksight_core.map.student import Student
from darksight_core.rows.simplex import Floats, kl_sym, log_probs, log_softmax
from tests.support.maps import constant_network, extreme_probs, map_probs, random_embedder

CLASSES = [2, 3, 10, 100, 1000]


def rows_for(embedder: Embedder) -> Floats:
    """Usual and extreme rows, as logarithms."""
    rows = 60 if embedder.student.n_classes <= 100 else 10
    return log_probs(np.concatenate([map_probs(embedder, rows), extreme_probs(embedder.student.n_classes)]))


def theta_of(embedder: Embedder) -> _Theta:
    """The student as the placement reads it."""
    x, y, offset, spread = embedder.theta()[:, :, None]
    return _Theta(x, y, offset, spread, 0.5 * (embedder.student.dof + 2.0))


@pytest.mark.parametrize("dof", [1.0, 2.0, 5.5])
def test_gradient_and_hessian_are_derivatives(dof: float) -> None:
    """Central differences of KL_sym give the closed forms."""
    embedder = random_embedder(5, dof=dof)
    theta, rows = theta_of(embedder), rows_for(embedder)
    log_pi = rows.T
    points = np.random.default_rng(1).normal(scale=5.0, size=(2, len(rows)))
    shifts = np.eye(2)[:, :, None] * 1e-5

    def at(shift: Floats) -> Any:
        return _look(theta, np.exp(log_pi), log_pi, points + shift)

    slopes = [(at(shift).loss - at(-shift).loss) / 2e-5 for shift in shifts]
    bends = [(at(shift).gradient - at(-shift).gradient) / 2e-5 for shift in shifts]

    here = at(0.0 * shifts[0])
    np.testing.assert_allclose(here.loss, kl_sym(rows, embedder.student.log_posterior(points.T)), atol=1e-12)
    np.testing.assert_allclose(here.gradient, slopes, atol=1e-7)
    np.testing.assert_allclose(here.hessian, [bends[0][0], bends[1][1], bends[0][1]], atol=1e-7)


def test_tied_anchors_go_to_the_first() -> None:
    """Anchors that are mirror images give the same point for a batch as for its rows."""
    student = Student(np.array([[-3.0, 0.0], [3.0, 0.0]]), np.ones(2), np.zeros(2))
    network = constant_network(2, 9.0)
    anchors = np.array([[x, y] for y in (5.0, -5.0, 2.0, -2.0) for x in np.linspace(-4.0, 4.0, 9)])
    embedder = Embedder(student, network, anchors, bound=10.0, n_inputs=2)
    probs = np.random.default_rng(0).uniform(0.02, 0.98, size=(200, 1))
    log_pi = log_probs(np.hstack([probs, 1.0 - probs]))

    together, _ = embedder.embed(log_pi)

    alone = np.concatenate([embedder.embed(row[None])[0] for row in log_pi])
    np.testing.assert_allclose(together, alone, atol=1e-6)


@pytest.mark.parametrize("classes", CLASSES)
def test_embedding_lowers_the_divergence_of_its_starts(classes: int) -> None:
    """KL_sym at the end is that of the returned point, and not above the better start unless the class demands it."""
    embedder = random_embedder(classes)
    log_pi = rows_for(embedder)

    points, losses = embedder.embed(log_pi)

    pi, student = np.exp(log_pi), embedder.student
    starts = embedder.guess(pi), embedder.starts.best_of_two(pi, log_pi)[0]
    at_start = np.minimum(*(kl_sym(log_pi, student.log_posterior(start)) for start in starts))
    is_free = student.log_posterior(points).argmax(axis=1) == log_pi.argmax(axis=1)
    assert np.abs(points).max() <= embedder.bound
    np.testing.assert_allclose(losses, kl_sym(log_pi, student.log_posterior(points)), atol=1e-10)
    assert (losses <= at_start + 1e-9)[is_free].mean() > 0.9


def test_network_is_asked_where_no_anchor_is_close() -> None:
    """Rows whose best anchor is close enough are placed without f_p, the others as with it alone."""
    embedder = random_embedder(10)
    log_pi = rows_for(embedder)
    at_anchor = embedder.starts.best_of_two(np.exp(log_pi), log_pi)[1]
    limit = float(np.median(at_anchor))
    always, never = (replace(embedder, network_above=above).embed(log_pi)[0] for above in (0.0, np.inf))

    points, _ = replace(embedder, network_above=limit).embed(log_pi)

    np.testing.assert_array_equal(points, np.where((at_anchor > limit)[:, None], always, never))


@pytest.mark.parametrize("classes", CLASSES)
def test_student_predicts_the_rows_class(classes: int) -> None:
    """Wherever a class wins at some anchor, its rows are placed where the student predicts it."""
    embedder = random_embedder(classes)
    log_pi = log_probs(map_probs(embedder, 300 if classes <= 100 else 50, noise=1.5))

    points, _ = embedder.embed(log_pi)

    labels = log_pi.argmax(axis=1)
    can = embedder.starts.has_class[labels]
    assert can.mean() > 0.1
    np.testing.assert_array_equal(embedder.student.log_posterior(points).argmax(axis=1)[can], labels[can])


def test_class_that_wins_nowhere_keeps_the_unconstrained_point() -> None:
    """A row whose class the student predicts at no anchor is placed by KL_sym alone."""
    student = Student(np.array([[0.0, 0.0], [0.0, 0.0], [6.0, 0.0]]), np.ones(3), np.array([0.0, -2.0, 0.0]))
    network = constant_network(3)
    embedder = Embedder(student, network, student.means, bound=20.0, n_inputs=3, refine_steps=30)
    log_pi = log_probs(np.array([[0.4, 0.5, 0.1]]))

    points, losses = embedder.embed(log_pi)

    around = points + 0.1 * np.random.default_rng(0).normal(size=(50, 2))
    assert student.log_posterior(points).argmax() == 0
    assert (losses <= kl_sym(log_pi, student.log_posterior(around)) + 1e-6).all()


@pytest.mark.parametrize("classes", CLASSES)
def test_batch_equals_its_rows_and_follows_a_permutation(classes: int) -> None:
    """A row's point depends on no other row."""
    embedder = random_embedder(classes)
    log_pi = rows_for(embedder)
    order = np.random.default_rng(2).permutation(len(log_pi))

    points, losses = embedder.embed(log_pi)

    alone = [embedder.embed(row[None]) for row in log_pi]
    np.testing.assert_allclose(points, np.concatenate([point for point, _ in alone]), atol=1e-6)
    np.testing.assert_allclose(losses, np.concatenate([loss for _, loss in alone]), atol=1e-9)
    np.testing.assert_allclose(points[order], embedder.embed(log_pi[order])[0], atol=1e-6)


def test_temperature_and_columns_equal_preparing_the_rows_by_hand() -> None:
    """Leaving out columns and softening is log softmax(log π_chosen / T)."""
    columns = (7, 2, 5)
    embedder = random_embedder(3, temperature=2.0, columns=columns, n_inputs=9)
    log_pi = log_probs(map_probs(random_embedder(9), 20))

    points, losses = embedder.embed(log_pi)

    expected = random_embedder(3).embed(log_softmax(log_pi[:, columns] / 2.0))
    np.testing.assert_allclose(points, expected[0], atol=1e-9)
    np.testing.assert_allclose(losses, expected[1], atol=1e-9)


def test_empty_batch_and_unchanged_input() -> None:
    """No rows give no points, and rows that come in stay as they are."""
    embedder = random_embedder(4)
    log_pi = rows_for(embedder)
    before = log_pi.copy()

    embedder.embed(log_pi)
    points, losses = embedder.embed(np.empty((0, 4)))

    np.testing.assert_array_equal(log_pi, before)
    assert points.shape == (0, 2)
    assert losses.shape == (0,)


def test_tensors_and_settings_bring_it_back() -> None:
    """An embedder made from its own arrays and settings gives the same points."""
    embedder = random_embedder(3, temperature=1.5, columns=(4, 0, 2), n_inputs=5, refine_steps=3)
    log_pi = log_probs(map_probs(random_embedder(5), 20))

    copy = Embedder.from_tensors(embedder.tensors(), embedder.settings())

    assert copy.settings() == embedder.settings()
    np.testing.assert_allclose(copy.embed(log_pi)[0], embedder.embed(log_pi)[0], atol=1e-9)


@pytest.mark.parametrize("missing", ["means", "anchors", "network_second", "bound"])
def test_missing_part_is_named(missing: str) -> None:
    """An array or setting that is not there is named in the error."""
    embedder = random_embedder(3)
    tensors = {name: array for name, array in embedder.tensors().items() if name != missing}
    settings = {name: value for name, value in embedder.settings().items() if name != missing}

    with pytest.raises(ConfigError, match=missing):
        Embedder.from_tensors(tensors, settings)


@pytest.mark.parametrize(
    "change",
    [
        {"anchors": np.empty((0, 2))},
        {"anchors": np.full((3, 2), np.nan)},
        {"anchors": np.full((3, 2), 1e9)},
        {"bound": 0.0},
        {"n_inputs": 4},
        {"temperature": 0.0},
        {"refine_steps": -1},
        {"network_above": -1.0},
        {"network_above": np.nan},
        {"columns": (0, 1, 1)},
        {"columns": (0, 1, 3)},
        {"columns": (0, 1)},
        {"network": random_embedder(4).network},
    ],
    ids=lambda change: next(iter(change)),
)
def test_parts_that_cannot_work_are_refused(change: dict[str, Any]) -> None:
    """Every parameter is checked when an embedder is made."""
    good = random_embedder(3)
    parts = {"student": good.student, "network": good.network, "anchors": good.anchors, "bound": good.bound}

    with pytest.raises(ConfigError):
        Embedder(**{**parts, "n_inputs": 3, **change})
