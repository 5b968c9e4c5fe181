"""Exact tails of the binomial and the beta distribution.

Both are given by the regularised incomplete beta function I_x(a, b) = P(Beta(a, b) <= x):

    P(Bin(n, p) <= k) = I_{1-p}(n - k, k + 1).

I is a factor times a continued fraction. The factor x^a (1-x)^b / B(a, b) loses digits if it is computed from
log-gammas: for n = 10^6 the three of them are near 10^7 and cancel, which leaves nine digits. Here it is Stirling's
main term, in which nothing cancels, times small corrections (Loader 2000); fourteen digits remain at any n. The smaller
of the two tails is computed, in logarithms, so a tail of 10^-5000 does not underflow.

scipy has these functions, but the service does not install it.

All functions broadcast their arguments and return an array of the common shape.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

__all__ = [
    "beta_quantile",
    "binomial_cdf",
    "lower_bound",
    "rows_without_error",
    "upper_bound",
]

# The fraction needs at most about 3 √(a + b) terms, so this is enough beyond n = 10^9.
_MAX_TERMS = 200_000
_NEWTON_STEPS = 60


def binomial_cdf(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Floats:
    """P(Bin(n, p) <= k).

    Parameters
    ----------
    k
        Whole numbers; below 0 the probability is 0, from n on it is 1.
    n
        Numbers of trials, whole, not negative.
    p
        From 0 to 1.

    >>> float(binomial_cdf(0, 2, 0.5).round(12))
    0.25
    """
    k, n, p = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in (k, n, p)))
    if not ((k == np.floor(k)) & (n == np.floor(n)) & (n >= 0)).all():
        raise ConfigError("k and n of a binomial distribution must be whole numbers, n not negative")
    inside = (k >= 0) & (k < n)
    x, a, b = _checked(p, np.where(inside, k + 1.0, 1.0), np.where(inside, n - k, 1.0))
    logs = np.where(inside, _log_tails(x, 1.0 - x, a, b)[1], np.where(k < 0, -np.inf, 0.0))
    return np.exp(logs)


def beta_quantile(q: ArrayLike, a: ArrayLike, b: ArrayLike) -> Floats:
    """The x with I_x(a, b) = q, to full precision relative to min(x, 1 - x).

    Newton's method on log I as a function of t = log(x / (1 - x)). The function is concave for all a and b, so after
    the first step the iterates approach the root from one side and need no bracket.

    Parameters
    ----------
    q
        From 0 to 1.
    a, b
        Positive.
    """
    q, a, b = _checked(q, a, b)
    # Above the median the root of the mirrored problem, I_{1-x}(b, a) = 1 - q, is the one with small tails.
    mirrored = q > np.exp(_log_tails(a / (a + b), b / (a + b), a, b)[0])
    goal, a, b = np.where(mirrored, 1.0 - q, q), np.where(mirrored, b, a), np.where(mirrored, a, b)
    at_end = goal <= 0.0
    log_goal = np.log(np.where(at_end, 0.5, goal))
    t = np.log(a) - np.log(b)
    for _ in range(_NEWTON_STEPS):
        x, y = _logistic(t), _logistic(-t)
        log_tail = _log_tails(x, y, a, b)[0]
        step = (log_tail - log_goal) * np.exp(log_tail - _log_factor(x, y, a, b))
        # The first step may be far too long for a < 1; beyond these bounds x leaves the range of floats.
        t = np.clip(t - step, -700.0, 700.0)
        # Convergence is quadratic: after a step this short the next would be below rounding.
        if (at_end | (np.abs(step) <= 1e-9 * np.maximum(np.abs(t), 1.0))).all():
            break
    near = np.where(at_end, 0.0, _logistic(t))
    return np.where(mirrored, np.where(at_end, 1.0, _logistic(-t)), near)


def upper_bound(errors: ArrayLike, trials: ArrayLike, delta: ArrayLike) -> Floats:
    """Clopper-Pearson bound: after `errors` in `trials` the error rate p is below it with confidence 1 - delta.

    U(k, m, δ) is the p with P(Bin(m, p) <= k) = δ; U(0, m, δ) = 1 - δ^(1/m) and U(m, m, δ) = 1.

    Parameters
    ----------
    errors, trials
        Whole numbers, 0 <= errors <= trials. Without trials the bound is 1.
    delta
        Probability that the bound is wrong, between 0 and 1.

    >>> round(float(upper_bound(1, 100, 0.05)), 6)
    0.04656
    """
    k, m, delta = _checked_counts(errors, trials, delta)
    has_successes = k < m
    return np.where(has_successes, beta_quantile(1.0 - delta, k + 1.0, np.where(has_successes, m - k, 1.0)), 1.0)


def lower_bound(errors: ArrayLike, trials: ArrayLike, delta: ArrayLike) -> Floats:
    """Clopper-Pearson bound: the error rate is above it with confidence 1 - delta; parameters as in `upper_bound`."""
    k, m, delta = _checked_counts(errors, trials, delta)
    has_errors = k > 0
    return np.where(has_errors, beta_quantile(delta, np.where(has_errors, k, 1.0), m - k + 1.0), 0.0)


def rows_without_error(rate: float, delta: float) -> int:
    """Fewest rows that, all without error, certify an error rate of at most `rate`: ⌈ln δ / ln(1 - rate)⌉.

    No method that is valid for every distribution needs fewer.

    >>> rows_without_error(0.01, 0.05)
    299
    """
    if not (0.0 < rate < 1.0 and 0.0 < delta < 1.0):
        raise ConfigError(f"rate is {rate} and delta {delta}; both must be between 0 and 1")
    # The subtraction keeps a quotient that is a whole number, up to rounding, from being rounded up.
    return max(1, math.ceil(math.log(delta) / math.log1p(-rate) - 1e-9))


def _log_tails(x: Floats, y: Floats, a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """log I_x(a, b) and log(1 - I_x(a, b)) for y = 1 - x, which a caller may know more precisely than 1 - x."""
    # On this side of the mean the fraction converges quickly.
    direct = x * (a + b + 2.0) < a + 1.0
    x, y, a, b = np.where(direct, x, y), np.where(direct, y, x), np.where(direct, a, b), np.where(direct, b, a)
    log_near = np.minimum(_log_factor(x, y, a, b) - np.log(a) + np.log(_fraction(x, a, b)), 0.0)
    with np.errstate(divide="ignore"):
        log_far = np.log1p(-np.exp(log_near))
    return np.where(direct, log_near, log_far), np.where(direct, log_far, log_near)


def _log_factor(x: Floats, y: Floats, a: Floats, b: Floats) -> Floats:
    """log(x^a y^b / B(a, b)), -inf at x = 0 or y = 0."""
    n = a + b
    corrections = _stirling(n) - _stirling(a) - _stirling(b)
    factor: Floats = 0.5 * (np.log(a) + np.log(b) - np.log(n) - math.log(2.0 * math.pi)) + corrections
    return factor - _deviance(a, n * x) - _deviance(b, n * y)


def _deviance(u: Floats, m: Floats) -> Floats:
    """u log(u / m) + m - u without cancellation, inf at m = 0."""
    ratio, excess = m / u, (m - u) / u
    with np.errstate(divide="ignore"):
        # log1p is accurate near m = u, the plain logarithm near m = 0.
        value: Floats = u * (excess - np.where(ratio < 0.5, np.log(ratio), np.log1p(np.maximum(excess, -0.6))))
    return value


def _stirling(z: Floats) -> Floats:
    """log Γ(z + 1) - (z + 1/2) log z + z - log(2π)/2 for z > 0, the error of Stirling's formula."""
    total = np.zeros_like(z)
    # The series is accurate from 16 on; each step goes from z to z + 1.
    for _ in range(16):
        small = z < 16.0
        if not small.any():
            break
        total = np.where(small, total + (z + 0.5) * np.log1p(1.0 / z) - 1.0, total)
        z = np.where(small, z + 1.0, z)
    w = 1.0 / (z * z)
    series: Floats = (1 / 12 - w * (1 / 360 - w * (1 / 1260 - w * (1 / 1680 - w / 1188)))) / z
    return total + series


def _fraction(x: Floats, a: Floats, b: Floats) -> Floats:
    """The continued fraction of I_x(a, b), by Lentz's method; converged entries leave the loop."""
    shape = x.shape
    x, a, b = x.ravel(), a.ravel(), b.ravel()
    value = np.empty_like(x)
    left: NDArray[np.intp] = np.arange(x.size)
    c = np.ones_like(x)
    d = 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    h = d
    for m in range(1, _MAX_TERMS):
        if not left.size:
            break
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        d = 1.0 / (1.0 + even * d)
        c = 1.0 + even / c
        h = h * d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        d = 1.0 / (1.0 + odd * d)
        c = 1.0 + odd / c
        change = d * c
        h = h * change
        done = np.abs(change - 1.0) < 1e-15
        if done.any():
            value[left[done]] = h[done]
            go = ~done
            left, x, a, b, c, d, h = left[go], x[go], a[go], b[go], c[go], d[go], h[go]
    value[left] = h
    return value.reshape(shape)


def _logistic(t: Floats) -> Floats:
    """1 / (1 + e^-t)."""
    return np.exp(-np.logaddexp(0.0, -t))


def _checked(x: ArrayLike, a: ArrayLike, b: ArrayLike) -> tuple[Floats, Floats, Floats]:
    x, a, b = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in (x, a, b)))
    if not ((x >= 0.0) & (x <= 1.0) & (a > 0.0) & (b > 0.0) & np.isfinite(a + b)).all():
        raise ConfigError("a beta distribution needs a probability from 0 to 1 and positive parameters")
    return x, a, b


def _checked_counts(errors: ArrayLike, trials: ArrayLike, delta: ArrayLike) -> tuple[Floats, Floats, Floats]:
    k, m, delta = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in (errors, trials, delta)))
    if not ((k == np.floor(k)) & (m == np.floor(m)) & (k >= 0) & (k <= m)).all():
        raise ConfigError("errors and trials must be whole numbers with 0 <= errors <= trials")
    if not ((delta > 0.0) & (delta < 1.0)).all():
        raise ConfigError("delta must be between 0 and 1")
    return k, m, delta
