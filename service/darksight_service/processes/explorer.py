"""The explorer process, started by the supervisor or by `darksight explore`.

Requests of pages run here, at a lower priority, and do not slow the workers down. The parent opens the listening
socket, so that the port is known and reserved before anything else happens.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import ssl
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import uvicorn

from darksight_service.control.changes import Control
from darksight_service.control.registry import Registry
from darksight_service.control.signatures import required_key
from darksight_service.control.state_file import StateFile
from darksight_service.explorer.app import make_app
from darksight_service.explorer.endpoint import Sources
from darksight_service.explorer.protocol import LimitedProtocol
from darksight_service.explorer.sockets import BACKLOG
from darksight_service.handshakes import limit_handshakes
from darksight_service.logging import set_up_logs
from darksight_service.metrics.counts import Counts
from darksight_service.processes.children import keep_reporting, stop_event
from darksight_service.processes.descriptors import raise_descriptor_limit
from darksight_service.report.plotly_js import packed_plotly
from darksight_service.settings import Settings, read_settings
from darksight_service.store.store import Store

__all__ = ["main", "serve"]

_NICE = 10
_WATCH_SECONDS = 1.0

_log = logging.getLogger("darksight.explorer")


def main() -> int:
    """Run as a child of the supervisor; the argument is the descriptor of the listening socket."""
    settings = read_settings()
    set_up_logs("explorer", settings.log_level)
    os.nice(_NICE)
    stop = stop_event()
    bound = socket.socket(fileno=int(sys.argv[1]))
    return serve(settings, bound, stop, lambda: keep_reporting(stop))


def serve(settings: Settings, bound: socket.socket, stop: threading.Event, when_ready: Callable[[], None]) -> int:
    """Serve until `stop` is set, and return the exit status.

    Parameters
    ----------
    settings
        Settings of the service.
    bound
        Listening socket.
    stop
        Event that ends the server.
    when_ready
        Called when requests are answered.
    """
    # Before the certificate is read, so that a change meanwhile is noticed.
    read_at = _certificate_times(settings)
    raise_descriptor_limit()
    with tempfile.TemporaryDirectory(prefix="darksight-explorer-") as folder:
        config = uvicorn.Config(
            make_app(_sources(settings, Path(folder))),
            http=LimitedProtocol,
            ws="none",
            # asyncio tries, and logs, as many times in a row when there are no descriptors left.
            backlog=BACKLOG,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            ssl_ca_certs=None if settings.tls_client_ca is None else str(settings.tls_client_ca),
            ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
        )
        config.load()
        tls = limit_handshakes(config)
        server = uvicorn.Server(config)
        # Not in the main thread, where uvicorn would install signal handlers.
        thread = threading.Thread(target=server.run, args=([bound],), name="uvicorn")
        thread.start()
        # Compressed now and not at the first request: it takes a third of a second.
        threading.Thread(target=packed_plotly, name="plotly", daemon=True).start()
        try:
            # This fails if the supervisor has exited meanwhile; the thread must not keep the process alive then.
            when_ready()
            while not stop.wait(_WATCH_SECONDS) and thread.is_alive():
                if (now := _certificate_times(settings)) != read_at:
                    read_at = now
                    _reload_certificate(tls, settings)
        finally:
            server.should_exit = True
            thread.join()
        return 0 if stop.is_set() else 1


def _sources(settings: Settings, folder: Path) -> Sources:
    # The explorer scores nothing: what the registry counts goes to a temporary directory.
    counts = Counts(folder, 0, max_models=settings.max_models)
    state_file = StateFile(settings.data_dir / "registry.json")
    registry = Registry(state_file, settings.bundles, counts, key=required_key(settings.require_signature))
    registry.refresh()

    # Opened at the first request that needs it: pages must work while the database is down.
    @lru_cache
    def store() -> Store:
        opened = Store.open(settings.read_store_url, keep_probs=settings.keep_probabilities)
        # Modules and bundles are loaded by now. A garbage collection that visits them takes 100 ms, and every few
        # thousand rows that are read start one.
        gc.collect()
        gc.freeze()
        return opened

    return Sources(settings, registry, Control(registry, state_file, store), store)


def _certificate_times(settings: Settings) -> tuple[float, ...]:
    paths = (settings.tls_cert, settings.tls_key)
    return tuple(path.stat().st_mtime if path is not None and path.exists() else 0.0 for path in paths)


def _reload_certificate(tls: ssl.SSLContext | None, settings: Settings) -> None:
    """Use a renewed certificate for new connections."""
    if tls is None or settings.tls_cert is None:
        return
    try:
        # First into a context that is not used: a certificate that is written before its key would otherwise replace
        # the old one, and no connection could be made until the key follows.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
        tls.load_cert_chain(settings.tls_cert, settings.tls_key)
        _log.info("certificate_reloaded")
    except (OSError, ssl.SSLError) as error:
        _log.error("certificate_reload_failed", extra={"error": str(error)})


if __name__ == "__main__":
    sys.exit(main())
