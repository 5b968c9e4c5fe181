"""The label-free estimate of accuracy and when it is withheld."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from darksight_core.drift.estimate import AccuracyModel, fit_accuracy_model, fit_temperature
from darksight_core.drift.transport import transport_costs
from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats, log_probs

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


def test_the_back_test_covers_other_class_mixes_and_more_outliers(model: AccuracyModel) -> None:
    """There are windows of three kinds, their mean error is small, and some have about 5 % outliers."""
    assert len(model.errors) == 36
    assert model.error < 0.03
    assert 0.04 < model.largest_outlier_share < 0.09


def test_an_estimate_is_withheld_where_the_back_test_does_not_reach(model: AccuracyModel) -> None:
    """Too many outliers, too few rows and estimators that disagree each have their own reason."""
    probs, _ = draw(np.random.default_rng(33), 500)
    split = replace(model, entropy_limit=0.0, largest_gap=0.0)

    reasons = [
        model.estimate(probs, outlier_share=0.2).withheld,
        model.estimate(probs[:50], outlier_share=0.0).withheld,
        split.estimate(probs, outlier_share=0.0).withheld,
    ]

    assert all(reasons)
    for text, reason in zip(("outliers", "too few", "disagree"), reasons, strict=True):
        assert text in str(reason)


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
    settings.pop("cost_limit")
    with pytest.raises(ConfigError, match="cannot be read"):
        AccuracyModel.from_settings(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [("errors", []), ("errors", [float("nan")]), ("temperature", "x"), ("shares", [0.5, float("inf")]), ("rows", None)],
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
    """One row of such a class among the rows of the back-test gets a quarter of a window on average, not all of it."""
    rng = np.random.default_rng(39)
    (probs, labels), (held, truth) = (draw(rng, 1_000, shares=np.array([0.4, 0.3, 0.3, 0.0])) for _ in range(2))
    truth[0] = 3

    found = fit_accuracy_model(probs, labels, held, truth, np.ones(1_000))

    assert found is not None
    assert found.error < 0.1


def test_many_classes_cost_a_bounded_time() -> None:
    """A model of 1,000 classes and 2,000 labelled rows takes at most 8 CPU seconds."""
    rng = np.random.default_rng(40)
    labels = rng.integers(0, 1_000, 2_000)
    scores = rng.normal(size=(2_000, 1_000)).astype(np.float32)
    scores[np.arange(2_000), labels] += 5.0
    probs = np.exp(2.0 * scores)
    probs /= probs.sum(axis=1, keepdims=True)
    started = time.process_time()

    found = fit_accuracy_model(probs[:1_000], labels[:1_000], probs[1_000:], labels[1_000:], rng.random(1_000))

    assert time.process_time() - started < 8.0
    assert found is not None
    assert found.error < 0.1


def test_the_temperature_undoes_overconfidence() -> None:
    """Log-probabilities that were doubled get a temperature of two times that of the original ones."""
    probs, labels = draw(np.random.default_rng(36), 4_000)
    usual = fit_temperature(log_probs(probs), labels)

    assert fit_temperature(2.0 * log_probs(probs), labels) == pytest.approx(2.0 * usual, rel=0.02)


def test_the_transport_plan_is_nearly_the_cheapest() -> None:
    """The mean cost is within 0.01 of that of an exact assignment of rows to labels."""
    rng = np.random.default_rng(37)
    probs, _ = draw(rng, 400, noise=1.5)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    slots = np.repeat(np.arange(CLASSES), (400 * shares).astype(int))
    exact = 1.0 - probs[:, slots]

    found = transport_costs(probs, shares)

    assert found.mean() == pytest.approx(exact[linear_sum_assignment(exact)].mean(), abs=0.01)
