"""The learned P(correct): little from few labels, much from many, never a bad bargain."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats, log_probs
from darksight_core.scores.choice import choose_score
from darksight_core.scores.confidence import msp
from darksight_core.scores.learned import Learned
from tests.support.builders import make_probs


def draw(
    n: int, seed: int, *, helpful: float = 1.0, classes: int = 5
) -> tuple[Floats, Floats, NDArray[np.bool_], Floats]:
    """Rows, a density, whether predictions are right, and the true log-odds that they are.

    With `helpful` the density and the class tell of errors that max-softmax does not show.
    """
    rng = np.random.default_rng(seed)
    log_pi = log_probs(make_probs(n, classes, seed=seed))
    log_kde = rng.normal(-4.0, 2.0, size=n)
    offsets = np.linspace(-1.0, 1.0, classes)[log_pi.argmax(axis=1)]
    true = 0.5 + 0.8 * msp(log_pi) + helpful * (0.6 * (log_kde + 4.0) + offsets)
    return log_pi, log_kde, rng.random(n) < 1.0 / (1.0 + np.exp(-true)), true


def augrc(scores: Floats, correct: NDArray[np.bool_]) -> float:
    """Of one score."""
    return choose_score({"msp": scores}, ~correct).rows[0].augrc


def test_many_labels_come_close_to_the_best_possible_order() -> None:
    """With 5,000 labels nine tenths of the way from max-softmax to the true log-odds are made, and weights are free."""
    log_pi, log_kde, correct, _ = draw(5000, 0)
    learned = Learned.fit(log_pi, correct, log_kde=log_kde)
    log_pi, log_kde, correct, true = draw(20_000, 1)

    plain, best = augrc(msp(log_pi), correct), augrc(true, correct)
    reached = augrc(learned.log_odds(log_pi, log_kde=log_kde), correct)

    assert np.isfinite(learned.ridges).all()
    assert (plain - reached) / (plain - best) > 0.9


def test_few_labels_that_teach_nothing_cost_nothing() -> None:
    """With 100 labels and no help from density or class, the mean AUGRC of 30 fits is within 1% of max-softmax's."""
    ratios = []
    log_pi, log_kde, correct, _ = draw(4000, 1000, helpful=0.0)
    plain = augrc(msp(log_pi), correct)
    for seed in range(30):
        rows, density, right, _ = draw(100, seed, helpful=0.0)
        learned = Learned.fit(rows, right, log_kde=density, seed=seed)
        ratios.append(augrc(learned.log_odds(log_pi, log_kde=log_kde), correct) / plain)

    assert np.mean(ratios) < 1.01
    assert np.median(ratios) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("n", "limit"), [(100, 0.06), (5000, 0.015)])
def test_probabilities_are_calibrated(n: int, limit: float) -> None:
    """The expected calibration error over ten bins is small, and smaller with more labels."""
    log_pi, log_kde, correct, _ = draw(n, 0)
    learned = Learned.fit(log_pi, correct, log_kde=log_kde)
    log_pi, log_kde, correct, _ = draw(20_000, 1)

    chance = learned.score(log_pi, log_kde=log_kde)

    bins = np.argsort(np.argsort(chance)) * 10 // len(chance)
    gaps = [abs(float((chance - correct)[bins == b].mean())) for b in range(10)]
    assert np.mean(gaps) < limit


@pytest.mark.parametrize("right", [0, 1])
def test_labels_of_one_kind_are_learned_from(right: int) -> None:
    """Without a single error, or with nothing else, P(correct) stays inside (0, 1) in the order of max-softmax."""
    log_pi = log_probs(make_probs(50))

    learned = Learned.fit(log_pi, np.full(50, right))

    chance = learned.score(log_pi)
    assert ((chance > 0) & (chance < 1)).all()
    np.testing.assert_array_equal(np.argsort(learned.log_odds(log_pi)), np.argsort(msp(log_pi)))


def test_cross_fit_scores_rows_that_the_fit_has_not_seen() -> None:
    """Out-of-fold scores of labels that are pure noise gain nothing over max-softmax."""
    log_pi, log_kde, correct, _ = draw(1000, 3, helpful=0.0)

    log_odds = Learned.cross_fit(log_pi, correct, log_kde=log_kde)

    choice = choose_score({"msp": msp(log_pi), "learned": log_odds}, ~correct)
    row = next(row for row in choice.rows if row.name == "learned")
    assert row.gain < 3.0 * row.standard_error + 1e-4


def test_weights_are_never_negative() -> None:
    """A density that falls with correctness gets no weight, rather than a negative one."""
    log_pi, log_kde, correct, _ = draw(3000, 4)

    learned = Learned.fit(log_pi, correct, log_kde=-log_kde)

    assert learned.features == ("entropy", "margin", "log_kde")
    assert learned.weights[2] == 0.0
    assert (learned.weights >= 0).all()


def test_tensors_and_settings_give_the_score_back() -> None:
    """What is stored, the settings as JSON, scores to the bit as before."""
    log_pi, log_kde, correct, _ = draw(500, 5)
    learned = Learned.fit(log_pi, correct, log_kde=log_kde)

    again = Learned.from_tensors(learned.tensors(), json.loads(json.dumps(learned.settings())))

    expected = learned.log_odds(log_pi, log_kde=log_kde)
    np.testing.assert_array_equal(again.log_odds(log_pi, log_kde=log_kde), expected)
    assert again.ridges == learned.ridges
    with pytest.raises(ConfigError, match="weights"):
        Learned.from_tensors({"calibration": learned.calibration}, learned.settings())


def test_refuses_what_it_cannot_learn_from_or_score() -> None:
    """Too few rows, labels that are no truth values, and a missing density are errors that say so."""
    log_pi, log_kde, correct, _ = draw(100, 6)

    with pytest.raises(ConfigError, match="at least 20 rows"):
        Learned.fit(log_pi[:10], correct[:10])
    with pytest.raises(ConfigError, match="0 or 1"):
        Learned.fit(log_pi, np.full(100, 2))
    with pytest.raises(ConfigError, match="log_kde"):
        Learned.fit(log_pi, correct, log_kde=log_kde).score(log_pi)
