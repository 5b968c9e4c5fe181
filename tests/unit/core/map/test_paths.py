"""Curves on the map."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.map.paths import bridge, confused_pairs, trace
from darksight_core.map.student import Student
from darksight_core.rows.simplex import log_probs

STUDENT = Student(np.array([[-3.0, 0.0], [3.0, 0.0], [0.0, 9.0]]), np.ones(3), np.zeros(3))
LINE = np.array([[-3.0, 0.0], [3.0, 0.0]])


def test_halfway_between_equal_classes_both_are_equally_probable() -> None:
    """Closed form: midway between centres of equal scale and prior the odds are even, and mirrored about it."""
    path = trace(STUDENT, LINE, LINE, steps=101)

    np.testing.assert_allclose(path.probs[50, 0], path.probs[50, 1], rtol=1e-12)
    np.testing.assert_allclose(path.probs[:, 0], path.probs[::-1, 1], rtol=1e-9)
    np.testing.assert_allclose(path.probs.sum(axis=1), 1.0, rtol=1e-12)
    assert (np.diff(path.probs[:, 0]) < 0).all()


def test_the_pace_is_even_around_corners() -> None:
    """Steps along an angle of two legs, 3 and 1 long, have equal length, and positions are shares of the whole."""
    path = trace(STUDENT, [[0.0, 0.0], [3.0, 0.0], [3.0, 1.0]], np.zeros((1, 2)), steps=9)

    np.testing.assert_allclose(np.hypot(*np.diff(path.points, axis=0).T), 0.5)
    np.testing.assert_allclose(path.points[6], [3.0, 0.0])
    np.testing.assert_allclose(path.position[6], 0.75)


def test_rows_beside_the_path_come_in_order_and_the_nearest_of_each_piece() -> None:
    """Of two rows in one piece the nearer is kept, a far row is left out, and order is that of the way."""
    points = np.array([[2.0, 0.3], [-2.0, 0.4], [-2.01, 0.1], [0.0, 5.0]])

    path = trace(STUDENT, LINE, points, most=10, width=1.0)

    assert path.rows.tolist() == [2, 0]
    np.testing.assert_allclose(path.row_distance, [0.1, 0.3])
    np.testing.assert_allclose(path.row_position, [0.99 / 6.0, 5.0 / 6.0])


def test_a_bridge_goes_through_the_torn_rows() -> None:
    """Rows torn between two classes bend the way towards them; without any it is the straight line."""
    share = np.linspace(0.1, 0.9, 20)
    probs = np.stack([1.0 - share, share, np.full(20, 1e-6)], axis=1)
    points = np.stack([6.0 * share - 3.0, np.full(20, 2.0)], axis=1)

    bent = bridge(log_probs(probs), points, STUDENT.means, 0, 1)
    straight = bridge(log_probs(np.eye(3)), STUDENT.means, STUDENT.means, 0, 1)

    assert bent[0].tolist() == STUDENT.means[0].tolist()
    assert bent[-1].tolist() == STUDENT.means[1].tolist()
    np.testing.assert_allclose(bent[1:-1, 1], 2.0)
    assert (np.diff(bent[:, 0]) > 0).all()
    np.testing.assert_array_equal(straight, LINE)


def test_the_most_confused_pair_is_first() -> None:
    """A pair weighs the smaller of its two probabilities, summed over rows."""
    probs = np.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.6, 0.0, 0.4], [1.0, 0.0, 0.0]])

    assert confused_pairs(log_probs(probs))[:2] == [(0, 2), (0, 1)]


@pytest.mark.parametrize("corners", [[[0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]], [[0.0, np.nan], [1.0, 1.0]]])
def test_a_path_without_length_is_refused(corners: list[list[float]]) -> None:
    """One place, twice the same place, and a place that is none."""
    with pytest.raises(ConfigError, match="path"):
        trace(STUDENT, corners, LINE)
