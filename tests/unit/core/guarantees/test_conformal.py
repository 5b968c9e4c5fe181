"""Conformal p-values and cutoffs against what they guarantee."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from darksight_core.errors import ConfigError
from darksight_core.guarantees.class_conditional import class_limits
from darksight_core.guarantees.conformal import (
    benjamini_hochberg,
    cutoff,
    p_values,
    smoothed_p_values,
    uniforms,
)
from darksight_core.rows.simplex import Floats

whole_scores = st.lists(st.integers(-3, 3), min_size=1, max_size=30)


def within(rates: Floats, expected: float, errors: float = 4.0) -> bool:
    """Whether the mean of independent rates is within so many standard errors of what is expected."""
    return bool(abs(np.mean(rates) - expected) <= errors * np.std(rates) / math.sqrt(len(rates)))


@given(scores=whole_scores, calibration=whole_scores, u=st.floats(0.01, 0.99))
def test_p_values_equal_the_count(scores: list[int], calibration: list[int], u: float) -> None:
    """Both kinds are the counts in their definitions, ties included."""
    new, known = np.array(scores, dtype=np.float64), np.array(calibration, dtype=np.float64)
    less, equal = (known < new[:, None]).sum(axis=1), (known == new[:, None]).sum(axis=1)

    plain = p_values(new, np.sort(known))
    smoothed = smoothed_p_values(new, np.sort(known), np.full(len(new), u))

    np.testing.assert_allclose(plain, (1 + less + equal) / (len(known) + 1), rtol=1e-15)
    np.testing.assert_allclose(smoothed, (less + u * (1 + equal)) / (len(known) + 1), rtol=1e-14)
    assert (smoothed <= plain).all()


def test_an_unscored_row_is_not_normal() -> None:
    """NaN in, NaN out: it sorts last and would otherwise get the best p-value."""
    known = np.arange(10.0)

    assert np.isnan(p_values(np.array([np.nan]), known)).all()
    assert np.isnan(smoothed_p_values(np.array([np.nan]), known, np.array([0.5]))).all()
    assert not cutoff(10, 0.5).flags(np.array([np.nan])).any()


@pytest.mark.parametrize(("n", "alpha"), [(199, 0.05), (999, 0.01), (150, 0.01)])
def test_false_alarm_rate_is_exact(n: int, alpha: float) -> None:
    """Over 200 calibrations and 10,000 points each the rate is ⌊α(n+1)⌋/(n+1), within 4 standard errors."""
    rng = np.random.default_rng(0)
    rule = cutoff(n, alpha)

    rates = [rule.flags(p_values(rng.normal(size=10_000), np.sort(rng.normal(size=n)))).mean() for _ in range(200)]

    assert rule.rank == math.floor(alpha * (n + 1))
    assert within(np.array(rates), rule.rank / (n + 1))


def test_false_alarm_rate_is_a_beta_draw() -> None:
    """Given the calibration set the rate is Beta(k, n + 1 - k): 90% of n = 999 at 1% lie in .0054 to .0157."""
    rng = np.random.default_rng(1)
    # With uniform scores the rate of one set is its k-th smallest score itself.
    rates = np.array([np.sort(rng.random(999))[9] for _ in range(2000)])

    np.testing.assert_allclose(np.quantile(rates, [0.05, 0.95]), [0.0054, 0.0157], atol=4e-4)
    assert stats.kstest(rates, stats.beta(10, 990).cdf).pvalue > 1e-3


def test_ties_make_alarms_rarer_only() -> None:
    """A score of 20 values keeps the rate at or below α, and alarms need no special case."""
    rng = np.random.default_rng(2)
    rule = cutoff(199, 0.07)
    rates = np.array(
        [
            rule.flags(p_values(np.floor(20 * rng.random(5000)), np.sort(np.floor(20 * rng.random(199))))).mean()
            for _ in range(200)
        ]
    )

    assert rates.mean() <= 0.07 + 4 * rates.std() / math.sqrt(200)
    assert 0.0 < rates.mean() < 0.06


@pytest.mark.parametrize(("n", "k"), [(298, 0), (299, 1), (500, 2), (1000, 5), (2000, 13), (5000, 39), (10_000, 84)])
def test_pac_ranks_equal_the_table(n: int, k: int) -> None:
    """At α = 1%, δ = 5% the ranks are those tabulated: the largest with P(Beta(k, n + 1 - k) > α) <= δ."""
    rule = cutoff(n, 0.01, delta=0.05)

    assert rule.rank == k
    assert rule.feasible == (k > 0)
    assert rule.rows_needed == 299
    assert k == 0 or stats.beta.sf(0.01, k, n + 1 - k) <= 0.05
    assert stats.beta.sf(0.01, k + 1, n - k) > 0.05


def test_pac_holds_for_the_one_calibration_set() -> None:
    """At most δ of 2,000 calibration sets (+ 3 se) have a true rate above α, against about half without delta."""
    rng = np.random.default_rng(3)
    sets = np.sort(rng.random((2000, 999)), axis=1)

    # With uniform scores the true rate of a set is its k-th smallest score.
    pac = (sets[:, cutoff(999, 0.02, delta=0.1).rank - 1] > 0.02).mean()
    mean = (sets[:, cutoff(999, 0.02).rank - 1] > 0.02).mean()

    assert pac <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 2000)
    assert pac > 0.02
    assert 0.4 < mean < 0.6


@pytest.mark.parametrize(("alpha", "rows"), [(0.05, 19), (0.01, 99), (0.001, 999), (0.03, 33)])
def test_alarms_need_rows(alpha: float, rows: int) -> None:
    """The smallest p-value is 1/(n+1), so there are no alarms below n = 1/α - 1, and the cutoff says so."""
    assert cutoff(rows, alpha).feasible
    assert not cutoff(rows - 1, alpha).feasible
    assert cutoff(rows - 1, alpha).rows_needed == rows
    assert not cutoff(rows - 1, alpha).flags(p_values(np.array([-1e9]), np.zeros(rows - 1))).any()


def test_smoothed_p_values_are_uniform() -> None:
    """Even for a score of three values, over many calibrations, with U from ids: Kolmogorov-Smirnov finds nothing."""
    rng = np.random.default_rng(4)
    smoothed, plain = [], []
    for number in range(4000):
        # One new row for each calibration set, because rows of one set share its luck.
        known, new = np.sort(np.floor(3 * rng.random(20))), np.floor(3 * rng.random(1))
        smoothed.append(smoothed_p_values(new, known, uniforms([f"row-{number}"]))[0])
        plain.append(p_values(new, known)[0])

    assert stats.kstest(smoothed, "uniform").pvalue > 1e-3
    assert stats.kstest(plain, "uniform").pvalue < 1e-9


def test_uniforms_follow_the_id_alone() -> None:
    """The same id gives the same number, text or bytes, strictly inside (0, 1), and many ids give a uniform sample."""
    sample = uniforms(str(number) for number in range(20_000))

    assert uniforms(["a1"])[0] == uniforms([b"a1"])[0]
    assert uniforms(["x", "y"])[1] == uniforms(["y"])[0]
    assert uniforms([]).shape == (0,)
    assert ((sample > 0.0) & (sample < 1.0)).all()
    assert stats.kstest(sample, "uniform").pvalue > 1e-3


def test_limits_of_classes_hold_within_each_class() -> None:
    """Each class has its own rate of α, where one limit gives one class nearly all alarms."""
    rng = np.random.default_rng(5)
    own: dict[int, list[float]] = {0: [], 1: []}
    pooled: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(200):
        classes, new_classes = np.repeat([0, 1], [299, 99]), np.repeat([0, 1], 2000)
        scores, new = rng.normal(size=398) - 2.0 * classes, rng.normal(size=4000) - 2.0 * new_classes
        limits, marked = class_limits(scores, classes, 2, alpha=0.05)
        everyone = p_values(new, np.sort(scores))
        assert not marked.any()
        for label in (0, 1):
            own[label].append((new[new_classes == label] < limits[label]).mean())
            pooled[label].append((everyone[new_classes == label] <= 0.05).mean())

    assert within(np.array(own[0]), 0.05)
    assert within(np.array(own[1]), 0.05)
    assert np.mean(pooled[0]) < 0.01
    assert np.mean(pooled[1]) > 0.15


def test_a_small_class_has_the_limit_of_all_rows() -> None:
    """With 98 rows a class has no alarm at 1% of its own, with 99 it has; an absent class is pooled too."""
    rng = np.random.default_rng(6)
    classes = np.repeat([0, 1, 3], [98, 99, 500])
    scores = rng.normal(size=697)

    limits, pooled = class_limits(scores, classes, 4, alpha=0.01)

    assert pooled.tolist() == [True, False, True, False]
    assert limits[0] == limits[2] == np.sort(scores)[cutoff(697, 0.01).rank - 1]
    assert limits[1] == scores[classes == 1].min()
    assert limits[3] == np.sort(scores[classes == 3])[cutoff(500, 0.01).rank - 1]


def test_benjamini_hochberg_equals_its_definition() -> None:
    """The largest i with p_(i) <= level i / m counts, also where a smaller i fails, and NaN takes no part."""
    p = np.array([0.04, 0.001, np.nan, 0.029, 0.9, 0.03])

    assert benjamini_hochberg(p, 0.05).tolist() == [True, True, False, True, False, True]
    assert not benjamini_hochberg(np.array([0.5, 0.9]), 0.05).any()
    assert benjamini_hochberg(np.array([]), 0.05).shape == (0,)
    assert benjamini_hochberg(np.full(10, 0.05), 0.05).all()


def test_reports_of_a_window_are_mostly_true() -> None:
    """In windows of 90 normal and 10 foreign rows the mean share of false reports is at most the level (+ 3 se), and
    most foreign rows are found.
    """
    rng = np.random.default_rng(7)
    false, found = [], []
    for _ in range(500):
        known = np.sort(rng.normal(size=999))
        window = np.append(rng.normal(size=90), rng.normal(-5.0, 1.0, 10))
        reported = benjamini_hochberg(p_values(window, known), 0.2)
        false.append(reported[:90].sum() / max(reported.sum(), 1))
        found.append(reported[90:].mean())

    assert np.mean(false) <= 0.2 * 0.9 + 3 * np.std(false) / math.sqrt(500)
    assert np.mean(found) > 0.8


@pytest.mark.parametrize(
    "call",
    [
        lambda: cutoff(-1, 0.1),
        lambda: cutoff(10, 0.0),
        lambda: cutoff(10, 0.1, delta=1.0),
        lambda: class_limits([0.1] * 9, [1] * 9, 1, 0.1),
        lambda: class_limits([0.1] * 9, [0.0] * 9, 1, 0.1),
        lambda: class_limits([0.1] * 9, [0], 1, 0.1),
        lambda: class_limits([0.1] * 8, [0] * 8, 1, 0.1),
        lambda: benjamini_hochberg(np.array([0.1]), 0.0),
    ],
)
def test_nonsense_is_refused(call: Callable[[], object]) -> None:
    """Arguments that cannot work are named in an error."""
    with pytest.raises(ConfigError):
        call()
