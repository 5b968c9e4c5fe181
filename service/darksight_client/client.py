"""The client for programs with threads."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

import grpc
from numpy.typing import ArrayLike

from darksight_client import admin
from darksight_client import regions as region_calls
from darksight_client.calls import Calls, points_request
from darksight_client.connection import Connection
from darksight_client.errors import error_of_rpc
from darksight_client.replicas import CallSteps, Send
from darksight_client.results import Point, Scored
from darksight_client.streams import STREAM, Outbox, answers, stream_part

__all__ = ["Client"]

P = ParamSpec("P")
T = TypeVar("T")


def _run(steps: Callable[Concatenate[Calls, P], CallSteps[T]]) -> Callable[Concatenate[Client, P], T]:
    """A method of the client from the steps of a call."""

    @functools.wraps(steps)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(steps(self._calls, *args, **kwargs))

    return method


def _pages(request: Callable[P, Any]) -> Callable[Concatenate[Client, P], Iterator[Point]]:
    """A method of the client that goes through pages, from what makes the request for the first."""

    @functools.wraps(request)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Point]:
        message, token = request(*args, **kwargs), ""
        while True:
            points, token = self._run(self._calls.page(message, token))
            yield from points
            if not token:
                return

    return method


class Client(Connection):
    """Talks to one or more DarkSight servers; may be shared by all threads of a program.

    Several addresses take turns, and a call that meets a dead server goes to the next. Parameters: see `Connection`.

    Examples
    --------
    >>> with Client("localhost:8081") as client:  # doctest: +SKIP
    ...     scored = client.score("digits", probs)
    ...     usable = scored.accepted
    """

    _api: ClassVar[Any] = grpc

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

    def stream(
        self,
        model: str,
        batches: Iterable[ArrayLike],
        *,
        version: str = "",
        logits: bool = False,
        partial_ok: bool = False,
        max_in_flight: int = 16,
        timeout_seconds: float | None = None,
    ) -> Iterator[Scored]:
        """Score many batches on one call, results in order; a batch that is refused raises and ends the stream.

        Parameters
        ----------
        model, version, logits, partial_ok
            As for `score`.
        batches
            Probabilities, (n, K) each, small enough for a message. They are taken in a thread of their own.
        max_in_flight
            How many batches may be under way at a time.
        timeout_seconds
            For the whole stream; default: none.
        """
        options = {"version": version, "logits": logits, "partial_ok": partial_ok}
        limit = self._calls.max_message_bytes
        outbox = Outbox((stream_part(model, batch, limit, options) for batch in batches), max_in_flight)
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds

        def open_call(replica: int, requests: Iterator[bytes]) -> Any:
            rest = None if end is None else end - time.monotonic()
            method = self._channel(replica).stream_stream(STREAM, None, None)
            return method(requests, timeout=rest, metadata=self._token.metadata())

        return answers(outbox, self._calls.replicas, open_call, time.sleep)

    def close(self) -> None:
        """End all connections; calls that are under way raise `Cancelled`."""
        for channel in self._close():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, steps: CallSteps[T]) -> T:
        """Do what the steps of a call say."""
        try:
            step = next(steps)
            while True:
                if not isinstance(step, Send):
                    time.sleep(step.seconds)
                    step = steps.send(b"")
                    continue
                method = self._method(step.replica, step.method)
                try:
                    answer = method(step.data, timeout=step.timeout_seconds, metadata=self._token.metadata())
                except grpc.RpcError as error:
                    step = steps.throw(error_of_rpc(error))
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
