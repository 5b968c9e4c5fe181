"""Distances of two samples against scipy and naive sums."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from darksight_core.drift import (
    ks_critical,
    ks_distance,
    mmd_test,
)
from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

Counts = NDArray[np.int64]

CALIBRATION_ROWS, ALPHA, RANK = 2_000, 0.01, 20


def standard_error(share: float, trials: int) -> float:
    """Of a share measured in independent trials."""
    return math.sqrt(share * (1.0 - share) / trials)


@pytest.mark.parametrize(("n", "m"), [(50, 50), (30, 77), (1, 5)])
def test_ks_equals_scipy(n: int, m: int) -> None:
    """The KS distance agrees with scipy, also for unequal sizes and ties."""
    rng = np.random.default_rng(n)
    pairs = [
        (rng.normal(size=n), rng.normal(0.5, size=m)),
        (rng.integers(5, size=n).astype(np.float64), rng.integers(6, size=m).astype(np.float64)),
    ]
    for a, b in pairs:
        assert ks_distance(a, b) == pytest.approx(stats.ks_2samp(a.tolist(), b.tolist()).statistic, abs=1e-12)


def test_ks_false_alarms_are_below_the_level() -> None:
    """Without drift the KS distance passes its 5 % critical value in about 5 % of windows, never clearly more."""
    rng = np.random.default_rng(1)
    passed = [
        ks_distance(rng.normal(size=300), rng.normal(size=200)) > ks_critical(300, 200, level=0.05)
        for _ in range(1_500)
    ]

    # The critical value is asymptotic and on the safe side: 4 % here.
    assert 0.02 < np.mean(passed) < 0.05 + 3 * standard_error(0.05, 1_500)


def test_mmd_equals_the_naive_sum() -> None:
    """The distance is the formula, pair by pair."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(7, 2)), rng.normal(1.0, size=(5, 2))
    pooled = np.concatenate([x, y])
    gaps = [math.dist(a, b) for i, a in enumerate(pooled) for b in pooled[:i]]

    def similar(a: Floats, b: Floats) -> float:
        return math.exp(-(math.dist(a, b) ** 2) / (2 * np.median(np.square(gaps))))

    within_x = sum(similar(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j) / (7 * 6)
    within_y = sum(similar(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j) / (5 * 4)
    across = sum(similar(a, b) for a in x for b in y) / 35

    got = mmd_test(x, y, permutations=19)

    assert got.distance == pytest.approx(within_x + within_y - 2 * across, abs=1e-12)
    assert got.rows == (7, 5)


def test_mmd_p_values_are_uniform_without_drift() -> None:
    """The permutation p-value takes each of its 20 values equally often when both samples are alike."""
    rng = np.random.default_rng(3)
    p_values = [
        mmd_test(rng.normal(size=(20, 2)), rng.normal(size=(15, 2)), permutations=19, seed=seed).p_value
        for seed in range(2_000)
    ]

    counts = np.bincount(np.rint(np.array(p_values) * 20).astype(int), minlength=21)[1:]

    assert stats.chisquare(counts).pvalue > 0.001


def test_mmd_finds_a_moved_cloud_and_is_reproducible() -> None:
    """A cloud moved by one spread has the least p-value possible, and the same seed gives the same answer."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(3_000, 2)), rng.normal(1.0, size=(300, 2))

    first, second = (mmd_test(x, y, permutations=99, max_rows=200, seed=5) for _ in range(2))

    assert first == second
    assert first.p_value == 0.01
    assert first.rows == (200, 200)


def test_mmd_of_coinciding_points_finds_nothing() -> None:
    """When all points are one point every split is equal: distance 0, p-value 1."""
    got = mmd_test(np.zeros((5, 2)), np.zeros((6, 2)))

    assert (got.distance, got.p_value) == pytest.approx((0.0, 1.0), abs=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: ks_distance([], [1.0]), id="empty sample"),
        pytest.param(lambda: ks_critical(0, 5), id="no sample"),
        pytest.param(lambda: mmd_test(np.zeros((1, 2)), np.zeros((5, 2))), id="one point"),
        pytest.param(lambda: mmd_test(np.zeros((5, 3)), np.zeros((5, 2))), id="two dimensions"),
        pytest.param(lambda: mmd_test(np.full((5, 2), np.nan), np.zeros((5, 2))), id="nan point"),
        pytest.param(lambda: mmd_test(np.zeros((5, 2)), np.zeros((5, 2)), permutations=0), id="no permutations"),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object]) -> None:
    """Impossible options and counts raise ConfigError."""
    with pytest.raises(ConfigError):
        call()
