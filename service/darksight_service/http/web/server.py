"""uvicorn in a thread, with limits of connections, and a certificate that can be renewed."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from functools import partial
from typing import Any

import uvicorn

from darksight_service.http.web.connections import LimitedProtocol
from darksight_service.http.web.sockets import BACKLOG, Limits
from darksight_service.settings import Settings

__all__ = ["WebServer"]

_log = logging.getLogger("darksight.http")


class WebServer:
    """An HTTP server.

    Parameters
    ----------
    app
        What answers requests.
    settings
        Certificates of the service.
    bound
        Listening socket.
    limits
        Limits of connections.
    options
        For uvicorn.
    """

    def __init__(self, app: Any, settings: Settings, bound: socket.socket, limits: Limits, **options: Any) -> None:
        self._settings = settings
        # Before the certificate is read, so that a change meanwhile is noticed.
        self._read_at = self._certificate_times()
        self._tls = _read_certificate(settings)
        protocol = partial(LimitedProtocol, limits, lambda: self._tls)
        config = uvicorn.Config(
            app,
            http=protocol,  # type: ignore[arg-type]
            ws="none",
            backlog=BACKLOG,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            **options,
        )
        self._server = uvicorn.Server(config)
        # Not in the main thread, where uvicorn would install signal handlers.
        self._thread = threading.Thread(target=self._server.run, args=([bound],), name="http", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether requests are answered."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Accept requests."""
        self._thread.start()

    def stop(self, grace_seconds: float | None = None) -> None:
        """Accept no more requests and wait for those in flight, for some seconds or until they have ended."""
        self._server.should_exit = True
        self._thread.join(grace_seconds)

    def reload_certificate(self) -> None:
        """Use a renewed certificate for new connections."""
        now = self._certificate_times()
        if now == self._read_at:
            return
        self._read_at = now
        try:
            # A whole new context: handshakes under way keep the old one, and a certificate that is written before its
            # key replaces nothing.
            self._tls = _read_certificate(self._settings)
            _log.info("certificate_reloaded")
        except (OSError, ssl.SSLError) as error:
            _log.error("certificate_reload_failed", extra={"error": str(error)})

    def _certificate_times(self) -> tuple[float, ...]:
        paths = (self._settings.tls_cert, self._settings.tls_key)
        return tuple(path.stat().st_mtime if path is not None and path.exists() else 0.0 for path in paths)


def _read_certificate(settings: Settings) -> ssl.SSLContext | None:
    """What connections are encrypted with; None without TLS."""
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.tls_cert, settings.tls_key)
    if settings.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(settings.tls_client_ca)
    return context
