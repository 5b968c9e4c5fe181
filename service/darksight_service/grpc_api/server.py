"""The gRPC server of a worker: limits, tokens, TLS and health.

A call is checked when its headers have arrived and before its message is read. An unknown method, a caller without the
scope and a call too many are rejected without using a thread of the pool.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import resource
import socket
from collections.abc import Collection, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from darksight_client.transport.connections import worker_header

from darksight_service.control.tokens import OPEN
from darksight_service.errors import ForbiddenError, OverloadedError, UnauthenticatedError
from darksight_service.grpc_api.callers import find_header
from darksight_service.grpc_api.health import Health
from darksight_service.grpc_api.methods import Method, MethodHandler, MethodTable
from darksight_service.grpc_api.pools import BulkPool, CallPool, Handler, StreamPool
from darksight_service.grpc_api.silence import start_ending
from darksight_service.grpc_api.status import abort, abort_code
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.operations.callers import Callers
from darksight_service.operations.inference import INFERENCE
from darksight_service.operations.operation import Pool, Service
from darksight_service.operations.scoring import MONITOR
from darksight_service.settings import Settings

__all__ = ["RpcServer"]

_THREADS = 4
_REFUSAL_THREADS = 2
# Calls that may wait for the database at once; further calls are refused.
_STORE_CALLS = 16
# Calls and health watches, which need no token, the threads for the calls, and the time for their message to arrive.
_OPEN_CALLS, _WATCHES, _OPEN_THREADS, _OPEN_SECONDS = 64, 64, 2, 5.0
# When a rejected caller should retry: about the time to process a full queue.
_RETRY_SECONDS = 0.05
_NEVER_MS = 2**31 - 1
# Descriptors of a worker that are not for connections.
_OTHER_DESCRIPTORS = 128

_log = logging.getLogger("darksight.rpc")


class RpcServer:
    """The gRPC server of a worker.

    Parameters
    ----------
    settings
        Address, limits, certificates and tokens.
    worker
        Number of the worker.
    service
        What handlers work with.
    counts
        Counters of the process.
    bulk
        The pool for large calls.
    callers
        Permits calls.
    api_descriptors
        Connections of the HTTP API in the same process.

    Attributes
    ----------
    pools
        The pools of calls by name.
    """

    def __init__(
        self,
        settings: Settings,
        worker: int,
        service: Service,
        counts: ProcessCounts,
        bulk: BulkPool,
        callers: Callers,
        *,
        api_descriptors: int = 0,
    ) -> None:
        self._has_tokens = callers.tokens is not None
        limit = settings.max_concurrent_calls
        self._calls = CallPool(min(_THREADS, limit), limit, "call", bulk)
        self._health = Health(_WATCHES)
        self.pools: Mapping[Pool, CallPool | StreamPool] = {
            "call": self._calls,
            "store": StreamPool(_STORE_CALLS, "store"),
            "stream": StreamPool(
                settings.max_streams, "stream", silent_seconds=settings.stream_idle_seconds or math.inf
            ),
            "open": StreamPool(_OPEN_CALLS, "open", threads=_OPEN_THREADS, silent_seconds=_OPEN_SECONDS),
        }
        # Those that are ended for newer ones still have a thread for a moment.
        watches = StreamPool(2 * _WATCHES, "watch", silent_seconds=_OPEN_SECONDS)
        self._limits = [pool.silence for pool in (*self.pools.values(), watches)]
        header = worker_header(_server_id(), worker, settings.worker_count)
        methods = MethodTable(service, self.pools, bulk, callers, counts, header)
        table = methods.operations() | methods.health(self._health, watches)
        if settings.reflection:
            table |= methods.reflection()
        self._server = grpc.server(
            self._calls,  # type: ignore[arg-type]  # gRPC uses submit only
            handlers=[_Lookup(table, callers, counts)],
            options=_options(settings, api_descriptors),
            compression=None,
        )
        self._listen(settings)

    def start(self) -> None:
        """Accept calls."""
        start_ending(self._limits)
        self._server.start()

    def set_serving(self, models: Collection[str], missing: Collection[str], *, is_ready: bool) -> None:
        """Report the server as it is ready or not; without tokens, also models as SERVING and missing ones as not.

        With tokens, callers without one do not learn which models there are.
        """
        names = dict.fromkeys(("", MONITOR.full_name, INFERENCE.full_name), is_ready)
        if not self._has_tokens:
            names = {**dict.fromkeys(missing, False), **dict.fromkeys(models, True), **names}
        self._health.set_serving(names)

    def stop(self, grace_seconds: float) -> None:
        """Report NOT_SERVING, reject new calls and wait for calls in flight."""
        self._health.stop()
        self._server.stop(grace_seconds).wait()
        self._calls.shutdown()

    def _listen(self, settings: Settings) -> None:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.grpc_port}"
        if settings.tls_cert is None or settings.tls_key is None:
            self._server.add_insecure_port(address)
        else:
            credentials = _credentials(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
            self._server.add_secure_port(address, credentials)


class _Lookup(grpc.GenericRpcHandler):
    """Returns the handler of a call, or one that rejects it."""

    def __init__(self, table: Mapping[str, Method], callers: Callers, counts: ProcessCounts) -> None:
        self._table = table
        self._callers = callers
        self._counts = counts
        self._refusals = futures.ThreadPoolExecutor(_REFUSAL_THREADS, thread_name_prefix="refusal")

    def service(self, details: grpc.HandlerCallDetails) -> MethodHandler | None:
        """The handler for a call whose headers have arrived."""
        method = self._table.get(details.method)
        if method is None:
            return None
        handler = method.handler
        if self._callers.tokens is not None and method.scope != OPEN:
            header = find_header(details.invocation_metadata, "authorization")
            if header is None and self._callers.has_certificates:
                handler = method.checking_handler
            else:
                try:
                    caller = self._callers.permit(header, method.scope)
                except (UnauthenticatedError, ForbiddenError) as error:
                    return self._refuse(error)
                if caller.models is not None:
                    handler = method.checking_handler
        if method.pool.is_full:
            self._counts.refuse_overload()
            return self._refuse(
                OverloadedError(
                    f"the server already has {method.pool.limit} calls; retry in {_RETRY_SECONDS:g} s",
                    retry_seconds=_RETRY_SECONDS,
                )
            )
        return handler

    def _refuse(self, error: Exception) -> MethodHandler:
        # A stream handler for every method, so that the rejection does not wait for the message.
        def refuse(_: object, context: grpc.ServicerContext) -> None:
            self._counts.start_call()
            self._counts.end_call(abort_code(error))
            abort(context, error)

        return grpc.stream_stream_rpc_method_handler(Handler(refuse, self._refusals))


def _server_id() -> str:
    """An id that all workers of this service share, and no other service."""
    text = f"{socket.gethostname()}/{os.getppid()}"
    return hashlib.blake2s(text.encode(), digest_size=4).hexdigest()


def _options(settings: Settings, api_descriptors: int) -> list[tuple[str, Any]]:
    return [
        ("grpc.so_reuseport", int(hasattr(socket, "SO_REUSEPORT"))),
        # Applies after decompression, so that a small compressed message cannot exceed the limit.
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", settings.max_connection_streams),
        ("grpc.max_allowed_incoming_connections", _max_connections(settings, api_descriptors)),
        ("grpc.max_metadata_size", 16 << 10),
        # A client may send a keepalive ping every 10 s, idle or not; one that sends more is disconnected.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.keepalive_permit_without_calls", 1),
        # The server sends pings, too: a broken connection is closed after 80 s.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Clients resolve names again only when a connection ends. Calls in flight finish on the old connection.
        ("grpc.max_connection_age_ms", round(1e3 * settings.connection_seconds) or _NEVER_MS),
        # A connection without calls is closed, so that idle ones do not keep others out. Clients connect again.
        ("grpc.max_connection_idle_ms", 60_000),
        # A client that connects and sends nothing is disconnected after this time.
        ("grpc.server_handshake_timeout_ms", 10_000),
    ]


def _max_connections(settings: Settings, api_descriptors: int) -> int:
    """Connections of a worker; files of the spool, the store and bundles must still find a descriptor."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = _OTHER_DESCRIPTORS + api_descriptors
    free = math.inf if soft == resource.RLIM_INFINITY else max(soft - others, 1)
    return int(min(settings.max_connections, free))


def _credentials(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCredentials:
    """TLS credentials that are reloaded when their files change."""
    seen: list[Any] = [None]

    def stamp() -> tuple[tuple[int, int], ...]:
        files = (cert, key) if client_ca is None else (cert, key, client_ca)
        return tuple((status.st_mtime_ns, status.st_ino) for status in (file.stat() for file in files))

    def load() -> grpc.ServerCertificateConfiguration:
        seen[0] = stamp()
        roots = None if client_ca is None else client_ca.read_bytes()
        return grpc.ssl_server_certificate_configuration([(key.read_bytes(), cert.read_bytes())], roots)

    def changed() -> Any:
        try:
            return None if stamp() == seen[0] else load()
        except OSError as error:
            _log.error("certificate_reload_failed", extra={"error": str(error)})
            return None

    return grpc.dynamic_ssl_server_credentials(load(), changed, require_client_authentication=client_ca is not None)
