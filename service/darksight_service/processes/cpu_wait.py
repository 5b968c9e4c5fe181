"""How long a process waits for a CPU that others use. Only Linux reports it; elsewhere the wait is 0.

A process that hangs waits for a lock, a disk or a signal, or uses a CPU without end. One that is ready to run and does
not get a CPU makes no progress either, but nothing is wrong with it.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["CpuWait"]

_TICKS = os.sysconf("SC_CLK_TCK")


class CpuWait:
    """The time that a process has waited for a CPU since the last call of `seconds`.

    Parameters
    ----------
    pid
        Id of the process.
    """

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc", str(pid))
        self._used = self._read()[1]

    def seconds(self, passed: float) -> float:
        """Seconds of waiting, of those since the last call: all but its CPU time, if it is ready to run now."""
        is_ready, used = self._read()
        was_used, self._used = self._used, used
        return max(passed - (used - was_used), 0.0) if is_ready else 0.0

    def _read(self) -> tuple[bool, float]:
        """Whether a thread is ready to run or runs, and the CPU seconds of the process so far."""
        try:
            fields = _fields(self._folder / "stat")
            states = {_fields(thread / "stat")[0] for thread in (self._folder / "task").iterdir()}
            return "R" in states, (int(fields[11]) + int(fields[12])) / _TICKS
        except (OSError, IndexError, ValueError):
            # The process has exited, or the system does not report it.
            return False, 0.0


def _fields(path: Path) -> list[str]:
    """The fields behind the name of a process, which may have spaces and parentheses; the state is the first."""
    return path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
