"""Rows as they come in, checked and normalised; and whether one looks rounded."""

from __future__ import annotations

import math

from darksight_core.rows.resolution import HALF_FLOAT, MAX_DECIMALS, ROUNDING, SHARP_DECIMALS, SHARP_STEPS, STEPS
from darksight_core.rows.simplex import FLOOR, Floats
from darksight_core.runtime.compiled.numerics import compiled, log_and_inverse


@compiled
def prepare(probs: Floats, pi: Floats, log_pi: Floats) -> bool:
    """Write π and log π of a row; whether it is on the simplex. One that is not counts as uniform."""
    total, low = 0.0, 0
    for k in range(len(probs)):
        p = probs[k]
        # Not "<", so that NaN is caught too.
        low += 0 if p >= -1e-6 else 1
        total += p
        pi[k] = p if p > FLOOR else FLOOR
    valid = low == 0 and abs(total - 1.0) <= 1e-3
    total = 0.0
    for k in range(len(probs)):
        pi[k] = pi[k] if valid else 1.0
        total += pi[k]
    scale = 1.0 / total
    for k in range(len(probs)):
        pi[k] *= scale
        log_pi[k] = log_and_inverse(pi[k])[0]
    return valid


@compiled
def looks_rounded(probs: Floats) -> bool:
    """Whether a row may be rounded, by its smallest value, and by the smallest positive one if that is zero.

    `resolution.recognise` looks at all values of such rows; all others are full.
    """
    least, small = math.inf, math.inf
    for k in range(len(probs)):
        p = probs[k]
        least = p if p < least else least
        small = p if 0.0 < p < small else small
    if not 0.0 <= least <= 1.0:
        return False
    step = 1.0
    for decimals in range(1, MAX_DECIMALS + 1):
        step *= 10.0
        steps = small * step
        if least > 0.0 and steps >= STEPS:
            break
        is_sharp = decimals <= SHARP_DECIMALS or steps < SHARP_STEPS
        if is_sharp and abs(steps - math.floor(steps + 0.5)) <= ROUNDING * steps:
            return True
    if least >= HALF_FLOAT:
        return False
    mantissa = math.frexp(max(small, HALF_FLOAT))[0] * 2.0**11 if small >= HALF_FLOAT else small * 2.0**24
    return mantissa == math.floor(mantissa)
