"""Threads of a worker: few, bounded, and separate where one kind of call could block another.

A worker has one core, and the interpreter lock allows one thread at a time, so more threads would not increase
throughput. Calls wait in a queue of bounded length instead; a call that finds the queue full is rejected at once.

    calls     unary calls
    open      calls of methods that need no token
    streams   one thread for each open stream
    store     one thread for each call that may wait for the database
    bulk      one thread of low priority for large calls and batches, so that small calls overtake them
    refusals  rejects calls without waiting in the queue of calls

A unary call takes a thread when its message has arrived. Until then it counts nowhere but in a `SilenceLimit`.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

import grpc
from grpc import _server
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # compiled, and without types

from darksight_service.errors import OverloadedError
from darksight_service.grpc_api.silence import SilenceLimit

__all__ = ["BulkPool", "CallPool", "Handler", "StreamPool", "supports_early_read"]

T = TypeVar("T")
Queue: TypeAlias = "SimpleQueue[Callable[[], object] | None]"

# A call of at least this size is large: 200 rows of ten classes, about half a millisecond.
_BULK_BYTES = 1 << 13
# Large calls may take a quarter of the queue: they hold megabytes, and small calls pass a stall of 50 ms.
_LARGE_SHARE = 4
# The bulk thread gets about a tenth of the core while other threads are busy (0.8^10).
_NICE = 10
# The message of a call must arrive within this time: 16 MiB at 1 MB/s.
_MESSAGE_SECONDS = 20.0
# Calls without a message that a small pool keeps; they take no thread. In a flood, calls are refused because the queue
# is full, with a time to retry, and not because there are too many of these.
_FEWEST_SILENT = 128
# Time for calls to end after they were cancelled at shutdown.
_SHUTDOWN_SECONDS = 2.0

# Private functions of gRPC that `CallPool` relies on, and their parameters.
_SIGNATURES = {
    "_receive_message": ("state", "call", "request_deserializer"),
    "_is_rpc_state_active": ("state",),
    "_unary_response_in_pool": (
        "rpc_event",
        "state",
        "behavior",
        "argument_thunk",
        "request_deserializer",
        "response_serializer",
    ),
}

_log = logging.getLogger("darksight.rpc")


def supports_early_read() -> bool:
    """Whether the private parts of the installed gRPC are those that `CallPool` relies on.

    Checks their signatures and, with a pool that only records, how gRPC hands a call over.
    """
    submitted: list[Any] = []

    class Recorder:
        def submit(self, *args: Any) -> None:
            submitted.extend(args)

    def behaviour(request: object, context: object) -> None:
        pass

    event = object()
    try:
        for name, parameters in _SIGNATURES.items():
            if tuple(inspect.signature(getattr(_server, name)).parameters) != parameters:
                return False
        state: Any = _server._RPCState()  # type: ignore[no-untyped-call]
        handler: Any = grpc.unary_unary_rpc_method_handler(behaviour)
        _server._handle_unary_unary(event, state, handler, Recorder())  # type: ignore[arg-type]
        run, respond, *rest = submitted
        thunk = rest.pop(3)
        cygrpc.ReceiveMessageOperation(0)
        is_same_call = (run, respond, *rest) == (
            state.context.run,
            _server._unary_response_in_pool,
            event,
            state,
            behaviour,
            None,
            None,
        )
        is_same_state = (state.request, state.due, state.callbacks) == (None, set(), [])
        has_token = isinstance(_server._RECEIVE_MESSAGE_TOKEN, str)
        return is_same_call and is_same_state and has_token and thunk.__name__ == "unary_request"
    except (AttributeError, IndexError, TypeError, ValueError):
        return False


class Handler:
    """What gRPC calls for a method, and what the pools read of it.

    Parameters
    ----------
    run
        Takes a request and a context.
    pool
        The pool that it runs in, if it is not `CallPool`.
    is_short
        Whether a message may be handled by the thread that reads for gRPC; None if none may.
    is_scoring
        Whether large messages belong into the bulk thread; those of a handler that waits for the database do not.
    reads_early
        Whether `CallPool` takes the call to its pool; if not, gRPC does.
    """

    def __init__(
        self,
        run: Callable[[Any, Any], Any],
        pool: futures.Executor | None = None,
        *,
        is_short: Callable[[Any], bool] | None = None,
        is_scoring: bool = False,
        reads_early: bool = False,
    ) -> None:
        self._run = run
        self.pool: StreamPool | None = pool if isinstance(pool, StreamPool) else None
        self.is_short = is_short
        self.is_scoring = is_scoring
        # gRPC reads this attribute.
        self.experimental_thread_pool = None if reads_early or isinstance(pool, CallPool) else pool

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Handle a call."""
        return self._run(request, context)


class CallPool(futures.Executor):
    """Threads for short unary calls, with a bounded queue.

    gRPC hands a call over when its headers have arrived. The thread that takes it then waits for the message, so each
    call switches threads twice more, and a few callers that send no message block all threads. This pool asks gRPC for
    the message first and queues the call when the message has arrived, which saves a quarter of the time of a call.
    That uses private parts of gRPC; if `supports_early_read` is false, calls are handled in the ordinary way.

    A call that is the only one in flight runs in the thread that read it if its handler `is_short`. A large call whose
    handler `is_scoring` goes to the bulk thread. A call whose handler has a `pool` of its own runs there.

    Parameters
    ----------
    threads
        Number of threads.
    limit
        Maximum number of calls, waiting or running.
    name
        Prefix of the names of the threads.
    bulk
        The pool for large calls.

    Attributes
    ----------
    reads_early
        Whether calls are queued when their message has arrived.
    silence
        The calls without a message.
    """

    def __init__(self, threads: int, limit: int, name: str, bulk: BulkPool) -> None:
        self.limit = limit
        self.silence = SilenceLimit(_MESSAGE_SECONDS, max(2 * limit, _FEWEST_SILENT))
        self._bulk = bulk
        self._max_waiting = max(limit - threads, 1)
        self._max_large = max(self._max_waiting // _LARGE_SHARE, 1)
        self.reads_early = supports_early_read()
        if not self.reads_early:
            _log.warning("grpc_internals_changed", extra={"grpc": grpc.__version__})
        # Calls without a response; changed only by the thread that polls for gRPC.
        self._in_flight = 0
        self._queue: Queue = SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._queue,), name=f"{name}_{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_full(self) -> bool:
        """Whether the next call must be rejected."""
        waiting, large = self._queue.qsize(), self._bulk.queue.qsize()
        return waiting + large >= self._max_waiting or large >= self._max_large

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]  # gRPC ignores the future, which takes 10 us
        """Run a unary call when its message has arrived, and anything else as soon as a thread is free."""
        if self.reads_early and len(args) == 7 and getattr(args[4], "__name__", "") == "unary_request":
            self._read_then_run(fn, *args)
        else:
            self._queue.put(partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads when the queue is empty. Calls that ignore their cancellation are abandoned."""
        for _ in self._threads:
            self._queue.put(None)
        # The bulk thread keeps running: a stream that has not noticed the shutdown may still wait for it.
        is_bulk_done = threading.Event()
        self._bulk.queue.put(is_bulk_done.set)
        if not wait:
            return
        end = time.monotonic() + _SHUTDOWN_SECONDS
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))
        is_bulk_done.wait(max(end - time.monotonic(), 0.0))

    def _read_then_run(
        self,
        run: Callable[..., Any],
        respond: Any,
        event: Any,
        state: Any,
        behaviour: Handler,
        read_request: Any,
        deserialize: Any,
        serialize: Any,
    ) -> None:
        """What `grpc._server` does with a unary call, but the message is read before a thread is taken.

        The caller holds `state.condition`.
        """
        receive = _server._receive_message(state, event.call, deserialize)
        is_short = behaviour.is_short if self._in_flight == 0 else None
        is_scoring, pool = behaviour.is_scoring, behaviour.pool
        silence = self.silence if pool is None else pool.silence

        def request() -> Any:
            return state.request if _server._is_rpc_state_active(state) else None

        def on_received(received: Any) -> Any:
            silence.end(event.call)
            ended = receive(received)
            if ended[0] is None:
                has_message = state.request is not None
                # Without a message gRPC's own thunk ends the call with the right status.
                thunk = request if has_message else read_request
                call = partial(run, respond, event, state, behaviour, thunk, deserialize, serialize)
                if pool is not None:
                    pool.submit(_run, call)
                elif has_message and is_short is not None and is_short(state.request):
                    _run(call)
                elif has_message and is_scoring and len(state.request) >= _BULK_BYTES:
                    self._bulk.queue.put(call)
                else:
                    self._queue.put(call)
            return ended

        silence.begin(event.call)
        # A call in a pool of its own does not keep these threads busy, and a stream of responses can be open for days.
        if pool is None and respond is _server._unary_response_in_pool:
            self._in_flight += 1
            state.callbacks.append(self._end_call)
        event.call.start_server_batch((cygrpc.ReceiveMessageOperation(0),), on_received)
        state.due.add(_server._RECEIVE_MESSAGE_TOKEN)

    def _end_call(self) -> None:
        self._in_flight -= 1


def _work(queue: Queue) -> None:
    while (call := queue.get()) is not None:
        _run(call)
        # Release its message, which may be large, while this thread waits for the next call.
        del call


def _run(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        _log.exception("call_lost")


class StreamPool(futures.ThreadPoolExecutor):
    """Threads of their own for streams, which stay open, or for calls that must not delay others.

    Parameters
    ----------
    limit
        Maximum number of streams or calls.
    name
        Prefix of the names of the threads.
    threads
        Number of threads; by default one for each stream or call.
    silent_seconds
        How long a caller may send nothing.

    Attributes
    ----------
    silence
        The calls or streams that wait for a message.
    """

    def __init__(self, limit: int, name: str, *, threads: int = 0, silent_seconds: float = _MESSAGE_SECONDS) -> None:
        super().__init__(threads or limit, thread_name_prefix=name)
        self.limit = limit
        self.silence = SilenceLimit(silent_seconds, max(limit, _FEWEST_SILENT))
        self._open = 0
        self._callers: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Whether the next one must be rejected."""
        return self._open >= self.limit

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> futures.Future[T]:
        """Run a stream or a call in a thread."""
        future = super().submit(fn, *args, **kwargs)
        self._count(1)
        future.add_done_callback(lambda _: self._count(-1))
        return future

    @contextmanager
    def share_of(self, caller: str) -> Iterator[None]:
        """Count a stream of a caller, who may have half of them open; without a name there is but one caller."""
        share = max(self.limit // 2, 1) if caller else self.limit
        with self._lock:
            if self._callers[caller] >= share:
                raise OverloadedError(f"this caller already has {share} streams open, which is the limit")
            self._callers[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                self._callers[caller] -= 1
                self._callers += Counter()  # forgets callers without a stream

    def _count(self, change: int) -> None:
        with self._lock:
            self._open += change


class BulkPool:
    """One thread of low priority, and the `queue` of what waits for it."""

    def __init__(self) -> None:
        self.queue: Queue = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="bulk", daemon=True)
        self._thread.start()

    def run(self, size: int, score: Callable[[], T]) -> T:
        """Score a batch of `size` bytes: a large one in the bulk thread, a small one in this thread."""
        if size < _BULK_BYTES or threading.current_thread() is self._thread:
            return score()
        result: futures.Future[T] = futures.Future()

        def run() -> None:
            try:
                result.set_result(score())
            except Exception as error:
                result.set_exception(error)

        self.queue.put(run)
        return result.result()

    def _work(self) -> None:
        # If the priority may not be lowered, large calls compete with the others.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        _work(self.queue)
