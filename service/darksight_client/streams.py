"""ScoreStream: many batches on one call, results in order, a bounded number of batches in flight.

Batches are taken from the caller's iterable in a thread of their own, so that a result can be returned before the next
batch exists. Batches without a response are kept. If the connection breaks, the call is reopened and they are sent
again with the same batch ids, so that the server stores them once.

`StreamRequests` and `results` are for threads; `darksight_client.aio_streams` has their counterparts for asyncio.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

from numpy.typing import ArrayLike

from darksight_client.errors import MessageTooLarge, ServerError, Unavailable, error_of_status, row_of
from darksight_client.requests import Part, Tags, score_parts
from darksight_client.results.columns import read_stream_response
from darksight_client.results.rows import Scored, read_scored
from darksight_client.stubs.darksight.v1 import monitor_pb2
from darksight_client.transport.retries import Replicas

__all__ = ["SCORE_STREAM", "PendingRequests", "StreamRequests", "read_result", "results", "stream_part"]

SCORE_STREAM = "/darksight.v1.MonitorService/ScoreStream"


def stream_part(
    model: str,
    batch: ArrayLike,
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


def read_result(response: bytes, part: Part) -> Scored:
    """The result in a ScoreStreamResponse; raises its error."""
    try:
        message, columns = read_stream_response(response, part.rows)
        if columns is not None:
            return read_scored(message, columns, part.names)
    except ValueError as error:
        raise ServerError(f"the server responded with {error}; is it a DarkSight server?") from None
    row = message.row if message.HasField("row") else row_of(message.field)
    raise error_of_status(message.code, message.message, row=row, field=message.field)


class PendingRequests:
    """Requests of a stream that have no response yet; the part that threads and asyncio share."""

    def __init__(self) -> None:
        self.pending: deque[Part] = deque()
        self.completed = 0
        self.calls = 0
        self.is_exhausted = False
        self.error: BaseException | None = None

    def is_ready(self, call: int, number: int) -> bool:
        """Whether a call can continue with a request or must end."""
        return self.is_exhausted or call != self.calls or number < self.completed + len(self.pending)

    def request(self, call: int, number: int) -> bytes | None:
        """A serialized request by its number; None if there are no more or a newer call has begun."""
        if call != self.calls or number >= self.completed + len(self.pending):
            return None
        data: bytes = self.pending[number - self.completed].request.SerializeToString()
        return data

    def oldest(self) -> Part:
        """The request that the next response belongs to."""
        if not self.pending:
            raise ServerError("the server sent more responses than there were requests.")
        return self.pending[0]

    def pop(self) -> None:
        """Remove the oldest request."""
        self.pending.popleft()
        self.completed += 1

    def is_done(self) -> bool:
        """Whether all requests have a response; raises the error of the source."""
        # In this order: nothing is added once the source is exhausted.
        if not self.is_exhausted or self.pending:
            return False
        if self.error is not None:
            raise self.error
        return True


class StreamRequests(PendingRequests):
    """Requests of a stream, for threads.

    Parameters
    ----------
    parts
        Source of the requests, consumed by a thread that is started here.
    limit
        Maximum number of requests in flight.
    """

    def __init__(self, parts: Iterable[Part], limit: int) -> None:
        super().__init__()
        self._is_stopped = False
        self._changed = threading.Condition()
        threading.Thread(target=self._fill, args=(parts, limit), name="darksight-stream", daemon=True).start()

    def _fill(self, parts: Iterable[Part], limit: int) -> None:
        try:
            for part in parts:
                with self._changed:
                    self._changed.wait_for(lambda: len(self.pending) < limit or self._is_stopped)
                    if self._is_stopped:
                        return
                    self.pending.append(part)
                    self._changed.notify_all()
        except BaseException as error:
            self.error = error  # raised by is_done, after the results before it
        finally:
            with self._changed:
                self.is_exhausted = True
                self._changed.notify_all()

    def serialized(self) -> Iterator[bytes]:
        """Requests of a new call: the pending ones, then new ones. Ends when a newer call begins."""
        with self._changed:
            self.calls += 1
            call, first = self.calls, self.completed
            self._changed.notify_all()
        for number in itertools.count(first):
            with self._changed:
                self._changed.wait_for(functools.partial(self.is_ready, call, number))
                data = self.request(call, number)
            if data is None:
                return
            yield data

    def complete(self) -> None:
        """Remove the oldest request."""
        with self._changed:
            self.pop()
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread and all calls."""
        with self._changed:
            self._is_stopped = True
            self.calls += 1
            self._changed.notify_all()


def results(
    requests: StreamRequests,
    replicas: Replicas,
    open_call: Callable[[int, Iterator[bytes]], AbstractContextManager[Iterable[bytes]]],
    sleep: Callable[[float], None],
) -> Iterator[Scored]:
    """Results in order, reopening the call when the connection breaks.

    Parameters
    ----------
    requests
        The requests.
    replicas
        Which replica to use, and when to retry.
    open_call
        Opens a call at a replica; its responses are serialized.
    sleep
        Waits.
    """
    failures = 0
    try:
        while True:
            replica = replicas.order()[0]
            try:
                with open_call(replica, requests.serialized()) as responses:
                    for response in responses:
                        scored = read_result(response, requests.oldest())
                        requests.complete()
                        failures = 0
                        yield scored
                if requests.is_done():
                    return
                raise Unavailable("the server ended the stream early.")
            except Unavailable as error:
                failures += 1
                sleep(replicas.after_stream_failure(replica, failures, error))
    finally:
        requests.stop()
