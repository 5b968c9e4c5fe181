"""Thresholds on a reject score against what they guarantee."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import upper_bound
from darksight_core.guarantees.risk_curve import lowest_accepted, risk_curve
from darksight_core.guarantees.thresholds import (
    Threshold,
    threshold_by_accuracy,
    threshold_by_coverage,
    threshold_by_joint_risk,
)
from darksight_core.rows.simplex import Floats
from tests.support.builders import draw_scored_errors


def true_risk(threshold: Threshold) -> float:
    """Selective risk under a threshold on rows of `draw_scored_errors`."""
    return 0.1 * (1.0 - max(threshold.value, 0.0)) ** 2


def naive_threshold(scores: Floats, errors: NDArray[np.bool_], risk: float) -> float:
    """The loosest threshold whose measured risk is within the target."""
    curve = risk_curve(scores, errors)
    within = np.flatnonzero(curve.selective_risk <= risk)
    return float(curve.threshold[within[-1]]) if len(within) else math.inf


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.95, 1.0])
def test_coverage_is_met_on_average(coverage: float) -> None:
    """Over 200 calibrations of 99 uniform scores the mean coverage is 1 - k/(n+1), within 4 standard errors."""
    rng = np.random.default_rng(8)
    k = round((1 - coverage) * 100)

    thresholds = [threshold_by_coverage(rng.random(99), coverage) for _ in range(200)]
    realised = np.array([1.0 - max(threshold.value, 0.0) for threshold in thresholds])

    assert thresholds[0].detail["expected_coverage"] == pytest.approx(1 - k / 100)
    # The realised coverage is Beta(100 - k, k).
    assert abs(realised.mean() - (1 - k / 100)) <= 4 * math.sqrt(coverage * (1 - coverage) / 101 / 200) + 1e-12


def test_coverage_survives_a_plateau() -> None:
    """Scores that are mostly equal are accepted rather than rejected together."""
    scores = np.append(np.zeros(90), np.arange(1.0, 11.0))

    threshold = threshold_by_coverage(scores, 0.95)

    assert threshold.coverage == 1.0
    assert threshold.value == 0.0


@pytest.mark.parametrize(("risk", "n"), [(0.02, 2000), (0.05, 500)])
def test_certified_accuracy_holds_where_the_naive_rule_fails(risk: float, n: int) -> None:
    """Learn-then-Test breaks its promise in at most δ of 400 calibrations (+ 3 se) and certifies most of them; the
    naive rule breaks it about every other time.
    """
    rng = np.random.default_rng(9)
    certified, naive = [], []
    for _ in range(400):
        scores, errors = draw_scored_errors(rng, n)
        certified.append(threshold_by_accuracy(scores, errors, 1 - risk, delta=0.05))
        naive.append(0.1 * (1 - naive_threshold(scores, errors, risk)) ** 2 > risk)

    violations = np.mean([threshold.feasible and true_risk(threshold) > risk for threshold in certified])

    assert violations <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    assert np.mean([threshold.feasible for threshold in certified]) > 0.85
    assert abs(np.mean(naive) - 0.54) < 4 * math.sqrt(0.25 / 400)


@pytest.mark.parametrize("grid", ["ranks", "reference"])
def test_certified_accuracy_holds_at_the_edge(grid: str) -> None:
    """A useless score on a classifier just worse than the target is certified in at most δ of 400 runs (+ 3 se),
    whether the grid comes from these rows or from others.
    """
    rng = np.random.default_rng(10)
    certified = 0
    for _ in range(400):
        scores, errors = rng.random(500), rng.random(500) < 0.0501
        reference = rng.random(500) if grid == "reference" else None
        certified += threshold_by_accuracy(scores, errors, 0.95, delta=0.05, reference=reference).feasible

    assert certified / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_certified_accuracy_holds_for_a_coarse_score() -> None:
    """A score of ten values, the fourth of them one too many, breaks its promise in at most δ of 300 runs (+ 3 se)."""
    rng = np.random.default_rng(11)
    violations = 0
    for _ in range(300):
        level = rng.integers(10, size=500)
        errors = rng.random(500) < np.where(level < 3, 0.04, 0.085)
        threshold = threshold_by_accuracy(-level, errors, 0.95, delta=0.05)
        violations += threshold.feasible and threshold.value <= -3

    assert violations / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


def draw_tied(rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Votes of a forest of ten trees: two thirds of the rows are unanimous and err at 4%, the others at 30%.

    Scores of equal votes differ by rounding.
    """
    votes = np.where(rng.random(n) < 2 / 3, 10, rng.integers(5, 10, size=n))
    errors = rng.random(n) < np.where(votes == 10, 0.04, 0.3)
    return np.log(votes / 3.0) * (1.0 + 1e-13 * rng.normal(size=n)), errors


@pytest.mark.parametrize("grid", ["ranks", "reference"])
def test_rows_that_tie_at_the_top_are_accepted_together(grid: str) -> None:
    """A forest that is unanimous on most rows is certified for what it keeps there, whatever the grid; the promise
    holds in at least 1 - δ of 200 draws (3 se), and a target that even the top breaks is infeasible.
    """
    rng = np.random.default_rng(15)
    feasible = violations = 0
    for _ in range(200):
        reference = draw_tied(rng, 1_000)[0] if grid == "reference" else None
        threshold = threshold_by_accuracy(*draw_tied(rng, 4_000), 0.94, reference=reference)
        feasible += threshold.feasible
        # Unanimous rows alone are right often enough; with any others the risk is above the target.
        violations += threshold.feasible and threshold.value < math.log(9.5 / 3.0)
        assert not threshold.feasible or threshold.coverage > 0.6

    assert feasible >= 195
    assert violations / 200 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
    assert not threshold_by_accuracy(*draw_tied(rng, 2_000), 0.97).feasible


def test_ties_count_together_in_every_guarantee() -> None:
    """The coverage and the errors of a threshold are those of all rows that tie with it."""
    scores, errors = draw_tied(np.random.default_rng(16), 2_000)
    top = np.isclose(scores, np.log(10.0 / 3.0))

    by_coverage, by_risk = threshold_by_coverage(scores, 0.5), threshold_by_joint_risk(scores, errors, 0.04)

    assert by_coverage.coverage == by_risk.coverage == top.mean()
    assert by_risk.errors_accepted == errors[top].sum()
    refused = threshold_by_joint_risk(scores, errors, 0.01)
    assert not refused.feasible
    assert refused.labels_needed is None


def test_certificate_says_what_it_rests_on() -> None:
    """The counts are those of the calibration rows under the rule, and their upper bound is within the target."""
    scores, errors = draw_scored_errors(np.random.default_rng(12), 3000)

    for threshold in (
        threshold_by_accuracy(scores, errors, 0.97, delta=0.1),
        threshold_by_accuracy(scores, errors, 0.97, delta=0.1, reference=np.random.default_rng(0).random(500)),
    ):
        accepted = scores >= lowest_accepted(threshold.value)
        assert threshold.feasible
        assert threshold.coverage == pytest.approx(accepted.mean())
        assert threshold.errors_accepted == errors[accepted].sum()
        assert upper_bound(errors[accepted].sum(), accepted.sum(), 0.1) <= 0.03
        assert threshold.labels_needed is None


def test_an_easy_target_accepts_everything() -> None:
    """A target below the classifier's own accuracy needs no rejection at all."""
    scores, errors = draw_scored_errors(np.random.default_rng(13), 1000)

    threshold = threshold_by_accuracy(scores, errors, 0.8)

    assert threshold.value == -math.inf
    assert threshold.coverage == 1.0


def test_too_few_labels_are_infeasible() -> None:
    """100 faultless rows cannot certify 99% at δ = 5%: nothing is accepted, and 299 labels are needed at least."""
    threshold = threshold_by_accuracy(np.arange(100.0), np.zeros(100), 0.99, delta=0.05)

    assert not threshold.feasible
    assert threshold.value == math.inf
    assert threshold.labels_needed == threshold.detail["labels_without_error"] == 299


def test_estimate_of_labels_is_enough_and_not_absurd() -> None:
    """From an infeasible sample, the labels it names make most larger samples feasible; a hopeless one names none."""
    rng = np.random.default_rng(14)
    small = threshold_by_accuracy(*draw_scored_errors(rng, 150), 0.98)
    needed = small.labels_needed
    assert needed is not None
    feasible = [threshold_by_accuracy(*draw_scored_errors(rng, 2 * needed), 0.98).feasible for _ in range(40)]

    assert not small.feasible
    assert 150 < needed < 20_000
    assert np.mean(feasible) > 0.5
    assert threshold_by_accuracy(np.arange(500.0), np.ones(500), 0.9).labels_needed is None


@pytest.mark.parametrize(("accuracy", "n"), [(0.99, 400), (0.995, 600), (0.97, 150)])
def test_the_stated_number_of_labels_suffices_in_most_draws(accuracy: float, n: int) -> None:
    """For errors that fall with log-odds, between 65 and 97 % of draws are feasible; 80 % are promised.

    The number comes from the rows at hand, and only from those that failed, so it is itself uncertain.
    """
    rng = np.random.default_rng(15)

    def draw(rows: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        log_odds = rng.gamma(2.0, 2.0, rows)
        return log_odds, rng.random(rows) < 0.4 / (1.0 + np.exp(log_odds - 1.0))

    feasible = []
    while len(feasible) < 120:
        small = threshold_by_accuracy(*draw(n), accuracy)
        if not small.feasible:
            assert small.labels_needed is not None
            feasible += [threshold_by_accuracy(*draw(small.labels_needed), accuracy).feasible for _ in range(4)]

    assert 0.65 < np.mean(feasible) < 0.97


@pytest.mark.parametrize(("alpha", "n"), [(0.02, 200), (0.01, 1000)])
def test_joint_risk_is_controlled_on_average(alpha: float, n: int) -> None:
    """Over 600 calibrations the mean share accepted and wrong is at most α (+ 3 se), and not far below it."""
    rng = np.random.default_rng(16)
    joint = []
    for _ in range(600):
        threshold = threshold_by_joint_risk(*draw_scored_errors(rng, n), alpha)
        joint.append(true_risk(threshold) * (1.0 - max(threshold.value, 0.0)))
    error = np.std(joint) / math.sqrt(600)

    assert np.mean(joint) <= alpha + 3 * error
    # With a continuous loss the expectation is short of α by less than 2 / (n + 1).
    assert np.mean(joint) >= alpha - 2 / (n + 1) - 3 * error


def test_joint_risk_counts_errors() -> None:
    """(errors accepted + 1) / (n + 1) <= α holds with the most errors it can; if zero are too many it is infeasible."""
    scores, errors = draw_scored_errors(np.random.default_rng(17), 999)

    threshold = threshold_by_joint_risk(scores, errors, 0.02)

    assert threshold.errors_accepted == 19
    assert threshold_by_joint_risk(scores, errors, 0.001).errors_accepted == 0
    refused = threshold_by_joint_risk(scores, errors, 0.0005)
    assert not refused.feasible
    assert refused.labels_needed == 1999
    assert threshold_by_joint_risk(scores, errors, 0.5).value == -math.inf


def test_a_threshold_is_json() -> None:
    """The dictionary has plain JSON types, also for an infinite threshold."""
    scores, errors = draw_scored_errors(np.random.default_rng(6), 200)
    everything = threshold_by_accuracy(scores, errors, 0.1)

    written = json.loads(json.dumps(everything.as_dict(), allow_nan=False))

    assert float(written["value"]) == everything.value == -math.inf


@pytest.mark.parametrize(
    "call",
    [
        lambda: threshold_by_coverage([0.1], 0.0),
        lambda: threshold_by_accuracy([0.1], [0], 1.0),
        lambda: threshold_by_accuracy([0.1], [0], 0.9, delta=0.0),
        lambda: threshold_by_accuracy([0.1], [0], 0.9, reference=[]),
        lambda: threshold_by_joint_risk([0.1], [0], 1.0),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object]) -> None:
    """Arguments that cannot work are errors."""
    with pytest.raises(ConfigError):
        call()
