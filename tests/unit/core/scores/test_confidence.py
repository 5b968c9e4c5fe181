"""Scores of rows against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from darksight_core.rows.simplex import Floats, log_probs
from darksight_core.scores.confidence import (
    doctor,
    energy,
    gen,
    margin,
    max_logit,
    msp,
    negative_entropy,
)
from darksight_core.scores.registry import row_scores
from tests.support.builders import make_probs

ROW = np.array([[0.1, 0.7, 0.2]])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("msp", math.log(0.7 / 0.3)),
        ("entropy", 0.1 * math.log(0.1) + 0.7 * math.log(0.7) + 0.2 * math.log(0.2)),
        ("margin", -math.log(1.0 - 0.5)),
        ("doctor", -(1.0 - 0.54) / 0.54),
        ("gen", -(0.09**0.1 + 0.21**0.1 + 0.16**0.1)),
    ],
)
def test_score_of_a_row_is_its_closed_form(name: str, expected: float) -> None:
    """Every score of probabilities alone equals its formula on a row."""
    score = row_scores(np.log(ROW))[name]

    assert score == pytest.approx([expected], abs=1e-12)


def test_gen_counts_the_most_probable_classes_only() -> None:
    """With M = 2 the least probable of three classes does not count."""
    score = gen(np.log(ROW), top_classes=2)

    assert score == pytest.approx([-(0.21**0.1 + 0.16**0.1)], abs=1e-12)


def test_logit_scores_are_closed_forms_and_see_a_shift() -> None:
    """Largest logit and log-sum-exp move with a common shift, which no probability shows."""
    logits = np.array([[1.0, 3.0, 2.0]])

    largest, free = max_logit(logits), energy(logits)

    assert largest == pytest.approx([3.0])
    assert free == pytest.approx([math.log(math.exp(1) + math.exp(2) + math.exp(3))])
    assert energy(logits + 5.0) - free == pytest.approx([5.0])


def test_two_classes_rank_alike_under_every_score() -> None:
    """For K = 2 all scores of probabilities put rows in the same order, to one part in 10^25 from certain."""
    odds = np.random.default_rng(0).permutation(np.concatenate([np.linspace(0.01, 5, 50), np.linspace(6, 57, 50)]))
    log_pi = np.stack([-np.logaddexp(0.0, -odds), -np.logaddexp(0.0, odds)], axis=1)

    orders = [np.argsort(score(log_pi)) for score in (msp, negative_entropy, margin, doctor, gen)]

    for order in orders:
        np.testing.assert_array_equal(order, np.argsort(odds))


@pytest.mark.parametrize("score", [msp, negative_entropy, margin, doctor, gen])
def test_rows_that_round_to_certain_are_told_apart(score: Callable[[Floats], Floats]) -> None:
    """Float32 rows whose largest probability is 1 still differ by what the other classes have."""
    probs = np.array([[1.0, 1e-9, 1e-9], [1.0, 1e-12, 1e-12], [1.0, 1e-20, 1e-20]], dtype=np.float32)

    scores = score(log_probs(probs))

    assert (np.diff(scores) > 0).all()


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_scores_stay_finite_at_extremes(classes: int) -> None:
    """One-hot, uniform and nearly one-hot rows have finite scores at any number of classes."""
    one_hot = np.eye(classes)[:1]
    rows = np.concatenate([one_hot, np.full((1, classes), 1.0 / classes), 0.999 * one_hot + 0.001 / classes])

    scores = row_scores(log_probs(rows))

    assert set(scores) == {"msp", "entropy", "margin", "doctor", "gen"}
    assert all(np.isfinite(score).all() for score in scores.values())


def test_a_batch_is_scored_like_its_rows() -> None:
    """Every score of a batch equals the scores of its rows one by one."""
    log_pi = log_probs(make_probs(20))

    scores = row_scores(log_pi)

    alone = [row_scores(log_pi[i : i + 1]) for i in range(20)]
    for name, values in scores.items():
        np.testing.assert_allclose(values, np.concatenate([each[name] for each in alone]), rtol=1e-12)
