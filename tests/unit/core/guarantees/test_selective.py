"""Risk-coverage figures against closed forms, and thresholds against what they promise."""

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
from darksight_core.guarantees.binomial import upper_bound
from darksight_core.guarantees.selective import (
    FailureFigures,
    Threshold,
    failure_figures,
    ood_figures,
    risk_curve,
    threshold_by_accuracy,
    threshold_by_coverage,
    threshold_by_joint_risk,
    threshold_by_sgr,
)
from darksight_core.simplex import Floats, entropy, log_probs

Bools = NDArray[np.bool_]

tied_rows = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40)


def figures(scores: Floats, errors: Bools) -> FailureFigures:
    """Figures without intervals."""
    return failure_figures(scores, errors, resamples=0)


def draw(rng: np.random.Generator, n: int) -> tuple[Floats, Bools]:
    """Rows with P(error | u) = .3 (1 - u)²: the true selective risk above τ is .1 (1 - τ)²."""
    scores = rng.random(n)
    return scores, rng.random(n) < 0.3 * (1.0 - scores) ** 2


def true_risk(threshold: Threshold) -> float:
    """Selective risk under a threshold on rows of `draw`."""
    return 0.1 * (1.0 - max(threshold.value, 0.0)) ** 2


def naive_threshold(scores: Floats, errors: Bools, risk: float) -> float:
    """The loosest threshold whose measured risk is within the target: the rule that everybody writes first."""
    curve = risk_curve(scores, errors)
    within = np.flatnonzero(curve.selective_risk <= risk)
    return float(curve.threshold[within[-1]]) if len(within) else math.inf


def test_curve_has_points_at_distinct_scores_only() -> None:
    """Tied rows are accepted together, and each threshold accepts exactly what its point says."""
    scores = np.array([0.5, 0.9, 0.7, 0.7, 0.7, 0.5])
    errors = np.array([1, 0, 1, 0, 0, 1])

    curve = risk_curve(scores, errors)

    assert curve.threshold.tolist() == [0.7, 0.5, -math.inf]
    np.testing.assert_allclose(curve.coverage, [1 / 6, 4 / 6, 1.0])
    np.testing.assert_allclose(curve.accuracy, [1.0, 3 / 4, 3 / 6])
    np.testing.assert_allclose(curve.joint_risk, [0.0, 1 / 6, 3 / 6])
    for threshold, coverage, risk in zip(curve.threshold, curve.coverage, curve.selective_risk, strict=True):
        assert (scores > threshold).mean() == pytest.approx(coverage)
        assert errors[scores > threshold].mean() == pytest.approx(risk)


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
    scores, errors = draw(np.random.default_rng(1), 500)
    sorted_errors = np.cumsum(errors[np.argsort(-scores)])

    actual = figures(scores, errors)

    assert actual.aurc == pytest.approx(np.mean(sorted_errors / np.arange(1, 501)), abs=1e-12)
    assert actual.augrc == pytest.approx(np.mean(sorted_errors) / 500 - errors.mean() / 1000, abs=1e-12)


@pytest.mark.parametrize("transform", [np.exp, lambda s: 7.0 * s - 3.0, lambda s: s**3], ids=["exp", "line", "cube"])
def test_figures_know_only_the_order(transform: Callable[[Floats], Floats]) -> None:
    """A strictly increasing transform of the scores changes no figure and no interval."""
    scores, errors = draw(np.random.default_rng(2), 300)

    assert failure_figures(transform(scores), errors, resamples=20) == failure_figures(scores, errors, resamples=20)


def test_order_of_rows_is_irrelevant() -> None:
    """Shuffled rows have the same figures, ties included."""
    rng = np.random.default_rng(3)
    scores, errors = draw(rng, 400)
    scores = np.round(scores, 1)
    order = rng.permutation(400)

    first, second = figures(scores, errors), figures(scores[order], errors[order])

    assert first == second


def test_two_classes_have_one_confidence() -> None:
    """For K = 2 max-softmax, margin and entropy are monotone in each other, so their curves are one."""
    rng = np.random.default_rng(4)
    log_pi = log_probs(rng.dirichlet([0.5, 0.5], 300))
    probs = np.sort(np.exp(log_pi), axis=1)
    errors = rng.random(300) < probs[:, 0]

    msp, margin, sure = (
        risk_curve(score, errors) for score in (probs[:, 1], probs[:, 1] - probs[:, 0], -entropy(log_pi))
    )

    assert np.array_equal(msp.joint_risk, margin.joint_risk)
    assert np.array_equal(msp.selective_risk, sure.selective_risk)


def test_bootstrap_interval_covers_the_truth() -> None:
    """Of 100 intervals at 90% for the AUROC, about 90 hold the true one, and the seed fixes them."""
    rng = np.random.default_rng(5)
    # The density of u among right rows is (1 - .3 (1-u)²) / .9, the distribution function among wrong ones 1 - (1-u)³.
    u = (np.arange(200_000) + 0.5) / 200_000
    truth = float(np.mean((1 - 0.3 * (1 - u) ** 2) / 0.9 * (1 - (1 - u) ** 3)))
    held = 0
    for seed in range(100):
        low, high = failure_figures(*draw(rng, 500), level=0.9, resamples=100, seed=seed).intervals["auroc"]
        held += low <= truth <= high

    assert abs(held - 90) <= 4 * math.sqrt(100 * 0.9 * 0.1)
    scores, errors = draw(rng, 500)
    assert failure_figures(scores, errors, seed=1) == failure_figures(scores, errors, seed=1)
    assert failure_figures(scores, errors, seed=1) != failure_figures(scores, errors, seed=2)


def test_figures_are_json() -> None:
    """The dictionaries have plain types, also for a threshold that is infinite."""
    scores, errors = draw(np.random.default_rng(6), 200)
    everything = threshold_by_accuracy(scores, errors, 0.1)

    written = json.loads(json.dumps(failure_figures(scores, errors).as_dict(), allow_nan=False))
    gate = json.loads(json.dumps(everything.as_dict(), allow_nan=False))

    assert set(written["intervals"]) == {"aurc", "e_aurc", "augrc", "auroc", "fpr95"}
    assert written["n"] == 200
    assert float(gate["value"]) == everything.value == -math.inf


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
    assert threshold.accepts(np.array([0.0, -1.0, np.nan])).tolist() == [True, False, False]


@pytest.mark.parametrize(("risk", "n"), [(0.02, 2000), (0.05, 500)])
def test_certified_accuracy_holds_where_the_naive_rule_fails(risk: float, n: int) -> None:
    """Learn-then-Test breaks its promise in at most δ of 400 calibrations (+ 3 se) and certifies most of them; the
    naive rule breaks it about every other time.
    """
    rng = np.random.default_rng(9)
    certified, naive = [], []
    for _ in range(400):
        scores, errors = draw(rng, n)
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
        violations += threshold.feasible and threshold.value < -3

    assert violations / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


def test_certificate_says_what_it_rests_on() -> None:
    """The counts are those of the calibration rows under the rule, and their upper bound is within the target."""
    scores, errors = draw(np.random.default_rng(12), 3000)

    for threshold in (
        threshold_by_accuracy(scores, errors, 0.97, delta=0.1),
        threshold_by_accuracy(scores, errors, 0.97, delta=0.1, reference=np.random.default_rng(0).random(500)),
        threshold_by_sgr(scores, errors, 0.97, delta=0.1),
    ):
        accepted = threshold.accepts(scores)
        assert threshold.feasible
        assert threshold.coverage == pytest.approx(accepted.mean())
        assert threshold.errors_accepted == errors[accepted].sum()
        assert upper_bound(errors[accepted].sum(), accepted.sum(), 0.1) <= 0.03
        assert threshold.labels_needed is None


def test_an_easy_target_accepts_everything() -> None:
    """A target below the classifier's own accuracy needs no rejection at all."""
    scores, errors = draw(np.random.default_rng(13), 1000)

    threshold = threshold_by_accuracy(scores, errors, 0.8)

    assert threshold.value == -math.inf
    assert threshold.coverage == 1.0


@pytest.mark.parametrize("by", [threshold_by_accuracy, threshold_by_sgr])
def test_too_few_labels_are_an_answer(by: Callable[..., Threshold]) -> None:
    """100 faultless rows cannot certify 99% at δ = 5%: nothing is accepted, and 299 labels are named as the least."""
    threshold = by(np.arange(100.0), np.zeros(100), 0.99, delta=0.05)

    assert not threshold.feasible
    assert not threshold.accepts(np.array([1e9])).any()
    assert threshold.labels_needed == threshold.detail["labels_without_error"]
    assert threshold_by_accuracy(np.arange(100.0), np.zeros(100), 0.99).labels_needed == 299


def test_estimate_of_labels_is_enough_and_not_absurd() -> None:
    """From an infeasible sample, the labels it names make most larger samples feasible; a hopeless one names none."""
    rng = np.random.default_rng(14)
    small = threshold_by_accuracy(*draw(rng, 150), 0.98)
    needed = small.labels_needed
    assert needed is not None
    feasible = [threshold_by_accuracy(*draw(rng, 2 * needed), 0.98).feasible for _ in range(40)]

    assert not small.feasible
    assert 150 < needed < 20_000
    assert np.mean(feasible) > 0.5
    assert threshold_by_accuracy(np.arange(500.0), np.ones(500), 0.9).labels_needed is None


def test_sgr_is_valid_but_often_infeasible() -> None:
    """The reference method keeps its promise too, at the price of many more refusals than Learn-then-Test."""
    rng = np.random.default_rng(15)
    runs = [threshold_by_sgr(*draw(rng, 2000), 0.98) for _ in range(150)]

    violations = np.mean([run.feasible and true_risk(run) > 0.02 for run in runs])

    assert violations <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 150)
    assert abs(np.mean([not run.feasible for run in runs]) - 0.6) < 4 * math.sqrt(0.24 / 150)


@pytest.mark.parametrize(("alpha", "n"), [(0.02, 200), (0.01, 1000)])
def test_joint_risk_is_controlled_on_average(alpha: float, n: int) -> None:
    """Over 600 calibrations the mean share accepted and wrong is at most α (+ 3 se), and not far below it."""
    rng = np.random.default_rng(16)
    joint = []
    for _ in range(600):
        threshold = threshold_by_joint_risk(*draw(rng, n), alpha)
        joint.append(true_risk(threshold) * (1.0 - max(threshold.value, 0.0)))
    error = np.std(joint) / math.sqrt(600)

    assert np.mean(joint) <= alpha + 3 * error
    # With a continuous loss the expectation is short of α by less than 2 / (n + 1).
    assert np.mean(joint) >= alpha - 2 / (n + 1) - 3 * error


def test_joint_risk_counts_errors() -> None:
    """(errors accepted + 1) / (n + 1) <= α holds with the most errors it can; if zero are too many it is infeasible."""
    scores, errors = draw(np.random.default_rng(17), 999)

    threshold = threshold_by_joint_risk(scores, errors, 0.02)

    assert threshold.errors_accepted == 19
    assert threshold_by_joint_risk(scores, errors, 0.001).errors_accepted == 0
    refused = threshold_by_joint_risk(scores, errors, 0.0005)
    assert not refused.feasible
    assert refused.labels_needed == 1999
    assert threshold_by_joint_risk(scores, errors, 0.5).value == -math.inf


@pytest.mark.parametrize(
    "call",
    [
        lambda: risk_curve([], []),
        lambda: risk_curve([0.1, np.nan], [0, 1]),
        lambda: risk_curve([0.1, 0.2], [0, 2]),
        lambda: risk_curve([0.1, 0.2], [0]),
        lambda: risk_curve([[0.1]], [[0]]),
        lambda: failure_figures([0.1], [0], level=1.0),
        lambda: ood_figures([], [1.0]),
        lambda: threshold_by_coverage([0.1], 0.0),
        lambda: threshold_by_accuracy([0.1], [0], 1.0),
        lambda: threshold_by_accuracy([0.1], [0], 0.9, delta=0.0),
        lambda: threshold_by_accuracy([0.1], [0], 0.9, reference=[]),
        lambda: threshold_by_sgr([0.1], [0], 0.0),
        lambda: threshold_by_joint_risk([0.1], [0], 1.0),
    ],
)
def test_nonsense_is_refused(call: Callable[[], object]) -> None:
    """Arguments that cannot work are named in an error."""
    with pytest.raises(ConfigError):
        call()
