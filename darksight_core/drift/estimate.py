"""The label-free estimate of accuracy that is shown, with its interval, or the reason why it is withheld.

    confidence   mean probability of being right, from the largest probability by isotonic calibration
    ATC          share of rows whose entropy is below the value that gave the accuracy on reference rows

The estimate is the calibrated confidence, which has the smallest error on subgroups: class mixes, easy and hard rows,
rows of some classes. The interval spans both, widened by the error of a back-test on labelled rows that they were not
fitted to, in windows with such subgroups. Noise makes rows flatter than it makes them wrong, so the upper end also
counts ATC of rows whose log-ratios are scaled up to their usual length. The interval holds the accuracy in 90% of
windows like those of the back-test; `./dev bench accuracy` measures it on real subgroups and corruptions.

No estimator is right under every shift. Where the window is beyond the back-test, with more outliers or with estimators
that differ by more than there, the value is withheld, and only an upper bound is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.drift.accuracy import Accuracy
from darksight_core.drift.isotonic import Isotonic, fit_isotonic
from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats, entropy, log_probs, temper

__all__ = ["COVERAGE", "AccuracyModel", "check_rows", "fit_accuracy_model", "is_correct"]

METHOD = "calibrated confidence"
ALPHA = 0.01
"""Rows with a p-value at most this are the outliers that the back-test counts."""

COVERAGE = 0.9
"""Share of windows like those of the back-test whose accuracy lies in the interval."""

_MOST_ROWS = 5_000
_WINDOW, _LEAST_WINDOW, _WINDOWS = 1_000, 100, 8
_LEAST_LABELLED, _LEAST_DISTINCT = 200, 50
# Share of outliers in the back-test windows that have more of them than usual.
_OUTLIERS = 0.05
# Two estimators on a window of 1,000 rows may differ by up to this much even where both are right.
_LEAST_GAP = 0.05
# Standard deviations to either side of a normal variable that hold it with probability COVERAGE.
_Z = 1.645
# Subgroups of the back-test have a fifth of the classes, or this share of rows in a random direction of log-ratios.
_GROUP = 0.15
# Tilt of the back-test windows with easy or hard rows: weights exp(t z), z the standardised log-odds, |t| at most this.
_TILT = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class AccuracyModel:
    """The fitted estimators with their back-test; made by `fit_accuracy_model`.

    Parameters
    ----------
    accuracy
        Accuracy on the reference rows.
    rows
        Number of reference rows.
    curve
        Probability of being right by largest probability.
    entropy_limit
        Limit of ATC.
    length
        Median length of the log-ratios of the reference rows.
    window
        Rows of a back-test window.
    errors
        Estimate minus accuracy on each back-test window.
    largest_gap, largest_outlier_share
        Largest difference of the estimators, and share of outliers, in a back-test window.
    """

    accuracy: float
    rows: int
    curve: Isotonic
    entropy_limit: float
    length: float
    window: int = 0
    errors: tuple[float, ...] = ()
    largest_gap: float = 0.0
    largest_outlier_share: float = 0.0

    @property
    def error(self) -> float:
        """Mean absolute error on the back-test windows."""
        return float(np.mean(np.abs(self.errors)))

    def radius(self, value: float, rows: int) -> float:
        """Absolute error that 90% of the back-test windows do not exceed, and the noise of a window of fewer rows."""
        rank = min(math.ceil((len(self.errors) + 1) * COVERAGE), len(self.errors))
        noise = value * (1.0 - value) * max(1.0 / rows - 1.0 / self.window, 0.0)
        return math.sqrt(float(np.sort(np.abs(self.errors))[rank - 1]) ** 2 + _Z**2 * noise)

    def parts(self, probs: Floats) -> tuple[float, float]:
        """Calibrated confidence and ATC of rows (n, K)."""
        return float(self.curve(probs.max(axis=1)).mean()), self._atc(log_probs(probs))

    def estimate(self, probs: Floats, *, outlier_share: float, withhold: str | None = None) -> Accuracy:
        """Accuracy of a window with its interval, or the reason why it is withheld with an upper bound.

        Parameters
        ----------
        probs
            Rows of the window, (n, K).
        outlier_share
            Share of rows with a p-value of at most 1%.
        withhold
            Why only the bound may be given; None if the value may be.
        """
        probs, rows = check_rows(probs), len(probs)
        if rows < _LEAST_WINDOW:
            reason = f"{rows} rows are too few; an estimate needs {_LEAST_WINDOW}"
            return Accuracy(METHOD, None, None, rows, error=self.error, withheld=reason)
        found = self.parts(probs)
        log_pi = log_probs(probs)
        scale = max(self.length / max(_length(log_pi), 1e-9), 1.0)
        highest = max(*found, self._atc(temper(log_pi, 1.0 / scale)))
        # A calibration with ties has no p-value that small, and a few outliers are no reason to withhold.
        outliers, gap = max(self.largest_outlier_share, 2.0 * ALPHA), max(self.largest_gap, _LEAST_GAP)
        if withhold is None and outlier_share > outliers:
            withhold = f"{outlier_share:.1%} of the rows are outliers, and the back-test covers {outliers:.1%} at most"
        if withhold is None and max(found) - min(found) > gap:
            both = f"confidence {found[0]:.3f}, ATC {found[1]:.3f}"
            withhold = f"the estimators disagree: {both}, at most {gap:.3f} apart in the back-test"
        if withhold is not None:
            bound = 0.5 * (1.0 + highest)
            return Accuracy(METHOD, None, None, rows, error=self.error, withheld=withhold, at_most=bound)
        radius = self.radius(found[0], rows)
        interval = max(min(found) - radius, 0.0), min(highest + radius, 1.0)
        return Accuracy(METHOD, found[0], interval, rows, error=self.error)

    def _atc(self, log_pi: Floats) -> float:
        return float((entropy(log_pi) <= self.entropy_limit).mean())

    def settings(self) -> dict[str, Any]:
        """The model as JSON values."""
        return {
            "accuracy": self.accuracy,
            "rows": self.rows,
            "curve": [self.curve.x.tolist(), self.curve.y.tolist()],
            "entropy_limit": self.entropy_limit,
            "length": self.length,
            "window": self.window,
            "errors": list(self.errors),
            "largest_gap": self.largest_gap,
            "largest_outlier_share": self.largest_outlier_share,
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> AccuracyModel:
        """Inverse of `settings`; ConfigError if something is missing or not a finite number."""
        try:
            values = dict(settings)
            rows, window = int(values.pop("rows")), int(values.pop("window"))
            errors, curve = tuple(map(float, values.pop("errors"))), np.array(values.pop("curve"), dtype=np.float64)
            numbers = {name: float(value) for name, value in values.items()}
            if not np.isfinite([*numbers.values(), *errors, *curve.ravel()]).all() or not errors or window < 1:
                raise ValueError("it needs finite numbers and back-test errors")
            if curve.ndim != 2 or len(curve) != 2 or not curve.size or (np.diff(curve) < 0.0).any():
                raise ValueError("the calibration curve must have two non-decreasing lists of one length")
            return cls(rows=rows, window=window, errors=errors, curve=Isotonic(*curve), **numbers)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"the accuracy model of the bundle cannot be read: {error}") from None


def fit_accuracy_model(
    probs: Floats, labels: ArrayLike, held: Floats, held_labels: ArrayLike, held_p_values: Floats, *, seed: int = 0
) -> AccuracyModel | None:
    """The estimators, fitted to reference rows and back-tested on others; None with fewer than 200 rows of either.

    Parameters
    ----------
    probs, labels
        Reference rows (n, K) with their labels (n,).
    held, held_labels, held_p_values
        Rows for the back-test (m, K) with labels and p-values of the outlier score (m,).
    seed
        Seed of the back-test windows.
    """
    if min(len(probs), len(held)) < _LEAST_LABELLED:
        return None
    rng = np.random.default_rng(seed)
    probs, correct = check_rows(probs), is_correct(check_rows(probs), labels)
    chosen = rng.permutation(len(probs))[:_MOST_ROWS]
    probs, correct = probs[chosen], correct[chosen]
    log_pi, accuracy = log_probs(probs), float(correct.mean())
    model = AccuracyModel(
        accuracy=accuracy,
        rows=len(probs),
        curve=fit_isotonic(np.minimum(probs.max(axis=1), 1.0), correct),
        entropy_limit=float(np.quantile(entropy(log_pi), accuracy)),
        length=_length(log_pi),
    )
    return _backtested(model, check_rows(held), np.asarray(held_labels), held_p_values, rng)


def _backtested(
    model: AccuracyModel, held: Floats, labels: NDArray[Any], p_values: Floats, rng: np.random.Generator
) -> AccuracyModel:
    correct, is_outlier = is_correct(held, labels), p_values <= ALPHA
    size = min(_WINDOW, len(held) // 2)
    errors, gaps, outliers = [], [0.0], [0.0]
    for weights in _subgroups(held, labels, is_outlier, rng):
        weights = weights / weights.sum()
        # A window that repeats a few rows, such as those of a rare class, says little about the estimators.
        if 1.0 / float((weights**2).sum()) < _LEAST_DISTINCT:
            continue
        window = rng.choice(len(held), size, p=weights)
        found = model.parts(held[window])
        errors.append(found[0] - float(correct[window].mean()))
        gaps.append(max(found) - min(found))
        outliers.append(float(is_outlier[window].mean()))
    return replace(model, window=size, errors=tuple(errors), largest_gap=max(gaps), largest_outlier_share=max(outliers))


def _subgroups(
    held: Floats, labels: NDArray[Any], is_outlier: NDArray[np.bool_], rng: np.random.Generator
) -> Iterator[Floats]:
    """Weights (n,) with which the rows of each back-test window are drawn."""
    present, of_class, count = np.unique(labels, return_inverse=True, return_counts=True)
    predicted, top = held.argmax(axis=1), held.max(axis=1)
    some = max(len(present) // 5, 1)
    odds = np.log(np.maximum(top, 1e-9) / np.maximum(1.0 - top, 1e-9))
    odds = (odds - odds.mean()) / max(float(odds.std()), 1e-9)
    ratios = _log_ratios(log_probs(held))
    ratios = (ratios - ratios.mean(axis=0)) / np.maximum(ratios.std(axis=0), 1e-9)
    usual = float(is_outlier.mean())
    for _ in range(_WINDOWS):
        yield np.ones(len(held))
        yield (rng.dirichlet(np.ones(len(present))) / count)[of_class]
        yield np.exp(rng.uniform(-_TILT, _TILT) * odds)
        yield np.isin(labels, rng.choice(present, some, replace=False)).astype(np.float64)
        yield np.isin(predicted, rng.choice(np.unique(predicted), some)).astype(np.float64)
        along = ratios @ rng.normal(size=ratios.shape[1])
        yield (along >= np.quantile(along, 1.0 - _GROUP)).astype(np.float64)
        if 0.0 < usual < 1.0:
            yield np.where(is_outlier, _OUTLIERS / (1.0 - _OUTLIERS) * (1.0 - usual) / usual, 1.0)


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


def _log_ratios(log_pi: Floats) -> Floats:
    ratios: Floats = log_pi - log_pi.mean(axis=1, keepdims=True)
    return ratios


def _length(log_pi: Floats) -> float:
    """Median length of the log-ratios of rows."""
    return float(np.median(np.linalg.norm(_log_ratios(log_pi), axis=1)))
