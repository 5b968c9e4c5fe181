"""The closed form of the paper's appendix A: a softmax student and squared error between logits.

The logits L (n, K) of the watched classifier are its log-probabilities over T, with the mean of each row taken off,
because a softmax does not see it, and then the mean of each column, which becomes the student's offset. The best
approximation L ≈ Y W + offset of rank 2 comes from L = V Σ Uᵀ: Y = Ṽ, whose two columns have length one, and
W = (Ũ Σ̃)ᵀ. Only the K x K matrix LᵀL is decomposed, so the cost is O(n K²) and memory does not grow with n.

The error is that of logits, not of probabilities: rows with tiny probabilities weigh most, and a row with exact zeros
is mostly the `FLOOR` that stands for them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from darksight_core.map.student import SoftmaxStudent, centred_logits
from darksight_core.rows.simplex import Floats

__all__ = ["fit_svd"]

_CHUNK_ROWS = 1 << 14
# Squared singular values below these shares, of the largest and of |L|², are rounding: K = 2 has rank one.
_RANK_TOLERANCE = 1e-12
_ROUNDING = 1e-24


def fit_svd(probs: NDArray[np.floating], temperature: float = 1.0) -> tuple[SoftmaxStudent, Floats, tuple[float, ...]]:
    """Fit the softmax student: it, the points (n, 2), and the mean squared error of the centred logits as history.

    Where the logits have less than two dimensions, the coordinates that are left over are 0. The sign of each axis is
    such that the largest weight on it is positive.

    Parameters
    ----------
    probs
        Class probabilities, (n, K).
    temperature
        T applied to the rows first.
    """
    n, classes = probs.shape
    # Sums are taken around the mean of a few rows, so that little cancels when the true mean is taken off.
    near = centred_logits(probs[:_CHUNK_ROWS], temperature).mean(axis=0)
    total, gram, size = np.zeros(classes), np.zeros((classes, classes)), 0.0
    for start in range(0, n, _CHUNK_ROWS):
        logits = centred_logits(probs[start : start + _CHUNK_ROWS], temperature)
        size += float((logits**2).sum())
        logits -= near
        total += logits.sum(axis=0)
        gram += logits.T @ logits
    squares, axes = np.linalg.eigh(gram - np.outer(total, total) / n)
    squares, axes = np.maximum(squares[::-1], 0.0), axes[:, ::-1]
    kept = squares[:2] > max(_RANK_TOLERANCE * squares[0], _ROUNDING * size)
    weights = np.where(kept, np.sqrt(squares[:2]), 0.0)[:, None] * _oriented(axes[:, :2].T)
    student = SoftmaxStudent(weights, near + total / n)
    error = float(squares[2:].sum()) / (n * classes)
    return student, student.place(probs, temperature), (error,)


def _oriented(axes: Floats) -> Floats:
    """Axes (2, K) with the first of their largest entries positive; entries that tie but for rounding are equal."""
    height = np.abs(axes)
    first = (height > (1.0 - 1e-6) * height.max(axis=1, keepdims=True)).argmax(axis=1)
    oriented: Floats = axes * np.sign(axes[np.arange(len(axes)), first])[:, None]
    return oriented
