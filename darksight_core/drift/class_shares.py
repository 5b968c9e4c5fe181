"""Whether predicted classes occur in the same shares as before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.drift.checks import finite_values
from darksight_core.drift.special import chi2_tail
from darksight_core.errors import ConfigError

__all__ = ["OccupancyTest", "occupancy_test"]


@dataclass(frozen=True, slots=True)
class OccupancyTest:
    """Result of a test of equal class shares.

    Parameters
    ----------
    statistic
        Pearson's χ² of the 2 × cells table.
    dof
        Its degrees of freedom; 0 if all rows fall into one cell.
    p_value
        P(χ² > statistic).
    residuals
        Standardised difference of the window's share for each class, about N(0, 1) without drift: which class changed,
        and in which direction, (K,).
    """

    statistic: float
    dof: int
    p_value: float
    residuals: tuple[float, ...]


def occupancy_test(reference: ArrayLike, window: ArrayLike) -> OccupancyTest:
    """Pearson's test that two rows of class counts (K,) have the same shares.

    Classes for which a sample expects fewer than 5 rows are pooled into one cell, because the χ² approximation fails
    for them.
    """
    table = np.stack([finite_values("reference", reference), finite_values("window", window)])
    rows = table.sum(axis=1, keepdims=True)
    if (table < 0.0).any() or (rows == 0.0).any():
        raise ConfigError("reference and window must be counts, and each must have rows")
    share = table.sum(axis=0) / rows.sum()
    spread = np.sqrt(rows[1] * (1.0 - rows[1] / rows.sum()) * share * (1.0 - share))
    gap = table[1] - rows[1] * share
    residuals = np.divide(gap, spread, out=np.zeros_like(gap), where=spread > 0.0)

    rare = share * rows.min() < 5.0
    cells = np.concatenate([table[:, ~rare], table[:, rare].sum(axis=1, keepdims=True)], axis=1)
    cells = cells[:, cells.sum(axis=0) > 0.0]
    expected = rows * cells.sum(axis=0) / rows.sum()
    statistic, dof = float(((cells - expected) ** 2 / expected).sum()), cells.shape[1] - 1
    p_value = chi2_tail(statistic, dof) if dof else 1.0
    return OccupancyTest(statistic, dof, p_value, tuple(residuals.tolist()))
