"""True class shares of a window, from predictions alone, if only the shares have changed.

While P(prediction | true class) is as before (label shift), the shares q of the true classes follow:

    `bbse`   q solves C q = μ: C the confusion shares P(predicted i | true j) on labelled reference rows, μ the shares
             of predicted classes in the window (Lipton et al. 2018). Needs labels, and no calibrated probabilities.
    `mlls`   q maximises Σ_i log Σ_k q_k π_ik / s_k, with s the reference shares (Saerens et al. 2002; EM). Needs
             calibrated probabilities, and no labels.

The intervals hold for all classes together, at a stated level.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.drift.checks import checked_level
from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

__all__ = ["ClassShares", "bbse", "confusion", "likely_shares", "mlls"]

# Labelled rows that a class needs for its column of the confusion shares.
_LEAST_LABELLED = 5
_EM_STEPS = 200


@dataclass(frozen=True, slots=True, eq=False)
class ClassShares:
    """Class shares of a window.

    Parameters
    ----------
    method
        "bbse" or "mlls".
    estimate, low, high
        Share of each class with its interval, (K,).
    reference
        Shares of the reference rows, (K,).
    is_changed
        Which classes have another share than in the reference, at the level of the intervals, (K,).
    """

    method: str
    estimate: Floats
    low: Floats
    high: Floats
    reference: Floats
    is_changed: NDArray[np.bool_]


def confusion(predicted: ArrayLike, labels: ArrayLike, classes: int) -> Floats | None:
    """Counts (K, K) of labelled reference rows by predicted class and true class; None if a class has fewer than 5.

    Parameters
    ----------
    predicted, labels
        Classes of each row, (n,); a label of -1 is not known.
    classes
        K.
    """
    found, truth = np.asarray(predicted), np.asarray(labels)
    known = truth >= 0
    counts = np.zeros((classes, classes))
    np.add.at(counts, (found[known], truth[known]), 1.0)
    return counts if counts.sum(axis=0).min() >= _LEAST_LABELLED else None


def bbse(counts: Floats, predicted: ArrayLike, *, level: float = 0.05) -> ClassShares:
    """Class shares by the confusion of reference rows; the variance is that of both samples, by the delta method.

    Classes that predictions do not tell apart have the interval [0, 1].

    Parameters
    ----------
    counts
        Of `confusion`, (K, K).
    predicted
        Rows of the window by predicted class, (K,).
    level
        Probability that any interval misses its share.
    """
    labelled, window = counts.sum(axis=0), np.asarray(predicted, dtype=np.float64)
    rows = window.sum()
    if not rows:
        raise ConfigError("a window without rows has no class shares")
    columns, shares = counts / labelled, window / rows
    reference = labelled / labelled.sum()
    inverse = np.linalg.pinv(columns, rcond=1e-9)
    # Along directions that predictions do not show, the shares stay those of the reference.
    estimate = reference + inverse @ (shares - columns @ reference)
    spread = (np.diag(shares) - np.outer(shares, shares)) / rows
    for k, weight in enumerate(np.square(estimate) / labelled):
        spread += weight * (np.diag(columns[:, k]) - np.outer(columns[:, k], columns[:, k]))
    variance = np.einsum("ij,jk,ik->i", inverse, spread, inverse)
    variance[np.diag(inverse @ columns) < 1.0 - 1e-6] = np.inf
    return _shares("bbse", estimate, variance, reference, labelled.sum(), level)


def mlls(probs: Floats, reference: Floats, reference_rows: int, *, level: float = 0.05) -> ClassShares:
    """Class shares of greatest likelihood; the variance is that of the window, by its Fisher information.

    Parameters
    ----------
    probs
        Rows of the window, (n, K).
    reference
        Class shares s of the reference rows, (K,).
    reference_rows
        Number of those rows.
    level
        Probability that any interval misses its share.
    """
    base = np.asarray(reference, dtype=np.float64)
    shares, ratios = likely_shares(probs, base), _ratios(probs, base)
    slopes = ratios / (ratios @ shares)[:, None]
    # Shares sum to one, so only directions with sum zero have information.
    free = np.eye(len(shares)) - 1.0 / len(shares)
    variance = np.diag(np.linalg.pinv(free @ (slopes.T @ slopes) @ free, rcond=1e-9, hermitian=True))
    return _shares("mlls", shares, variance, base / base.sum(), reference_rows, level)


def likely_shares(probs: Floats, reference: Floats) -> Floats:
    """The estimate of `mlls` alone, (K,): zero for a class without reference rows."""
    ratios = _ratios(probs, reference)
    shares: Floats = reference / reference.sum()
    if not len(ratios):
        return shares
    for _ in range(_EM_STEPS):
        new = shares * ((1.0 / (ratios @ shares)) @ ratios) / len(ratios)
        shares, step = new, float(np.abs(new - shares).max())
        if step < 1e-7:
            break
    return shares


def _ratios(probs: Floats, reference: Floats) -> Floats:
    """π_ik / s_k, zero where s_k is; rows with nothing else say nothing about the shares and are left out."""
    ratios: Floats = np.divide(probs, reference, out=np.zeros(probs.shape), where=reference > 0.0)
    return ratios[ratios.any(axis=1)]


def _shares(
    method: str, estimate: Floats, variance: Floats, reference: Floats, reference_rows: float, level: float
) -> ClassShares:
    z = NormalDist().inv_cdf(1.0 - checked_level(level) / (2.0 * len(estimate)))
    deviation = np.sqrt(np.maximum(variance, 0.0))
    noise = np.sqrt(variance.clip(0.0) + reference * (1.0 - reference) / reference_rows)
    found = np.clip(estimate, 0.0, None)
    return ClassShares(
        method,
        found / found.sum(),
        np.clip(estimate - z * deviation, 0.0, 1.0),
        np.clip(estimate + z * deviation, 0.0, 1.0),
        reference,
        np.abs(estimate - reference) > z * noise,
    )
