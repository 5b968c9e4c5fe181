"""ScoreStream for asyncio: `darksight_client.streams` with a task in place of the thread."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager

from numpy.typing import ArrayLike

from darksight_client.errors import Unavailable
from darksight_client.requests import Part
from darksight_client.results.rows import Scored
from darksight_client.streams import PendingRequests, read_result
from darksight_client.transport.retries import Replicas

__all__ = ["AsyncStreamRequests", "async_results"]


class AsyncStreamRequests(PendingRequests):
    """Requests of a stream, for asyncio.

    Parameters
    ----------
    make_part
        Makes a request from a batch.
    limit
        Maximum number of requests in flight.
    """

    def __init__(self, make_part: Callable[[ArrayLike], Part], limit: int) -> None:
        super().__init__()
        self._make_part = make_part
        self._limit = limit
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
            self.error = error  # raised by is_done, after the results before it
        async with self._changed:
            self.is_exhausted = True
            self._changed.notify_all()

    async def _add(self, part: Part) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.pending) < self._limit)
            self.pending.append(part)
            self._changed.notify_all()

    async def serialized(self) -> AsyncIterator[bytes]:
        """Requests of a new call: the pending ones, then new ones. Ends when a newer call begins."""
        self.calls += 1
        call = self.calls
        for number in itertools.count(self.completed):
            async with self._changed:
                await self._changed.wait_for(functools.partial(self.is_ready, call, number))
            data = self.request(call, number)
            if data is None:
                return
            yield data

    async def complete(self) -> None:
        """Remove the oldest request."""
        async with self._changed:
            self.pop()
            self._changed.notify_all()


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
