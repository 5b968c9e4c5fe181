"""The choice of a reject score among candidates."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats
from darksight_core.scores.choice import choose_score


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
