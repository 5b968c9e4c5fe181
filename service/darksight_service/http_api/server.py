"""The HTTP server of a worker: uvicorn in a thread, on a port that all workers share."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping

import uvicorn

from darksight_service.handshakes import limit_handshakes
from darksight_service.http_api.app import Limits, make_app
from darksight_service.http_api.calls import Method
from darksight_service.http_api.protocol import ApiProtocol
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.settings import Settings

__all__ = ["ApiServer"]

# asyncio tries, and logs, as many times in a row when there are no descriptors left.
_BACKLOG = 128
# An idle connection is closed after this time, as over gRPC.
_IDLE_SECONDS = 60

_log = logging.getLogger("darksight.http")


class ApiServer:
    """The HTTP server of a worker.

    Parameters
    ----------
    settings
        Address, limits and certificates.
    methods
        The methods of the gRPC server, by full name.
    permit
        Permits a call, by its `authorization` header and the scope that it needs; None if everybody may call.
    counts
        Counters of the process.
    run_bulk
        Runs a function in the bulk thread.
    """

    def __init__(
        self,
        settings: Settings,
        methods: Mapping[str, Method],
        permit: Callable[[str | None, str], str] | None,
        counts: ProcessCounts,
        run_bulk: Callable[[Callable[[], object]], object],
    ) -> None:
        limits = Limits(
            permit,
            settings.max_message_bytes,
            settings.durability == "fsync",
            counts,
            run_bulk,
        )
        self._settings = settings
        self._config = uvicorn.Config(
            make_app(methods, limits),
            http=ApiProtocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            backlog=_BACKLOG,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=int(settings.grace_seconds) or 1,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            ssl_ca_certs=None if settings.tls_client_ca is None else str(settings.tls_client_ca),
            ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
        )
        self._config.load()
        self._tls = limit_handshakes(self._config)
        self._server = uvicorn.Server(self._config)
        self._socket = _listen(settings)
        # Not in the main thread, where uvicorn would install signal handlers.
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="http", daemon=True)
        self._read_at = self._certificate_times()

    @property
    def is_running(self) -> bool:
        """Whether requests are answered."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Accept requests."""
        self._thread.start()

    def stop(self, grace_seconds: float) -> None:
        """Accept no more requests and wait for those in flight."""
        self._server.should_exit = True
        self._thread.join(grace_seconds)

    def reload_certificate(self) -> None:
        """Use a renewed certificate for new connections."""
        now = self._certificate_times()
        cert, key = self._settings.tls_cert, self._settings.tls_key
        if now == self._read_at or self._tls is None or cert is None:
            return
        self._read_at = now
        try:
            # First into a context that is not used: a certificate may be written before its key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
            self._tls.load_cert_chain(cert, key)
            _log.info("certificate_reloaded")
        except (OSError, ssl.SSLError) as error:
            _log.error("certificate_reload_failed", extra={"error": str(error)})

    def _certificate_times(self) -> tuple[float, ...]:
        paths = (self._settings.tls_cert, self._settings.tls_key)
        return tuple(path.stat().st_mtime if path is not None and path.exists() else 0.0 for path in paths)


def _listen(settings: Settings) -> socket.socket:
    """The socket of this worker; the kernel gives each connection to one of the workers."""
    assert settings.api_port is not None
    bound = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Connections inherit it; without it the end of a response waits 40 ms for the acknowledgement of its start.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bound.bind((settings.host, settings.api_port))
    bound.listen(_BACKLOG)
    return bound
