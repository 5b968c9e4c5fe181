"""What a map's figures mean for its readers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from darksight_core.map.verdict import has_points_near, is_on_border, map_verdict, nearest_stars


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ((0.01, 0.99, 0.001), "good: 1.0% of the probability is in the wrong place on average; clusters"),
        ((0.01, None, None), "good"),
        ((0.1, 0.99, 0.001), "fair: 10.0%"),
        ((0.2, 0.99, 0.001), "poor: 20.0%"),
        ((0.01, 0.9, 0.0), "fair: 1.0%.*, the nearest star is another class than the predicted one for 10.0% of the"),
        ((0.01, 0.99, 0.01), "fair: 1.0%.*, 1.0% of the points lie on the border of the map; clusters and bridges"),
        # An undecided classifier that total variation alone called fair.
        (
            (0.12, 0.67, 0.027),
            "poor: 12.0%.*33.0% of the points, 2.7% of the points lie on the border of the map; read",
        ),
    ],
    ids=["good", "few figures", "fair", "poor", "stars", "border", "undecided"],
)
def test_the_worst_figure_decides(figures: tuple[float, float | None, float | None], verdict: str) -> None:
    """Total variation, the nearest star and points on the border are graded, and the lowest grade is the verdict."""
    assert re.match(verdict, map_verdict(*figures))


def test_stars_and_border_of_points() -> None:
    """The nearest star of each point, stars without points of their class near, and points on the border."""
    means = np.array([[0.0, 0.0], [4.0, 0.0], [2.0, 9.0]])
    points = np.array([[0.5, 0.0], [3.0, 0.0], [5.0, -9.0]])

    assert nearest_stars(points, means).tolist() == [0, 1, 1]
    assert has_points_near(points, np.array([0, 1, 2]), means, None).tolist() == [True, True, False]
    assert has_points_near(points, np.array([7, 0, 8]), means, (7, 8, 9)).tolist() == [True, True, False]
    assert is_on_border(points, 9.0).tolist() == [False, False, True]


def test_nearest_stars_of_many_points_equal_those_of_all_pairs() -> None:
    """Points are compared in blocks, so that memory does not grow with points times classes."""
    rng = np.random.default_rng(0)
    points, means = rng.normal(size=(5_000, 2)), rng.normal(size=(700, 2))

    gaps = np.abs(points[:, None] - means) ** 2

    assert (nearest_stars(points, means) == gaps.sum(axis=2).argmin(axis=1)).all()
