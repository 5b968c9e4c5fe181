"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import grpc.aio

from darksight_client.declarations import Asynchronous, Pages, add_methods
from darksight_client.errors import DarkSightClientError, Unavailable
from darksight_client.operations import Operations
from darksight_client.results.rows import Scored
from darksight_client.streams import SCORE_STREAM, Stream, TaskRequests
from darksight_client.transport.retries import Send, Steps

__all__ = ["AsyncClient"]

T = TypeVar("T")


@add_methods
class AsyncClient(Operations, Asynchronous):
    """`Client` for asyncio, with the same parameters and methods.

    It belongs to the event loop that it is first used in.

    Examples
    --------
    >>> async def usable(probs):  # doctest: +SKIP
    ...     async with AsyncClient("localhost:8081") as client:
    ...         return (await client.score("digits", probs)).accepted
    """

    _grpc: ClassVar[Any] = grpc.aio

    async def close(self) -> None:
        """Close all connections. Calls in flight raise `Cancelled`."""
        for channel in self._close_addresses():
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, steps: Steps[T]) -> T:
        """Execute the steps of an operation."""
        try:
            step = next(steps)
            while True:
                if not isinstance(step, Send):
                    await asyncio.sleep(step.seconds)
                    step = next(steps)
                    continue
                try:
                    response = await self._send(step)
                except DarkSightClientError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(response)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _items(self, pages: Pages[T]) -> AsyncIterator[T]:
        """Items of all pages; a page is fetched when it is needed."""
        for page in pages:
            for item in await self._run(page):
                yield item

    async def _send(self, step: Send) -> bytes:
        lease = self._lease(step.replica)
        try:
            with lease:
                method = lease.connection.method(step.path)
                call = method(step.data, timeout=step.timeout_seconds, metadata=lease.metadata)
                response = await call
                lease.learn(await call.trailing_metadata())
                return bytes(response)
        finally:
            if lease.unused is not None:
                await lease.unused.close()

    async def _results(self, stream: Stream) -> AsyncIterator[Scored]:
        """Results in order, reopening the call when the connection breaks."""
        requests = TaskRequests(stream)
        try:
            while True:
                replica = self._replicas.order()[0]
                try:
                    async with self._open_stream(replica, requests.serialized(), stream.rest()) as responses:
                        async for response in responses:
                            yield requests.complete(response)
                    requests.end()
                    return
                except Unavailable as error:
                    await asyncio.sleep(requests.delay(self._replicas, replica, error))
        finally:
            requests.stop()

    @asynccontextmanager
    async def _open_stream(
        self, replica: int, requests: AsyncIterator[bytes], timeout_seconds: float | None
    ) -> AsyncIterator[Any]:
        """A ScoreStream call; iterating over it returns serialized responses."""
        lease, call = self._lease(replica), None
        try:
            with lease:
                method = lease.connection.channel.stream_stream(SCORE_STREAM, None, None)
                call = method(requests, timeout=timeout_seconds, metadata=lease.metadata)
                lease.learn(await call.initial_metadata())
                yield call
        finally:
            if call is not None:
                call.cancel()
            if lease.unused is not None:
                await lease.unused.close()
