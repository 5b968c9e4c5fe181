from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn.isotonic import IsotonicRegression

from darksight_core.drift.accuracy import (
    Atc,
    AtcScore,
    Backtest,
    Cbpe,
    Doc,
    backtest,
    calibration_error,
    estimate_accuracy,
    fit_atc,
    fit_cbpe,
    fit_doc,
    fit_isotonic,
    labelled_accuracy,
    prediction_powered,
)
from darksight_core.errors import ConfigError
from darksight_core.simplex import Floats, log_softmax

Labels = NDArray[np.int64]


def make_rows(
    rng: np.random.Generator, *, n: int = 2_000, spread: float = 2.0, sharpness: float = 1.0
) -> tuple[Floats, Labels]:
    """Probabilities (n, 4) and labels drawn from them; sharpness above 1 then makes the probabilities overconfident."""
    log_pi = log_softmax(spread * rng.normal(size=(n, 4)))
    labels = (np.exp(log_pi).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return np.exp(log_softmax(sharpness * log_pi)), labels


def make_audit(rng: np.random.Generator, *, n: int = 100_000) -> tuple[Floats, Floats]:
    """Overconfident confidence and correctness of a large population, both (n,)."""
    probs, labels = make_rows(rng, n=n, sharpness=1.5)
    return probs.max(axis=1), (probs.argmax(axis=1) == labels).astype(np.float64)


def test_isotonic_equals_scikit_learn() -> None:
    """Pooling adjacent violators gives scikit-learn's curve, at the knots, between and beyond, with ties in x."""
    rng = np.random.default_rng(0)
    for x in (rng.random(300), rng.integers(10, size=300) / 10):
        y = (rng.random(300) < x**2).astype(np.float64)
        at = np.linspace(-0.2, 1.2, 501)

        expected = IsotonicRegression(out_of_bounds="clip").fit(x, y).predict(at)

        assert fit_isotonic(x, y)(at) == pytest.approx(expected, abs=1e-12)


def test_calibration_error_is_zero_for_shares_and_grows_with_overconfidence() -> None:
    """Confidence that equals the share of right answers has no error; a constant excess is the error."""
    correct = np.tile([1.0, 1.0, 1.0, 0.0], 100)

    assert calibration_error(np.full(400, 0.75), correct) == pytest.approx(0.0, abs=1e-12)
    assert calibration_error(np.full(400, 0.95), correct) == pytest.approx(0.2, abs=1e-12)


def test_cbpe_is_unbiased_when_confidence_is_calibrated() -> None:
    """Over 300 windows of calibrated rows, shifted ones too, the mean error is zero within 3 standard errors."""
    rng = np.random.default_rng(1)
    for spread in (2.0, 1.0):
        errors = np.array(backtest(Cbpe(None), [make_rows(rng, n=300, spread=spread) for _ in range(300)]).errors)
        assert abs(errors.mean()) <= 3 * errors.std() / math.sqrt(len(errors))


def test_cbpe_calibrates_only_what_needs_it() -> None:
    """The curve is kept for an overconfident classifier, whose raw mean confidence is far off, and mostly not else."""
    rng = np.random.default_rng(2)
    windows = [make_rows(rng, n=500, sharpness=2.5) for _ in range(40)]

    sharp = fit_cbpe(*make_rows(rng, n=5_000, sharpness=2.5))
    calibrated = [fit_cbpe(*make_rows(rng)).curve is None for _ in range(20)]

    assert sharp.curve is not None
    assert backtest(Cbpe(None), windows).mean_error > 0.1
    assert abs(backtest(sharp, windows).mean_error) < 0.02
    assert np.mean(calibrated) > 0.6


def test_cbpe_of_a_tiny_reference_stays_uncalibrated() -> None:
    """Too few rows for a split leave the confidence as it is."""
    assert fit_cbpe(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 0])).curve is None


@pytest.mark.parametrize("score", ["msp", "entropy"])
def test_atc_returns_the_accuracy_of_its_own_reference(score: AtcScore) -> None:
    """Without ties the share of reference rows above the threshold is exactly the accuracy."""
    probs, labels = make_rows(np.random.default_rng(3))

    got = fit_atc(probs, labels, score=score).predict(probs)

    assert got == pytest.approx(float((probs.argmax(axis=1) == labels).mean()), abs=1e-12)


def test_atc_knows_all_right_all_wrong_and_ties() -> None:
    """Perfect and hopeless references give 1 and 0; tied scores give the nearest share that exists."""
    probs = np.array([[0.6, 0.4], [0.7, 0.3], [0.8, 0.2], [0.9, 0.1]])

    assert fit_atc(probs, np.zeros(4, dtype=int)).predict(probs) == 1.0
    assert fit_atc(probs, np.ones(4, dtype=int)).predict(probs) == 0.0
    assert fit_atc(np.tile([0.9, 0.1], (4, 1)), np.array([0, 0, 0, 1])).predict(probs) == 0.25


def test_doc_moves_with_mean_confidence_and_stays_a_share() -> None:
    """Ten points less confidence are ten points less accuracy, never below 0."""
    estimator = Doc(accuracy=0.8, confidence=0.9)

    assert estimator.predict(np.array([[0.8, 0.2]])) == pytest.approx(0.7)
    assert Doc(accuracy=0.1, confidence=0.9).predict(np.array([[0.5, 0.5]])) == 0.0


def test_estimators_see_a_harder_window_and_miss_changed_labels() -> None:
    """Less confident rows lower every estimate; labels that change their meaning leave all of them flattering."""
    rng = np.random.default_rng(4)
    reference, hard = make_rows(rng, n=4_000), make_rows(rng, n=4_000, spread=1.0)
    swapped = (hard[0], (hard[1] + 1) % 4)

    for estimator in (fit_cbpe(*reference), fit_atc(*reference), fit_doc(*reference)):
        assert estimator.predict(hard[0]) < estimator.predict(reference[0]) - 0.1
        assert backtest(estimator, [swapped]).mean_error > 0.05


def test_a_back_test_is_estimate_minus_truth() -> None:
    """Bias keeps its sign, the absolute error does not."""
    probs = np.array([[0.8, 0.2], [0.8, 0.2]])

    got = backtest(Cbpe(None), [(probs, np.array([0, 0])), (probs, np.array([0, 1]))])

    assert got.errors == pytest.approx((-0.2, 0.3))
    assert (got.mean_error, got.mean_absolute_error) == pytest.approx((0.05, 0.25))


def test_the_radius_of_a_back_test_covers_the_next_error() -> None:
    """The radius of 19 past errors at 90 % is the 18th smallest and covers the next one 90 % of the time."""
    errors = np.random.default_rng(5).normal(size=(4_000, 20))

    radii = [Backtest("cbpe", tuple(row[:19].tolist())).radius(0.9) for row in errors]

    covered = np.abs(errors[:, 19]) <= np.array(radii, dtype=np.float64)
    assert covered.mean() == pytest.approx(0.9, abs=3 * math.sqrt(0.09 / 4_000))
    assert Backtest("cbpe", (0.3, -0.1)).radius(0.9) is None
    assert Backtest("cbpe", (0.01, -0.02, 0.03, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)).radius(0.9) == 0.03


def test_an_estimate_is_marked_and_carries_its_past_error() -> None:
    """A shown estimate says that it is one, with the error of its past and an interval from it."""
    past = Backtest("doc", (0.01, -0.02) * 10)

    got = estimate_accuracy(Doc(0.8, 0.9), np.array([[0.9, 0.1]]), past=past, outlier_rate=0.03, alpha=0.01)

    assert got.is_estimate
    assert got.withheld is None
    assert got.value == pytest.approx(0.8)
    assert got.interval == pytest.approx((0.78, 0.82))
    assert got.error == pytest.approx(0.015)


def test_an_estimate_is_withheld_when_traffic_left_the_reference() -> None:
    """Above three times the calibrated outlier rate there is no value, and the reason names both figures."""
    past = Backtest("doc", (0.01,))

    got = estimate_accuracy(Doc(0.8, 0.9), np.array([[0.9, 0.1]]), past=past, outlier_rate=0.031, alpha=0.01)

    assert (got.value, got.interval) == (None, None)
    assert got.withheld is not None
    assert "0.031 is above 3 alpha = 0.03" in got.withheld


def test_an_estimate_without_a_back_test_is_withheld() -> None:
    """No past, no figure; and the past of another method does not count."""
    probs = np.array([[0.9, 0.1]])

    got = estimate_accuracy(Doc(0.8, 0.9), probs, past=None, outlier_rate=0.0, alpha=0.01)

    assert got.value is None
    assert got.withheld is not None
    with pytest.raises(ConfigError, match="back-test of cbpe"):
        estimate_accuracy(Doc(0.8, 0.9), probs, past=Backtest("cbpe", (0.0,)), outlier_rate=0.0, alpha=0.01)


def test_prediction_powered_intervals_cover_and_are_narrower_than_labels_alone() -> None:
    """With wrong but informative confidence 95 % of intervals contain the accuracy, 10 % narrower than without it."""
    rng = np.random.default_rng(6)
    confidence, correct = make_audit(rng)
    truth, runs = correct.mean(), 1_500
    covered, widths, plain = [], [], []
    for _ in range(runs):
        rows, audit = rng.integers(len(correct), size=3_000), rng.integers(len(correct), size=200)
        got = prediction_powered(confidence[rows], confidence[audit], correct[audit])
        assert got.interval is not None
        covered.append(got.interval[0] <= truth <= got.interval[1])
        widths.append(got.interval[1] - got.interval[0])
        plain.append(2 * 1.96 * math.sqrt(correct[audit].var() / 200))

    assert np.mean(covered) == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / runs))
    assert np.mean(widths) < 0.95 * np.mean(plain)


def test_prediction_powered_accuracy_equals_its_formula() -> None:
    """Value and interval are the closed form, and the figure is no estimate."""
    f, f_audit = np.linspace(0.5, 1.0, 40), np.linspace(0.4, 0.9, 20)
    y = np.array([1.0, 0.0] * 10)
    value = f.mean() - (f_audit - y).mean()
    radius = stats.norm.ppf(0.95) * math.sqrt(f.var(ddof=1) / 40 + (f_audit - y).var(ddof=1) / 20)

    got = prediction_powered(f, f_audit, y, level=0.9)

    assert got.value == pytest.approx(value)
    assert got.interval == pytest.approx((value - radius, value + radius))
    assert not got.is_estimate


def test_an_audit_without_errors_has_no_interval() -> None:
    """Fewer than five wrong predictions are too few for a normal approximation."""
    got = prediction_powered(np.full(100, 0.99), np.full(50, 0.99), np.ones(50))

    assert got.interval is None
    assert got.value == pytest.approx(1.0)


def test_labelled_accuracy_has_the_exact_interval() -> None:
    """The interval is Clopper and Pearson's, and the figure is no estimate."""
    got = labelled_accuracy(90, 100)

    expected = stats.binomtest(90, 100).proportion_ci(0.95, method="exact")
    assert got.value == 0.9
    assert got.interval == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert not got.is_estimate


def test_inputs_stay_as_they_were() -> None:
    """Neither fitting nor predicting changes its arguments."""
    probs, labels = make_rows(np.random.default_rng(7), n=200)
    before = probs.copy(), labels.copy()

    for estimator in (fit_cbpe(probs, labels), fit_atc(probs, labels, score="entropy"), fit_doc(probs, labels)):
        estimator.predict(probs)

    assert np.array_equal(probs, before[0])
    assert np.array_equal(labels, before[1])


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: Cbpe(None).predict(np.empty((0, 3))), id="no rows"),
        pytest.param(lambda: Cbpe(None).predict(np.array([[math.nan, 1.0]])), id="nan"),
        pytest.param(lambda: fit_doc(np.array([[0.9, 0.1]]), np.array([0, 1])), id="too many labels"),
        pytest.param(lambda: fit_doc(np.array([[0.9, 0.1]]), np.array([0.0])), id="float labels"),
        pytest.param(lambda: backtest(Cbpe(None), []), id="no windows"),
        pytest.param(lambda: Backtest("cbpe", (0.1,)).radius(1.0), id="coverage 1"),
        pytest.param(lambda: prediction_powered([0.5], [0.5, 0.5], [1, 0]), id="one row"),
        pytest.param(lambda: prediction_powered([0.5, 0.5], [0.5, 0.5], [1, 0.5]), id="half right"),
        pytest.param(lambda: labelled_accuracy(3, 2), id="more right than rows"),
        pytest.param(lambda: labelled_accuracy(1, 2, level=1.0), id="level 1"),
        pytest.param(lambda: Atc(0.5, "other").predict(np.array([[0.9, 0.1]])), id="unknown score"),  # type: ignore[arg-type] # on purpose
    ],
)
def test_what_cannot_work_is_refused(call: object) -> None:
    """Defective rows, labels and options raise ConfigError instead of giving a figure."""
    assert callable(call)
    with pytest.raises(ConfigError):
        call()
