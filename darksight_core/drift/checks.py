"""Checks of arguments that several drift statistics share."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

__all__ = ["checked_level", "checked_share", "finite_values"]


def finite_values(name: str, values: ArrayLike, *, least: int = 1) -> Floats:
    """`values` as float64 (n,); ConfigError unless they are finite and n >= least."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < least or not np.isfinite(array).all():
        raise ConfigError(f"{name} must be at least {least} finite numbers (n,), not an array of shape {array.shape}")
    return array


def checked_share(name: str, value: float) -> float:
    """The value; ConfigError unless it is between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise ConfigError(f"{name} must be between 0 and 1, not {value}")
    return value


def checked_level(level: float) -> float:
    """The level; ConfigError unless it is between 0 and 1."""
    return checked_share("level", level)
