"""HTTP/1.1 of uvicorn with limits, as a backstop where there is no reverse proxy.

A connection counts from the moment it is accepted, before its TLS handshake. It stalls while a handshake, a request or
the rest of one has not arrived, or a response is not read. One that stalls for too long is ended. One connection or
byte too many ends one: first those that do not read or that send further requests before a response, then the one that
has stalled longest.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from darksight_service.http.web.sockets import Limits

__all__ = ["LimitedProtocol"]

_HANDSHAKE_SECONDS = 5.0
# Between two looks at a connection whose request is being answered.
_LOOK_SECONDS = 1.0
# Of all requests that have not arrived as a whole; smaller ones do not count.
_MAX_BYTES, _SMALL_BYTES = 64 << 20, 1 << 16
_LOOSE_LINE = re.compile(rb"(?<!\r)\n|\n[ \t]")


class LimitedProtocol(H11Protocol):
    """A connection.

    Parameters
    ----------
    limits
        Of the server.
    tls
        Returns the certificate for a new connection; None without TLS.
    options
        Of uvicorn.
    """

    def __init__(self, limits: Limits, tls: Callable[[], ssl.SSLContext | None], **options: Any) -> None:
        super().__init__(**options)
        self.conn = _StrictConnection(h11.SERVER)
        self._limits, self._tls = limits, tls
        self._since, self._size, self._address = self.loop.time(), 0, ""
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for the connection, and start TLS."""
        self.transport = transport
        self.connections.add(self)
        self._address = (transport.get_extra_info("peername") or [""])[0]
        self.loop.call_later(self._limits.seconds, self._end_if_late)
        most = self._limits.connections
        alive = self._alive() if len(self.connections) > most // 2 else []
        own = [each for each in alive if each._address == self._address]
        if len(own) > most // 2 or len(alive) > most:
            _end_one(own if len(own) > most // 2 else alive)
        context = self._tls()
        if context is None:
            super().connection_made(transport)
        else:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._start_tls(transport, context))

    async def _start_tls(self, plain: asyncio.Transport, context: ssl.SSLContext) -> None:
        secure = None
        with suppress(OSError):
            secure = await self.loop.start_tls(
                plain, self, context, server_side=True, ssl_handshake_timeout=_HANDSHAKE_SECONDS
            )
        if secure is None or plain.is_closing():
            plain.abort()
            self.connections.discard(self)
            return
        super().connection_made(secure)
        if self._early:
            self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self.flow is None:
            # It arrived with the end of the handshake.
            self._early += data
            return
        self._size += len(data)
        super().data_received(data)
        if self._size <= _SMALL_BYTES:
            return
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) > _SMALL_BYTES:
            # Further requests, while one is being answered.
            self.transport.abort()
        large = [each for each in self._alive() if each._size > _SMALL_BYTES and each._is_stalled]
        if sum(each._size for each in large) > _MAX_BYTES:
            _end_one(large)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._since, self._size = self.loop.time(), 0
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait until the caller reads."""
        super().pause_writing()
        self._since = self.loop.time()

    def _alive(self) -> list[LimitedProtocol]:
        # Those that were ended a moment ago are still among the connections.
        found = cast("Iterable[LimitedProtocol]", self.connections)
        return [each for each in found if not each.transport.is_closing()]

    @property
    def _is_unread(self) -> bool:
        return self.flow is not None and self.flow.write_paused

    @property
    def _is_ahead(self) -> bool:
        return self.conn.their_state is h11.DONE and self.flow.read_paused

    @property
    def _is_stalled(self) -> bool:
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body or self._is_unread

    def _end_if_late(self) -> None:
        left = self._since + self._limits.seconds - self.loop.time()
        if self._is_stalled and left <= 0.0:
            self.transport.abort()
        elif self in self.connections:
            self.loop.call_later(left if left > 0.0 else _LOOK_SECONDS, self._end_if_late)


def _end_one(connections: Iterable[LimitedProtocol]) -> None:
    found = [each for each in connections if each._is_stalled or each._is_ahead]
    if found:
        max(found, key=lambda each: (each._is_unread or each._is_ahead, -each._since)).transport.abort()


class _StrictConnection(h11.Connection):
    """Refuses requests that a proxy may read in another way."""

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE and _LOOSE_LINE.search(self.trailing_data[0].partition(b"\r\n\r\n")[0]):
            raise h11.RemoteProtocolError("a line does not end with CRLF, or is continued")
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = [name for name, _ in event.headers]
            if {b"content-length", b"transfer-encoding"} <= {*names} or names.count(b"authorization") > 1:
                raise h11.RemoteProtocolError("two lengths, or two authorizations")
        return event
