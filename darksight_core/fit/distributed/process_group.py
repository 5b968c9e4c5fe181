"""The processes that fit one map together, as torchrun starts them: gloo between CPUs, nccl between GPUs.

Rows are assigned in blocks of `BLOCK_ROWS`, and row-wise work is done block by block. Decisions are made by the first
process and broadcast. So the result does not depend on the number of processes: on one kind of CPU it is the same bit
for bit. A single process is a group of one and pays nothing for it.

A process that waits for one that has exited gets a `ProcessGroupError`: at once if its connection broke, after
`_TIMEOUT` if its machine became unreachable. torchrun, which watches the processes of each machine, stops all of them
before that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import numpy as np
import safetensors.numpy
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from darksight_core.errors import DarkSightError, FitError
from darksight_core.fit.device import choose_device

__all__ = ["BLOCK_ROWS", "Arrays", "ProcessGroup", "ProcessGroupError", "assign_blocks"]

BLOCK_ROWS = 8_192
"""Rows that are assigned and processed together."""

Arrays: TypeAlias = dict[str, NDArray[Any]]

_TIMEOUT = timedelta(minutes=30)


class ProcessGroupError(FitError):
    """Another process of the fit has exited."""


def assign_blocks(n_rows: int, rank: int, size: int) -> range:
    """The rows of one process: whole blocks, in order, as evenly as possible.

    >>> [assign_blocks(20_000, rank, 2) for rank in (0, 1)]
    [range(0, 8192), range(8192, 20000)]
    """
    blocks = -(-n_rows // BLOCK_ROWS)
    first, last = blocks * rank // size, blocks * (rank + 1) // size
    return range(min(first * BLOCK_ROWS, n_rows), min(last * BLOCK_ROWS, n_rows))


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """One process among all: number `rank` of `size`; the default is a single process."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    @classmethod
    def join(cls, device: str = "auto") -> ProcessGroup:
        """The group that torchrun made this process part of, or a group of one."""
        if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
            return cls()
        found = choose_device(device)
        with _translate_errors():
            dist.init_process_group("nccl" if found.type == "cuda" else "gloo", timeout=_TIMEOUT)
        return cls(dist.get_rank(), dist.get_world_size(), found)

    def leave(self) -> None:
        """Close the connections."""
        if self.size > 1:
            dist.destroy_process_group()

    @property
    def is_first(self) -> bool:
        """Whether this process decides, writes and reports."""
        return self.rank == 0

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """Arrays (n, ...) of all processes one after the other, on every process."""
        if self.size == 1:
            return array
        plain = np.ascontiguousarray(array)
        shape = plain.shape[1:]
        parts = [np.frombuffer(part, plain.dtype).reshape(-1, *shape) for part in self._exchange(plain.tobytes())]
        return np.concatenate(parts)

    def pick(self, array: NDArray[Any], first: int, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Rows by their indices among the rows of all processes, of which `array` holds those from `first` on."""
        if self.size == 1:
            return array[indices]
        mine = np.flatnonzero((indices >= first) & (indices < first + len(array)))
        order, rows = self.gather(mine), self.gather(array[indices[mine] - first])
        found = np.empty_like(rows)
        found[order] = rows
        return found

    def broadcast(self, make: Callable[[], Arrays]) -> Arrays:
        """What the first process makes, on every process; an error there is raised everywhere."""
        if self.size == 1:
            # In the memory order of arrays received from another process: torch rounds by it.
            return {name: np.ascontiguousarray(array) for name, array in make().items()}
        data = b""
        if self.is_first:
            try:
                data = b"\0" + safetensors.numpy.save({k: np.ascontiguousarray(v) for k, v in make().items()})
            except DarkSightError as error:
                self._exchange(b"\1" + json.dumps(error.message).encode())
                raise
        data = self._exchange(data)[0]
        if data[:1] == b"\1":
            raise FitError(json.loads(data[1:]))
        return safetensors.numpy.load(data[1:])

    def _exchange(self, data: bytes) -> list[bytes]:
        """The bytes of every process, ordered by rank."""
        with _translate_errors():
            sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(data)], device=self.device))
            longest = max(int(size) for size in sizes)
            mine = torch.zeros(longest, dtype=torch.uint8)
            mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else 0
            parts = [torch.empty(longest, dtype=torch.uint8, device=self.device) for _ in range(self.size)]
            dist.all_gather(parts, mine.to(self.device))
        return [part[: int(size)].cpu().numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise errors of torch.distributed, which mean that another process has exited, as `ProcessGroupError`."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessGroupError(
            f"process {os.environ.get('RANK')} lost the connection to another process of this fit; see the "
            "error of that process, then rerun the same command with --resume"
        ) from error
