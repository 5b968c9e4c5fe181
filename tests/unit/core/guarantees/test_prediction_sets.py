"""Conformal prediction sets against their definition and what they guarantee."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from darksight_core.errors import ConfigError
from darksight_core.guarantees.prediction_sets import (
    PENALTIES,
    PredictionSets,
    calibrate_sets,
    choose_penalty,
    class_ranks,
    coverage_range,
    rows_for_sets,
    set_rank,
    top_classes,
)
from darksight_core.rows.simplex import Floats, log_probs


def sample(rng: np.random.Generator, n: int, classes: int = 6) -> tuple[Floats, NDArray[np.int64]]:
    """Rows of an overconfident classifier, as log-probabilities, and their true classes."""
    logits = rng.normal(size=(n, classes)) * 1.5
    gumbel = rng.gumbel(size=(n, classes))
    sharp = np.exp(2.0 * logits)
    return log_probs(sharp / sharp.sum(axis=1, keepdims=True)), (logits + gumbel).argmax(axis=1)


@given(st.lists(st.integers(0, 8), min_size=2, max_size=6), st.sampled_from([0.0, 0.1]), st.floats(0.0, 1.5))
def test_a_set_is_what_the_definition_says(weights: list[int], penalty: float, limit: float) -> None:
    """Classes in descending order, while the mass before them and the penalty do not exceed the limit."""
    probs = (np.array(weights) + 1e-3) / (np.array(weights) + 1e-3).sum()
    ordered = np.sort(probs)[::-1]
    expected = sum(math.fsum(ordered[:r]) + penalty * r <= limit + 2e-7 for r in range(len(probs)))

    sizes = PredictionSets(0.9, limit, penalty, 9).sizes(np.log(probs)[None])

    assert sizes.tolist() == [expected]


def test_the_limit_is_the_score_at_its_rank() -> None:
    """k = ⌈(n + 1) c⌉ of the scores of the true classes; 0.9 of 9 rows is the largest, in spite of rounding."""
    log_pi, labels = sample(np.random.default_rng(0), 99)
    ordered, ranks = np.sort(np.exp(log_pi), axis=1)[:, ::-1], class_ranks(log_pi, labels)
    scores = [math.fsum(row[:rank]) for row, rank in zip(ordered, ranks.tolist(), strict=True)]

    assert calibrate_sets(log_pi, labels, 0.95).limit == pytest.approx(sorted(scores)[94], abs=1e-12)
    assert [rows_for_sets(c) for c in (0.5, 0.8, 0.9, 0.95, 0.99)] == [1, 4, 9, 19, 99]
    assert [set_rank(rows_for_sets(c), c) for c in (0.5, 0.8, 0.9, 0.95, 0.99)] == [1, 4, 9, 19, 99]


@pytest.mark.parametrize(("n", "coverage", "penalty"), [(19, 0.95, 0.0), (39, 0.9, 0.0), (70, 0.9, 0.1)])
def test_coverage_is_exact_for_scores_that_do_not_tie(n: int, coverage: float, penalty: float) -> None:
    """Over 1,000 calibrations it is k / (n + 1), at least c and at most c + 1 / (n + 1), within 4 standard errors."""
    rng, calibrations, fresh = np.random.default_rng(1), 1_000, 20
    log_pi, labels = sample(rng, calibrations * (n + fresh))
    parts = log_pi.reshape(calibrations, n + fresh, -1), labels.reshape(calibrations, n + fresh)
    rates = []
    for rows, truth in zip(*parts, strict=True):
        sets = calibrate_sets(rows[:n], truth[:n], coverage, penalty)
        rates.append(float((class_ranks(rows[n:], truth[n:]) < sets.sizes(rows[n:])).mean()))

    error = 4.0 * float(np.std(rates)) / math.sqrt(calibrations)
    exact = set_rank(n, coverage) / (n + 1)
    assert coverage <= exact <= coverage + 1.0 / (n + 1)
    assert abs(np.mean(rates) - exact) <= error


def test_sets_of_selected_rows_are_calibrated_on_selected_rows() -> None:
    """The classifier is worse on selected rows: sets calibrated on all rows miss their coverage there."""
    rng, coverage = np.random.default_rng(2), 0.9
    log_pi, labels = sample(rng, 40_000)
    selected = log_pi.argmax(axis=1) == 0
    labels = np.where(selected & (rng.random(len(labels)) < 0.3), rng.integers(0, 6, size=len(labels)), labels)
    calibrating, fresh = np.arange(len(labels)) < 10_000, np.arange(len(labels)) >= 10_000
    new = fresh & selected

    def covered(rows: NDArray[np.bool_]) -> float:
        sets = calibrate_sets(log_pi[rows], labels[rows], coverage)
        return float((class_ranks(log_pi[new], labels[new]) < sets.sizes(log_pi[new])).mean())

    n = int((calibrating & selected).sum())
    # The spread over calibrations and that of the new rows.
    error = 4.0 * math.sqrt(coverage * (1 - coverage) * (1 / n + 1 / new.sum()))
    assert abs(covered(calibrating & selected) - coverage) <= error
    assert covered(calibrating) < coverage - error


def test_the_range_of_coverage_is_that_of_a_beta_distribution() -> None:
    """Of k and n + 1 - k, from 5% to 95%."""
    low, high = coverage_range(199, 0.95)

    assert (low, high) == pytest.approx(stats.beta(190, 10).ppf([0.05, 0.95]), rel=1e-9)


def test_ties_cost_size_and_not_coverage() -> None:
    """If most true classes are the most probable ones, every set has one class and covers more than promised."""
    log_pi = np.log(np.full((30, 3), 0.1) + 0.7 * np.eye(3)[np.zeros(30, dtype=int)])

    sets = calibrate_sets(log_pi, np.zeros(30, dtype=int), 0.95)

    assert sets.limit == 0.0
    assert sets.sizes(log_pi).tolist() == [1] * 30


def test_sets_do_not_depend_on_the_batch() -> None:
    """A row by itself has the set that it has among others, and a calibration row at the limit is covered."""
    log_pi, labels = sample(np.random.default_rng(3), 500, classes=40)
    sets = calibrate_sets(log_pi, labels, 0.95)

    together = sets.sizes(log_pi)

    assert [int(sets.sizes(row[None])[0]) for row in log_pi] == together.tolist()
    assert int((class_ranks(log_pi, labels) < together).sum()) == set_rank(500, 0.95)


def test_the_penalty_is_the_least_that_makes_sets_small() -> None:
    """Sure rows that are wrong raise the limit, and plain sets of flat rows then have nearly all classes."""
    rng = np.random.default_rng(4)
    flatness = np.where(np.arange(400) % 2, 0.02, 5.0)
    log_pi = log_probs(np.stack([rng.dirichlet(np.full(100, each)) for each in flatness]))
    labels = np.argsort(-log_pi, axis=1)[np.arange(400), rng.integers(0, 4, size=400)]

    chosen = choose_penalty(log_pi, labels, 0.95)

    sizes = [calibrate_sets(log_pi, labels, 0.95, each).sizes(log_pi).mean() for each in PENALTIES]
    assert chosen > 0.0
    assert sizes[PENALTIES.index(chosen)] <= 1.02 * min(sizes)
    assert min(sizes[: PENALTIES.index(chosen)]) > 1.02 * min(sizes)
    assert choose_penalty(log_pi[:18], labels[:18], 0.95) == 0.0


def test_classes_of_a_stored_set_are_those_that_are_certain() -> None:
    """Half precision rounds small probabilities to equal ones, of which it is not known which was in the set."""
    probs = np.array([0.9, 0.1, 3e-9, 2e-9]).astype(np.float16)

    assert [top_classes(probs, size).tolist() for size in (0, 1, 2, 3, 4, 5)] == [[], [0], [0, 1], [], [0, 1, 2, 3], []]
    assert top_classes(probs[:0], 2).tolist() == []


@pytest.mark.parametrize("coverage", [0.0, 1.0, -1.0, math.nan])
def test_a_coverage_that_is_no_share_is_refused(coverage: float) -> None:
    """Before anything is calibrated."""
    with pytest.raises(ConfigError, match="between 0 and 1"):
        calibrate_sets(*sample(np.random.default_rng(0), 50), coverage)


def test_too_few_rows_are_refused_with_the_number_needed() -> None:
    """19 rows for 95%; settings that could not have been calibrated are refused too."""
    log_pi, labels = sample(np.random.default_rng(0), 18)

    with pytest.raises(ConfigError, match="need 19 calibration rows, not 18"):
        calibrate_sets(log_pi, labels, 0.95)
    with pytest.raises(ConfigError, match="cannot be calibrated on 18 rows"):
        PredictionSets(0.95, 0.5, 0.0, 18)
    with pytest.raises(ConfigError, match="no setting 'limit'"):
        PredictionSets.from_settings({"coverage": 0.95, "penalty": 0.0, "n": 19})


def test_votes_of_a_forest_have_the_same_sets_in_float32_and_float64() -> None:
    """Their scores tie with the limit, and rounding must not decide: up to a quarter of the sets would lose a class."""
    rng = np.random.default_rng(7)
    votes = rng.multinomial(10, rng.dirichlet(np.full(5, 0.7), 3_000).mean(axis=0), 3_000) / 10
    labels = rng.integers(0, 5, 3_000)
    stored, given = log_probs(votes.astype(np.float32)), log_probs(votes)

    for coverage in (0.5, 0.6, 0.7, 0.8, 0.9):
        for penalty in (0.0, 0.01, 0.1):
            sets = calibrate_sets(stored, labels, coverage, penalty)
            assert (sets.sizes(stored) == sets.sizes(given)).all()
