"""Builders that several test folders share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from darksight_core.map.student import Student
from darksight_core.rows.simplex import Floats, log_softmax

__all__ = ["draw_labelled_probs", "draw_map", "draw_scored_errors", "make_probs"]


def make_probs(n: int = 400, classes: int = 5, *, seed: int = 0, sharpness: float = 6.0) -> NDArray[np.float32]:
    """Softmax rows around `classes` corners with confusions between neighbours, float32 (n, K)."""
    rng = np.random.default_rng(seed)
    label = rng.integers(classes, size=n)
    logits = rng.normal(size=(n, classes))
    logits[np.arange(n), label] += sharpness * rng.beta(2.0, 1.0, size=n)
    logits[np.arange(n), (label + 1) % classes] += 0.5 * sharpness * rng.beta(1.0, 2.0, size=n)
    return np.exp(log_softmax(logits)).astype(np.float32)


def draw_scored_errors(rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Uniform scores u with P(error | u) = .3 (1 - u)²: the true selective risk above τ is .1 (1 - τ)²."""
    scores = rng.random(n)
    return scores, rng.random(n) < 0.3 * (1.0 - scores) ** 2


def draw_labelled_probs(
    rng: np.random.Generator, *, n: int = 2_000, spread: float = 2.0, sharpness: float = 1.0
) -> tuple[Floats, NDArray[np.int64]]:
    """Probabilities (n, 4) and labels drawn from them; sharpness above 1 then makes the probabilities overconfident."""
    log_pi = log_softmax(spread * rng.normal(size=(n, 4)))
    labels = (np.exp(log_pi).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return np.exp(log_softmax(sharpness * log_pi)), labels


def draw_map(
    *, n: int = 300, classes: int = 4, noise: float = 0.5, seed: int = 0
) -> tuple[Floats, Floats, Floats, Floats, NDArray[np.int64]]:
    """log_pi, log_q, points, centres, labels of a student and of a teacher that is the student with noisy logits."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    centres = 4.0 * rng.normal(size=(classes, 2))
    points = centres[labels] + rng.standard_t(3.0, size=(n, 2))
    log_q = Student(centres, np.ones(classes), np.zeros(classes)).log_posterior(points)
    log_pi = log_softmax(log_q + noise * rng.normal(size=log_q.shape))
    return log_pi, log_q, points, centres, labels
