"""Special functions that numpy lacks: χ² tails."""

from __future__ import annotations

import math

__all__ = ["chi2_tail"]


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
