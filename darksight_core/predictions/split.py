"""Which rows fit the map, which calibrate it, and which test it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError

__all__ = ["MAX_CALIBRATION", "Split", "make_split"]

Ints: TypeAlias = NDArray[np.int64]

MAX_CALIBRATION = 9_999
"""Most calibration rows of a split: with them a rate of 1% is known to within 0.2 points; more rows would only make
bundles larger."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Numbers of the rows of each set, (m,) int64, sorted; the sets are disjoint."""

    fit: Ints
    calibrate: Ints
    test: Ints


def make_split(n: int, seed: int, shares: tuple[float, float, float] = (0.6, 0.3, 0.1)) -> Split:
    """Draw which of n rows fit, calibrate and test.

    From 199 calibration rows on, their number m is rounded down so that m + 1 is a multiple of 100: alpha = 1% and ten
    bins of p-values are then met exactly. There are at most `MAX_CALIBRATION`. The remaining rows go to the fit.

    Parameters
    ----------
    n
        Number of rows, at least 20.
    seed
        The same n, seed and shares give the same split.
    shares
        Shares of the rows that fit, calibrate and test, with sum one; the last two may be zero.

    >>> split = make_split(1000, seed=0)
    >>> len(split.fit), len(split.calibrate), len(split.test)
    (601, 299, 100)
    """
    if n < 20:
        raise ConfigError(f"there are {n} rows; a split needs at least 20", rows=n)
    if len(shares) != 3 or not all(0.0 <= share <= 1.0 for share in shares) or abs(sum(shares) - 1.0) > 1e-9:
        raise ConfigError(f"shares are {shares}; they must be three numbers from 0 to 1 with sum one")
    if shares[0] == 0.0:
        raise ConfigError(f"shares are {shares}; the first, for the fit, must not be zero")
    # Without the addition 0.29 * 100 would be 28 rows.
    calibrate, test = (math.floor(share * n + 1e-6) for share in shares[1:])
    calibrate = min(calibrate, MAX_CALIBRATION)
    if calibrate >= 199:
        calibrate -= (calibrate + 1) % 100
    fit = n - calibrate - test
    for name, rows, share in zip(("fit", "calibrate", "test"), (fit, calibrate, test), shares, strict=True):
        if share > 0.0 and rows == 0:
            raise ConfigError(f"a share of {share} of {n} rows gives no row to {name}; use 0 or a larger share")
    order = np.random.default_rng(seed).permutation(n)
    parts = np.split(order, [fit, fit + calibrate])
    return Split(*(np.sort(part).astype(np.int64) for part in parts))
