"""Scores of a single row of probabilities or logits. Higher means more confident or more usual, for all of them.

With p₁ >= p₂ >= ... the sorted probabilities of a row:

    msp       log p₁ / (1 - p₁)                 margin   -log(1 - (p₁ - p₂))
    entropy   Σ p log p                         doctor   -(1 - g) / g,  g = Σ p²
    gen       -Σ p^γ (1 - p)^γ over the M largest p

msp, entropy, margin and doctor find wrong predictions: they measure how far the row is from undecided. gen finds
unusual rows. With K = 2 classes all five rank rows in the same order.

A classifier gives thousands of rows whose p₁ rounds to one, and their order decides what a gate accepts first. So
1 - p₁ is never computed: it is the sum of the other probabilities, which keeps its digits, and msp and margin are
logarithms, which do not saturate. They order rows as p₁ and p₁ - p₂ do.

`max_logit` and `energy` need the logits: a softmax removes the common shift that they measure.
"""

from __future__ import annotations

import numpy as np

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats, logsumexp

__all__ = ["doctor", "energy", "gen", "margin", "max_logit", "msp", "negative_entropy"]


def msp(log_pi: Floats, other: Floats | None = None) -> Floats:
    """Maximum softmax probability as log-odds, log p₁ - log Σ_{k>1} p_k, (n,).

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K) with K >= 2.
    other
        Probability of what is no class, (n,), which the classes leave: it is a reason against the first class too.

    >>> msp(np.log([[0.8, 0.1, 0.1]]))
    array([1.38629436])
    """
    top, others = _split_top(log_pi)
    against = logsumexp(others)
    if other is not None:
        with np.errstate(divide="ignore"):
            against = np.logaddexp(against, np.log(other) - np.log1p(-np.minimum(other, 1.0 - 1e-12)))
    return top - against


def negative_entropy(log_pi: Floats) -> Floats:
    """Negative entropy Σ p log p in nats, (n,): 0 for a row that is all one class.

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K) with K >= 2.
    """
    top, others = _split_top(log_pi)
    rest = np.exp(others)
    total: Floats = np.exp(top) * _log_complement(rest.sum(axis=1), top) + (rest * others).sum(axis=1)
    return total


def margin(log_pi: Floats) -> Floats:
    """Lead of the first class over the second, -log(1 - (p₁ - p₂)) = -log(p₂ + Σ_{k>1} p_k), (n,).

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K) with K >= 2.
    """
    _, others = _split_top(log_pi)
    lead: Floats = -np.logaddexp(logsumexp(others), others.max(axis=1))
    return lead


def doctor(log_pi: Floats) -> Floats:
    """Doctor's D_α, -(1 - g) / g with g = Σ p², (n,): the negated odds that two draws from the row differ.

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K) with K >= 2.
    """
    top, others = _split_top(log_pi)
    first, rest = np.exp(top), np.exp(others)
    differ = first * rest.sum(axis=1) + (rest * (1.0 - rest)).sum(axis=1)
    odds: Floats = -differ / (first**2 + (rest**2).sum(axis=1))
    return odds


def gen(log_pi: Floats, gamma: float = 0.1, top_classes: int = 100) -> Floats:
    """Generalised entropy -Σ p^γ (1 - p)^γ over the M most probable classes, (n,).

    A small γ gives weight to improbable classes, which the other scores ignore: a usual row rules them out clearly.

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K) with K >= 2.
    gamma
        γ, above 0.
    top_classes
        M.
    """
    top, others = _split_top(log_pi)
    rest = logsumexp(others)
    if others.shape[1] >= top_classes:
        others = -np.partition(-others, top_classes - 2, axis=1)[:, : top_classes - 1]
    total: Floats = -np.exp(gamma * (others + np.log1p(-np.exp(others)))).sum(axis=1) - np.exp(gamma * (top + rest))
    return total


def max_logit(logits: Floats) -> Floats:
    """Largest logit, (n,), for logits (n, K)."""
    largest: Floats = np.asarray(logits, dtype=np.float64).max(axis=1)
    return largest


def energy(logits: Floats) -> Floats:
    """Negative free energy log Σ exp(logit), (n,), for logits (n, K)."""
    return logsumexp(np.asarray(logits, dtype=np.float64))


def _split_top(log_pi: Floats) -> tuple[Floats, Floats]:
    """log p₁, (n,), and the other log-probabilities in their order, (n, K - 1)."""
    log_pi = np.asarray(log_pi, dtype=np.float64)
    rows, classes = log_pi.shape
    if classes < 2:
        raise ConfigError("a row needs at least two probabilities")
    top = log_pi.argmax(axis=1)
    kept = np.ones((rows, classes), dtype=bool)
    kept[np.arange(rows), top] = False
    return log_pi[np.arange(rows), top], log_pi[kept].reshape(rows, classes - 1)


def _log_complement(rest: Floats, top: Floats) -> Floats:
    """log p₁ from the sum of the other probabilities where that is small, else as given."""
    return np.where(rest < 0.5, np.log1p(-np.minimum(rest, 0.5)), top)
