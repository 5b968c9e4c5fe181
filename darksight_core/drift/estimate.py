"""The label-free estimate of accuracy that is shown, with its error, or the reason why it is withheld.

    ATC     share of rows whose entropy is below the value that gave the accuracy on reference rows
    COTT    share of rows that optimal transport moves to a label cheaply; see `transport`. The class shares of the
            window are estimated by `mlls`, so that another class mix is not taken for errors.

The estimate is their mean. No estimator is right under every shift, so they are back-tested when the bundle is fitted,
on labelled rows that they were not fitted to: as these rows are, with other class shares, and with more outliers. The
estimate is withheld where the window is beyond that: more outliers than any back-test window, or two estimators that
differ by more than there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.drift.accuracy import Accuracy
from darksight_core.drift.class_mix import likely_shares
from darksight_core.drift.label_free import check_rows, is_correct
from darksight_core.drift.transport import transport_costs
from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats, entropy, log_probs, temper

__all__ = ["AccuracyModel", "fit_accuracy_model", "fit_temperature"]

METHOD = "atc+cott"
ALPHA = 0.01
"""Rows with a p-value at most this are the outliers that the back-test counts."""

_MOST_ROWS = 5_000
_WINDOW, _LEAST_WINDOW, _WINDOWS = 1_000, 100, 12
# Transport of n rows costs as much as n K, so from 200 classes on it is of fewer rows.
_MOST_CELLS = 1_000_000
_LEAST_LABELLED = 200
# Share of outliers in the back-test windows that have more of them than usual.
_OUTLIERS = 0.05
_COVERAGE = 0.9
# Two estimators on a window of 1,000 rows may differ by up to this much even where both are right.
_LEAST_GAP = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class AccuracyModel:
    """The fitted estimators with their back-test; made by `fit_accuracy_model`.

    Parameters
    ----------
    accuracy
        Accuracy on the reference rows.
    rows
        Number of reference rows.
    temperature
        By which probabilities are calibrated before they are used.
    entropy_limit, cost_limit
        Limits of ATC and COTT.
    shares
        Mean calibrated probabilities of the reference rows, (K,): unlike shares of labels, not zero for a rare class.
    errors
        Estimate minus accuracy on each back-test window.
    largest_gap, largest_outlier_share
        Largest difference of the estimators, and share of outliers, in a back-test window.
    """

    accuracy: float
    rows: int
    temperature: float
    entropy_limit: float
    cost_limit: float
    shares: Floats
    errors: tuple[float, ...] = ()
    largest_gap: float = 0.0
    largest_outlier_share: float = 0.0

    @property
    def error(self) -> float:
        """Mean absolute error on the back-test windows."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def radius(self) -> float:
        """Absolute error that 90% of the back-test windows do not exceed."""
        rank = min(math.ceil((len(self.errors) + 1) * _COVERAGE), len(self.errors))
        return float(np.sort(np.abs(self.errors))[rank - 1])

    def parts(self, probs: Floats) -> tuple[float, float]:
        """ATC and COTT of rows (n, K)."""
        rows = _calibrated(probs, self.temperature)
        by_entropy = float((entropy(log_probs(rows)) <= self.entropy_limit).mean())
        return by_entropy, float((_costs(rows, self.shares) <= self.cost_limit).mean())

    def estimate(self, probs: Floats, *, outlier_share: float) -> Accuracy:
        """Accuracy of a window with its range, or the reason why it is withheld.

        Parameters
        ----------
        probs
            Rows of the window, (n, K).
        outlier_share
            Share of rows with a p-value of at most 1%.
        """
        probs = check_rows(probs)
        if len(probs) < _LEAST_WINDOW:
            return self._withheld(probs, f"{len(probs)} rows are too few; an estimate needs {_LEAST_WINDOW}")
        # A calibration with ties has no p-value that small, and a few outliers are no reason to withhold.
        most = max(self.largest_outlier_share, 2.0 * ALPHA)
        if outlier_share > most:
            reason = f"{outlier_share:.1%} of the rows are outliers, and the back-test covers {most:.1%} at most"
            return self._withheld(probs, reason)
        atc, cott = self.parts(_thinned(probs))
        limit = max(self.largest_gap, _LEAST_GAP)
        if abs(atc - cott) > limit:
            reason = (
                f"the estimators disagree: ATC {atc:.3f}, COTT {cott:.3f}, at most {limit:.3f} apart in the back-test"
            )
            return self._withheld(probs, reason)
        low, high = max(min(atc, cott) - self.radius, 0.0), min(max(atc, cott) + self.radius, 1.0)
        return Accuracy(METHOD, 0.5 * (atc + cott), (low, high), len(probs), error=self.error)

    def _withheld(self, probs: Floats, reason: str) -> Accuracy:
        return Accuracy(METHOD, None, None, len(probs), error=self.error, withheld=reason)

    def settings(self) -> dict[str, Any]:
        """The model as JSON values."""
        return {
            "accuracy": self.accuracy,
            "rows": self.rows,
            "temperature": self.temperature,
            "entropy_limit": self.entropy_limit,
            "cost_limit": self.cost_limit,
            "shares": self.shares.tolist(),
            "errors": list(self.errors),
            "largest_gap": self.largest_gap,
            "largest_outlier_share": self.largest_outlier_share,
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> AccuracyModel:
        """Inverse of `settings`; ConfigError if something is missing or not a finite number."""
        try:
            values = dict(settings)
            rows, errors = int(values.pop("rows")), tuple(map(float, values.pop("errors")))
            shares = np.array(values.pop("shares"), dtype=np.float64)
            numbers = {name: float(value) for name, value in values.items()}
            is_finite = np.isfinite([*numbers.values(), *shares, *errors]).all()
            if not is_finite or not shares.sum() or not errors or numbers["temperature"] <= 0.0:
                raise ValueError("it needs finite numbers, class shares, back-test errors and a positive temperature")
            return cls(rows=rows, shares=shares, errors=errors, **numbers)
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
    truth = np.asarray(labels)
    chosen = rng.permutation(len(probs))[:_MOST_ROWS]
    probs, correct, truth = probs[chosen], correct[chosen], truth[chosen]
    some = slice(_most_rows(probs))
    temperature = fit_temperature(log_probs(probs[some]), truth[some])
    rows, accuracy = _calibrated(probs, temperature), float(correct.mean())
    shares = rows.mean(axis=0)
    model = AccuracyModel(
        accuracy=accuracy,
        rows=len(probs),
        temperature=temperature,
        entropy_limit=float(np.quantile(entropy(log_probs(rows)), accuracy)),
        cost_limit=float(np.quantile(_costs(rows[some], shares), correct[some].mean())),
        shares=shares,
    )
    return _backtested(model, check_rows(held), np.asarray(held_labels), held_p_values, rng)


def _backtested(
    model: AccuracyModel, held: Floats, labels: NDArray[Any], p_values: Floats, rng: np.random.Generator
) -> AccuracyModel:
    correct, is_outlier = is_correct(held, labels), p_values <= ALPHA
    _, of_class, rows = np.unique(labels, return_inverse=True, return_counts=True)
    kinds: list[Callable[[], Floats]] = [
        lambda: np.ones(len(held)),
        lambda: (rng.dirichlet(np.ones(len(rows))) / rows)[of_class],
    ]
    if is_outlier.any():
        usual = float(is_outlier.mean())
        odds = _OUTLIERS / (1.0 - _OUTLIERS) * (1.0 - usual) / usual
        kinds.append(lambda: np.where(is_outlier, odds, 1.0))
    errors, gaps, outliers = [], [0.0], [0.0]
    size = min(_WINDOW, _most_rows(held) // 2)
    for make in kinds * _WINDOWS:
        weights = make()
        window = rng.choice(len(held), size, p=weights / weights.sum())
        atc, cott = model.parts(held[window])
        errors.append(0.5 * (atc + cott) - float(correct[window].mean()))
        gaps.append(abs(atc - cott))
        outliers.append(float(is_outlier[window].mean()))
    return AccuracyModel(
        model.accuracy, model.rows, model.temperature, model.entropy_limit, model.cost_limit, model.shares,
        tuple(errors), max(gaps), max(outliers),
    )  # fmt: skip


def fit_temperature(log_pi: Floats, labels: NDArray[Any]) -> float:
    """The temperature between 1/5 and 5 of greatest likelihood, by golden section."""
    row = np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        return -float(temper(log_pi, math.exp(log_temperature))[row, labels].mean())

    low, high, ratio = -math.log(5.0), math.log(5.0), (math.sqrt(5.0) - 1.0) / 2.0
    while high - low > 1e-3:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if loss(left) <= loss(right) else (left, high)
    return math.exp(0.5 * (low + high))


def _most_rows(probs: Floats) -> int:
    """Rows whose transport is found: 5,000, or fewer with more than 200 classes."""
    return min(_MOST_ROWS, max(_MOST_CELLS // int(probs.shape[1]), 2 * _LEAST_WINDOW))


def _thinned(probs: Floats) -> Floats:
    """As many rows at most, spread evenly."""
    return probs[:: max(-(-len(probs) // _most_rows(probs)), 1)]


def _calibrated(probs: Floats, temperature: float) -> Floats:
    rows: Floats = np.exp(temper(log_probs(probs), temperature))
    return rows


def _costs(rows: Floats, shares: Floats) -> Floats:
    return transport_costs(rows, likely_shares(rows, shares))
