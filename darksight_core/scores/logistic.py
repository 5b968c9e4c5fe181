"""Logistic regression with a prior, lower bounds and class offsets: the fit of `Learned`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.simplex import Floats

__all__ = ["LabelledRows", "choose_ridges", "expit", "fit_logistic", "folds"]

Ints: TypeAlias = NDArray[np.int64]

_FOLDS = 5
_CV_ROWS = 20_000

# Precision of the weights of standardised scores, and of the class offsets; infinite means that they are zero.
_RIDGES = tuple((weight, offset) for weight in (math.inf, 100.0, 10.0) for offset in (math.inf, 30.0, 3.0))
# Prior mean, prior precision and lower bound of a, b and c; b > 0 keeps the order.
_MEANS = (0.0, 1.0, 0.0)
_PRECISIONS = (0.25, 4.0, 4.0)
_LOWEST = (-math.inf, 0.01, 0.0)


class LabelledRows(NamedTuple):
    """Rows to learn from: columns 1, u, min(u, m), z (n, 3 + p), predicted classes and correctness (n,)."""

    design: Floats
    predicted: Ints
    correct: Floats
    classes: int

    def take(self, rows: Ints) -> LabelledRows:
        """The rows with these numbers."""
        return LabelledRows(self.design[rows], self.predicted[rows], self.correct[rows], self.classes)


def folds(correct: Floats, rng: np.random.Generator) -> Iterator[Ints]:
    """Folds of rows, each with the same share of errors."""
    order = rng.permutation(len(correct))
    order = order[np.argsort(correct[order], kind="stable")]
    for fold in range(_FOLDS):
        yield order[fold::_FOLDS]


def choose_ridges(labelled: LabelledRows, rng: np.random.Generator) -> tuple[float, float]:
    """The ridges with the highest cross-validated likelihood, or the strongest if the gain is within its noise.

    Also the strongest if a fold would have no error or only errors, because such labels do not order rows.
    """
    rows = rng.permutation(len(labelled.correct))[:_CV_ROWS]
    labelled = labelled.take(rows)
    right = int(labelled.correct.sum())
    if min(right, len(rows) - right) < _FOLDS:
        return _RIDGES[0]
    losses = np.empty((len(_RIDGES), len(rows)))
    for fold in folds(labelled.correct, rng):
        seen, unseen = labelled.take(np.delete(np.arange(len(rows)), fold)), labelled.take(fold)
        for losses_of, ridges in zip(losses, _RIDGES, strict=True):
            beta, offsets = fit_logistic(seen, ridges)
            losses_of[fold] = _losses(unseen.design @ beta + offsets[unseen.predicted], unseen.correct)
    best = int(losses.mean(axis=1).argmin())
    gains = losses[0] - losses[best]
    noise = float(gains.std(ddof=1)) / math.sqrt(len(rows))
    return _RIDGES[best] if float(gains.mean()) > noise else _RIDGES[0]


def fit_logistic(labelled: LabelledRows, ridges: tuple[float, float]) -> tuple[Floats, Floats]:
    """β = (a, b, c, w), (3 + p,), and o, (K,), with the highest posterior density.

    Projected Newton steps. Each eliminates the offsets, whose block of the Hessian is diagonal, so a thousand classes
    cost no more than ten.
    """
    weight_ridge, offset_ridge = ridges
    total = labelled.design.shape[1]
    columns = 3 if math.isinf(weight_ridge) else total
    design = labelled.design[:, :columns]
    predicted, correct, classes = labelled[1:]
    mean, lowest = (np.array([*first, *[0.0] * (columns - 3)]) for first in (_MEANS, _LOWEST))
    precision = np.array([*_PRECISIONS, *[weight_ridge] * (columns - 3)])
    has_offsets = math.isfinite(offset_ridge)

    def objective(beta: Floats, offsets: Floats) -> float:
        prior = (precision * (beta - mean) ** 2).sum() + (offset_ridge * offsets @ offsets if has_offsets else 0.0)
        return float(_losses(design @ beta + offsets[predicted], correct).sum() + 0.5 * prior)

    def sums(values: Floats) -> Floats:
        return np.asarray(np.bincount(predicted, values, classes), dtype=np.float64)

    beta, offsets = mean.copy(), np.zeros(classes)
    value = objective(beta, offsets)
    for _ in range(50):
        probability = expit(design @ beta + offsets[predicted])
        residual, curvature = probability - correct, probability * (1.0 - probability)
        weighted = design * curvature[:, None]
        slope: Floats = design.T @ residual + precision * (beta - mean)
        hessian: Floats = weighted.T @ design + np.diag(precision)
        offset_slope: Floats = np.zeros(classes)
        offset_hessian: Floats = np.ones(classes)
        cross: Floats = np.zeros((columns, classes))
        if has_offsets:
            offset_slope = sums(residual) + offset_ridge * offsets
            offset_hessian = sums(curvature) + offset_ridge
            cross = np.stack([sums(column) for column in weighted.T])
            slope -= cross @ (offset_slope / offset_hessian)
            hessian -= (cross / offset_hessian) @ cross.T
        free = (beta > lowest) | (slope < 0.0)
        step = np.zeros(columns)
        step[free] = -np.linalg.solve(hessian[np.ix_(free, free)], slope[free])
        offset_step = -(offset_slope + step @ cross) / offset_hessian
        length, before = 1.0, value
        while length > 1e-4:
            trial = np.maximum(beta + length * step, lowest), offsets + length * offset_step
            there = objective(*trial)
            if there < value:
                (beta, offsets), value = trial, there
                break
            length *= 0.5
        if before - value < 1e-8 * (1.0 + value):
            break
    return np.concatenate([beta, np.zeros(total - columns)]), offsets


def _losses(log_odds: Floats, correct: Floats) -> Floats:
    """Negative log-likelihood of each row, (n,)."""
    losses: Floats = np.logaddexp(0.0, log_odds) - correct * log_odds
    return losses


def expit(log_odds: Floats) -> Floats:
    """Probabilities from log-odds."""
    probability: Floats = 0.5 * (1.0 + np.tanh(0.5 * log_odds))
    return probability
