"""Shares of predicted classes against scipy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from darksight_core.drift import (
    occupancy_test,
)
from darksight_core.errors import ConfigError

Counts = NDArray[np.int64]

CALIBRATION_ROWS, ALPHA, RANK = 2_000, 0.01, 20


def test_occupancy_equals_scipy() -> None:
    """Statistic, degrees of freedom and p-value are those of Pearson's test on the 2 × K table."""
    reference, window = [500, 300, 200], [40, 50, 10]

    got = occupancy_test(reference, window)

    expected = stats.chi2_contingency([reference, window], correction=False)
    assert (got.statistic, got.dof, got.p_value) == pytest.approx(
        (expected.statistic, expected.dof, expected.pvalue), rel=1e-9
    )


def test_occupancy_names_the_class_and_pools_the_rare() -> None:
    """The class that grew has the largest residual; classes with few rows make one cell, absent ones none."""
    got = occupancy_test([500, 480, 3, 4, 0], [50, 90, 1, 0, 0])

    assert got.dof == 2
    assert int(np.argmax(got.residuals)) == 1
    assert got.residuals[4] == 0.0
    assert got.p_value < 0.01


def test_occupancy_of_one_class_says_nothing() -> None:
    """With all rows in one class there is nothing to compare."""
    got = occupancy_test([10, 0], [20, 0])

    assert (got.dof, got.p_value) == (0, 1.0)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: occupancy_test([1, 2], [0, 0]), id="empty window"),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object]) -> None:
    """Impossible options and counts raise ConfigError."""
    with pytest.raises(ConfigError):
        call()
