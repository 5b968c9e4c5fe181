"""Confidence against accuracy, in bins and by class."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.evaluation.reliability import class_figures, reliability


def test_the_error_is_the_distance_from_the_diagonal() -> None:
    """Closed form: two bins that are off by 0.2 and 0.1 give an ECE of 0.15."""
    confidence = np.repeat([0.6, 0.9], 10)
    correct = np.array([True] * 4 + [False] * 6 + [True] * 8 + [False] * 2)

    found = reliability(confidence, correct, bins=2)

    assert found.ece == pytest.approx(0.15)
    assert found.accuracy == pytest.approx((0.4, 0.8))
    assert found.rows == (10, 10)
    assert all(low < value < high for low, value, high in zip(found.low, found.accuracy, found.high, strict=True))


def test_a_calibrated_classifier_has_the_error_of_chance() -> None:
    """With labels drawn from the confidence, the mean ECE of 200 draws is the stated one."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1.0, 600)

    draws = [reliability(confidence, rng.random(600) < confidence) for _ in range(200)]

    # A standard error of the mean is about 1% of it; the normal approximation is good to a few per cent.
    assert np.mean([draw.ece for draw in draws]) == pytest.approx(draws[0].chance, rel=0.05)


def test_figures_of_classes_are_counts_of_rows() -> None:
    """By hand: recall, precision, confidence and the most frequent mistake; None where there is nothing to divide."""
    labels, predicted = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1])
    confidence = np.array([0.9, 0.6, 0.8, 0.7])

    cat, dog, eel = class_figures(("cat", "dog", "eel"), confidence, predicted, labels)

    assert (cat.rows, cat.recall, cat.predicted, cat.precision, cat.mistaken_for) == (3, 1 / 3, 1, 1.0, "dog")
    assert (dog.rows, dog.recall, dog.predicted, dog.precision) == (1, 1.0, 3, 1 / 3)
    assert dog.confidence == pytest.approx(0.7)
    assert (eel.rows, eel.recall, eel.predicted, eel.precision, eel.confidence) == (0, None, 0, None, None)
    assert class_figures(("cat", "dog", "eel"), confidence, predicted, None)[0].precision is None
