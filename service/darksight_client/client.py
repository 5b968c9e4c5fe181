"""The client for threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import grpc

from darksight_client.declarations import Blocking, Pages, add_methods
from darksight_client.errors import DarkSightClientError, Unavailable
from darksight_client.operations import Operations
from darksight_client.results.rows import Scored
from darksight_client.streams import SCORE_STREAM, Stream, ThreadRequests
from darksight_client.transport.retries import Send, Steps

__all__ = ["Client"]

T = TypeVar("T")


@add_methods
class Client(Operations, Blocking):
    """Client of one or more DarkSight servers, for threads. Thread-safe.

    The client opens one connection to each worker of a server and sends each call to the connection with the fewest
    calls in flight. Several addresses are used in turn; a call that fails because a server is down is sent to the next.
    Without TLS options the connection is plaintext, including the token.

    Parameters
    ----------
    target
        Address such as "localhost:8081", or several addresses. A name with several IP addresses stands for all of them.
    token, token_file
        Bearer token, or a file that contains it. The file is reloaded when it changes.
    tls_ca
        File with the certificates that the server's certificate is verified with; True for those of the system.
    tls_cert, tls_key
        Files with the client's certificate and private key, for mutual TLS.
    server_name
        Name in the server's certificate, if it differs from `target`.
    timeout_seconds
        Default timeout of a call, including retries.
    gate_timeout_seconds
        Default timeout of `gate`, including retries.
    on_failure
        What `gate` does when the service is unavailable, overloaded or slower than the timeout: "raise" the error, or
        "accept" or "reject" the row. Such a decision has the reason UNSCORED and `Gated.failure`; `gate_counts` counts
        it. Errors of the request, of the token and of the model name are always raised.
    breaker_failures
        Number of failed `gate` calls in a row after which `gate` fails at once instead of calling; 0 for never.
    breaker_seconds
        Interval at which `gate` calls again then. The first response ends it.
    retries
        Maximum number of retries of a call when a server is unavailable, or is overloaded and says when to retry.
        Changes of models, policies and regions are not retried, and no other error is.
    compression
        Compression of requests: "gzip", "deflate" or None.
    max_message_bytes
        Message limit of the server. Larger batches are split.
    max_connections
        Maximum number of connections per address.

    Examples
    --------
    >>> with Client("localhost:8081") as client:  # doctest: +SKIP
    ...     scored = client.score("digits", probs)
    ...     usable = scored.accepted
    """

    _grpc: ClassVar[Any] = grpc

    def close(self) -> None:
        """Close all connections. Calls in flight raise `Cancelled`."""
        for channel in self._close_addresses():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        """Execute the steps of an operation."""
        try:
            step = next(steps)
            while True:
                if not isinstance(step, Send):
                    time.sleep(step.seconds)
                    step = next(steps)
                    continue
                try:
                    response = self._send(step)
                except DarkSightClientError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(response)
        except StopIteration as end:
            result: T = end.value
            return result

    def _items(self, pages: Pages[T]) -> Iterator[T]:
        """Items of all pages; a page is fetched when it is needed."""
        for page in pages:
            yield from self._run(page)

    def _send(self, step: Send) -> bytes:
        lease = self._lease(step.replica)
        try:
            with lease:
                method = lease.connection.method(step.path)
                response, call = method.with_call(step.data, timeout=step.timeout_seconds, metadata=lease.metadata)
                lease.learn(call.trailing_metadata())
                return bytes(response)
        finally:
            if lease.unused is not None:
                lease.unused.close()

    def _results(self, stream: Stream) -> Iterator[Scored]:
        """Results in order, reopening the call when the connection breaks."""
        requests = ThreadRequests(stream)
        try:
            while True:
                replica = self._replicas.order()[0]
                try:
                    with self._open_stream(replica, requests.serialized(), stream.rest()) as responses:
                        for response in responses:
                            yield requests.complete(response)
                    requests.end()
                    return
                except Unavailable as error:
                    time.sleep(requests.delay(self._replicas, replica, error))
        finally:
            requests.stop()

    @contextmanager
    def _open_stream(self, replica: int, requests: Iterator[bytes], timeout_seconds: float | None) -> Iterator[Any]:
        """A ScoreStream call; iterating over it returns serialized responses."""
        lease, call = self._lease(replica), None
        try:
            with lease:
                method = lease.connection.channel.stream_stream(SCORE_STREAM, None, None)
                call = method(requests, timeout=timeout_seconds, metadata=lease.metadata)
                lease.learn(call.initial_metadata())
                yield call
        finally:
            if call is not None:
                call.cancel()
            if lease.unused is not None:
                lease.unused.close()
