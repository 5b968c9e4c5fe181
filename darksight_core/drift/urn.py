"""Cells of a score with known probabilities: the null hypothesis of the drift evidence.

Rank n calibration values and cut the line at some of them. A cell that lies between the i-th and the j-th smallest has
j - i of the n + 1 gaps. While rows are exchangeable with the calibration rows, the next row falls into cell b with
probability

    f_b = (a_b + C_b) / (n + 1 + t)

with a_b its gaps, C_b the rows it has received and t all rows so far: each row splits the gap that it falls into (a
Polya urn). So an unlucky calibration set is never mistaken for drift, however long the stream.

For continuous scores this is exact. Ties are broken by a uniform number of each row.

Classes have no such null: cells that are cut by the calibration rows of each class would depend on how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats

__all__ = ["Ints", "ScoreCells", "audit_numbers", "log_odds", "row_uniforms"]

Ints: TypeAlias = NDArray[np.int64]

# Cell j ends at the share ((j + 1) / 40)² of the gaps, so the lowest has a 1,600th of them.
_CELLS = 40
_SHIFTS = np.array([1, 22, 43], dtype=np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class ScoreCells:
    """Cells of a score, finer where it is low.

    Parameters
    ----------
    calibration
        The scores that cut the cells.

    `edges` is the number of gaps below the upper end of each cell, ascending, (B,), and `gaps` the gaps in each.
    """

    calibration: Calibration
    edges: Ints = field(init=False)
    gaps: Ints = field(init=False)
    _raised: Floats = field(init=False)

    def __post_init__(self) -> None:
        if not len(self.calibration):
            raise ConfigError("drift evidence needs calibration rows, and the bundle has none")
        total = len(self.calibration) + 1
        shares = (np.arange(1, _CELLS + 1) / _CELLS) ** 2
        edges = np.unique(np.maximum(np.round(shares * total).astype(np.int64), 1))
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "gaps", np.diff(edges, prepend=0))
        # `ranked` are the scores lowered by the distance within which scores tie.
        object.__setattr__(self, "_raised", 2.0 * self.calibration.scores - self.calibration.ranked)

    def cells(self, scores: ArrayLike, uniforms: Floats) -> Ints:
        """Cell of each score (m,); the uniform numbers (m,) break ties."""
        return np.searchsorted(self.edges, self.gaps_below(scores, uniforms), side="right")

    def gaps_below(self, scores: ArrayLike, uniforms: Floats) -> Ints:
        """Number of gaps below that of each score (m,)."""
        values = np.asarray(scores, dtype=np.float64)
        below = np.searchsorted(self._raised, values, side="left")
        ties = np.searchsorted(self.calibration.ranked, values, side="right") - below
        found: Ints = below + (uniforms * (ties + 1)).astype(np.int64)
        return found


def log_odds(top: ArrayLike) -> Floats:
    """Log-odds of largest probabilities (n,), which are float32 where they are stored."""
    values = np.minimum(np.asarray(top, dtype=np.float32).astype(np.float64), 1.0 - 2.0**-25)
    found: Floats = np.log(np.maximum(values, 1e-30)) - np.log1p(-values)
    return found


def row_uniforms(ids: NDArray[np.uint64]) -> Floats:
    """Three independent uniform numbers in (0, 1) for each id (m, 2), the same in every run, (m, 3).

    They are 21 bits each of a hash of the id, by two rounds of splitmix64.
    """
    words = np.asarray(ids, dtype=np.uint64)
    mixed = _mix(_mix(words[:, 0]) + words[:, 1])
    parts = (mixed[:, None] >> _SHIFTS) & np.uint64(0x1F_FFFF)
    return (parts.astype(np.float64) + 0.5) / 2.0**21


def audit_numbers(ids: NDArray[np.uint64]) -> Floats:
    """u of each id (m, 2), uniform in [0, 1), by which an audit draws rows, (m,)."""
    words = np.asarray(ids, dtype=np.uint64)
    mixed = _mix(words[:, 0] ^ _mix(words[:, 1]))
    numbers: Floats = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = words + np.uint64(0x9E37_79B9_7F4A_7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return mixed ^ (mixed >> np.uint64(31))
