"""Checks of the arrays that describe a map."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

__all__ = ["Indices", "check_centres", "check_labels", "check_rows"]

Indices: TypeAlias = NDArray[np.intp]


def check_rows(name: str, values: Floats, shape: tuple[int, ...] | None = None) -> Floats:
    """`values` as float64; ConfigError unless finite and of the given shape, or of shape (n >= 1, K >= 2)."""
    values = np.asarray(values, dtype=np.float64)
    if shape is None and (values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2):
        raise ConfigError(f"{name} must have shape (n, K) with n >= 1 and K >= 2, not {values.shape}")
    if shape is not None and values.shape != shape:
        raise ConfigError(f"{name} must have shape {shape}, not {values.shape}")
    if not np.isfinite(values).all():
        raise ConfigError(f"{name} must be finite; simplex.log_probs raises exact zeros")
    return values


def check_centres(centres: Floats, classes: int) -> Floats:
    """`centres` as float64 (K, 2); a row of NaN means no centre."""
    centres = np.asarray(centres, dtype=np.float64)
    if centres.shape != (classes, 2):
        raise ConfigError(f"centres must have shape ({classes}, 2), not {centres.shape}")
    return centres


def check_labels(labels: ArrayLike, n: int, classes: int) -> Indices:
    """`labels` as indices; ConfigError unless there is one integer in 0..K-1 for each row."""
    given = np.asarray(labels)
    if given.shape != (n,) or given.dtype.kind not in "iu":
        raise ConfigError(f"labels must be integers of shape ({n},), not {given.dtype} of shape {given.shape}")
    wrong = np.flatnonzero((given < 0) | (given >= classes))
    if wrong.size:
        row = int(wrong[0])
        raise ConfigError(f"label {given[row]} of row {row} is not a class index from 0 to {classes - 1}", row=row)
    return given.astype(np.intp)
