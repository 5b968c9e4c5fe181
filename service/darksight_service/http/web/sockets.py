"""Sockets that the service listens on, and the limits of their connections; nothing heavy is imported."""

from __future__ import annotations

import socket
from typing import NamedTuple

from darksight_service.errors import SettingsError
from darksight_service.settings import Settings

__all__ = ["API", "BACKLOG", "EXPLORER", "HEALTH", "Limits", "bind", "listen", "socket_url"]

BACKLOG = 128
"""Connections that wait to be accepted; asyncio tries, and logs, as many times in a row without free descriptors."""


class Limits(NamedTuple):
    """Seconds that a connection may keep an HTTP server waiting, and connections, half of them of one address."""

    seconds: float
    connections: int


# A browser opens six connections.
EXPLORER = Limits(10.0, 256)
API = Limits(60.0, 512)
HEALTH = Limits(10.0, 256)


def bind(settings: Settings, name: str, option: int = socket.SO_REUSEADDR, *, port: int | None = None) -> socket.socket:
    """A socket with the port of the setting `name`, or with another one; SettingsError if the port is in use."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    port = getattr(settings, name) if port is None else port
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, option, 1)
    # Connections inherit it; without it the end of a response waits 40 ms for the acknowledgement of its start.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        bound.bind((settings.host, port))
    except OSError as error:
        bound.close()
        raise SettingsError(
            f"cannot listen on {settings.host}:{port}: {error.strerror}; choose another --{name.replace('_', '-')}"
        ) from error
    return bound


def listen(settings: Settings, name: str, option: int = socket.SO_REUSEADDR) -> socket.socket:
    """A listening socket with the port of the setting `name`; SettingsError if the port is in use."""
    bound = bind(settings, name, option)
    bound.listen(BACKLOG)
    return bound


def socket_url(settings: Settings, bound: socket.socket) -> str:
    """URL of the server behind a socket."""
    scheme = "http" if settings.tls_cert is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{bound.getsockname()[1]}"
