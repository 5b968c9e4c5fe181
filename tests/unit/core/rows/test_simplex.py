"""Closed forms of the divergences, and that nothing overflows or becomes infinite."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax as scipy_log_softmax
from scipy.special import rel_entr

from darksight_core.rows import simplex


@pytest.fixture
def rows() -> np.ndarray:
    """Random rows on the simplex, some nearly one-hot."""
    rng = np.random.default_rng(0)
    return rng.dirichlet(np.full(7, 0.3), size=200)


def test_log_softmax_equals_scipy_at_extreme_logits() -> None:
    """Logits of any size give the same log-probabilities as scipy."""
    logits = np.array([[1e4, 0.0, -1e4], [0.0, 0.0, 0.0], [700.0, 710.0, -745.0]])

    actual = simplex.log_softmax(logits)

    np.testing.assert_allclose(actual, scipy_log_softmax(logits, axis=1), atol=1e-12)


def test_divergences_equal_scipy(rows: np.ndarray) -> None:
    """KL and KL_sym equal scipy's to 1e-9."""
    p, q = simplex.log_probs(rows), simplex.log_probs(rows[::-1])
    forward = rel_entr(rows, rows[::-1]).sum(axis=1)
    backward = rel_entr(rows[::-1], rows).sum(axis=1)

    np.testing.assert_allclose(simplex.kl(p, q), forward, atol=1e-9)
    np.testing.assert_allclose(simplex.kl_sym(p, q), 0.5 * (forward + backward), atol=1e-9)


def test_entropy_of_uniform_is_log_k() -> None:
    """The entropy of a uniform row is log K and of a one-hot row zero."""
    log_pi = simplex.log_probs(np.array([[0.25] * 4, [1.0, 0.0, 0.0, 0.0]]))

    np.testing.assert_allclose(simplex.entropy(log_pi), [np.log(4.0), 0.0], atol=1e-12)


def test_zeros_are_raised_to_the_floor_and_nothing_else_moves() -> None:
    """An exact zero gets the floor; 1e-30 keeps its logarithm; the rest of the row keeps its own to 1e-12."""
    log_pi = simplex.log_probs(np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 1e-30]]))

    np.testing.assert_allclose(log_pi[0], log_pi[1], atol=1e-12)
    np.testing.assert_allclose(log_pi[0], [np.log(0.5), np.log(0.5), np.log(simplex.FLOOR)], atol=1e-12)


def test_the_part_of_kl_sym_from_zeros() -> None:
    """A zero where the other row has q costs q log(q / 1e-30) / 2; the rest of the row is not counted."""
    log_p, log_q = (simplex.log_probs(np.array(rows)) for rows in ([[1.0, 0.0], [0.9, 0.1]], [[0.99, 0.01]] * 2))

    found = simplex.kl_sym_of_zeros(log_p, log_q)

    np.testing.assert_allclose(found, [0.005 * np.log(0.01 / simplex.FLOOR), 0.0], rtol=1e-9)
    assert found[0] < simplex.kl_sym(log_p, log_q)[0]


def test_total_variation_is_bounded_by_kl_sym(rows: np.ndarray) -> None:
    """TV is 0 for equal rows, 1 for rows without a common class, and at most √(KL_sym / 2)."""
    log_p = simplex.log_probs(rows)
    log_q = log_p[::-1]

    assert simplex.total_variation(log_p, log_p).max() == 0.0
    assert simplex.total_variation(*simplex.log_probs(np.eye(2))[:, None]) == pytest.approx(1.0)
    assert (simplex.total_variation(log_p, log_q) <= np.sqrt(simplex.kl_sym(log_p, log_q) / 2.0) + 1e-12).all()


def test_temper_works_on_log_probabilities_as_on_logits() -> None:
    """Temperature acts as softmax(logits / T) although only probabilities are known."""
    logits = np.random.default_rng(1).normal(size=(50, 5)) * 10

    actual = simplex.temper(simplex.log_softmax(logits), 3.0)

    np.testing.assert_allclose(actual, scipy_log_softmax(logits / 3.0, axis=1), atol=1e-10)


def test_functions_leave_their_input_alone(rows: np.ndarray) -> None:
    """No function writes into its argument."""
    before = rows.copy()
    log_pi = simplex.log_probs(rows)
    kept = log_pi.copy()
    simplex.kl_sym(log_pi, log_pi[::-1])
    simplex.temper(log_pi, 2.0)

    np.testing.assert_array_equal(rows, before)
    np.testing.assert_array_equal(log_pi, kept)
