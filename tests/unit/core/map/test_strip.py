"""The line of two classes is drawn as a strip, on which regions are intervals."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.map.regions import Region
from darksight_core.map.strip import region_on_strip, spread_over_strip, strip_height, strip_to_line
from darksight_core.map.student import Student
from tests.support.bundles import make_embedder

LINE = Student(np.array([[-8.0, 0.0], [8.0, 0.0]]), np.ones(2), np.zeros(2))
POINTS = np.column_stack([np.linspace(-8.0, 8.0, 201), np.zeros(201)])


def test_points_of_a_line_are_spread_over_a_strip() -> None:
    """The first coordinate stays, heights fill the strip evenly, and a point has the same height in any company."""
    drawn = spread_over_strip(LINE, POINTS)

    height = strip_height(LINE)
    np.testing.assert_array_equal(strip_to_line(LINE, drawn), POINTS)
    assert np.diff(np.sort(drawn[:, 1]), prepend=-height, append=height).max() < 0.05 * height
    numbers = np.random.default_rng(0).integers(2**63, size=201, dtype=np.uint64)
    drawn = spread_over_strip(LINE, POINTS, numbers)
    np.testing.assert_array_equal(spread_over_strip(LINE, POINTS[50:], numbers[50:]), drawn[50:])
    assert np.abs(drawn[:, 1]).max() <= height
    assert drawn[:, 1].std() == pytest.approx(height / np.sqrt(3.0), rel=0.2)


def test_a_region_of_a_line_is_an_interval() -> None:
    """A polygon drawn anywhere in the strip holds the points of the line between its leftmost and rightmost corner."""
    drawn = Region("top", ((-2.0, 0.4), (1.0, 0.9), (3.0, 0.2), (0.0, 0.1)), 5)

    region = region_on_strip(LINE, drawn)

    assert (region.name, region.expires_ms) == ("top", 5)
    np.testing.assert_array_equal(region.inside(POINTS), (POINTS[:, 0] >= -2.0) & (POINTS[:, 0] < 3.0))
    assert region_on_strip(LINE, region) == region


def test_other_maps_are_drawn_as_they_are() -> None:
    """With three classes points and regions stay where they are."""
    student, region = make_embedder(3).student, Region("any", ((0, 0), (1, 0), (0, 1)))

    assert strip_height(student) == 0.0
    assert region_on_strip(student, region) is region
    np.testing.assert_array_equal(spread_over_strip(student, POINTS), POINTS)
