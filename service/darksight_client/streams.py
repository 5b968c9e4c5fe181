"""ScoreStream: many batches on one call, results in order, a bounded number of batches in flight.

Batches are taken from the caller's iterable in a thread or task of their own, so that a result can be returned before
the next batch exists. Batches without a response are kept. If the connection breaks, the call is reopened and they are
sent again with the same batch ids, so that the server stores them once.

`StreamRequests` has the state and the rules; `ThreadRequests` and `TaskRequests` wait for it to change.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from darksight_client.errors import MessageTooLarge, ServerError, Unavailable, error_of_status, row_of
from darksight_client.requests import Part, Tags, score_parts
from darksight_client.results.columns import read_stream_response
from darksight_client.results.rows import Scored, read_scored
from darksight_client.stubs.darksight.v1 import monitor_pb2
from darksight_client.transport.retries import Replicas
from darksight_core.rows.partial import TopRows

__all__ = ["SCORE_STREAM", "Stream", "StreamRequests", "TaskRequests", "ThreadRequests", "stream_part"]

SCORE_STREAM = "/darksight.v1.MonitorService/ScoreStream"


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that was asked for.

    Parameters
    ----------
    batches
        An iterable or asynchronous iterable of probabilities, (n, K) each.
    make_part
        Makes the request for a batch.
    max_in_flight
        Maximum number of batches in flight.
    deadline
        Monotonic time when the stream ends; None for never.
    """

    batches: Any
    make_part: Callable[[Any], Part]
    max_in_flight: int
    deadline: float | None

    def rest(self) -> float | None:
        """Seconds until the deadline."""
        return None if self.deadline is None else self.deadline - time.monotonic()


def stream_part(
    model: str,
    batch: ArrayLike | TopRows,
    max_message_bytes: int,
    version: str,
    logits: bool,
    partial_ok: bool,
    tags: Tags = (),
) -> Part:
    """The ScoreStreamRequest for a batch, which must fit in one message."""
    parts = score_parts(model, batch, max_message_bytes, version, logits, partial_ok=partial_ok, tags=tags)
    if len(parts) > 1:
        rows = sum(part.rows for part in parts)
        raise MessageTooLarge(
            f"a batch of {rows:,} rows does not fit in one message; stream at most {parts[0].rows:,} rows per batch."
        )
    part = parts[0]
    return Part(monitor_pb2.ScoreStreamRequest(request=part.request), part.start, part.rows, part.names)


def _read_result(response: bytes, part: Part) -> Scored:
    """The result in a ScoreStreamResponse; raises its error."""
    try:
        message, columns = read_stream_response(response, part.rows)
        if columns is not None:
            return read_scored(message, columns, part.names)
    except ValueError as error:
        raise ServerError(f"the server responded with {error}; is it a DarkSight server?") from None
    row = message.row if message.HasField("row") else row_of(message.field)
    raise error_of_status(message.code, message.message, row=row, field=message.field)


class StreamRequests:
    """Requests of a stream that have no response yet, and whether the stream is complete. No I/O, no waiting.

    Parameters
    ----------
    limit
        Maximum number of requests in flight.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending: deque[Part] = deque()
        self._completed = 0
        self._calls = 0
        self._failures = 0  # since the last response
        self._is_exhausted = False
        self._error: BaseException | None = None  # of the source; raised by `end`, after the results before it

    def has_space(self) -> bool:
        """Whether another request may be added."""
        return len(self._pending) < self._limit

    def begin_call(self) -> tuple[int, int]:
        """Begin a call, which ends older ones; returns its number and that of its first request."""
        self._calls += 1
        return self._calls, self._completed

    def is_ready(self, call: int, number: int) -> bool:
        """Whether a call can continue with a request or must end."""
        return self._is_exhausted or call != self._calls or number < self._completed + len(self._pending)

    def request(self, call: int, number: int) -> bytes | None:
        """A serialized request by its number; None if there are no more or a newer call has begun."""
        if call != self._calls or number >= self._completed + len(self._pending):
            return None
        data: bytes = self._pending[number - self._completed].request.SerializeToString()
        return data

    def complete(self, response: bytes) -> Scored:
        """The result for the oldest request, which is removed."""
        if not self._pending:
            raise ServerError("the server sent more responses than there were requests.")
        scored = _read_result(response, self._pending[0])
        self._pop()
        self._failures = 0
        return scored

    def _pop(self) -> None:
        self._pending.popleft()
        self._completed += 1

    def end(self) -> None:
        """End the stream after its last response; raises the error of the source, or `Unavailable` if it is early."""
        # In this order: nothing is added once the source is exhausted.
        if not self._is_exhausted or self._pending:
            raise Unavailable("the server ended the stream early.")
        if self._error is not None:
            raise self._error

    def delay(self, replicas: Replicas, replica: int, error: Unavailable) -> float:
        """Seconds to wait before the call is reopened; raises `error` after too many failures."""
        self._failures += 1
        return replicas.after_stream_failure(replica, self._failures, error)


class ThreadRequests(StreamRequests):
    """Requests of a stream, for threads; a thread that is started here takes the batches."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream.max_in_flight)
        self._is_stopped = False
        self._changed = threading.Condition()
        threading.Thread(target=self._fill, args=(stream,), name="darksight-stream", daemon=True).start()

    def _fill(self, stream: Stream) -> None:
        try:
            for batch in stream.batches:
                part = stream.make_part(batch)
                with self._changed:
                    self._changed.wait_for(lambda: self.has_space() or self._is_stopped)
                    if self._is_stopped:
                        return
                    self._pending.append(part)
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._is_exhausted = True
                self._changed.notify_all()

    def serialized(self) -> Iterator[bytes]:
        """Requests of a new call: the pending ones, then new ones. Ends when a newer call begins."""
        with self._changed:
            call, first = self.begin_call()
            self._changed.notify_all()
        for number in itertools.count(first):
            with self._changed:
                self._changed.wait_for(functools.partial(self.is_ready, call, number))
                data = self.request(call, number)
            if data is None:
                return
            yield data

    def _pop(self) -> None:
        with self._changed:
            super()._pop()
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread and all calls."""
        with self._changed:
            self._is_stopped = True
            self.begin_call()
            self._changed.notify_all()


class TaskRequests(StreamRequests):
    """Requests of a stream, for asyncio; a task that is started here takes the batches."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream.max_in_flight)
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._fill(stream))

    async def _fill(self, stream: Stream) -> None:
        try:
            async for batch in _as_async(stream.batches):
                part = stream.make_part(batch)
                await self._wait_for(self.has_space)
                self._pending.append(part)
                self._changed.set()
        except Exception as error:
            self._error = error
        self._is_exhausted = True
        self._changed.set()

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def serialized(self) -> AsyncIterator[bytes]:
        """Requests of a new call: the pending ones, then new ones. Ends when a newer call begins."""
        call, first = self.begin_call()
        for number in itertools.count(first):
            await self._wait_for(functools.partial(self.is_ready, call, number))
            data = self.request(call, number)
            if data is None:
                return
            yield data

    def _pop(self) -> None:
        super()._pop()
        self._changed.set()

    def stop(self) -> None:
        """End the task."""
        self._task.cancel()


async def _as_async(batches: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(batches, AsyncIterable):
        async for batch in batches:
            yield batch
    else:
        for batch in batches:
            yield batch
