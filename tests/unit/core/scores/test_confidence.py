"""Scores against closed forms, and the choice among them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.scores import confidence
from darksight_core.scores.confidence import (
    SCORES,
    KlMatching,
    all_scores,
    choose_score,
    doctor,
    entropy,
    gen,
    margin,
    msp,
)
from darksight_core.simplex import Floats, log_probs
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
    score = SCORES[name].of(log_pi=np.log(ROW))

    assert score == pytest.approx([expected], abs=1e-12)


def test_gen_counts_the_most_probable_classes_only() -> None:
    """With M = 2 the least probable of three classes does not count."""
    score = gen(np.log(ROW), top_classes=2)

    assert score == pytest.approx([-(0.21**0.1 + 0.16**0.1)], abs=1e-12)


def test_logit_scores_are_closed_forms_and_see_a_shift() -> None:
    """Largest logit and log-sum-exp move with a common shift, which no probability shows."""
    logits = np.array([[1.0, 3.0, 2.0]])

    scores, shifted = (all_scores(np.log(ROW), logits=rows) for rows in (logits, logits + 5.0))

    assert scores["max_logit"] == pytest.approx([3.0])
    assert scores["energy"] == pytest.approx([math.log(math.exp(1) + math.exp(2) + math.exp(3))])
    assert shifted["energy"] - scores["energy"] == pytest.approx([5.0])


def test_two_classes_rank_alike_under_every_score() -> None:
    """For K = 2 all scores of probabilities put rows in the same order, to one part in 10^25 from certain."""
    odds = np.random.default_rng(0).permutation(np.concatenate([np.linspace(0.01, 5, 50), np.linspace(6, 57, 50)]))
    log_pi = np.stack([-np.logaddexp(0.0, -odds), -np.logaddexp(0.0, odds)], axis=1)

    orders = [np.argsort(score(log_pi)) for score in (msp, entropy, margin, doctor, gen)]

    for order in orders:
        np.testing.assert_array_equal(order, np.argsort(odds))


@pytest.mark.parametrize("score", [msp, entropy, margin, doctor, gen])
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

    scores = all_scores(log_probs(rows))

    assert set(scores) == {"msp", "entropy", "margin", "doctor", "gen"}
    assert all(np.isfinite(score).all() for score in scores.values())


def test_all_scores_computes_what_its_inputs_allow() -> None:
    """A score is there if and only if its needs are, and batches equal their rows."""
    log_pi = log_probs(make_probs(20))
    rng = np.random.default_rng(0)
    points, density = rng.normal(size=(20, 2)), rng.normal(size=20)

    scores = all_scores(
        log_pi, points=points, references=rng.normal(size=(50, 2)), log_density=density, log_kde=density
    )

    assert set(scores) == {"msp", "entropy", "margin", "doctor", "gen", "log_density", "log_kde", "knn"}
    for name in ("msp", "entropy", "margin", "doctor", "gen"):
        alone = np.concatenate([SCORES[name].of(log_pi=log_pi[i : i + 1]) for i in range(20)])
        np.testing.assert_allclose(scores[name], alone, rtol=1e-12)


def test_knn_is_the_distance_to_the_kth_reference() -> None:
    """On a line of references at 1, 2, 3 the second nearest of the origin is 2 away."""
    references = np.array([[3.0, 0.0], [1.0, 0.0], [2.0, 0.0]])

    distance = confidence.knn(np.zeros((1, 2)), references, neighbours=2)

    assert distance == pytest.approx([-2.0])
    with pytest.raises(ConfigError, match="among 3"):
        confidence.knn(np.zeros((1, 2)), references, neighbours=4)


def test_kl_matching_is_zero_on_a_template() -> None:
    """A row equal to its class's template scores 0, any other below; a class never predicted has a one-hot template."""
    rows = np.array([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.1, 0.9, 0.0]])
    matching = KlMatching.fit(log_probs(rows))
    np.testing.assert_allclose(matching.templates, [[0.7, 0.2, 0.1], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]], atol=1e-12)

    scores = matching.score(log_probs(np.array([[0.7, 0.2, 0.1], [0.0, 0.0, 1.0], [0.34, 0.33, 0.33]])))

    assert scores[:2] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert scores[2] < -0.1
    np.testing.assert_array_equal(KlMatching.from_tensors(matching.tensors()).templates, matching.templates)
    with pytest.raises(ConfigError):
        KlMatching.from_tensors({})


def draw_labelled(n: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Confidences and errors that follow them."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(2.0, 1.5, size=n)
    return scores, (rng.random(n) > 1.0 / (1.0 + np.exp(-scores))).astype(np.float64)


def test_augrc_of_the_choice_is_the_published_formula() -> None:
    """AUGRC = (1 - AUROC) acc (1 - acc) + (1 - acc)² / 2, ties counting half."""
    scores, errors = draw_labelled(400)
    scores = np.round(scores, 1)
    right, wrong = scores[errors == 0, None], scores[errors == 1]
    auroc = (right > wrong).mean() + 0.5 * (right == wrong).mean()
    rate = errors.mean()

    row = choose_score({"msp": scores}, errors).rows[0]

    assert row.augrc == pytest.approx((1 - auroc) * rate * (1 - rate) + rate**2 / 2, abs=1e-12)


def test_standard_error_of_a_gain_is_that_of_the_paired_bootstrap() -> None:
    """The closed form is within a tenth of 400 paired resamples."""
    scores, errors = draw_labelled(500)
    other = scores + np.random.default_rng(1).normal(size=500)
    rng = np.random.default_rng(2)
    gains = []
    for _ in range(400):
        drawn = rng.integers(500, size=500)
        table = choose_score({"msp": scores[drawn], "other": other[drawn]}, errors[drawn])
        gains.append(next(row.gain for row in table.rows if row.name == "other"))

    row = next(row for row in choose_score({"msp": scores, "other": other}, errors).rows if row.name == "other")

    assert row.standard_error == pytest.approx(np.std(gains), rel=0.1)


def test_choice_prefers_msp_on_ties_and_within_noise() -> None:
    """The same order under another name, or one with a little noise, does not replace the baseline."""
    scores, errors = draw_labelled(1000)
    noisy = scores + 0.01 * np.random.default_rng(1).normal(size=1000)

    choice = choose_score({"a": np.exp(scores), "noisy": noisy, "msp": scores}, errors)

    assert choice.chosen == "msp"
    assert next(row for row in choice.rows if row.name == "a").gain == 0.0
    assert choice.as_dict()["chosen"] == "msp"


def test_choice_takes_a_clearly_better_score() -> None:
    """A score that follows the errors replaces a noisy baseline."""
    scores, errors = draw_labelled(1000)
    noisy = scores + 3.0 * np.random.default_rng(1).normal(size=1000)

    choice = choose_score({"msp": noisy, "better": scores}, errors)

    assert choice.chosen == choice.rows[0].name == "better"
    assert choice.rows[0].gain > choice.rows[0].standard_error


def test_choice_refuses_what_it_cannot_compare() -> None:
    """A missing baseline, a wrong length and a NaN are errors that name the score."""
    errors = np.array([0, 1, 0])

    with pytest.raises(ConfigError, match="baseline msp"):
        choose_score({"gen": np.zeros(3)}, errors)
    with pytest.raises(ConfigError, match="gen"):
        choose_score({"msp": np.zeros(3), "gen": np.zeros(2)}, errors)
    with pytest.raises(ConfigError, match="gen"):
        choose_score({"msp": np.zeros(3), "gen": np.array([0.0, np.nan, 1.0])}, errors)
