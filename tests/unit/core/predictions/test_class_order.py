"""Rows whose columns are in another order than their labels."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.predictions import Predictions, from_arrays
from darksight_core.predictions.class_order import describe_permutation


def make_rows(n: int, classes: int, order: list[int], accuracy: float = 0.9, seed: int = 0) -> Predictions:
    """Rows of a classifier with this accuracy whose columns are taken in this order."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    predicted = np.where(rng.random(n) < accuracy, labels, rng.integers(classes, size=n))
    probs = 0.1 / classes + 0.9 * np.eye(classes)[predicted]
    return from_arrays(probs[:, order], labels=labels)


@pytest.mark.parametrize("order", [[1, 2, 0, 3, 4], [4, 3, 2, 1, 0], [1, 0, 2, 3, 4]], ids=["three", "all", "two"])
def test_permuted_columns_are_recognised(order: list[int]) -> None:
    """The hint has the accuracy of the columns as they are, and in the order that the labels suggest."""
    hint = describe_permutation(make_rows(600, 5, order))

    assert hint is not None
    assert "look permuted" in hint
    assert f"column {0} is {order[0]}" in hint


@pytest.mark.parametrize(
    "rows",
    [
        make_rows(600, 5, [0, 1, 2, 3, 4]),
        make_rows(600, 5, [0, 1, 2, 3, 4], accuracy=0.0),
        make_rows(100, 90, list(range(90))[::-1], accuracy=0.0),
        make_rows(600, 2, [1, 0], accuracy=0.1),
        make_rows(20, 3, [2, 0, 1]),
    ],
    ids=["in order", "chance", "few rows of many classes", "near chance", "few rows"],
)
def test_other_rows_get_no_hint(rows: Predictions) -> None:
    """A poor classifier, or few rows, are not taken for permuted columns."""
    assert describe_permutation(rows) is None


def test_one_class_taken_for_another_is_no_permutation() -> None:
    """A classifier that never predicts a class has two labels for another one, and no other order mends that."""
    rng = np.random.default_rng(1)
    labels = rng.integers(3, size=600)
    rows = from_arrays(np.eye(3)[np.where(labels == 2, 1, labels)], labels=labels)

    assert describe_permutation(rows) is None
