"""Tails of the binomial and beta distributions against scipy, closed forms and published values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import special, stats

from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import (
    beta_quantile,
    binomial_cdf,
    lower_bound,
    rows_without_error,
    upper_bound,
)


def test_binomial_tail_equals_scipy_up_to_a_million() -> None:
    """P(X <= k) agrees to 1e-9, relative and absolute, over all sizes and within five deviations."""
    rng = np.random.default_rng(0)
    n = np.round(10 ** rng.uniform(0, 6, 2000))
    p = np.where(rng.random(2000) < 0.5, rng.random(2000), 10 ** rng.uniform(-6, 0, 2000))
    k = np.clip(np.round(n * p + rng.uniform(-5, 5, 2000) * np.sqrt(n * p * (1 - p))), 0, n)
    expected = stats.binom.cdf(k, n, p)

    np.testing.assert_allclose(binomial_cdf(k, n, p), expected, rtol=1e-9, atol=1e-12)


def test_binomial_tail_adds_up_its_terms() -> None:
    """For a small n the tail is the sum of the probabilities, from k = -1 to k = n."""
    terms = [math.comb(12, j) * 0.3**j * 0.7 ** (12 - j) for j in range(13)]

    actual = binomial_cdf(np.arange(-1, 14), 12, 0.3)

    np.testing.assert_allclose(actual, [0.0, *np.cumsum(terms), 1.0], rtol=1e-13)


def test_a_far_tail_keeps_its_digits() -> None:
    """P(X <= 1) = (1 + n) / 2^n for a fair coin, to twelve digits, and 0 where no float is small enough."""
    assert binomial_cdf(1, 1000, 0.5) == pytest.approx(math.exp(math.log(1001) - 1000 * math.log(2.0)), rel=1e-12)
    assert binomial_cdf(1, 1_000_000, 0.5) == 0.0


def test_certain_events() -> None:
    """Impossible and certain trials need no special case, and no rows give no array."""
    assert np.array_equal(binomial_cdf([0, 4, 5, 0], [5, 5, 5, 0], [0.0, 1.0, 1.0, 0.5]), [1.0, 0.0, 1.0, 1.0])
    assert np.array_equal(beta_quantile([0.0, 1.0], 2.0, 3.0), [0.0, 1.0])
    assert binomial_cdf(np.array([]), 5, 0.5).shape == (0,)


def test_beta_quantile_equals_scipy() -> None:
    """The quantile agrees to 1e-9 of itself, far into both tails."""
    rng = np.random.default_rng(2)
    a, b = np.round(10 ** rng.uniform(0, 6, (2, 300)))
    q = np.concatenate([rng.random(100), 10 ** rng.uniform(-12, -1, 100), 1 - 10 ** rng.uniform(-9, -1, 100)])

    np.testing.assert_allclose(beta_quantile(q, a, b), special.betaincinv(a, b, q), rtol=1e-9)


@pytest.mark.parametrize(
    ("errors", "trials", "delta", "bound"),
    [
        (0, 100, 0.05, 0.029513),
        (0, 299, 0.05, 0.009969),
        (0, 300, 0.001, 0.022763),
        (1, 100, 0.05, 0.046560),
        (5, 1000, 0.001, 0.016361),
        (50, 5000, 0.001, 0.015149),
    ],
)
def test_clopper_pearson_table(errors: int, trials: int, delta: float, bound: float) -> None:
    """Upper bounds equal the tabulated ones."""
    assert float(upper_bound(errors, trials, delta)) == pytest.approx(bound, abs=6e-7)


def test_clopper_pearson_has_its_closed_forms() -> None:
    """No error gives 1 - δ^(1/m), only errors give 1, and the lower bound is the mirror image of the upper."""
    m = np.array([1, 10, 1000, 1_000_000])

    np.testing.assert_allclose(upper_bound(0, m, 0.05), -np.expm1(np.log(0.05) / m), rtol=1e-10)
    assert np.array_equal(upper_bound(m, m, 0.05), np.ones(4))
    assert np.array_equal(lower_bound(0, m, 0.05), np.zeros(4))
    assert float(upper_bound(0, 0, 0.05)) == 1.0
    np.testing.assert_allclose(lower_bound(7, 50, 0.1), 1.0 - upper_bound(43, 50, 0.1), rtol=1e-12)


def test_clopper_pearson_inverts_the_tail() -> None:
    """At the bound, so few errors have probability δ: for every number of errors."""
    errors = np.arange(200)

    bound = upper_bound(errors, 200, 0.01)

    np.testing.assert_allclose(binomial_cdf(errors, 200, bound), 0.01, rtol=1e-10)
    assert (np.diff(bound) > 0).all()


@pytest.mark.parametrize(
    ("rate", "delta", "rows"),
    [(0.05, 0.1, 45), (0.05, 0.05, 59), (0.02, 0.05, 149), (0.01, 0.05, 299), (0.01, 0.001, 688), (0.001, 0.05, 2995)],
)
def test_rows_without_error_table(rate: float, delta: float, rows: int) -> None:
    """The number of faultless rows that certifies a rate is tabulated, and one row fewer does not."""
    assert rows_without_error(rate, delta) == rows
    assert float(upper_bound(0, rows, delta)) <= rate < float(upper_bound(0, rows - 1, delta))


@pytest.mark.parametrize(
    "call",
    [
        lambda: binomial_cdf(0.5, 3, 0.5),
        lambda: binomial_cdf(1, -3, 0.5),
        lambda: binomial_cdf(1, 3, 1.5),
        lambda: beta_quantile(0.5, 0.0, 1.0),
        lambda: beta_quantile(np.nan, 1.0, 1.0),
        lambda: upper_bound(4, 3, 0.05),
        lambda: upper_bound(1, 3, 0.0),
        lambda: rows_without_error(0.0, 0.05),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object]) -> None:
    """Arguments outside their range are an error, not a NaN."""
    with pytest.raises(ConfigError):
        call()
