"""Figures of failure and foreign-row detection against closed forms."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from darksight_core.errors import ConfigError
from darksight_core.evaluation.failure import FailureFigures, failure_figures, ood_figures
from darksight_core.rows.simplex import Floats
from darksight_core.scores.choice import choose_score
from tests.support.builders import draw_scored_errors

tied_rows = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40)


def figures(scores: Floats, errors: NDArray[np.bool_]) -> FailureFigures:
    """Figures without intervals."""
    return failure_figures(scores, errors, resamples=0)


@pytest.mark.parametrize(("n", "k"), [(10, 3), (1000, 100), (1000, 999), (5, 5), (5, 0)])
def test_oracle_has_its_closed_forms(n: int, k: int) -> None:
    """With all errors last, AURC = 1/n Σ j/(n-k+j), E-AURC = 0 and AUGRC = r²/2, at finite n."""
    errors = np.arange(n) >= n - k

    oracle = figures(-np.arange(n, dtype=np.float64), errors)

    assert oracle.aurc == pytest.approx(sum(j / (n - k + j) for j in range(1, k + 1)) / n, abs=1e-12)
    assert oracle.e_aurc == pytest.approx(0.0, abs=1e-12)
    assert oracle.augrc == pytest.approx((k / n) ** 2 / 2.0, abs=1e-12)


def test_oracle_approaches_its_limit() -> None:
    """For many rows the AURC of the oracle is r + (1 - r) ln(1 - r)."""
    n = 200_000
    errors = np.arange(n) >= 0.9 * n

    assert figures(-np.arange(n, dtype=np.float64), errors).aurc == pytest.approx(0.1 + 0.9 * math.log(0.9), abs=1e-6)


def test_useless_score_has_its_closed_forms() -> None:
    """One score for all gives AURC = r, AUGRC = r/2, AUROC = 1/2, exactly, and a random one does on average."""
    rng = np.random.default_rng(0)
    errors = np.arange(1000) < 100
    constant = figures(np.zeros(1000), errors)
    random = [figures(rng.random(1000), errors) for _ in range(300)]

    assert constant.aurc == pytest.approx(0.1, abs=1e-12)
    assert constant.augrc == pytest.approx(0.05, abs=1e-12)
    assert constant.auroc == 0.5
    assert constant.fpr95 == 1.0
    for name, expected in (("aurc", 0.1), ("augrc", 0.05)):
        values = np.array([getattr(figure, name) for figure in random])
        assert abs(values.mean() - expected) < 4 * values.std() / math.sqrt(300)


@given(rows=tied_rows)
@settings(max_examples=100)
def test_figures_equal_the_slow_way(rows: list[tuple[int, bool]]) -> None:
    """With ties, AURC and AUGRC are the means over all orders of tied rows, AUROC over pairs, and E-AURC is no less
    than 0.
    """
    scores, errors = np.array([row[0] for row in rows], dtype=np.float64), np.array([row[1] for row in rows])
    n, k = len(rows), int(errors.sum())
    expected_errors = [0.0]
    for value in np.unique(scores)[::-1]:
        tied = errors[scores == value]
        expected_errors += [expected_errors[-1] + tied.mean() * (j + 1) for j in range(len(tied))]
    joint = np.array(expected_errors) / n

    actual = figures(scores, errors)

    assert actual.aurc == pytest.approx(np.mean(joint[1:] * n / np.arange(1, n + 1)), abs=1e-9)
    assert actual.augrc == pytest.approx(np.mean((joint[1:] + joint[:-1]) / 2.0), abs=1e-9)
    assert actual.e_aurc >= 0.0
    if 0 < k < n:
        right, wrong = scores[~errors], scores[errors]
        level = next(value for value in np.unique(scores)[::-1] if (right >= value).mean() >= 0.95 - 1e-12)
        auroc = roc_auc_score(~errors, scores)
        assert actual.auroc == pytest.approx(auroc, abs=1e-9)
        assert actual.augrc == pytest.approx((1 - auroc) * k / n * (1 - k / n) + (k / n) ** 2 / 2, abs=1e-9)
        assert actual.fpr95 == pytest.approx((wrong >= level).mean())
    else:
        assert actual.auroc is None
        assert actual.fpr95 is None


def test_sums_and_areas_agree_without_ties() -> None:
    """AURC is 1/n Σ_j risk(j); AUGRC, an area, is the like sum of joint risks less r / 2n."""
    scores, errors = draw_scored_errors(np.random.default_rng(1), 500)
    sorted_errors = np.cumsum(errors[np.argsort(-scores)])

    actual = figures(scores, errors)

    assert actual.aurc == pytest.approx(np.mean(sorted_errors / np.arange(1, 501)), abs=1e-12)
    assert actual.augrc == pytest.approx(np.mean(sorted_errors) / 500 - errors.mean() / 1000, abs=1e-12)


@pytest.mark.parametrize("transform", [np.exp, lambda s: 7.0 * s - 3.0, lambda s: s**3], ids=["exp", "line", "cube"])
def test_figures_know_only_the_order(transform: Callable[[Floats], Floats]) -> None:
    """A strictly increasing transform of the scores changes no figure and no interval."""
    scores, errors = draw_scored_errors(np.random.default_rng(2), 300)

    assert failure_figures(transform(scores), errors, resamples=20) == failure_figures(scores, errors, resamples=20)


def test_rounding_does_not_order_rows_that_tie() -> None:
    """Scores that are equal but for rounding have the figures of equal scores, for errors and for foreign rows."""
    rng = np.random.default_rng(4)
    scores, errors = rng.integers(1, 4, size=400) / 3.0, rng.random(400) < 0.3
    noisy = scores * (1.0 + 1e-13 * np.where(errors, 1.0, -1.0))

    assert figures(noisy, errors) == figures(scores, errors)
    assert ood_figures(noisy[:200], noisy[200:], resamples=0) == ood_figures(scores[:200], scores[200:], resamples=0)
    assert choose_score({"msp": noisy}, errors).rows == choose_score({"msp": scores}, errors).rows


def test_order_of_rows_is_irrelevant() -> None:
    """Shuffled rows have the same figures, ties included."""
    rng = np.random.default_rng(3)
    scores, errors = draw_scored_errors(rng, 400)
    scores = np.round(scores, 1)
    order = rng.permutation(400)

    first, second = figures(scores, errors), figures(scores[order], errors[order])

    assert first == second


def test_bootstrap_interval_covers_the_truth() -> None:
    """Of 100 intervals at 90% for the AUROC, about 90 hold the true one, and the seed fixes them."""
    rng = np.random.default_rng(5)
    # The density of u among right rows is (1 - .3 (1-u)²) / .9, the distribution function among wrong ones 1 - (1-u)³.
    u = (np.arange(200_000) + 0.5) / 200_000
    truth = float(np.mean((1 - 0.3 * (1 - u) ** 2) / 0.9 * (1 - (1 - u) ** 3)))
    held = 0
    for seed in range(100):
        found = failure_figures(*draw_scored_errors(rng, 500), level=0.9, resamples=100, seed=seed)
        low, high = found.intervals["auroc"]
        held += low <= truth <= high

    assert abs(held - 90) <= 4 * math.sqrt(100 * 0.9 * 0.1)
    scores, errors = draw_scored_errors(rng, 500)
    assert failure_figures(scores, errors, seed=1) == failure_figures(scores, errors, seed=1)
    assert failure_figures(scores, errors, seed=1) != failure_figures(scores, errors, seed=2)


def test_ood_figures_equal_known_ones() -> None:
    """Two normal samples one deviation apart have AUROC Φ(1/√2) = .7602, which the interval holds; equal ones have
    1/2.
    """
    rng = np.random.default_rng(7)
    known, foreign = rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 1500)

    figure = ood_figures(known, foreign)

    assert figure.auroc == pytest.approx(roc_auc_score(np.arange(3500) < 2000, np.append(known, foreign)), abs=1e-12)
    assert figure.intervals["auroc"][0] < 0.7602 < figure.intervals["auroc"][1]
    assert figure.fpr95 == pytest.approx((foreign >= np.sort(known)[::-1][1899]).mean())
    assert figure.as_dict()["n_out"] == 1500
    assert ood_figures(np.ones(3), np.ones(4)).auroc == 0.5


def test_figures_are_json() -> None:
    """The dictionary has plain JSON types."""
    scores, errors = draw_scored_errors(np.random.default_rng(6), 200)

    written = json.loads(json.dumps(failure_figures(scores, errors).as_dict(), allow_nan=False))

    assert set(written["intervals"]) == {"aurc", "e_aurc", "augrc", "auroc", "fpr95"}
    assert written["n"] == 200


@pytest.mark.parametrize(
    "call",
    [
        lambda: failure_figures([0.1], [0], level=1.0),
        lambda: failure_figures([0.1], [0], resamples=-1),
        lambda: ood_figures([], [1.0]),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object]) -> None:
    """Arguments that cannot work are errors."""
    with pytest.raises(ConfigError):
        call()
