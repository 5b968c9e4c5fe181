"""The connections to one address: one for each worker of the server.

The workers of a server share one port, and the kernel assigns each connection to one of them. Every response says which
worker sent it and how many there are (`WORKER_HEADER`). As long as a worker has no connection, another connection is
opened; a connection to a worker that already has one is closed. A call uses the connection with the fewest calls in
flight.

An address may be a name with several IP addresses. A connection then holds one TCP connection to each of these servers,
and is kept if it is the only one to any worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc

from darksight_client.errors import DarkSightClientError, Unavailable, error_of_rpc

__all__ = ["WORKER_HEADER", "Connection", "Connections", "Lease", "worker_header"]

WORKER_HEADER = "darksight-worker"
"""Response metadata: id of the server, number of the worker and number of workers, such as "1c2f/0/4"."""

# The kernel picks workers at random, so 8 attempts per worker miss one with probability exp(-8). After that many the
# worker is probably down, and attempts continue at increasing intervals.
_ATTEMPTS_PER_WORKER = 8
_MAX_INTERVAL_SECONDS = 60.0
# A server closes old connections, and the new one may lead to another worker. Behind a proxy every call may lead to
# another one. So what is known of a connection is checked, but only once a minute.
_CHECK_SECONDS = 60.0


def worker_header(server: str, number: int, count: int) -> tuple[str, str]:
    """The metadata that names a worker."""
    return WORKER_HEADER, f"{server}/{number}/{count}"


class _Worker(NamedTuple):
    """What a response said about its worker, and until when that is taken as known."""

    number: str
    total: int
    known_until: float


@dataclass(slots=True, eq=False)
class Connection:
    """A gRPC channel and the workers it leads to.

    Parameters
    ----------
    channel
        Of grpc or grpc.aio.
    in_flight
        Number of calls without a response.
    last_use
        Number of its last call among all calls.
    workers
        The worker by id of the server.
    methods
        Callables for unary methods, by path.
    """

    channel: Any
    in_flight: int = 0
    last_use: int = 0
    workers: dict[str, _Worker] = field(default_factory=dict)
    methods: dict[str, Any] = field(default_factory=dict)

    def reached(self) -> set[tuple[str, str]]:
        """Server and number of each worker."""
        return {(server, worker.number) for server, worker in self.workers.items()}

    def method(self, path: str) -> Any:
        """Callable for a unary method; takes and returns bytes."""
        if path not in self.methods:
            self.methods[path] = self.channel.unary_unary(path, None, None)
        return self.methods[path]


class Connections:
    """The connections to one address. Thread-safe.

    Parameters
    ----------
    open_channel
        Opens a channel, which connects when it is used.
    max_connections
        Maximum number of connections.
    clock
        Monotonic seconds.
    """

    def __init__(
        self, open_channel: Callable[[], Any], max_connections: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open_channel = open_channel
        self._max_connections = max_connections
        self._clock = clock
        self._lock = threading.Lock()
        self._open = [Connection(open_channel())]
        self._closing: list[Connection] = []
        self._uses = 0
        self._is_complete = False
        self._failed_attempts = 0
        self._next_attempt = 0.0

    def acquire(self) -> Connection:
        """The connection for the next call, which must be released."""
        with self._lock:
            if not self._open:
                raise DarkSightClientError("the client is closed")
            connection = min(self._open, key=lambda each: (each.in_flight, each.last_use))
            self._uses += 1
            connection.last_use = self._uses
            connection.in_flight += 1
            return connection

    def release(self, connection: Connection, *, has_failed: bool = False) -> Any:
        """End a call; returns a channel that the caller must close, or None.

        Parameters
        ----------
        connection
            From `acquire`.
        has_failed
            Whether the connection broke. gRPC then reconnects, perhaps to another worker.
        """
        with self._lock:
            connection.in_flight -= 1
            if has_failed:
                connection.workers.clear()
                self._is_complete = False
            if connection.in_flight or connection not in self._closing:
                return None
            self._closing.remove(connection)
            return connection.channel

    def learn(self, connection: Connection, metadata: Iterable[tuple[str, Any]] | None) -> None:
        """Read from response metadata which worker a connection leads to, and open or close connections accordingly."""
        worker = next((value for key, value in metadata or () if key == WORKER_HEADER), "")
        if not worker:
            return
        server, number, count = worker.split("/")
        now = self._clock()
        with self._lock:
            known = connection.workers.get(server)
            is_known = known is not None and now < known.known_until
            if is_known and self._is_complete:
                return
            if not is_known and connection in self._open:
                connection.workers[server] = _Worker(number, int(count), now + _CHECK_SECONDS)
                self._close_if_redundant(connection, is_new=known is None)
            self._complete(int(count), now)

    def close(self) -> list[Any]:
        """All channels, which the caller must close."""
        with self._lock:
            channels = [connection.channel for connection in (*self._open, *self._closing)]
            self._open, self._closing = [], []
            return channels

    def _close_if_redundant(self, connection: Connection, *, is_new: bool) -> None:
        others = set[tuple[str, str]]().union(*(each.reached() for each in self._open if each is not connection))
        is_redundant = connection.reached() <= others
        if is_redundant:
            self._open.remove(connection)
            self._closing.append(connection)
        if is_new:
            self._failed_attempts = self._failed_attempts + 1 if is_redundant else 0

    def _complete(self, workers: int, now: float) -> None:
        """Open another connection if a worker has none."""
        reached = set[tuple[str, str]]().union(*(each.reached() for each in self._open))
        counts = {server: worker.total for each in self._open for server, worker in each.workers.items()}
        self._is_complete = len(reached) >= min(sum(counts.values()), self._max_connections)
        is_pending = any(not each.workers for each in self._open)
        if self._is_complete or is_pending or len(self._open) >= self._max_connections:
            return
        excess = self._failed_attempts - _ATTEMPTS_PER_WORKER * workers
        if excess <= 0 or now >= self._next_attempt:
            self._next_attempt = now + min(max(excess, 0), _MAX_INTERVAL_SECONDS)
            self._open.append(Connection(self._open_channel()))


class Lease:
    """A connection for the time of one call. On exit an error of gRPC becomes one of the client.

    Parameters
    ----------
    connections
        The connections to choose from.
    metadata
        Metadata of the call.
    """

    def __init__(self, connections: Connections, metadata: tuple[tuple[str, str], ...] | None) -> None:
        self._connections = connections
        self.connection = connections.acquire()
        self.metadata = metadata
        self.unused: Any = None  # a channel that the caller must close after the call

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        found = error_of_rpc(error) if isinstance(error, grpc.RpcError) else None
        self.unused = self._connections.release(self.connection, has_failed=isinstance(found, Unavailable))
        if found is not None:
            raise found from None

    def learn(self, metadata: Iterable[tuple[str, Any]] | None) -> None:
        """Read from response metadata which worker the connection leads to."""
        self._connections.learn(self.connection, metadata)
