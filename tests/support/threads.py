"""Threads in place of the processes of a fit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Result = TypeVar("Result")


@dataclass(frozen=True)
class Member:
    """One of several threads that work together."""

    rank: int
    size: int
    meeting: threading.Barrier
    table: dict[int, NDArray[Any]]

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """Arrays of all one after the other."""
        self.table[self.rank] = array
        self.meeting.wait(60.0)
        # Processes send bytes and read them as what they themselves have.
        assert {each.dtype for each in self.table.values()} == {array.dtype}
        found = np.concatenate([self.table[rank] for rank in range(self.size)])
        self.meeting.wait(60.0)
        return found

    def pick(self, array: NDArray[Any], first: int, places: NDArray[np.int64]) -> NDArray[Any]:
        """Rows at places among those of all."""
        mine = np.flatnonzero((places >= first) & (places < first + len(array)))
        order, rows = self.gather(mine), self.gather(array[places[mine] - first])
        return rows[np.argsort(order)]


def together(size: int, work: Callable[[Member], Result]) -> list[Result]:
    """What each of several threads finds that work at the same time."""
    meeting = threading.Barrier(size)
    table: dict[int, NDArray[Any]] = {}

    def run(rank: int) -> Result:
        try:
            return work(Member(rank, size, meeting, table))
        except BaseException:
            meeting.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
