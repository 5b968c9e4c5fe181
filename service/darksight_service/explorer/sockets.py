"""The explorer's listening socket, which the supervisor or `darksight explore` creates; nothing heavy is imported."""

from __future__ import annotations

import socket

from darksight_service.errors import SettingsError
from darksight_service.settings import Settings
from darksight_service.web.limits import BACKLOG

__all__ = ["listen", "socket_url"]


def listen(settings: Settings) -> socket.socket:
    """The explorer's listening socket; SettingsError if its port is in use."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it; without it the end of a response waits 40 ms for the acknowledgement of its start.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        bound.bind((settings.host, settings.explorer_port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise SettingsError(
            f"the explorer cannot listen on {settings.host}:{settings.explorer_port}: {error.strerror}; "
            "choose another port with --explorer-port"
        ) from error
    return bound


def socket_url(settings: Settings, bound: socket.socket) -> str:
    """URL of the server behind a socket."""
    scheme = "http" if settings.tls_cert is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{bound.getsockname()[1]}"
