"""Addresses, credentials and options of a client, without I/O: what clients for threads and for asyncio share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import grpc

from darksight_client.errors import DarkSightClientError
from darksight_client.transport.connections import Connections, Lease
from darksight_client.transport.credentials import Token, tls_credentials
from darksight_client.transport.fallback import Breaker, Fallback, GateCounts, OnFailure
from darksight_client.transport.retries import Replicas, Steps

__all__ = ["Transport"]

_COMPRESSIONS = {
    None: grpc.Compression.NoCompression,
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
}

# For a name with several IP addresses, such as that of a headless Kubernetes service.
_ROUND_ROBIN = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})


class Transport:
    """Connections to one or more servers. The parameters are those of `Client`."""

    _grpc: ClassVar[Any]  # the module grpc or grpc.aio

    def __init__(
        self,
        target: str | Iterable[str],
        *,
        token: str | None = None,
        token_file: str | Path | None = None,
        tls_ca: str | Path | bool | None = None,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
        server_name: str | None = None,
        timeout_seconds: float = 5.0,
        gate_timeout_seconds: float = 0.5,
        on_failure: OnFailure = "raise",
        breaker_failures: int = 5,
        breaker_seconds: float = 1.0,
        retries: int = 8,
        compression: str | None = None,
        max_message_bytes: int = 4 << 20,
        max_connections: int = 64,
    ) -> None:
        targets = (target,) if isinstance(target, str) else tuple(target)
        if not targets or not all(targets):
            raise DarkSightClientError("no address given; give one such as 'localhost:8081', or a list of addresses.")
        if token is not None and token_file is not None:
            raise DarkSightClientError("token and token_file are mutually exclusive.")
        if compression not in _COMPRESSIONS:
            raise DarkSightClientError(f"unknown compression {compression!r}; give 'gzip', 'deflate' or None.")
        arguments = {"options": _options(max_message_bytes, server_name), "compression": _COMPRESSIONS[compression]}
        credentials = tls_credentials(tls_ca, tls_cert, tls_key)
        if credentials is None:
            open_channel = partial(self._grpc.insecure_channel, **arguments)
        else:
            open_channel = partial(self._grpc.secure_channel, credentials=credentials, **arguments)
        self._token = Token(token or "", None if token_file is None else Path(token_file))
        self._timeout_seconds = timeout_seconds
        self._gate_timeout_seconds = gate_timeout_seconds
        self._fallback = Fallback(on_failure, Breaker(breaker_failures, breaker_seconds))
        self._max_message_bytes = max_message_bytes
        self._replicas = Replicas(len(targets), retries)
        self._addresses = [Connections(partial(open_channel, each), max_connections) for each in targets]

    def gate_counts(self) -> GateCounts:
        """How often `gate` got no decision of the service, and what `on_failure` decided."""
        return self._fallback.counts()

    def _call(self, path: str, data: bytes, *, is_idempotent: bool) -> Steps[bytes]:
        """Steps of one call, with the timeout of the client."""
        return self._replicas.call(path, data, self._timeout_seconds, is_idempotent=is_idempotent)

    def _lease(self, replica: int) -> Lease:
        """A connection for one call."""
        if not self._addresses:
            raise DarkSightClientError("the client is closed.")
        return Lease(self._addresses[replica], self._token.metadata())

    def _close_addresses(self) -> list[Any]:
        """All channels, which the caller must close."""
        addresses, self._addresses = self._addresses, []
        return [channel for connections in addresses for channel in connections.close()]


def _options(max_message_bytes: int, server_name: str | None) -> list[tuple[str, Any]]:
    """Channel options."""
    options: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", max_message_bytes),
        # A Score response is kept below the limit like its request. A page of stored points can be larger.
        ("grpc.max_receive_message_length", 16 * max_message_bytes),
        ("grpc.service_config", _ROUND_ROBIN),
        # Without it, gRPC uses one connection for all channels to the same address.
        ("grpc.use_local_subchannel_pool", 1),
        # Reconnect to a restarted server within two seconds; by default it can take two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 2000),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # Detect a broken connection while a call waits.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]
    if server_name:
        options += [("grpc.ssl_target_name_override", server_name), ("grpc.default_authority", server_name)]
    return options
