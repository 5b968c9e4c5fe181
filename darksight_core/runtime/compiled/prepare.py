"""Rows as they come in, checked and normalised."""

from __future__ import annotations

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
