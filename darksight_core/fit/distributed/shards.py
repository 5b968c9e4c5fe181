"""The rows of one process, and sets of rows that are spread over processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.fit.distributed.process_group import BLOCK_ROWS, ProcessGroup
from darksight_core.rows.simplex import Floats

__all__ = ["RowSet", "Shard"]


@dataclass(frozen=True, slots=True)
class Shard:
    """The row numbers of this process, of `total`."""

    group: ProcessGroup
    rows: range
    total: int

    def select(self, numbers: NDArray[np.int64]) -> RowSet:
        """A set of rows by their numbers among all rows, sorted."""
        return RowSet(self, numbers)


@dataclass(frozen=True, slots=True)
class RowSet:
    """A set of rows, some of which belong to this process.

    Attributes
    ----------
    shard
        The rows of this process.
    numbers
        Numbers of all rows of the set among all rows, sorted.
    own
        Indices of this process's rows of the set into its shard.
    first
        Number of rows of the set that belong to lower ranks.
    blocks
        Slices of `own` that lie in one block of rows.
    """

    shard: Shard
    numbers: NDArray[np.int64]
    own: NDArray[np.int64] = field(init=False)
    first: int = field(init=False)
    blocks: list[slice] = field(init=False)

    def __post_init__(self) -> None:
        rows = self.shard.rows
        low, high = np.searchsorted(self.numbers, (rows.start, rows.stop)).tolist()
        mine = self.numbers[low:high]
        cuts = [0, *(np.flatnonzero(np.diff(mine // BLOCK_ROWS)) + 1).tolist(), len(mine)]
        blocks = [slice(start, stop) for start, stop in pairwise(cuts) if start < stop]
        object.__setattr__(self, "own", mine - rows.start)
        object.__setattr__(self, "first", low)
        object.__setattr__(self, "blocks", blocks)

    @property
    def total(self) -> int:
        """Number of rows over all processes."""
        return len(self.numbers)

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array (n, ...) of all rows of the set, from the parts that each process has for its own."""
        return self.shard.group.gather(array)

    def pick(self, array: NDArray[Any], indices: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of such an array by their indices in the set, on every process."""
        return self.shard.group.pick(array, self.first, indices)

    def where(self, subset: RowSet) -> NDArray[np.int64]:
        """Indices of this process's rows of a subset into `own`."""
        return np.searchsorted(self.own, subset.own)

    def by_block(self, work: Callable[[NDArray[np.int64]], Floats], width: int) -> Floats:
        """`work` on the indices of each block, as one array (n, width)."""
        found = np.empty((len(self.own), width))
        for block in self.blocks:
            found[block] = work(self.own[block])
        return found
