"""Which rows are this process's, and sets of rows that are spread over processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.fit.distributed.process_group import BLOCK_ROWS, ProcessGroup
from darksight_core.simplex import Floats

__all__ = ["Part", "Share"]


@dataclass(frozen=True, slots=True)
class Share:
    """The numbers of the rows that this process has, of `total`."""

    team: ProcessGroup
    rows: range
    total: int

    def part(self, places: NDArray[np.int64]) -> Part:
        """A set of rows by their numbers among all, sorted."""
        return Part(self, places)


@dataclass(frozen=True, slots=True)
class Part:
    """A set of rows, of which this process has some.

    `all` are the numbers of all of them, sorted; `own` places of its own among the rows of this process; `first` says
    how many stand before these; `blocks` are the slices of `own` that lie in one block of rows.
    """

    share: Share
    all: NDArray[np.int64]
    own: NDArray[np.int64] = field(init=False)
    first: int = field(init=False)
    blocks: list[slice] = field(init=False)

    def __post_init__(self) -> None:
        rows = self.share.rows
        low, high = np.searchsorted(self.all, (rows.start, rows.stop)).tolist()
        mine = self.all[low:high]
        cuts = [0, *(np.flatnonzero(np.diff(mine // BLOCK_ROWS)) + 1).tolist(), len(mine)]
        blocks = [slice(start, stop) for start, stop in pairwise(cuts) if start < stop]
        object.__setattr__(self, "own", mine - rows.start)
        object.__setattr__(self, "first", low)
        object.__setattr__(self, "blocks", blocks)

    @property
    def total(self) -> int:
        """Number of rows of all processes."""
        return len(self.all)

    def pick(self, array: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of an array that each process has for its own rows, by their places among those of all processes."""
        return self.share.team.pick(array, self.first, places)

    def where(self, other: Part) -> NDArray[np.int64]:
        """Places of this process's rows of a subset among its rows here."""
        return np.searchsorted(self.own, other.own)

    def by_block(self, work: Callable[[NDArray[np.int64]], Floats], width: int) -> Floats:
        """`work` on the places of each block, as one array (n, width)."""
        found = np.empty((len(self.own), width))
        for block in self.blocks:
            found[block] = work(self.own[block])
        return found
