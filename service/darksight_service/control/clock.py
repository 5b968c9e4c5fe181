"""A clock that ignores a jump until it is confirmed.

Regions expire and points are deleted by the clock. If the system clock were ahead by mistake, they would expire and be
deleted too early, and a deleted point cannot be restored. If it were behind, points would be stored as old ones, and be
deleted when it is right again. So a jump takes effect after it has lasted for an hour; until then time is measured from
before the jump by a monotonic counter.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["SteadyClock", "known_time"]

# Smaller corrections take effect at once.
_TOLERANCE = 60.0
_CONFIRMED_SECONDS = 3600.0
# Only Linux has the first one.
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _boot_seconds() -> float:
    """Seconds since the machine started; on Linux, time in suspend is included."""
    return time.clock_gettime(_BOOT_CLOCK)


def known_time(data_dir: Path) -> float | None:
    """The last time that the storage worker wrote; None if there is none, or the file is damaged."""
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
        Last time of an earlier process; None if there was none.
    clock, steady
        The system clock, and a monotonic counter of seconds.
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
        # A confirmed time, and the counter at that time.
        self._base = clock() if known is None else known, steady()
        # Seconds by which the clock is ahead, negative if it is behind, and the counter when this was first seen.
        self._jump: tuple[float, float] | None = None

    def __call__(self) -> float:
        """The time."""
        return self.read()[0]

    def read(self) -> tuple[float, float]:
        """The time, and by how many seconds the clock is ahead of it, or behind it if they are negative."""
        with self._lock:
            now, count = self._clock(), self._steady()
            expected = self._base[0] + count - self._base[1]
            ahead = now - expected
            if abs(ahead) <= _TOLERANCE:
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
