"""Results that a page should not wait for, computed in the background and reused until the labels change."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from darksight_service.store.points import PointTable

__all__ = ["BackgroundResults"]

T = TypeVar("T")

_MAX_KEPT = 32


class BackgroundResults(Generic[T]):
    """The latest result of `compute` by key.

    Parameters
    ----------
    compute
        Computes a result from labelled points.
    run
        Runs a function later; by default in a thread.
    """

    def __init__(
        self, compute: Callable[[PointTable], T], run: Callable[[Callable[[], None]], None] | None = None
    ) -> None:
        self._compute = compute
        self._run = run or _in_thread
        self._lock = threading.Lock()
        self._results: dict[Hashable, tuple[bytes, T]] = {}
        self._running: set[Hashable] = set()

    def get(self, key: Hashable, table: PointTable) -> tuple[T | None, bool]:
        """The latest result of a key, and whether a newer one is being computed; None before the first result."""
        stamp = hashlib.sha256(table.ids.tobytes() + table.label.tobytes()).digest()
        with self._lock:
            found = self._results.get(key)
            if found is not None and found[0] == stamp:
                return found[1], False
            must_start = key not in self._running
            self._running.add(key)
        if must_start:
            self._run(lambda: self._update(key, stamp, table))
        with self._lock:
            found = self._results.get(key)
            return (None if found is None else found[1]), found is None or found[0] != stamp

    def _update(self, key: Hashable, stamp: bytes, table: PointTable) -> None:
        try:
            result = self._compute(table)
            with self._lock:
                self._results = dict([*self._results.items()][-_MAX_KEPT:]) | {key: (stamp, result)}
        finally:
            with self._lock:
                self._running.discard(key)


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="background-result", daemon=True).start()
