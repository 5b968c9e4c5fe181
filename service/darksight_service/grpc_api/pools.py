"""Threads of a worker: few, counted, and separate where one kind of call could hold up another.

A worker has one core and Python one lock, so more threads do not make it faster; they only let calls wait in the
middle. Calls wait in a queue of bounded length instead, and what finds it full is refused at once.

    calls     unary calls, when their message is there and they are not alone
    streams   each open stream holds a thread for as long as it lives
    bulk      one thread of low priority for large calls and batches of streams, so that single rows overtake them
    refusals  answers "overloaded" past the queue of calls
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent import futures
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from grpc import _server
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # compiled, and without types

__all__ = ["BulkPool", "CallPool", "CountingPool"]

T = TypeVar("T")
Calls: TypeAlias = "SimpleQueue[Callable[[], object] | None]"

# From here on a call is large: 200 rows of ten classes, which take about half a millisecond.
_BULK_BYTES = 1 << 13
# Lower than everything else in the process by a factor of 0.8^10, about a tenth of the processor.
_NICE = 10
# How long calls may go on that were cancelled at the end, before the worker closes its books without them.
_LAST_SECONDS = 2.0

# Nobody promises that these parts of gRPC stay: without them calls go the way that it made for them.
_PARTS = ("_receive_message", "_RECEIVE_MESSAGE_TOKEN", "_is_rpc_state_active", "_unary_response_in_pool")
_IS_KNOWN = all(hasattr(_server, name) for name in _PARTS)

_log = logging.getLogger("darksight.rpc")


class CallPool(futures.Executor):
    """Threads for many short calls of one message, whose queue knows whether it is full.

    gRPC hands a call over when its headers are there. The thread that takes it asks for the message and waits, so that
    each call changes threads twice more, and a few callers that send no message hold all threads. Here the message is
    asked for at once, and the call queues for a thread when it is there: that takes a quarter off the time of a call.

    A call that comes alone and is short, as the attribute `is_short` of its handler says of the message, is answered in
    the thread that read it, without any change. When there are others they share threads: many calls one by one through
    all of gRPC and all of ours take longer than some steps of each for several of them. A call that `scores`, as that
    attribute of its handler says, goes straight to the bulk thread if its message is large, and holds up no other; what
    waits for a database must not wait there.

    Parameters
    ----------
    threads
        How many there are.
    limit
        Beyond how many calls in hand, waiting included, `is_full`.
    name
        Of the threads.
    bulk
        Where large calls go.
    """

    def __init__(self, threads: int, limit: int, name: str, bulk: BulkPool) -> None:
        self.limit = limit
        self._bulk = bulk
        self._room = max(limit - threads, 1)
        # Both counted in the one thread that reads for gRPC: calls without an answer, and those without their message.
        self._open = self._awaited = 0
        self._queue: Calls = SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._queue,), name=f"{name}_{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_full(self) -> bool:
        """Whether the next call is one too many."""
        return self._queue.qsize() + self._bulk.queue.qsize() + self._awaited >= self._room

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]  # gRPC needs no future, which takes 10 us
        """Run a call of gRPC's when its message is there; anything else in a thread as soon as may be."""
        if _IS_KNOWN and len(args) == 7 and getattr(args[4], "__name__", "") == "unary_request":
            self._take_when_read(fn, *args)
        else:
            self._queue.put(partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads when the queue is empty; a call that hears nothing is not waited for."""
        for _ in self._threads:
            self._queue.put(None)
        # The bulk thread goes on: a stream that has not heard of the end yet may wait for it.
        is_bulk_done = threading.Event()
        self._bulk.queue.put(is_bulk_done.set)
        if not wait:
            return
        end = time.monotonic() + _LAST_SECONDS
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))
        is_bulk_done.wait(max(end - time.monotonic(), 0.0))

    def _take_when_read(
        self, fn: Callable[..., Any], run: Any, event: Any, state: Any, behaviour: Any, ask: Any, read: Any, write: Any
    ) -> None:
        """What `grpc._server` does with a call of one message, in another order."""
        note = _server._receive_message(state, event.call, read)
        is_short = getattr(behaviour, "is_short", None) if self._open == 0 else None
        is_bulk = getattr(behaviour, "scores", False)

        def request() -> Any:
            # Nobody may wait for an answer any more.
            return state.request if _server._is_rpc_state_active(state) else None

        def received(message: Any) -> Any:
            self._awaited -= 1
            ended = note(message)
            if ended[0] is None:
                # If none came gRPC says so to the caller, when it has asked for itself.
                found = state.request is not None
                call = partial(fn, run, event, state, behaviour, request if found else ask, read, write)
                if found and is_short is not None and is_short(state.request):
                    _run(call)
                elif found and is_bulk and len(state.request) >= _BULK_BYTES:
                    self._bulk.queue.put(call)
                else:
                    self._queue.put(call)
            return ended

        self._awaited += 1
        # A stream of answers, as a watched health, may be open for days.
        if run is _server._unary_response_in_pool:
            self._open += 1
            state.callbacks.append(self._close)
        # Its lock is held by whom we are called.
        event.call.start_server_batch((cygrpc.ReceiveMessageOperation(0),), received)
        state.due.add(_server._RECEIVE_MESSAGE_TOKEN)

    def _close(self) -> None:
        self._open -= 1


def _work(queue: Calls) -> None:
    while (call := queue.get()) is not None:
        _run(call)
        # With it goes its message, which may be large, while this thread waits for the next.
        del call


def _run(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        _log.exception("call_lost")


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


class BulkPool:
    """One thread that the system runs when no other of the worker wants to, and the `queue` of what waits for it."""

    def __init__(self) -> None:
        self.queue: Calls = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="bulk", daemon=True)
        self._thread.start()

    def run(self, size: int, judge: Callable[[], T]) -> T:
        """Score so many bytes: a large batch there, a small one here, which is over before threads would change."""
        if size < _BULK_BYTES or threading.current_thread() is self._thread:
            return judge()
        answer: futures.Future[T] = futures.Future()

        def give() -> None:
            try:
                answer.set_result(judge())
            except Exception as error:
                answer.set_exception(error)

        self.queue.put(give)
        return answer.result()

    def _work(self) -> None:
        # Where that is forbidden large calls take their turn as others do.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        _work(self.queue)
