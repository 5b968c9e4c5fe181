"""Names of resolutions, and which one a row has."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.rows.resolution import FULL, name_of, number_of, recognise, resolution_of, sum_limits


@pytest.fixture
def rows() -> np.ndarray:
    """Rows of a confident and of an undecided classifier, float32."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2_000, 10)) * np.repeat([[1.0], [8.0]], 1_000, axis=0)
    probs = np.exp(logits)
    return (probs / probs.sum(axis=1, keepdims=True)).astype(np.float32)


def test_names_and_numbers() -> None:
    """Every name has its number and back, and other texts are refused with what to write."""
    for name in ("full", "1e-1", "1e-6", "1e-10", "top1", "top20", "top1000"):
        assert name_of(number_of(name)) == name
    for name in ("", "1e-0", "1e-11", "1e6", "top0", "top1001", "top", "float16", "TOP5", "1e-4 "):
        with pytest.raises(ConfigError, match="it must be full, 1e-1 to"):
            number_of(name)


def test_full_rows_are_full(rows: np.ndarray) -> None:
    """Neither confident nor undecided rows look rounded, in float32 or in float64."""
    assert (recognise(rows) == FULL).all()
    assert (recognise(rows.astype(np.float64) / rows.sum(axis=1, dtype=np.float64, keepdims=True)) == FULL).all()
    # Probabilities below the smallest float32 are zero in a row that is not rounded.
    assert recognise(np.array([[1.0, 1e-20, 0.0]])).tolist() == [FULL]
    # A forest of 30 trees.
    assert recognise(np.array([[29 / 30, 1 / 30, 0.0]], dtype=np.float32)).tolist() == [FULL]


@pytest.mark.parametrize("decimals", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounded_rows_are_recognised(rows: np.ndarray, decimals: int, dtype: type) -> None:
    """Rows of so many decimals are recognised where that matters, and their resolution together exactly."""
    rounded = rows.astype(np.float64).round(decimals).astype(dtype)
    found = recognise(rounded)

    assert resolution_of(rounded) == -decimals
    # What is left as full are undecided rows whose smallest value has hundreds of steps.
    left = rounded[found == FULL]
    assert decimals == 8 or (left.min(axis=1) > 100 * 10.0**-decimals).all()
    assert (found[1_000:] != FULL).mean() > 0.95


def test_half_floats_count_as_six_decimals(rows: np.ndarray) -> None:
    """Rows of float16 are recognised where they have lost digits."""
    half = rows.astype(np.float16)
    found = recognise(half.astype(np.float32))
    small = half.min(axis=1) < 2.0**-14

    # A row that is 1, 0, ... has no digits to tell.
    assert set(np.unique(found[small])) <= {-6, -1}
    assert (found[~small] == FULL).all()


def test_bad_rows_have_no_resolution() -> None:
    """Values that are no probabilities are left to the check of rows."""
    bad = np.array([[np.nan, 0.5], [np.inf, 0.0], [-0.5, 1.5], [3.0, -2.0], [2.0, 0.0]])

    assert (recognise(bad) == FULL).all()
    assert recognise(np.empty((0, 3))).shape == (0,)


def test_sums_of_rounded_rows_may_be_further_off_one() -> None:
    """Half a step for each class, and not less than for full rows."""
    assert sum_limits(np.array([FULL, -6, -4, -2]), 100).tolist() == pytest.approx([1e-3, 1e-3, 5e-3, 0.05])
