"""Run a function that may take any time and memory in a child process, within limits."""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError, DarkSightError

__all__ = ["LimitOptions", "run_limited"]


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Limits of the process that runs the classifier.

    Parameters
    ----------
    max_seconds
        Longest time.
    max_memory_gb
        Most memory.
    """

    max_seconds: float = 600.0
    max_memory_gb: float = 8.0

    def __post_init__(self) -> None:
        if not (self.max_seconds > 0.0 and self.max_memory_gb > 0.0):
            raise ConfigError("--max-seconds and --max-memory-gb must be positive")


def run_limited(
    function: Callable[..., Mapping[str, NDArray[Any]]], *arguments: object, limits: LimitOptions
) -> dict[str, NDArray[Any]]:
    """The arrays that a function returns; ConfigError if it fails or exceeds a limit.

    Parameters
    ----------
    function, arguments
        A function of a module, and what it is called with; both are pickled.
    limits
        Limits of the child process.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # A fresh interpreter: a fork would copy the threads' locks of this one.
        child = multiprocessing.get_context("spawn").Process(
            target=_run, args=(folder, limits.max_memory_gb, function, arguments)
        )
        child.start()
        try:
            child.join(limits.max_seconds)
            is_late = child.is_alive()
        finally:
            child.kill()
            child.join()
        if is_late:
            raise ConfigError(f"the classifier took more than {limits.max_seconds:g} s; see --max-seconds")
        if (folder / "error").exists():
            raise ConfigError((folder / "error").read_text(encoding="utf-8"))
        if not (folder / "arrays.npz").exists():
            raise ConfigError(
                f"the process of the classifier ended with code {child.exitcode}; it may have needed more than "
                f"{limits.max_memory_gb:g} GB, see --max-memory-gb"
            )
        with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
            return dict(arrays)


def _run(
    folder: Path,
    max_memory_gb: float,
    function: Callable[..., Mapping[str, NDArray[Any]]],
    arguments: tuple[object, ...],
) -> None:
    """Write the arrays of a function, or the message of its error."""
    most = int(max_memory_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        arrays = function(*arguments)
        partial = folder / "partial.npz"
        np.savez(partial, allow_pickle=False, **arrays)
        partial.rename(folder / "arrays.npz")
    except KeyboardInterrupt:
        # The parent gets the interrupt, too, and reports it.
        return
    except DarkSightError as error:
        (folder / "error").write_text(error.message, encoding="utf-8")
    except Exception as error:
        # Whatever a foreign program raises, running out of memory included.
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        text = f"the classifier cannot be run: {type(error).__name__}: {reason}"
        (folder / "error").write_text(text, encoding="utf-8")
