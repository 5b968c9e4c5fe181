"""Rows on the probability simplex, in logarithms.

A row π of class probabilities usually comes from a softmax, and its small entries carry information over many orders of
magnitude. So everything here works in log space and in float64. Exact zeros, which text and tree classifiers produce,
have no logarithm: `log_probs` raises them to `FLOOR`, which is too small to change any result of a softmax classifier.
No other code interprets zeros. A zero where a map has probability q then costs about 35 q of KL_sym; `kl_sym_of_zeros`
says how much of a KL_sym is due to zeros.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FLOOR",
    "Floats",
    "entropy",
    "kl",
    "kl_sym",
    "kl_sym_of_zeros",
    "largest_probs",
    "log_probs",
    "log_softmax",
    "logsumexp",
    "on_simplex",
    "temper",
    "total_variation",
]

Floats: TypeAlias = NDArray[np.float64]

FLOOR = 1e-30
"""Smallest probability; smaller ones are raised to it."""


def logsumexp(scores: Floats) -> Floats:
    """log Σ_k exp(scores_k) along the last axis, without overflow.

    Parameters
    ----------
    scores
        (n, K), finite.
    """
    top = scores.max(axis=-1, keepdims=True)
    total: Floats = np.log(np.exp(scores - top).sum(axis=-1)) + top[..., 0]
    return total


def log_softmax(logits: Floats) -> Floats:
    """log π for logits (n, K).

    >>> np.exp(log_softmax(np.array([[0.0, 0.0]])))
    array([[0.5, 0.5]])
    """
    logits = np.asarray(logits, dtype=np.float64)
    shifted: Floats = logits - logits.max(axis=-1, keepdims=True)
    return shifted - logsumexp(shifted)[..., None]


def log_probs(probs: NDArray[np.floating]) -> Floats:
    """log π for probabilities (n, K), with zeros raised to `FLOOR` and rows renormalised.

    >>> log_probs(np.array([[1.0, 0.0]]))
    array([[  0.        , -69.07755279]])
    """
    probs = np.maximum(np.asarray(probs, dtype=np.float64), FLOOR)
    logs: Floats = np.log(probs) - np.log(probs.sum(axis=-1, keepdims=True))
    return logs


def on_simplex(rows: Floats) -> NDArray[np.bool_]:
    """Which rows (n, K) can be scored, (n,): finite, no entry below -1e-6, and a sum within 1e-3 of one.

    Smaller errors are rounding and are scaled away by `log_probs`.

    >>> on_simplex(np.array([[0.5, 0.5], [0.6, 0.5], [np.nan, 1.0]]))
    array([ True, False, False])
    """
    with np.errstate(invalid="ignore", over="ignore"):
        valid: NDArray[np.bool_] = (np.abs(rows.sum(axis=1) - 1.0) <= 1e-3) & (rows >= -1e-6).all(axis=1)
    return valid


def largest_probs(probs: NDArray[np.floating]) -> Floats:
    """Largest probability of rows (n, K) whose sum may be slightly off one, (n,)."""
    raised = np.maximum(probs, FLOOR, dtype=np.float64)
    largest: Floats = raised.max(axis=1, initial=0.0) / raised.sum(axis=1)
    return largest


def temper(log_pi: Floats, temperature: float) -> Floats:
    """log softmax(log π / T): T > 1 flattens rows and spreads the points of a map.

    Valid for logits too, because a softmax is invariant to a shift of its row.
    """
    return log_pi if temperature == 1.0 else log_softmax(log_pi / temperature)


def entropy(log_pi: Floats) -> Floats:
    """H(π) = -Σ_k π_k log π_k in nats, (n,)."""
    total: Floats = -(np.exp(log_pi) * log_pi).sum(axis=-1)
    return total


def kl(log_p: Floats, log_q: Floats) -> Floats:
    """KL(p, q) = Σ_k p_k (log p_k - log q_k) for each row, (n,)."""
    total: Floats = (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)
    return total


def kl_sym(log_p: Floats, log_q: Floats) -> Floats:
    """KL_sym(p, q) = (KL(p, q) + KL(q, p)) / 2 = Σ_k (p_k - q_k)(log p_k - log q_k) / 2 for each row, (n,)."""
    total: Floats = 0.5 * ((np.exp(log_p) - np.exp(log_q)) * (log_p - log_q)).sum(axis=-1)
    return total


def kl_sym_of_zeros(log_p: Floats, log_q: Floats) -> Floats:
    """The part of KL_sym(p, q) that comes from entries of p at `FLOOR`, for each row, (n,)."""
    # The sum of a row, by which `log_probs` divides, may be off by a thousandth.
    parts = np.where(log_p <= np.log(FLOOR) + 2e-3, (np.exp(log_p) - np.exp(log_q)) * (log_p - log_q), 0.0)
    total: Floats = 0.5 * parts.sum(axis=-1)
    return total


def total_variation(log_p: Floats, log_q: Floats) -> Floats:
    """TV(p, q) = Σ_k |p_k - q_k| / 2 for each row, (n,): the probability that has to be moved to make one the other.

    Unlike a divergence it is bounded and does not depend on how zeros are read. TV <= √(KL_sym / 2).
    """
    total: Floats = 0.5 * np.abs(np.exp(log_p) - np.exp(log_q)).sum(axis=-1)
    return total
