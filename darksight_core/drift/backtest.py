"""How wrong a label-free estimate of accuracy was on past windows, and whether it may be shown now.

An estimate is withheld in two cases: its error on past windows of this model is not known, or the outlier rate is above
three times the calibrated rate, so that the window does not resemble the past. The errors of past windows give the
interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.accuracy import Accuracy
from darksight_core.drift.checks import checked_share
from darksight_core.drift.label_free import Estimator, check_rows, is_correct
from darksight_core.errors import ConfigError
from darksight_core.simplex import Floats

__all__ = ["Backtest", "Window", "backtest", "estimate_accuracy"]

Window: TypeAlias = tuple[Floats, NDArray[np.integer]]


@dataclass(frozen=True, slots=True)
class Backtest:
    """Errors of an estimator on past windows.

    Parameters
    ----------
    method
        Name of the estimator.
    errors
        Estimate minus accuracy for each window.
    """

    method: str
    errors: tuple[float, ...]

    @property
    def mean_error(self) -> float:
        """Bias: above zero if the estimator is too optimistic."""
        return sum(self.errors) / len(self.errors)

    @property
    def mean_absolute_error(self) -> float:
        """Mean size of the errors."""
        return sum(abs(error) for error in self.errors) / len(self.errors)

    def radius(self, coverage: float) -> float | None:
        """The ⌈(m + 1) coverage⌉-th smallest absolute error; None if m windows are too few.

        The next error is within the radius with probability at least `coverage` if it is exchangeable with the past
        ones: 9 windows give 90%, 19 give 95%.
        """
        rank = math.ceil((len(self.errors) + 1) * checked_share("coverage", coverage) - 1e-9)
        return sorted(abs(error) for error in self.errors)[rank - 1] if rank <= len(self.errors) else None


def backtest(estimator: Estimator, windows: Sequence[Window]) -> Backtest:
    """Errors on windows of probabilities (n, K) and labels (n,) that the estimator was not fitted on."""
    if not windows:
        raise ConfigError("a back-test needs at least one labelled window")
    errors = [
        estimator.predict(probs) - float(is_correct(check_rows(probs), labels).mean()) for probs, labels in windows
    ]
    return Backtest(estimator.method, tuple(errors))


def estimate_accuracy(
    estimator: Estimator,
    probs: Floats,
    *,
    past: Backtest | None,
    outlier_rate: float,
    alpha: float,
    coverage: float = 0.9,
) -> Accuracy:
    """The estimate for a window, or the reason why it is withheld.

    Parameters
    ----------
    probs
        Rows of the window, (n, K).
    past
        Errors of the estimator on past windows; None if there are none.
    outlier_rate
        Share of outliers in the window.
    alpha
        Calibrated outlier rate.
    coverage
        Share of windows whose accuracy lies in the interval; see `Backtest.radius`.
    """
    probs = check_rows(probs)
    method, rows = estimator.method, len(probs)
    if past is None:
        reason = "not back-tested: no past window of this model has labels"
        return Accuracy(method, None, None, rows, withheld=reason)
    if past.method != method:
        raise ConfigError(f"the back-test is of {past.method}, not of {method}")
    if outlier_rate > 3.0 * alpha:
        reason = (
            f"outlier rate {outlier_rate:.4g} is above 3 alpha = {3.0 * alpha:.4g}: traffic differs from the reference"
        )
        return Accuracy(method, None, None, rows, error=past.mean_absolute_error, withheld=reason)
    value, radius = estimator.predict(probs), past.radius(coverage)
    interval = None if radius is None else (max(value - radius, 0.0), min(value + radius, 1.0))
    return Accuracy(method, value, interval, rows, error=past.mean_absolute_error)
