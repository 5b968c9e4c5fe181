"""The label-free estimate of accuracy and when it is withheld."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from darksight_core.drift.estimate import AccuracyModel, fit_accuracy_model
from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

CLASSES = 4


def draw(
    rng: np.random.Generator, rows: int, *, noise: float = 1.0, shares: Floats | None = None
) -> tuple[Floats, NDArray[np.int64]]:
    """Labelled rows of a classifier; more noise makes it wrong more often and less sure."""
    labels = rng.choice(CLASSES, rows, p=shares)
    scores = noise * rng.normal(size=(rows, CLASSES)) + 2.0 * np.eye(CLASSES)[labels]
    weights = np.exp(2.0 * scores / noise**2)
    return weights / weights.sum(axis=1, keepdims=True), labels


@pytest.fixture(scope="module")
def model() -> AccuracyModel:
    """Estimators of 2,000 rows, back-tested on 2,000 others."""
    rng = np.random.default_rng(31)
    (probs, labels), (held, truth) = draw(rng, 2_000), draw(rng, 2_000)
    found = fit_accuracy_model(probs, labels, held, truth, rng.random(2_000))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("noise", "shares"),
    [(1.0, None), (1.1, None), (1.0, [0.7, 0.1, 0.1, 0.1])],
    ids=["as the reference", "more errors", "another class mix"],
)
def test_the_estimate_is_near_the_accuracy(model: AccuracyModel, noise: float, shares: list[float] | None) -> None:
    """The accuracy of a window lies in the range, and the estimate is within five points of it."""
    probs, labels = draw(np.random.default_rng(32), 4_000, noise=noise, shares=None if not shares else np.array(shares))
    accuracy = float((probs.argmax(axis=1) == labels).mean())

    found = model.estimate(probs, outlier_share=0.01)

    assert found.value == pytest.approx(accuracy, abs=0.05)
    assert found.interval is not None
    assert found.interval[0] - 0.01 <= accuracy <= found.interval[1] + 0.01
    assert found.is_estimate
    assert found.error == pytest.approx(model.error)


def test_the_back_test_covers_subgroups_and_more_outliers(model: AccuracyModel) -> None:
    """There are eight windows of each of seven kinds, their mean error is small, and some have about 5 % outliers."""
    assert len(model.errors) == 56
    assert model.error < 0.03
    assert 0.04 < model.largest_outlier_share < 0.09


@pytest.mark.parametrize("sharpness", [0.6, 1.0, 2.0], ids=["under-confident", "calibrated", "over-confident"])
def test_intervals_hold_for_subgroups_of_unbalanced_classes(sharpness: float) -> None:
    """For classes of 60 to 4 % and a classifier of any calibration, at least 85 % of 80 subgroups are covered.

    The interval promises 90 %; three standard errors of 80 windows are 10 %. The mean error is a third of that of the
    plain confidence where that is not calibrated.
    """
    rng, shares = np.random.default_rng(39), np.array([0.6, 0.3, 0.06, 0.04])

    def rows(n: int, mix: Floats = shares) -> tuple[Floats, NDArray[np.int64]]:
        probs, labels = draw(rng, n, shares=mix)
        sharp = probs**sharpness
        return sharp / sharp.sum(axis=1, keepdims=True), labels

    (probs, labels), (held, truth) = rows(2_000), rows(2_000)
    model = fit_accuracy_model(probs, labels, held, truth, rng.random(2_000))
    assert model is not None
    covered, errors, plain = [], [], []
    for turn in range(80):
        window, given = rows(3_000, rng.dirichlet(np.ones(CLASSES)) if turn % 2 else shares)
        odds = np.log(window.max(axis=1)) * rng.uniform(0.0, 3.0)
        chosen = rng.choice(3_000, 500, p=np.exp(odds) / np.exp(odds).sum())
        accuracy = float((window[chosen].argmax(axis=1) == given[chosen]).mean())
        found = model.estimate(window[chosen], outlier_share=0.01)
        if found.interval is not None and found.value is not None:
            covered.append(found.interval[0] <= accuracy <= found.interval[1])
            errors.append(abs(found.value - accuracy))
            plain.append(abs(float(window[chosen].max(axis=1).mean()) - accuracy))

    assert len(covered) >= 40
    assert np.mean(covered) >= 0.85
    if sharpness != 1.0:
        assert np.mean(errors) < np.mean(plain) / 2.0


def test_an_estimate_is_withheld_where_the_back_test_does_not_reach(model: AccuracyModel) -> None:
    """Too many outliers, too few rows and estimators that disagree each have their own reason."""
    probs, _ = draw(np.random.default_rng(33), 500)
    split = replace(model, entropy_limit=0.0, largest_gap=0.0)

    found = [
        model.estimate(probs, outlier_share=0.2),
        model.estimate(probs[:50], outlier_share=0.0),
        split.estimate(probs, outlier_share=0.0),
        model.estimate(probs, outlier_share=0.0, withhold="the rows have new content"),
    ]

    for text, each in zip(("outliers", "too few", "disagree", "new content"), found, strict=True):
        assert text in str(each.withheld)
        assert each.value is None
        assert each.interval is None


def test_a_withheld_estimate_has_an_upper_bound(model: AccuracyModel) -> None:
    """The accuracy of noisy rows lies below it, and it is below 1."""
    probs, labels = draw(np.random.default_rng(40), 2_000, noise=1.6)

    found = model.estimate(probs, outlier_share=0.5)

    assert found.at_most is not None
    assert float((probs.argmax(axis=1) == labels).mean()) <= found.at_most < 1.0


def test_too_few_labels_give_no_estimate() -> None:
    """Fewer than 200 labelled rows of either set are not enough."""
    rng = np.random.default_rng(34)
    (probs, labels), (held, truth) = draw(rng, 199), draw(rng, 200)

    assert fit_accuracy_model(probs, labels, held, truth, np.ones(200)) is None


def test_the_model_travels_as_json_values(model: AccuracyModel) -> None:
    """Settings give the same model back, and incomplete ones are refused."""
    probs, _ = draw(np.random.default_rng(35), 300)
    settings = model.settings()

    again = AccuracyModel.from_settings(settings)

    assert again.estimate(probs, outlier_share=0.0) == model.estimate(probs, outlier_share=0.0)
    settings.pop("length")
    with pytest.raises(ConfigError, match="cannot be read"):
        AccuracyModel.from_settings(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("curve", [[0.1, 0.2]]),
        ("curve", [[0.2, 0.1], [0.0, 1.0]]),
        ("window", 0),
        ("errors", []),
        ("errors", [float("nan")]),
        ("temperature", "x"),
        ("shares", [0.5, float("inf")]),
        ("rows", None),
    ],
)
def test_a_model_of_other_values_is_refused(model: AccuracyModel, name: str, value: object) -> None:
    """What is not a finite number, and a model without a back-test, is refused when it is read."""
    with pytest.raises(ConfigError, match="cannot be read"):
        AccuracyModel.from_settings({**model.settings(), name: value})


def test_single_outliers_do_not_withhold_an_estimate(model: AccuracyModel) -> None:
    """A back-test without outliers, as with tied p-values, still covers twice the usual share."""
    probs, _ = draw(np.random.default_rng(38), 500)
    tied = replace(model, largest_outlier_share=0.0)

    assert tied.estimate(probs, outlier_share=0.02).withheld is None
    assert tied.estimate(probs, outlier_share=0.03).withheld


def test_a_class_without_reference_rows_does_not_spoil_the_back_test() -> None:
    """One row of such a class among the rows of the back-test cannot fill a window."""
    rng = np.random.default_rng(39)
    (probs, labels), (held, truth) = (draw(rng, 1_000, shares=np.array([0.4, 0.3, 0.3, 0.0])) for _ in range(2))
    truth[0] = 3

    found = fit_accuracy_model(probs, labels, held, truth, np.ones(1_000))

    assert found is not None
    assert found.error < 0.1


def test_many_classes_cost_a_bounded_time() -> None:
    """A model of 1,000 classes and 2,000 labelled rows takes at most 4 CPU seconds."""
    rng = np.random.default_rng(40)
    labels = rng.integers(0, 1_000, 2_000)
    scores = rng.normal(size=(2_000, 1_000)).astype(np.float32)
    scores[np.arange(2_000), labels] += 5.0
    probs = np.exp(2.0 * scores)
    probs /= probs.sum(axis=1, keepdims=True)
    started = time.process_time()

    found = fit_accuracy_model(probs[:1_000], labels[:1_000], probs[1_000:], labels[1_000:], rng.random(1_000))

    assert time.process_time() - started < 4.0
    assert found is not None
    assert found.error < 0.1
