"""Threads of a worker: few, counted, and separate where one kind of call could hold up another.

A worker has one core and Python one lock, so more threads do not make it faster; they only let calls wait in the
middle. Calls wait in a queue of bounded length instead, and what finds it full is refused at once.

    calls     unary calls
    streams   each open stream holds a thread for as long as it lives
    bulk      one thread of low priority for large batches, so that single rows overtake them
    refusals  answers "overloaded" past the queue of calls
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeVar

__all__ = ["CallPool", "CountingPool", "make_bulk_pool"]

T = TypeVar("T")

# Lower than everything else in the process by a factor of 0.8^10, about a tenth of the processor.
_NICE = 10


class CallPool(futures.ThreadPoolExecutor):
    """A pool for many short calls that knows whether its queue is full.

    Parameters
    ----------
    threads
        How many there are.
    limit
        Beyond how many calls in hand, waiting included, `is_full`.
    name
        Of the threads.
    """

    def __init__(self, threads: int, limit: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self.limit = limit
        self._room = max(limit - threads, 1)

    @property
    def is_full(self) -> bool:
        """Whether the next call is one too many."""
        # The executor's own queue: counting calls beside it, as below, takes 20 us of a call in all.
        return self._work_queue.qsize() >= self._room


class CountingPool(futures.ThreadPoolExecutor):
    """A pool for few long calls that knows how many it has in hand.

    Parameters
    ----------
    threads
        How many there are.
    limit
        Beyond how many calls in hand `is_full`.
    name
        Of the threads.
    """

    def __init__(self, threads: int, limit: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self.limit = limit
        self.in_hand = 0
        self._count = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Whether the next call is one too many."""
        return self.in_hand >= self.limit

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> futures.Future[T]:
        """Run a call in a thread, as any executor does."""
        with self._count:
            self.in_hand += 1
        try:
            return super().submit(self._run, fn, args, kwargs)
        except BaseException:
            self._done()
            raise

    def _run(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        try:
            return fn(*args, **kwargs)
        finally:
            self._done()

    def _done(self) -> None:
        with self._count:
            self.in_hand -= 1


def make_bulk_pool() -> futures.ThreadPoolExecutor:
    """One thread that the system runs when no other thread of the worker wants to."""
    return futures.ThreadPoolExecutor(1, thread_name_prefix="bulk", initializer=_lower_priority)


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
