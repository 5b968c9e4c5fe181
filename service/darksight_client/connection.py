"""How a client connects: addresses, TLS, tokens and the options of gRPC, the same for threads and for asyncio."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import grpc

from darksight_client.calls import Calls
from darksight_client.errors import DarkSightClientError
from darksight_client.replicas import Replicas

__all__ = ["MAX_MESSAGE_BYTES", "Connection", "Token"]

MAX_MESSAGE_BYTES = 4 << 20
"""Message size of a server without a setting of its own."""

_COMPRESSIONS = {
    None: grpc.Compression.NoCompression,
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
}

# For an address that stands for several servers, such as the name of a headless Kubernetes service.
_ROUND_ROBIN = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
_TOKEN_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Token:
    """A bearer token, read again when its file has changed.

    Parameters
    ----------
    text
        The token; empty for none.
    file
        Where it is instead.
    clock
        Monotonic seconds.
    """

    text: str = ""
    file: Path | None = None
    clock: Callable[[], float] = time.monotonic
    _stamp: tuple[int, int] | None = field(init=False, default=None)
    _next_look: float = field(init=False, default=0.0)

    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        """What a call carries; looks at the file at most once a second."""
        if self.file is not None and self.clock() >= self._next_look:
            self._look(self.file)
        return (("authorization", f"Bearer {self.text}"),) if self.text else None

    def _look(self, file: Path) -> None:
        try:
            stat = os.stat(file)
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp != self._stamp:
                text = file.read_text(encoding="utf-8").strip()
                if text:
                    self.text, self._stamp = text, stamp
        except OSError as error:
            # While a file is replaced the token from before still serves.
            if not self.text:
                raise DarkSightClientError(f"cannot read token_file {file}: {error.strerror}.") from None
        if not self.text:
            raise DarkSightClientError(f"token_file {file} is empty.")
        self._next_look = self.clock() + _TOKEN_SECONDS


class Connection:
    """Channels to one or more servers; what `Client` and `AsyncClient` begin with.

    Without any of the TLS options the connection is plaintext, a token included.

    Parameters
    ----------
    target
        Address such as "localhost:8081", or several, which take turns. A name with several IP addresses stands for all
        of them. A connection ends at one worker of a server: for much traffic from one program give the address
        several times.
    token, token_file
        Bearer token, or the file it is in, which is read again when it changes.
    tls_ca
        File of the certificates that the server's is checked against; True for those of the system.
    tls_cert, tls_key
        Files of the client's own certificate and key, for mutual TLS.
    server_name
        Name in the server's certificate, if it is not the one in `target`.
    timeout_seconds
        For each call with all its retries, unless the call says otherwise.
    retries
        How often a call is repeated at most if a server cannot be reached. Only what does no harm twice is repeated:
        all calls except changes of models and policies. No other error is followed by a retry.
    compression
        Of requests: "gzip", "deflate" or None.
    max_message_bytes
        Message limit of the server; larger batches go in parts.
    """

    _api: ClassVar[Any]  # the module grpc or grpc.aio

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
        retries: int = 8,
        compression: str | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        targets = (target,) if isinstance(target, str) else tuple(target)
        if not targets or not all(targets):
            raise DarkSightClientError("no address; give one such as 'localhost:8081', or a list of them.")
        if token is not None and token_file is not None:
            raise DarkSightClientError("both token and token_file; give one of them.")
        if (tls_cert is None) != (tls_key is None):
            raise DarkSightClientError("tls_cert and tls_key belong together; give both or none.")
        if compression not in _COMPRESSIONS:
            raise DarkSightClientError(f"unknown compression {compression!r}; give 'gzip', 'deflate' or None.")
        self._token = Token(token or "", None if token_file is None else Path(token_file))
        arguments = {"options": _options(max_message_bytes, server_name), "compression": _COMPRESSIONS[compression]}
        credentials = _credentials(tls_ca, tls_cert, tls_key)
        if credentials is None:
            self._channels = [self._api.insecure_channel(each, **arguments) for each in targets]
        else:
            self._channels = [self._api.secure_channel(each, credentials, **arguments) for each in targets]
        self._calls = Calls(Replicas(len(targets), retries), timeout_seconds, max_message_bytes)
        self._methods: dict[tuple[int, str], Any] = {}

    def _channel(self, replica: int) -> Any:
        """The channel to a replica."""
        if not self._channels:
            raise DarkSightClientError("the client is closed.")
        return self._channels[replica]

    def _method(self, replica: int, name: str) -> Any:
        """What calls a method of a replica; bytes in, bytes out."""
        channel = self._channel(replica)
        method = self._methods.get((replica, name))
        if method is None:
            method = self._methods[replica, name] = channel.unary_unary(name, None, None)
        return method

    def _close(self) -> list[Any]:
        """Channels that the caller closes."""
        channels, self._channels = self._channels, []
        return channels


def _options(max_message_bytes: int, server_name: str | None) -> list[tuple[str, Any]]:
    """Of gRPC channels."""
    options: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", max_message_bytes),
        # The answer to a batch is kept below the limit like the request, but a page of stored points has any size.
        ("grpc.max_receive_message_length", 16 * max_message_bytes),
        ("grpc.service_config", _ROUND_ROBIN),
        # Else gRPC gives all channels to one address the same connection, which ends at one worker of the server.
        ("grpc.use_local_subchannel_pool", 1),
        # A server that was restarted is found again within two seconds; the defaults go up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 2000),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # A connection whose other end is gone without a word is noticed while a call waits.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]
    if server_name:
        options += [("grpc.ssl_target_name_override", server_name), ("grpc.default_authority", server_name)]
    return options


def _credentials(ca: str | Path | bool | None, cert: str | Path | None, key: str | Path | None) -> Any:
    """TLS credentials from files; None if there are none."""
    if not ca and cert is None:
        return None
    roots = None if ca is None or isinstance(ca, bool) else _read(ca)
    chain = (None, None) if cert is None or key is None else (_read(key), _read(cert))
    return grpc.ssl_channel_credentials(roots, *chain)


def _read(path: str | Path) -> bytes:
    """A certificate or key."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DarkSightClientError(f"cannot read {path}: {error.strerror}.") from None
