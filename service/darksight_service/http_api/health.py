"""Metrics and health over HTTP, for Prometheus and for probes.

The supervisor serves these pages itself, without a web framework: they must answer while everything else is down.
"""

from __future__ import annotations

import json
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

from darksight_core import __version__
from darksight_service.errors import SettingsError

__all__ = ["HealthServer", "Status"]


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
    """Serves the pages; SettingsError if the port is taken."""

    daemon_threads = True

    def __init__(self, host: str, port: int, status: Status) -> None:
        self.status = status
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another --http-port"
            ) from error


class _Handler(BaseHTTPRequestHandler):
    server: HealthServer
    server_version = f"darksight/{__version__}"
    sys_version = ""
    timeout = 10

    def do_GET(self) -> None:
        status, path = self.server.status, self.path.split("?")[0]
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
