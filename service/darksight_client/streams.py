"""ScoreStream for threads: many batches on one call, answers in order, a bounded number under way.

Batches are taken from the caller's iterable in a thread of their own, so that an answer can be had before the next
batch exists. What is not answered yet is kept: if the server goes away the call is opened again at the next one and
these batches are sent once more, with the ids they had, so that they are stored once.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
from numpy.typing import ArrayLike

from darksight_client.columns import read_stream_response
from darksight_client.errors import (
    DarkSightClientError,
    MessageTooLarge,
    ServerError,
    Unavailable,
    error_of_rpc,
    error_of_status,
    row_of,
)
from darksight_client.replicas import Replicas
from darksight_client.requests import Part, score_parts
from darksight_client.results import Scored, read_scored
from darksight_client.stubs.darksight.v1 import monitor_pb2

__all__ = ["STREAM", "Outbox", "answers", "read_answer", "stream_part"]

STREAM = "/darksight.v1.MonitorService/ScoreStream"


def stream_part(model: str, batch: ArrayLike, max_message_bytes: int, options: dict[str, Any]) -> Part:
    """The request for a batch, which must fit a message: who streams decides how large batches are."""
    parts = score_parts(model, batch, max_message_bytes=max_message_bytes, **options)
    if len(parts) > 1:
        rows = sum(part.rows for part in parts)
        raise MessageTooLarge(
            f"a batch of {rows:,} rows does not fit a message; stream at most {parts[0].rows:,} rows."
        )
    part = parts[0]
    request = monitor_pb2.ScoreStreamRequest(request=part.request)
    return Part(request, part.start, part.rows, part.names)


def read_answer(reply: bytes, part: Part) -> Scored:
    """The result in an answer, or its error as an exception."""
    try:
        message, columns = read_stream_response(reply, part.rows)
        if columns is not None:
            return read_scored(message, columns, part.names)
    except ValueError as error:
        raise ServerError(f"the server answered with {error}; is it a DarkSight server?") from None
    row = message.row if message.HasField("row") else row_of(message.field)
    raise error_of_status(message.code, message.message, row=row, field=message.field)


class Outbox:
    """Requests that are not answered yet.

    Parameters
    ----------
    parts
        Where they come from; used by one thread, which is started here.
    limit
        How many there may be at a time.
    """

    def __init__(self, parts: Iterable[Part], limit: int) -> None:
        self._parts: deque[Part] = deque()
        self._first = 0
        self._turn = 0
        self._is_over = False
        self._is_stopped = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._fill, args=(parts, limit), name="darksight-stream", daemon=True).start()

    def _fill(self, parts: Iterable[Part], limit: int) -> None:
        try:
            for part in parts:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._parts) < limit or self._is_stopped)
                    if self._is_stopped:
                        return
                    self._parts.append(part)
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error  # raised where the answers are read, after those before it
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def requests(self) -> Iterator[bytes]:
        """All of them and then those that come, until there are no more or a newer call asks."""
        with self._changed:
            self._turn += 1
            turn, number = self._turn, self._first
            self._changed.notify_all()
        while True:
            with self._changed:
                self._changed.wait_for(functools.partial(self._has_news, turn, number))
                if self._is_stopped or turn != self._turn or number >= self._first + len(self._parts):
                    return
                part = self._parts[number - self._first]
                number += 1
            yield part.request.SerializeToString()

    def _has_news(self, turn: int, number: int) -> bool:
        is_ended = self._is_over or self._is_stopped or turn != self._turn
        return is_ended or number < self._first + len(self._parts)

    def oldest(self) -> Part:
        """The one whose answer comes next."""
        with self._changed:
            if not self._parts:
                raise ServerError("the server sent more answers than there were requests.")
            return self._parts[0]

    def answered(self) -> None:
        """Forgets the oldest."""
        with self._changed:
            self._parts.popleft()
            self._first += 1
            self._changed.notify_all()

    def is_done(self) -> bool:
        """Whether all is answered; raises what the source of the requests raised."""
        with self._changed:
            if self._parts or not self._is_over:
                return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """Ends thread and requests."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()


def answers(
    outbox: Outbox,
    replicas: Replicas,
    open_call: Callable[[int, Iterator[bytes]], Any],
    sleep: Callable[[float], None],
) -> Iterator[Scored]:
    """Results in order, over as many calls as it takes.

    Parameters
    ----------
    outbox
        What is to be answered.
    replicas
        Who may answer.
    open_call
        Opens a call at a replica; iterating over it gives serialised answers.
    sleep
        Waits.
    """
    failures, call = 0, None
    try:
        while True:
            replica = replicas.order()[0]
            call = open_call(replica, outbox.requests())
            try:
                for reply in call:
                    scored = read_answer(reply, outbox.oldest())
                    outbox.answered()
                    failures = 0
                    yield scored
                if outbox.is_done():
                    return
                raise Unavailable("the server ended the stream early.")
            except (grpc.RpcError, Unavailable) as error:
                failure = error if isinstance(error, DarkSightClientError) else error_of_rpc(error)
                failures += 1
                if not isinstance(failure, Unavailable) or failures > replicas.retries:
                    raise failure from None
                replicas.failed(replica)
                sleep(replicas.pause_after(failures))
    finally:
        outbox.stop()
        if call is not None:
            call.cancel()
