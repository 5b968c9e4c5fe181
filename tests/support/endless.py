"""Functions that take any time or memory, for tests of child processes."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

__all__ = ["double", "fill_memory", "sleep"]


def double(values: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """A function that behaves."""
    return {"values": 2.0 * values}


def sleep() -> dict[str, NDArray[np.float64]]:
    """Takes too long."""
    time.sleep(60.0)
    return {}


def fill_memory() -> dict[str, NDArray[np.float64]]:
    """Takes 4 GB."""
    return {"values": np.ones(2**29)}
