"""ScoreStream for asyncio: `darksight_client.streams` with a task in place of the thread."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager

from numpy.typing import ArrayLike

from darksight_client.errors import ServerError, Unavailable
from darksight_client.requests import Part
from darksight_client.results import Scored
from darksight_client.retries import Replicas
from darksight_client.streams import read_result

__all__ = ["AsyncStreamRequests", "async_results"]


class AsyncStreamRequests:
    """Requests of a stream that have no response yet.

    Parameters
    ----------
    make_part
        Makes a request from a batch.
    limit
        Maximum number of requests in flight.
    """

    def __init__(self, make_part: Callable[[ArrayLike], Part], limit: int) -> None:
        self._make_part = make_part
        self._limit = limit
        self._pending: deque[Part] = deque()
        self._completed = 0
        self._calls = 0
        self._is_exhausted = False
        self._error: Exception | None = None
        self._changed = asyncio.Condition()

    async def fill(self, batches: Iterable[ArrayLike] | AsyncIterable[ArrayLike]) -> None:
        """Take batches from the source, at most `limit` ahead of the responses."""
        try:
            if isinstance(batches, AsyncIterable):
                async for batch in batches:
                    await self._add(self._make_part(batch))
            else:
                for batch in batches:
                    await self._add(self._make_part(batch))
        except Exception as error:
            self._error = error  # raised by is_done, after the results before it
        async with self._changed:
            self._is_exhausted = True
            self._changed.notify_all()

    async def _add(self, part: Part) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._pending) < self._limit)
            self._pending.append(part)
            self._changed.notify_all()

    async def serialized(self) -> AsyncIterator[bytes]:
        """Requests of a new call: the pending ones, then new ones. Ends when a newer call begins."""
        self._calls += 1
        call, number = self._calls, self._completed
        while True:
            async with self._changed:
                await self._changed.wait_for(functools.partial(self._is_ready, call, number))
                if call != self._calls or number >= self._completed + len(self._pending):
                    return
                part = self._pending[number - self._completed]
            number += 1
            yield part.request.SerializeToString()

    def _is_ready(self, call: int, number: int) -> bool:
        return self._is_exhausted or call != self._calls or number < self._completed + len(self._pending)

    def oldest(self) -> Part:
        """The request that the next response belongs to."""
        if not self._pending:
            raise ServerError("the server sent more responses than there were requests.")
        return self._pending[0]

    async def complete(self) -> None:
        """Remove the oldest request."""
        async with self._changed:
            self._pending.popleft()
            self._completed += 1
            self._changed.notify_all()

    def is_done(self) -> bool:
        """Whether all requests have a response; raises the error of the source."""
        if self._pending or not self._is_exhausted:
            return False
        if self._error is not None:
            raise self._error
        return True


async def async_results(
    requests: AsyncStreamRequests,
    replicas: Replicas,
    open_call: Callable[[int, AsyncIterator[bytes]], AbstractAsyncContextManager[AsyncIterable[bytes]]],
) -> AsyncIterator[Scored]:
    """`darksight_client.streams.results` for asyncio."""
    failures = 0
    while True:
        replica = replicas.order()[0]
        try:
            async with open_call(replica, requests.serialized()) as responses:
                async for response in responses:
                    scored = read_result(response, requests.oldest())
                    await requests.complete()
                    failures = 0
                    yield scored
            if requests.is_done():
                return
            raise Unavailable("the server ended the stream early.")
        except Unavailable as error:
            failures += 1
            await asyncio.sleep(replicas.after_stream_failure(replica, failures, error))
