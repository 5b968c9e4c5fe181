"""Special functions that numpy lacks: χ² tails, and the logarithm of the beta function."""

from __future__ import annotations

import math

import numpy as np

from darksight_core.rows.simplex import Floats

__all__ = ["chi2_tail", "ln_beta"]


def chi2_tail(x: float, dof: int) -> float:
    """P(χ²_dof > x)."""
    return _gamma_tails(0.5 * dof, 0.5 * x)[1]


def _gamma_tails(a: float, x: float) -> tuple[float, float]:
    """Regularised incomplete gamma functions P(a, x) and Q(a, x) = 1 - P, the smaller one to full precision."""
    if x <= 0.0:
        return 0.0, 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1.0:
        term = total = 1.0 / a
        while term > 1e-17 * total:
            a += 1.0
            term *= x / a
            total += term
        return front * total, 1.0 - front * total
    # Lentz's continued fraction converges fast where the series does not.
    b = x + 1.0 - a
    c, d = math.inf, 1.0 / b
    total, i, factor = d, 0, 0.0
    while abs(factor - 1.0) > 1e-15:
        i += 1
        b += 2.0
        numerator = i * (a - i)
        d = 1.0 / (numerator * d + b)
        c = b + numerator / c
        factor = c * d
        total *= factor
    return 1.0 - front * total, front * total


def ln_beta(a: Floats | float, b: Floats | float) -> Floats:
    """ln B(a, b), with the shape of the arguments."""
    return _ln_gamma(a) + _ln_gamma(b) - _ln_gamma(a + b)


def _ln_gamma(x: Floats | float) -> Floats:
    """ln Γ(x) for x > 0, any shape: Stirling's series at x + 8, then Γ(x) = Γ(x + 1) / x eight times."""
    x = np.asarray(x, dtype=np.float64)
    z = x + 8.0
    fall = x * (x + 1.0) * (x + 2.0) * (x + 3.0) * (x + 4.0) * (x + 5.0) * (x + 6.0) * (x + 7.0)
    w = 1.0 / (z * z)
    tail = (1 / 12 - w * (1 / 360 - w * (1 / 1260 - w * (1 / 1680 - w * (1 / 1188 - w * 691 / 360360))))) / z
    value: Floats = (z - 0.5) * np.log(z) - z + 0.5 * math.log(2.0 * math.pi) + tail - np.log(fall)
    return value
