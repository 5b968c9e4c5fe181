"""Figures of the drift page."""

from __future__ import annotations

import numpy as np
from darksight_service.http.explorer.api.drift import count_inside


def test_a_point_counts_for_the_first_region_that_contains_it():
    """Points in none are the last count, and points without a place are left out."""
    points = np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0], [np.nan, 0.0]])

    counts = count_inside(points, [lambda at: at[:, 0] < 0.5, lambda at: at[:, 0] < 2.0])

    assert counts.tolist() == [1, 1, 1]
