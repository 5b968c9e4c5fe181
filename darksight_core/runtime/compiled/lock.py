"""Compiling once for many processes: the first compiles, the others wait and read what it kept.

Machine code of the loops takes a minute of a core to make and half a second to read from numba's cache. Processes that
start together on an empty cache, such as the workers of a service, would each make it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = ["one_compiles"]

_LOCK = "darksight.lock"
# Several times what compiling takes on a busy core.
_PATIENCE = 300.0
_LOOK_SECONDS = 0.05


@contextmanager
def one_compiles(folder: str | os.PathLike[str] | None, patience: float = _PATIENCE) -> Iterator[None]:
    """Run the block alone if no other process is in such a block; else when that one is done, beside all who waited.

    A process that dies lets go. Nobody waits where nothing is kept: without a folder, or if it cannot be written to.

    Parameters
    ----------
    folder
        numba's cache.
    patience
        Seconds after which a process goes on without the other.
    """
    with ExitStack() as stack:
        # ImportError: systems that have no such locks.
        with suppress(ImportError, OSError):
            if folder:
                _wait(stack.enter_context(open(Path(folder) / _LOCK, "a")), patience)
        yield


def _wait(file: IO[str], patience: float) -> None:
    import fcntl

    end = time.monotonic() + patience
    kind = fcntl.LOCK_EX
    while time.monotonic() < end:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            # Who had to wait only reads, and all of them at the same time.
            kind = fcntl.LOCK_SH
            time.sleep(_LOOK_SECONDS)
