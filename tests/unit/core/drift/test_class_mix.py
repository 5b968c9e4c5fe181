"""True class shares from predictions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from darksight_core.drift.class_mix import ClassShares, bbse, confusion, mlls
from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

CLASSES = 4
EVEN = np.full(CLASSES, 0.25)
SKEWED = np.array([0.55, 0.25, 0.15, 0.05])


def draw(rng: np.random.Generator, rows: int, shares: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Labelled rows of a classifier that is calibrated at even shares, drawn with other shares."""
    labels = rng.choice(CLASSES, rows, p=shares)
    logits = rng.normal(size=(rows, CLASSES)) + 2.0 * np.eye(CLASSES)[labels]
    # The Bayes rule of this model: log p(x | k) differs by 2 x_k.
    weights = np.exp(2.0 * logits)
    return weights / weights.sum(axis=1, keepdims=True), labels


def estimates(rng: np.random.Generator, shares: Floats, rows: int = 1_500) -> list[ClassShares]:
    """Both estimates of a window."""
    known, truth = draw(rng, 3_000, EVEN)
    counts = confusion(known.argmax(axis=1), truth, CLASSES)
    assert counts is not None
    window, _ = draw(rng, rows, shares)
    predicted = np.bincount(window.argmax(axis=1), minlength=CLASSES)
    return [bbse(counts, predicted), mlls(window, EVEN, 3_000)]


def test_both_methods_find_the_class_shares() -> None:
    """The shares of a window are found to within five points, and classes that changed are named."""
    for found in estimates(np.random.default_rng(21), SKEWED):
        assert found.estimate == pytest.approx(SKEWED, abs=0.05)
        assert found.estimate.sum() == pytest.approx(1.0)
        assert found.is_changed[[0, 3]].all()
        assert found.reference == pytest.approx(EVEN, abs=0.02)


def test_intervals_hold_for_all_classes_together() -> None:
    """In at least 90 of 100 windows every interval has its share; the level is 5 %."""
    rng = np.random.default_rng(22)
    hits = {"bbse": 0, "mlls": 0}
    for _ in range(100):
        for found in estimates(rng, SKEWED):
            hits[found.method] += bool(((found.low <= SKEWED) & (found.high >= SKEWED)).all())

    assert min(hits.values()) >= 90


def test_unchanged_shares_are_rarely_called_changed() -> None:
    """In at most 10 of 100 quiet windows any class is called changed; the level is 5 %."""
    rng = np.random.default_rng(23)
    wrong = {"bbse": 0, "mlls": 0}
    for _ in range(100):
        for found in estimates(rng, EVEN):
            wrong[found.method] += bool(found.is_changed.any())

    assert max(wrong.values()) <= 10


def test_confusion_needs_labels_of_every_class() -> None:
    """A class with fewer than five labelled rows has no confusion shares, and unknown labels do not count."""
    labels = np.repeat(np.arange(3), 5)

    assert confusion(labels, labels, 3) is not None
    assert confusion(labels, np.where(labels == 2, -1, labels), 3) is None


def test_a_class_without_reference_rows_has_no_share() -> None:
    """Probabilities of such a class say nothing about its share, not even rows that have no other."""
    probs = np.random.default_rng(24).dirichlet(np.ones(3), 500)
    window = np.vstack([np.column_stack([0.99 * probs, np.full(500, 0.01)]), [[0.0, 0.0, 0.0, 1.0]]])

    found = mlls(window, np.array([0.4, 0.3, 0.3, 0.0]), 1_000)

    assert found.estimate[3] == 0.0
    assert found.estimate[:3] == pytest.approx(mlls(probs, np.array([0.4, 0.3, 0.3]), 1_000).estimate)
    assert np.isfinite([found.low, found.high]).all()


def test_classes_that_predictions_do_not_tell_apart_are_not_called_changed() -> None:
    """A class that is never predicted keeps its share, with the interval [0, 1]; other classes are found."""
    counts = np.array([[500.0, 0.0, 0.0], [0.0, 500.0, 200.0], [0.0, 0.0, 0.0]])

    same, other = bbse(counts, [500, 700, 0]), bbse(counts, [900, 300, 0])

    assert same.estimate == pytest.approx([500 / 1_200, 500 / 1_200, 200 / 1_200])
    assert not same.is_changed.any()
    assert (same.low[1:] == 0.0).all()
    assert (same.high[1:] == 1.0).all()
    assert other.is_changed.tolist() == [True, False, False]
    assert other.estimate[0] == pytest.approx(0.75)


def test_a_window_without_rows_has_no_shares() -> None:
    """An empty window is refused."""
    with pytest.raises(ConfigError, match="without rows"):
        bbse(np.eye(2) * 10, np.zeros(2))
