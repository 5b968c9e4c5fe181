"""The client for asyncio: the calls of `Client`, to be awaited.

A stream works as in `streams`, with a task where that has a thread.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

import grpc
import grpc.aio
from numpy.typing import ArrayLike

from darksight_client import admin
from darksight_client import regions as region_calls
from darksight_client.calls import Calls, points_request
from darksight_client.connection import Connection
from darksight_client.errors import DarkSightClientError, ServerError, Unavailable, error_of_rpc
from darksight_client.replicas import CallSteps, Send
from darksight_client.requests import Part
from darksight_client.results import Point, Scored
from darksight_client.streams import STREAM, read_answer, stream_part

__all__ = ["AsyncClient"]

P = ParamSpec("P")
T = TypeVar("T")


def _run(
    steps: Callable[Concatenate[Calls, P], CallSteps[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """A method of the client from the steps of a call."""

    @functools.wraps(steps)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(steps(self._calls, *args, **kwargs))

    return method


def _pages(request: Callable[P, Any]) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[Point]]:
    """A method of the client that goes through pages, from what makes the request for the first."""

    @functools.wraps(request)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Point]:
        message, token = request(*args, **kwargs), ""
        while True:
            points, token = await self._run(self._calls.page(message, token))
            for point in points:
                yield point
            if not token:
                return

    return method


class AsyncClient(Connection):
    """`Client` for asyncio; belongs to the event loop it is first used in. Parameters: see `Connection`.

    Examples
    --------
    >>> async def usable(probs):  # doctest: +SKIP
    ...     async with AsyncClient("localhost:8081") as client:
    ...         return (await client.score("digits", probs)).accepted
    """

    _api: ClassVar[Any] = grpc.aio

    score = _run(Calls.score)
    gate = _run(Calls.gate)
    report = _run(Calls.report)
    points = _pages(points_request)
    health = _run(Calls.health)

    models = _run(admin.models)
    model = _run(admin.model)
    deploy = _run(admin.deploy)
    activate = _run(admin.activate)
    roll_back = _run(admin.roll_back)
    shadow = _run(admin.shadow)
    policy = _run(admin.policy)
    set_policy = _run(admin.set_policy)
    dry_run_policy = _run(admin.dry_run_policy)

    regions = _run(region_calls.regions)
    region_history = _run(region_calls.region_history)
    preview_region = _run(region_calls.preview_region)
    save_region = _run(region_calls.save_region)
    enforce_region = _run(region_calls.enforce_region)
    shadow_region = _run(region_calls.shadow_region)
    remove_region = _run(region_calls.remove_region)
    carry_over_region = _run(region_calls.carry_over_region)

    async def stream(
        self,
        model: str,
        batches: Iterable[ArrayLike] | AsyncIterable[ArrayLike],
        *,
        version: str = "",
        logits: bool = False,
        partial_ok: bool = False,
        max_in_flight: int = 16,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[Scored]:
        """Score many batches on one call, as `Client.stream`; batches may come from an asynchronous iterable too."""
        options = {"version": version, "logits": logits, "partial_ok": partial_ok}
        limit = self._calls.max_message_bytes
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        outbox = _Outbox(lambda batch: stream_part(model, batch, limit, options), max_in_flight)
        filler = asyncio.create_task(outbox.fill(batches))
        failures, call, replicas = 0, None, self._calls.replicas
        try:
            while True:
                replica = replicas.order()[0]
                rest = None if end is None else end - time.monotonic()
                method = self._channel(replica).stream_stream(STREAM, None, None)
                call = method(outbox.requests(), timeout=rest, metadata=self._token.metadata())
                try:
                    async for reply in call:
                        scored = read_answer(reply, outbox.oldest())
                        await outbox.answered()
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
                    await asyncio.sleep(replicas.pause_after(failures))
        finally:
            filler.cancel()
            if call is not None:
                call.cancel()

    async def close(self) -> None:
        """End all connections; calls that are under way raise `Cancelled`."""
        for channel in self._close():
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, steps: CallSteps[T]) -> T:
        """Do what the steps of a call say."""
        try:
            step = next(steps)
            while True:
                if not isinstance(step, Send):
                    await asyncio.sleep(step.seconds)
                    step = steps.send(b"")
                    continue
                method = self._method(step.replica, step.method)
                try:
                    answer = await method(step.data, timeout=step.timeout_seconds, metadata=self._token.metadata())
                except grpc.RpcError as error:
                    step = steps.throw(error_of_rpc(error))
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result


class _Outbox:
    """Requests that are not answered yet.

    Parameters
    ----------
    make
        Makes a request from a batch.
    limit
        How many there may be at a time.
    """

    def __init__(self, make: Callable[[ArrayLike], Part], limit: int) -> None:
        self._make = make
        self._limit = limit
        self._parts: deque[Part] = deque()
        self._first = 0
        self._turn = 0
        self._is_over = False
        self._error: Exception | None = None
        self._changed = asyncio.Condition()

    async def fill(self, batches: Iterable[ArrayLike] | AsyncIterable[ArrayLike]) -> None:
        """Take batches, as fast as they are answered."""
        try:
            if isinstance(batches, AsyncIterable):
                async for batch in batches:
                    await self._add(self._make(batch))
            else:
                for batch in batches:
                    await self._add(self._make(batch))
        except Exception as error:
            self._error = error  # raised where the answers are read, after those before it
        async with self._changed:
            self._is_over = True
            self._changed.notify_all()

    async def _add(self, part: Part) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._parts) < self._limit)
            self._parts.append(part)
            self._changed.notify_all()

    async def requests(self) -> AsyncIterator[bytes]:
        """All of them and then those that come, until there are no more or a newer call asks."""
        self._turn += 1
        turn, number = self._turn, self._first
        while True:
            async with self._changed:
                await self._changed.wait_for(functools.partial(self._has_news, turn, number))
                if turn != self._turn or number >= self._first + len(self._parts):
                    return
                part = self._parts[number - self._first]
            number += 1
            yield part.request.SerializeToString()

    def _has_news(self, turn: int, number: int) -> bool:
        return self._is_over or turn != self._turn or number < self._first + len(self._parts)

    def oldest(self) -> Part:
        """The one whose answer comes next."""
        if not self._parts:
            raise ServerError("the server sent more answers than there were requests.")
        return self._parts[0]

    async def answered(self) -> None:
        """Forget the oldest."""
        async with self._changed:
            self._parts.popleft()
            self._first += 1
            self._changed.notify_all()

    def is_done(self) -> bool:
        """Whether all is answered; raises what the source of the batches raised."""
        if self._parts or not self._is_over:
            return False
        if self._error is not None:
            raise self._error
        return True
