"""Outliers within each predicted class: conformal ranks among calibration rows of that class (Mondrian)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.conformal import cutoff
from darksight_core.rows.simplex import Floats

__all__ = ["class_limits"]


def class_limits(
    scores: ArrayLike, classes: ArrayLike, count: int, alpha: float, delta: float | None = None
) -> tuple[Floats, NDArray[np.bool_]]:
    """Score below which a row of each class is an outlier, and which classes are pooled, (K,) each.

    A row is below its limit exactly if its p-value within the class is at most that of `cutoff`. A class whose rows are
    all slightly unusual then raises no more alarms than another. A class with too few rows for an alarm at alpha has
    the limit of all rows, which guarantees nothing about that class alone, only that all pooled rows together raise
    false alarms for at most a share alpha of traffic.

    Parameters
    ----------
    scores, classes
        Outlier scores and predicted classes of the calibration rows, (n,) each.
    count
        Number of classes, K.
    alpha, delta
        As for `cutoff`.
    """
    known, labels = np.asarray(scores, dtype=np.float64), np.asarray(classes)
    if labels.shape != known.shape or labels.dtype.kind not in "iu" or not ((labels >= 0) & (labels < count)).all():
        raise ConfigError(f"classes must be whole numbers from 0 to {count - 1}, one for each score")
    pooled = cutoff(len(known), alpha, delta)
    if not pooled.feasible:
        raise ConfigError(f"alpha {alpha} needs at least {pooled.rows_needed} calibration rows")
    limits, is_pooled = np.full(count, np.sort(known)[pooled.rank - 1]), np.ones(count, dtype=np.bool_)
    for label in np.unique(labels).tolist():
        own = np.sort(known[labels == label])
        rule = cutoff(len(own), alpha, delta)
        if rule.feasible:
            limits[label], is_pooled[label] = own[rule.rank - 1], False
    return limits, is_pooled
