"""Label-free estimates of accuracy: where they hold, and where they fail."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from darksight_core.drift.label_free import Atc, AtcScore, Cbpe, Doc, Estimator, fit_atc, fit_cbpe, fit_doc
from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats
from tests.support.builders import draw_labelled_probs


def errors_of(estimator: Estimator, windows: list[tuple[Floats, Floats]]) -> Floats:
    """Estimate minus accuracy of each window."""
    return np.array([estimator.predict(probs) - (probs.argmax(axis=1) == labels).mean() for probs, labels in windows])


def test_cbpe_is_unbiased_when_confidence_is_calibrated() -> None:
    """Over 300 windows of calibrated rows, shifted ones too, the mean error is zero within 3 standard errors."""
    rng = np.random.default_rng(1)
    for spread in (2.0, 1.0):
        errors = errors_of(Cbpe(None), [draw_labelled_probs(rng, n=300, spread=spread) for _ in range(300)])
        assert abs(errors.mean()) <= 3 * errors.std() / math.sqrt(len(errors))


def test_cbpe_calibrates_only_what_needs_it() -> None:
    """The curve is kept for an overconfident classifier, whose raw mean confidence is far off, and mostly not else."""
    rng = np.random.default_rng(2)
    windows = [draw_labelled_probs(rng, n=500, sharpness=2.5) for _ in range(40)]

    sharp = fit_cbpe(*draw_labelled_probs(rng, n=5_000, sharpness=2.5))
    calibrated = [fit_cbpe(*draw_labelled_probs(rng)).curve is None for _ in range(20)]

    assert sharp.curve is not None
    assert errors_of(Cbpe(None), windows).mean() > 0.1
    assert abs(errors_of(sharp, windows).mean()) < 0.02
    assert np.mean(calibrated) > 0.6


def test_cbpe_of_a_tiny_reference_stays_uncalibrated() -> None:
    """Too few rows for a split leave the confidence as it is."""
    assert fit_cbpe(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 0])).curve is None


@pytest.mark.parametrize("score", ["msp", "entropy"])
def test_atc_returns_the_accuracy_of_its_own_reference(score: AtcScore) -> None:
    """Without ties the share of reference rows above the threshold is exactly the accuracy."""
    probs, labels = draw_labelled_probs(np.random.default_rng(3))

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
    reference, hard = draw_labelled_probs(rng, n=4_000), draw_labelled_probs(rng, n=4_000, spread=1.0)
    swapped = (hard[0], (hard[1] + 1) % 4)

    for estimator in (fit_cbpe(*reference), fit_atc(*reference), fit_doc(*reference)):
        assert estimator.predict(hard[0]) < estimator.predict(reference[0]) - 0.1
        assert errors_of(estimator, [swapped]).mean() > 0.05


def test_inputs_stay_as_they_were() -> None:
    """Neither fitting nor predicting changes its arguments."""
    probs, labels = draw_labelled_probs(np.random.default_rng(7), n=200)
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
        pytest.param(lambda: Atc(0.5, "other").predict(np.array([[0.9, 0.1]])), id="unknown score"),  # type: ignore[arg-type] # on purpose
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object]) -> None:
    """Invalid rows, labels and options raise ConfigError."""
    with pytest.raises(ConfigError):
        call()
