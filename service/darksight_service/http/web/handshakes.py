"""TLS handshakes of HTTP servers, with limits that asyncio does not have.

asyncio tells a protocol of a connection after its handshake, so a caller who connects and sends nothing counts nowhere
and may wait for a minute. Here a connection counts from the moment it is accepted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from darksight_service.http.web.limits import MAX_HANDSHAKES

__all__ = ["limit_handshakes"]

_HANDSHAKE_SECONDS = 5.0


def limit_handshakes(make: Callable[..., asyncio.Protocol], context: Callable[[], ssl.SSLContext]) -> Any:
    """For the option `http` of uvicorn, which then accepts plain connections: each starts TLS itself.

    Parameters
    ----------
    make
        Makes the protocol of a connection whose handshake has ended, from the options of uvicorn.
    context
        The certificate for a new connection.
    """
    pending: dict[_Handshake, None] = {}
    return lambda **options: _Handshake(partial(make, **options), context(), pending)


class _Handshake(asyncio.Protocol):
    """A connection from its start until its handshake has ended."""

    def __init__(
        self, make: Callable[[], asyncio.Protocol], context: ssl.SSLContext, pending: dict[_Handshake, None]
    ) -> None:
        self._make = make
        self._context = context
        self._pending = pending
        self._received = b""
        self._plain: Any = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start TLS; end the oldest handshake if there are too many."""
        self._plain = transport
        self._plain.pause_reading()
        if len(self._pending) >= MAX_HANDSHAKES:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest._plain.abort()
        self._pending[self] = None
        self._task = asyncio.get_running_loop().create_task(self._start())

    def data_received(self, data: bytes) -> None:
        """Keep what arrives together with the end of the handshake."""
        self._received += data

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        secure = None
        try:
            with suppress(OSError):
                secure = await loop.start_tls(
                    self._plain, self, self._context, server_side=True, ssl_handshake_timeout=_HANDSHAKE_SECONDS
                )
        finally:
            self._pending.pop(self, None)
        if secure is None or self._plain.is_closing():
            self._plain.abort()
            return
        protocol = self._make()
        secure.set_protocol(protocol)
        protocol.connection_made(secure)
        if self._received:
            protocol.data_received(self._received)
