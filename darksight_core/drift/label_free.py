"""Accuracy of a window without labels: three estimators that read only its probabilities.

    `fit_cbpe`   mean confidence in the predicted class, after calibration
    `fit_atc`    share of rows above the confidence that the same share of reference rows exceeded as were right
    `fit_doc`    reference accuracy minus the fall in mean confidence

None has a guarantee, and none can have one: they assume that confidence means the same as on the reference rows. If the
meaning of classes changes, or traffic moves to where the reference has no rows, they stay confident and wrong.
`backtest` therefore measures their error on this model's own past before a value is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.drift.isotonic import Isotonic, calibration_error, fit_isotonic
from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats, entropy, log_probs

__all__ = ["Atc", "AtcScore", "Cbpe", "Doc", "Estimator", "check_rows", "fit_atc", "fit_cbpe", "fit_doc", "is_correct"]

AtcScore: TypeAlias = Literal["msp", "entropy"]


class Estimator(Protocol):
    """Estimates the accuracy of a window from its probabilities."""

    @property
    def method(self) -> str:
        """Name of the method."""

    def predict(self, probs: Floats) -> float:
        """Accuracy of rows (n, K), between 0 and 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Cbpe:
    """Confidence-based estimate: the mean calibrated probability of the predicted class.

    Unbiased if the confidence is calibrated on the window. It cannot fall below the smallest confidence that a
    prediction can have, which is 1/K without calibration.

    Parameters
    ----------
    curve
        From confidence to probability of being right; None if the confidence is calibrated already.
    """

    curve: Isotonic | None

    @property
    def method(self) -> str:
        """Always "cbpe"."""
        return "cbpe"

    def predict(self, probs: Floats) -> float:
        """Accuracy of rows (n, K)."""
        confidence = check_rows(probs).max(axis=1)
        return float((confidence if self.curve is None else self.curve(confidence)).mean())


def fit_cbpe(probs: Floats, labels: ArrayLike, *, splits: int = 3, seed: int = 0) -> Cbpe:
    """Estimator from reference rows (n, K) with their labels (n,).

    On a small or well calibrated reference isotonic calibration adds more noise than it removes. The curve is therefore
    kept only if it lowers the calibration error on held-out rows, on average over `splits` folds.
    """
    probs = check_rows(probs)
    confidence, correct = probs.max(axis=1), is_correct(probs, labels)
    folds = np.random.default_rng(seed).permutation(len(probs)) % splits
    gain = 0.0
    for fold in range(splits if len(probs) >= 2 * splits else 0):
        held = folds == fold
        curve = fit_isotonic(confidence[~held], correct[~held])
        gain += calibration_error(confidence[held], correct[held])
        gain -= calibration_error(curve(confidence[held]), correct[held])
    return Cbpe(fit_isotonic(confidence, correct) if gain > 0.0 else None)


@dataclass(frozen=True, slots=True)
class Atc:
    """Average thresholded confidence: the share of rows at or above a threshold.

    Parameters
    ----------
    threshold
        Confidence t that is reached by a share of the reference rows equal to their accuracy.
    score
        "msp", the largest probability, or "entropy", minus the entropy.
    """

    threshold: float
    score: AtcScore

    @property
    def method(self) -> str:
        """Always "atc"."""
        return "atc"

    def predict(self, probs: Floats) -> float:
        """Accuracy of rows (n, K)."""
        return float((_atc_score(check_rows(probs), self.score) >= self.threshold).mean())


def fit_atc(probs: Floats, labels: ArrayLike, *, score: AtcScore = "msp") -> Atc:
    """Estimator from reference rows (n, K) with their labels (n,).

    t is the value for which #{s < t} / n is closest to the error rate; with tied scores no value may match it.
    """
    probs = check_rows(probs)
    values, size = np.unique(_atc_score(probs, score), return_counts=True)
    below = np.concatenate([[0.0], np.cumsum(size)]) / len(probs)
    nearest = int(np.argmin(np.abs(below - (1.0 - is_correct(probs, labels).mean()))))
    return Atc(float(np.append(values, np.inf)[nearest]), score)


def _atc_score(probs: Floats, score: AtcScore) -> Floats:
    if score not in ("msp", "entropy"):
        raise ConfigError(f"score must be 'msp' or 'entropy', not {score!r}")
    top: Floats = probs.max(axis=1)
    return top if score == "msp" else -entropy(log_probs(probs))


@dataclass(frozen=True, slots=True)
class Doc:
    """Difference of confidences: reference accuracy minus the fall in mean confidence, kept within [0, 1].

    Parameters
    ----------
    accuracy
        Accuracy on the reference rows.
    confidence
        Mean largest probability there.
    """

    accuracy: float
    confidence: float

    @property
    def method(self) -> str:
        """Always "doc"."""
        return "doc"

    def predict(self, probs: Floats) -> float:
        """Accuracy of rows (n, K)."""
        fall = self.confidence - float(check_rows(probs).max(axis=1).mean())
        return float(np.clip(self.accuracy - fall, 0.0, 1.0))


def fit_doc(probs: Floats, labels: ArrayLike) -> Doc:
    """Estimator from reference rows (n, K) with their labels (n,)."""
    probs = check_rows(probs)
    return Doc(float(is_correct(probs, labels).mean()), float(probs.max(axis=1).mean()))


def check_rows(probs: Floats) -> Floats:
    """Probabilities as float64 (n, K); ConfigError if they cannot be used."""
    probs = np.asarray(probs, dtype=np.float64)
    if probs.ndim != 2 or probs.shape[0] < 1 or probs.shape[1] < 2 or not np.isfinite(probs).all():
        raise ConfigError(f"probs must be finite and of shape (n, K) with n >= 1 and K >= 2, not {probs.shape}")
    return probs


def is_correct(probs: Floats, labels: ArrayLike) -> Floats:
    """1.0 where the predicted class is the label, else 0.0, (n,)."""
    given = np.asarray(labels)
    if given.shape != (len(probs),) or given.dtype.kind not in "iu":
        raise ConfigError(f"labels must be integers of shape ({len(probs)},), not {given.dtype} of shape {given.shape}")
    correct: Floats = np.equal(probs.argmax(axis=1), given).astype(np.float64)
    return correct
