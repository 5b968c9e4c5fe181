"""Rows worth a look."""

from __future__ import annotations

import numpy as np

from darksight_core.evaluation import cases
from darksight_core.rows.simplex import log_probs

PROBS = np.array([[0.9, 0.1, 0.0], [0.55, 0.45, 0.0], [0.52, 0.48, 0.0], [0.0, 0.2, 0.8], [0.0, 0.01, 0.99]])
LABELS = np.array([1, 0, 1, 2, 1])
PREDICTED = PROBS.argmax(axis=1)
POINTS = np.array([[0.0, 0.0], [1.0, 0.0], [0.1, 0.0], [5.0, 0.0], [6.0, 0.0]])


def test_unusual_rows_have_the_lowest_scores() -> None:
    """Lowest first."""
    assert cases.unusual(np.array([3.0, 1.0, 2.0, 5.0, 0.0]), 2).rows == (4, 1)


def test_typical_rows_have_median_confidence() -> None:
    """In each class between the 40th and the 60th percentile of confidence, and the most usual of these rows."""
    rng = np.random.default_rng(0)
    confidence, usual, predicted = rng.random(300), rng.random(300), rng.integers(3, size=300)

    found = cases.typical(confidence, usual, predicted, classes=4)

    assert [case.about for case in found] == [(0,), (1,), (2,)]
    for case in found:
        (row,), rows = case.rows, np.flatnonzero(predicted == case.about[0])
        low, high = np.quantile(confidence[rows], [0.4, 0.6])
        middle = rows[(confidence[rows] >= low) & (confidence[rows] <= high)]
        assert low <= confidence[row] <= high
        assert usual[row] == usual[middle].max()
    assert cases.typical(np.array([0.9]), np.array([0.0]), np.array([1]), classes=2)[0].rows == (0,)


def test_midway_rows_are_those_of_the_smallest_margin() -> None:
    """The most confused pair is first, its most torn row too."""
    first = cases.midway(log_probs(PROBS), pairs=1)[0]

    assert first.about == (0, 1)
    assert first.rows == (2, 1, 0)


def test_mistakes_of_a_kind_stand_together() -> None:
    """Only kinds with two rows are reported, with label and predicted class."""
    found = cases.wrong_alike(POINTS, PREDICTED, LABELS)

    assert [(case.about, set(case.rows)) for case in found] == [((1, 0), {0, 2})]


def test_neighbouring_mistakes_are_compared_with_chance() -> None:
    """Two of three mistakes have their like as nearest wrong neighbour; of the others, half would be it by chance."""
    found = cases.alike(POINTS, PREDICTED, LABELS)

    assert found is not None
    assert found.mistakes == 3
    np.testing.assert_allclose(found.same, 2 / 3)
    np.testing.assert_allclose(found.chance, 1 / 3)
    assert cases.alike(POINTS, PREDICTED, PREDICTED) is None


def test_the_surest_mistake_is_first() -> None:
    """Confident and wrong rows come by the largest probability, right rows never."""
    log_pi = log_probs(PROBS)

    assert cases.confident_wrong(log_pi, PREDICTED != LABELS).rows == (4, 0, 2)
    assert cases.confident_wrong(log_pi, np.zeros(5, dtype=bool)).rows == ()
