"""Rows of known classes: what is refused, and how they are completed."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.predictions.rows import Predictions
from darksight_core.rows.partial import TopRows, TopRowsError, complete, top_rows


def _row(classes: list[int], probs: list[float], other: float = 0.0) -> TopRows:
    with np.errstate(all="ignore"):
        return TopRows(np.array([classes]), np.log([probs]), np.array([other]))


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (_row([0, 3], [0.5, 0.1]), "row 0: class 3 is not among the 3 classes"),
        (_row([0, -7], [0.5, 0.1]), "row 0: class -2 is not among"),
        (_row([0, 2**40], [0.5, 0.1]), "is not among the 3 classes"),
        (_row([1, 1], [0.5, 0.1]), "class 1 is given twice; add the probabilities"),
        (_row([0, 1], [0.5, np.nan]), "log-probability of class 1 is nan"),
        (_row([0, 1], [0.5, 1.5]), "log-probability of class 1 is 0.405465"),
        (_row([0, 1], [0.9, 0.2]), "probabilities sum to 1.1"),
        (_row([0, 1], [0.9, 0.05], 0.2), "probabilities sum to 1.15"),
        (_row([0, 1], [0.5, 0.1], -0.1), "other is -0.1"),
        (_row([0, 1], [0.5, 0.1], np.nan), "other is nan"),
        (_row([-1, -1], [0.5, 0.1]), "no class is known"),
    ],
)
def test_bad_rows_are_refused(rows: TopRows, text: str) -> None:
    """The message names row and value, and the details the row."""
    with pytest.raises(TopRowsError, match=text) as error:
        rows.check(3)
    assert error.value.details == {"row": 0}


def test_bad_shapes_are_refused() -> None:
    """No classes, and arrays that do not belong together."""
    with pytest.raises(TopRowsError, match="rows of 0 known classes"):
        TopRows(np.empty((2, 0), dtype=int), np.empty((2, 0)))
    with pytest.raises(TopRowsError, match="do not make n rows"):
        TopRows(np.zeros((2, 3), dtype=int), np.zeros((2, 2)))
    with pytest.raises(TopRowsError, match="must be integers"):
        TopRows(np.zeros((2, 3)), np.zeros((2, 3)))
    with pytest.raises(TopRowsError, match="k must be from 1"):
        top_rows([[0.5, 0.5]], 3)


def test_good_rows_pass() -> None:
    """Empty places may hold anything, and zero-probability tokens come as -inf or -9999."""
    TopRows(np.array([[0, -1], [2, 1]]), np.array([[-0.1, np.nan], [-0.0, -np.inf]])).check(3)
    _row([0, 1], [0.9, 0.05], 0.05).check(3)


def test_completed_rows_keep_what_is_known() -> None:
    """Known values stay, the rest is spread, and no unknown class is above the least known one."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(12, 0.3), size=500)
    rows = top_rows(probs, 4)
    made = complete(rows, rng.random((12, 12)) + 0.01)

    np.testing.assert_allclose(made.sum(axis=1), 1.0)
    known = np.zeros(made.shape, dtype=bool)
    np.put_along_axis(known, rows.classes, True, axis=1)
    np.testing.assert_allclose(made[known], probs[known], rtol=2e-6)
    assert (np.where(known, 0.0, made).max(axis=1) <= np.where(known, made, 1.0).min(axis=1) * (1 + 1e-9)).all()


def test_weights_decide_where_the_rest_goes() -> None:
    """In proportion to the weights of the predicted class, until the bound."""
    weights = np.array([[1.0, 1, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]])

    made = complete(_row([0], [0.6]), weights)
    np.testing.assert_allclose(made, [[0.6, 0.1, 0.2, 0.1]])
    made = complete(_row([0, 1], [0.5, 0.17]), weights)
    np.testing.assert_allclose(made, [[0.5, 0.17, 0.17, 0.16]])
    # A sum above one by rounding leaves the least rest.
    made = complete(_row([0, 1], [0.9, 0.1005]), weights)
    assert 0.0 < made[0, 3] < made[0, 2] < 1e-6
    # Known classes that leave more than the others may have.
    np.testing.assert_allclose(complete(_row([0, 1], [0.5, 0.1]), weights), np.array([[5, 1, 1, 1]]) / 8)


def test_other_is_no_class() -> None:
    """The row is that of the classes alone, whatever other tokens have."""
    plain, beside = _row([0, 1], [0.5, 0.25]), _row([0, 1], [0.25, 0.125], 0.5)

    np.testing.assert_allclose(complete(beside, np.ones(4)), complete(plain, np.ones(4)))


def test_predictions_of_known_classes() -> None:
    """Taking rows and reordering classes keep both forms of a row together."""
    rows = Predictions.of_top(top_rows([[0.1, 0.7, 0.2], [0.6, 0.1, 0.3]], 2), ("a", "b", "c"), "x")
    turned = rows.in_order(("c", "a", "b")).take([1])

    assert rows.rows is rows.top
    assert turned.top is not None
    assert turned.top.classes.tolist() == [[1, 0]]
    np.testing.assert_allclose(turned.probs, [[0.3, 0.6, 0.1]], rtol=1e-5)
    assert turned.probs.argmax() == turned.top.classes[0, 0]


def test_valid_rows_are_those_that_are_not_refused() -> None:
    """Whatever is wrong with a row, and alone or among others."""
    rng = np.random.default_rng(3)
    classes = rng.choice([-2, -1, 0, 1, 2, 3, 4], (400, 3), p=[0.02, 0.3, 0.2, 0.2, 0.2, 0.06, 0.02])
    logs = rng.choice(
        [-0.1, -1.5, -3.0, -np.inf, np.nan, 0.5, 800.0], (400, 3), p=[0.2, 0.5, 0.2, 0.04, 0.02, 0.02, 0.02]
    )
    rows = TopRows(classes, logs, rng.choice([0.0, 0.01, 0.5, 2.0, np.nan], 400, p=[0.6, 0.2, 0.1, 0.05, 0.05]))

    def is_refused(row: int) -> bool:
        try:
            rows.take(slice(row, row + 1)).check(4)
        except TopRowsError:
            return True
        return False

    valid = rows.valid(4)

    assert 20 < valid.sum() < 380
    assert valid.tolist() == [not is_refused(row) for row in range(400)]
