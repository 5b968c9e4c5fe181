"""Fidelity of the student against hand-computed values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darksight_core.evaluation.fidelity import fidelity
from darksight_core.rows.simplex import log_probs
from tests.support.builders import draw_map


def test_fidelity_of_a_perfect_student_is_perfect() -> None:
    """A student equal to the teacher has no divergence, full agreement and the teacher's own accuracy."""
    log_pi, _, _, _, labels = draw_map()

    got = fidelity(log_pi, log_pi.copy(), labels)

    assert (got.kl_sym, got.kl_teacher_student, got.kl_student_teacher, got.acc_teacher) == (0.0, 0.0, 0.0, 1.0)
    assert got.acc_ground == got.teacher_acc_ground
    assert got.teacher_acc_ground is not None
    assert 0.5 < got.teacher_acc_ground < 1.0


def test_fidelity_equals_hand_computed_figures() -> None:
    """Two rows over two classes give the divergences and shares worked out by hand."""
    log_pi = log_probs(np.array([[0.5, 0.5], [0.25, 0.75]]))
    log_q = log_probs(np.array([[0.25, 0.75], [0.25, 0.75]]))
    forward = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    backward = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)

    got = fidelity(log_pi, log_q, [1, 0])

    assert got.kl_teacher_student == pytest.approx(forward / 2)
    assert got.kl_student_teacher == pytest.approx(backward / 2)
    assert got.kl_sym == pytest.approx((forward + backward) / 4)
    # The first teacher row is a tie, which goes to class 0, so the student's class 1 does not agree with it.
    assert got.acc_teacher == 0.5
    assert (got.acc_ground, got.teacher_acc_ground) == (0.5, 0.0)
    assert (got.total_variation, got.kl_sym_of_zeros) == (pytest.approx(0.125), 0.0)


def test_agreement_on_shuffled_rows_is_chance() -> None:
    """Student rows dealt to the wrong points agree no more often than a random permutation would."""
    log_pi, log_q, _, _, _ = draw_map(n=4_000, classes=10, seed=3)
    order = np.random.default_rng(4).permutation(len(log_pi))
    n, teacher, student = len(log_pi), log_pi.argmax(axis=1), log_q.argmax(axis=1)
    t, s = np.bincount(teacher, minlength=10), np.bincount(student, minlength=10)
    chance = float(t @ s) / n**2
    # Variance of Σ_i a(i, σ(i)) over random permutations σ: the doubly centred a, squared and summed, over n - 1.
    centred = np.eye(10) - s[:, None] / n - t[None, :] / n + chance
    error = math.sqrt(float(t @ centred**2 @ s) / (n - 1)) / n

    shuffled = fidelity(log_pi, log_q[order]).acc_teacher

    assert fidelity(log_pi, log_q).acc_teacher > 0.85
    assert abs(shuffled - chance) < 4 * error
    assert chance < 0.2


def test_a_student_that_knows_nothing_predicts_class_zero() -> None:
    """Ties go to the lowest class, so a uniform student agrees exactly where the teacher predicts class 0."""
    log_pi, _, _, _, _ = draw_map()
    uniform = np.full_like(log_pi, -math.log(log_pi.shape[1]))

    got = fidelity(log_pi, uniform)

    assert got.acc_teacher == np.mean(log_pi.argmax(axis=1) == 0)
    assert got.acc_ground is None
    assert got.teacher_acc_ground is None
