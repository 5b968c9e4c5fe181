"""Ends calls whose caller sends nothing: those that wait for a message for too long, and the oldest of too many."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # compiled, and without types

__all__ = ["SilenceLimit", "start_ending"]

T = TypeVar("T")

_TICK_SECONDS = 0.5

_log = logging.getLogger("darksight.rpc")


class SilenceLimit:
    """The calls that wait for a message of their caller, the longest wait first.

    Parameters
    ----------
    seconds
        A call that has waited for this long gets DEADLINE_EXCEEDED.
    limit
        Most calls that wait. One more ends the oldest with RESOURCE_EXHAUSTED, so that silent callers never keep
        others out.
    text
        Why the oldest is ended.
    """

    def __init__(self, seconds: float, limit: int, text: str = "too many calls wait for their message") -> None:
        self._seconds = seconds
        self._limit = limit
        self._text = text
        # The order of a dictionary is that of insertion. Each access is one step for the interpreter, so no lock.
        self._due: dict[Any, float] = {}

    def begin(self, call: Any) -> None:
        """A call, a `cygrpc.Call`, waits for a message."""
        if len(self._due) >= self._limit:
            oldest = next(iter(list(self._due)), None)
            self._cancel(oldest, cygrpc.StatusCode.resource_exhausted, self._text)
        self._due[call] = time.monotonic() + self._seconds

    def end(self, call: Any) -> None:
        """Its message has arrived, or it has ended."""
        self._due.pop(call, None)

    def guard(self, requests: Iterator[T], context: grpc.ServicerContext) -> Iterator[T]:
        """The requests of a stream, which is ended if there is none for too long."""
        call = context._rpc_event.call  # type: ignore[attr-defined]  # the public `cancel` takes no status
        try:
            self.begin(call)
            for request in requests:
                self.end(call)
                self.begin(call)
                yield request
        finally:
            self.end(call)

    def end_silent(self, now: float) -> None:
        """End the calls that have waited for too long."""
        for call, due in list(self._due.items()):
            if due > now:
                return
            self._cancel(call, cygrpc.StatusCode.deadline_exceeded, f"no message within {self._seconds:g} s")

    def _cancel(self, call: Any, code: Any, text: str) -> None:
        # Whoever removes it ends it; it may just have got its message.
        if self._due.pop(call, None) is not None:
            call.cancel(code, text)


def start_ending(limits: Iterable[SilenceLimit]) -> None:
    """Start the thread that ends calls of silent callers."""
    watched = tuple(limits)

    def run() -> None:
        while True:
            time.sleep(_TICK_SECONDS)
            for limit in watched:
                try:
                    limit.end_silent(time.monotonic())
                except Exception:
                    _log.exception("silence_limit_failed")

    threading.Thread(target=run, name="silence", daemon=True).start()
