"""Conformal p-values within each predicted class."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.conformal import cutoff, least_rows, p_values
from darksight_core.rows.simplex import Floats

__all__ = ["ClassCalibration"]


@dataclass(frozen=True, slots=True, eq=False)
class ClassCalibration:
    """Calibration scores by predicted class, for p-values that are valid within each class (Mondrian).

    A class whose rows are all slightly unusual then raises no more alarms than another. A class with too few rows for
    an alarm at alpha is ranked among all rows instead, and its p-values are marked as pooled: they guarantee nothing
    about that class alone, only that all pooled rows together raise false alarms for at most a share alpha of traffic.

    Parameters
    ----------
    scores
        Scores of all calibration rows, class by class, ascending within a class, (n,).
    starts
        Index of the first row of each class, and n, (K + 1,).
    min_rows
        Fewest rows with which a class is ranked by itself.
    """

    scores: Floats
    starts: NDArray[np.int64]
    min_rows: int
    _all_sorted: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_all_sorted", np.sort(self.scores))

    @classmethod
    def of(cls, scores: ArrayLike, classes: ArrayLike, n_classes: int, alpha: float) -> ClassCalibration:
        """Calibration from scores (n,) and predicted classes (n,) in 0..n_classes-1, for outliers at level alpha."""
        scores = np.asarray(scores, dtype=np.float64)
        classes = _checked_classes(classes, scores.shape, n_classes)
        if scores.ndim != 1 or np.isnan(scores).any() or not 0.0 < alpha < 1.0:
            raise ConfigError(f"scores must have shape (n,) without NaN, and alpha, {alpha}, be between 0 and 1")
        starts = np.concatenate([[0], np.cumsum(np.bincount(classes, minlength=n_classes))])
        return cls(scores[np.lexsort((scores, classes))], starts.astype(np.int64), least_rows(alpha))

    @property
    def is_pooled(self) -> NDArray[np.bool_]:
        """Which classes have too few rows, (K,)."""
        return np.diff(self.starts) < self.min_rows

    def limits(self, alpha: float, delta: float | None = None) -> tuple[Floats, NDArray[np.bool_]]:
        """Score below which a row of each class is an outlier, and which classes are pooled, (K,) each.

        A row is below its limit exactly if its p-value within the class is at most that of `cutoff`. A pooled class has
        the limit of all rows.

        Parameters
        ----------
        alpha, delta
            As for `cutoff`.
        """
        pooled = cutoff(len(self.scores), alpha, delta)
        if not pooled.feasible:
            raise ConfigError(f"alpha {alpha} needs at least {pooled.rows_needed} calibration rows")
        found = np.full(len(self.starts) - 1, self._all_sorted[pooled.rank - 1])
        is_pooled = np.ones(len(found), dtype=np.bool_)
        for label, (start, end) in enumerate(zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)):
            own = cutoff(end - start, alpha, delta) if end > start else None
            if own is not None and own.feasible:
                found[label], is_pooled[label] = self.scores[start + own.rank - 1], False
        return found, is_pooled

    def p_values(self, scores: Floats, classes: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
        """p-value of each row, and whether it is pooled, (m,) each.

        Parameters
        ----------
        scores
            (m,).
        classes
            Predicted classes in 0..K-1, (m,).
        """
        scores = np.asarray(scores, dtype=np.float64)
        classes = _checked_classes(classes, scores.shape, len(self.starts) - 1)
        pooled = self.is_pooled[classes]
        found = np.empty(len(scores))
        if pooled.any():
            found[pooled] = p_values(scores[pooled], self._all_sorted)
        for label in np.unique(classes[~pooled]):
            rows = classes == label
            found[rows] = p_values(scores[rows], self.scores[self.starts[label] : self.starts[label + 1]])
        return found, pooled


def _checked_classes(classes: ArrayLike, shape: tuple[int, ...], n_classes: int) -> NDArray[np.int64]:
    labels = np.asarray(classes)
    whole = labels.dtype.kind in "iu" or not labels.size
    if labels.shape != shape or not whole or (labels < 0).any() or (labels >= n_classes).any():
        raise ConfigError(f"classes must be whole numbers from 0 to {n_classes - 1}, one for each score")
    return labels.astype(np.int64)
