"""Metrics and health over HTTP, for Prometheus and for probes.

The supervisor serves these pages itself, without a web framework: they must answer while everything else is down.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

from darksight_core import __version__
from darksight_service.control.tokens import TokenFile
from darksight_service.errors import ForbiddenError, SettingsError, UnauthenticatedError, statuses_of

__all__ = ["HealthServer", "Status"]

_MAX_CONNECTIONS = 256

_log = logging.getLogger("darksight.http")


class Status(Protocol):
    """The state of the service that the pages show."""

    @property
    def is_ready(self) -> bool:
        """Whether every worker takes calls for every model."""

    @property
    def explorer_url(self) -> str:
        """Address of the explorer; empty if it does not run."""

    def render_metrics(self, accept: str) -> tuple[bytes, str]:
        """The metrics page and its content type, for an `Accept` header."""


class HealthServer(ThreadingHTTPServer):
    """Serves the pages; SettingsError if the port is taken.

    Parameters
    ----------
    host, port
        Where to listen.
    status
        What the pages show.
    tokens
        Tokens for /metrics, which needs the scope `metrics`; None if it is open. Health is open: probes have no token.
    tls
        Certificate and key for TLS; None for plain HTTP.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        host: str,
        port: int,
        status: Status,
        tokens: TokenFile | None = None,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self.status = status
        self.tokens = tokens
        self._tls = tls
        self._context: tuple[tuple[int, ...], ssl.SSLContext] | None = None
        self._open: dict[socket.socket, None] = {}
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another --http-port"
            ) from error

    def secured(self, connection: socket.socket) -> socket.socket:
        """The connection after its TLS handshake; the certificate is read again when its files change."""
        if self._tls is None:
            return connection
        try:
            stamp = tuple(path.stat().st_mtime_ns for path in self._tls)
            if self._context is None or self._context[0] != stamp:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*self._tls)
                self._context = stamp, context
        except OSError:
            # The files are being replaced, and the certificate may be there before its key.
            if self._context is None:
                raise
        # A duplicate, so that the server can still shut down the connection.
        return self._context[1].wrap_socket(connection.dup(), server_side=True)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a failed connection, such as a handshake without TLS, where nobody is disturbed by it."""
        _log.debug("connection_failed", exc_info=True)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread; one too many ends the oldest, so that nobody keeps probes out."""
        if len(self._open) >= _MAX_CONNECTIONS:
            oldest = next(iter(list(self._open)))
            self._open.pop(oldest, None)
            # Its thread may have closed it.
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._open.pop(request, None)
        super().shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    server: HealthServer
    server_version = f"darksight/{__version__}"
    sys_version = ""
    timeout = 10

    def setup(self) -> None:
        # In the thread of the connection: a client that does not finish the handshake must not stop others.
        self.request.settimeout(self.timeout)
        self.request = self.server.secured(self.request)
        super().setup()

    def do_GET(self) -> None:
        status, path = self.server.status, self.path.split("?")[0]
        if path == "/metrics" and self.server.tokens is not None:
            try:
                caller = self.server.tokens.permit(self.headers.get("Authorization"), "metrics")
                caller.check_all_models("the metrics are of")
            except (UnauthenticatedError, ForbiddenError) as error:
                self._answer_json(statuses_of(error)[1], {"error": error.message})
                return
        if path == "/metrics":
            self._answer(200, *status.render_metrics(self.headers.get("Accept", "")))
        elif path == "/v2/health/live":
            self._answer_json(200, {"live": True})
        elif path == "/v2/health/ready":
            self._answer_json(200 if status.is_ready else 503, {"ready": status.is_ready})
        elif path == "/":
            self._answer_json(
                200,
                {
                    "name": "darksight",
                    "version": __version__,
                    "pages": ["/metrics", "/v2/health/live", "/v2/health/ready"],
                    "explorer": status.explorer_url,
                },
            )
        else:
            self._answer_json(404, {"error": "page not found"})

    def _answer_json(self, status: int, value: object) -> None:
        self._answer(status, json.dumps(value).encode(), "application/json")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        # A scrape every few seconds is not worth a log line.
        pass
