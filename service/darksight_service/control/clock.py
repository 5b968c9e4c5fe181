"""A clock that does not believe a jump ahead until it is confirmed.

Regions end and points are deleted by the clock. A clock that is ahead by mistake would end and delete them too early,
and a deleted point does not come back. So a jump ahead counts after it has lasted for an hour; until then time goes on
from where it was, by a counter that nobody can set. A jump back counts at once: it only delays what time ends.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["SteadyClock", "known_time"]

# Smaller corrections count at once.
_TOLERANCE = 60.0
_CONFIRMED_SECONDS = 3600.0
# Only Linux has the first one.
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _boot_seconds() -> float:
    """Seconds since the machine started, on Linux those in which it slept included."""
    return time.clock_gettime(_BOOT_CLOCK)


def known_time(data_dir: Path) -> float | None:
    """The time that the storage worker believed last; None if there was none, or the file is damaged."""
    try:
        found = float((data_dir / "time").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return found if math.isfinite(found) else None


class SteadyClock:
    """Unix time in seconds.

    Parameters
    ----------
    known
        The time that an earlier process believed last; None if there was none.
    clock, steady
        The clock of the machine, and a counter of seconds that only goes forward.
    """

    def __init__(
        self,
        known: float | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = _boot_seconds,
    ) -> None:
        self._clock = clock
        self._steady = steady
        self._lock = threading.Lock()
        # A time that is believed, and the counter then.
        self._base = clock() if known is None else min(known, clock()), steady()
        # By how much the clock is ahead, and the counter when that was first seen.
        self._jump: tuple[float, float] | None = None

    def __call__(self) -> float:
        """The time."""
        return self.read()[0]

    def read(self) -> tuple[float, float]:
        """The time, and by how many seconds the clock is ahead of it."""
        with self._lock:
            now, count = self._clock(), self._steady()
            expected = self._base[0] + count - self._base[1]
            ahead = now - expected
            if ahead <= _TOLERANCE:
                self._jump = None
                if ahead < 0.0:
                    self._base = now, count
                return now, 0.0
            if self._jump is None or abs(ahead - self._jump[0]) > _TOLERANCE:
                self._jump = ahead, count
            if count - self._jump[1] < _CONFIRMED_SECONDS:
                return expected, ahead
            self._base, self._jump = (now, count), None
            return now, 0.0
