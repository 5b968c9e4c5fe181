"""ScoreStream: many batches on one call, results in order, a bounded number of batches in flight.

Batches are taken from the caller's iterable in a thread of their own, so that a result can be returned before the next
batch exists. Batches without a response are kept. If the connection breaks, the call is reopened and they are sent
again with the same batch ids, so that the server stores them once.

`StreamRequests` and `results` are for threads; `darksight_client.aio_streams` has their counterparts for asyncio.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from numpy.typing import ArrayLike

from darksight_client.columns import read_stream_response
from darksight_client.errors import MessageTooLarge, ServerError, Unavailable, error_of_status, row_of
from darksight_client.requests import Part, score_parts
from darksight_client.results import Scored, read_scored
from darksight_client.retries import Replicas
from darksight_client.stubs.darksight.v1 import monitor_pb2

__all__ = ["SCORE_STREAM", "StreamRequests", "read_result", "results", "stream_part"]

SCORE_STREAM = "/darksight.v1.MonitorService/ScoreStream"


def stream_part(model: str, batch: ArrayLike, **options: Any) -> Part:
    """The ScoreStreamRequest for a batch, which must fit in one message. The options are those of `score_parts`."""
    parts = score_parts(model, batch, **options)
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


class StreamRequests:
    """Requests of a stream that have no response yet. Thread-safe.

    Parameters
    ----------
    parts
        Source of the requests, consumed by a thread that is started here.
    limit
        Maximum number of requests in flight.
    """

    def __init__(self, parts: Iterable[Part], limit: int) -> None:
        self._pending: deque[Part] = deque()
        self._completed = 0
        self._calls = 0
        self._is_exhausted = False
        self._is_stopped = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._fill, args=(parts, limit), name="darksight-stream", daemon=True).start()

    def _fill(self, parts: Iterable[Part], limit: int) -> None:
        try:
            for part in parts:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._pending) < limit or self._is_stopped)
                    if self._is_stopped:
                        return
                    self._pending.append(part)
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error  # raised by is_done, after the results before it
        finally:
            with self._changed:
                self._is_exhausted = True
                self._changed.notify_all()

    def serialized(self) -> Iterator[bytes]:
        """Requests of a new call: the pending ones, then new ones. Ends when a newer call begins."""
        with self._changed:
            self._calls += 1
            call, number = self._calls, self._completed
            self._changed.notify_all()
        while True:
            with self._changed:
                self._changed.wait_for(functools.partial(self._is_ready, call, number))
                if self._is_stopped or call != self._calls or number >= self._completed + len(self._pending):
                    return
                part = self._pending[number - self._completed]
                number += 1
            yield part.request.SerializeToString()

    def _is_ready(self, call: int, number: int) -> bool:
        is_ended = self._is_exhausted or self._is_stopped or call != self._calls
        return is_ended or number < self._completed + len(self._pending)

    def oldest(self) -> Part:
        """The request that the next response belongs to."""
        with self._changed:
            if not self._pending:
                raise ServerError("the server sent more responses than there were requests.")
            return self._pending[0]

    def complete(self) -> None:
        """Remove the oldest request."""
        with self._changed:
            self._pending.popleft()
            self._completed += 1
            self._changed.notify_all()

    def is_done(self) -> bool:
        """Whether all requests have a response; raises the error of the source."""
        with self._changed:
            if self._pending or not self._is_exhausted:
                return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """End the thread and all calls."""
        with self._changed:
            self._is_stopped = True
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
