"""The explorer's process, started by the supervisor or by `darksight explore`.

People look while the service scores: whatever a page asks for happens here, at a lower priority, and no worker notices.
The socket is made by whoever starts the process, so that its port is known and ours before anything else happens.
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
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from darksight_service.control.changes import Control
from darksight_service.control.registry import Registry
from darksight_service.control.state_file import StateFile
from darksight_service.explorer.app import make_app
from darksight_service.explorer.endpoint import Sources
from darksight_service.logging import set_up_logs
from darksight_service.metrics.counts import Counts
from darksight_service.processes.children import stop_event
from darksight_service.report.plotly_js import packed_plotly
from darksight_service.settings import Settings, read_settings

if TYPE_CHECKING:
    from darksight_service.store import Store

__all__ = ["main", "serve"]

_NICE = 10
_WATCH_SECONDS = 1.0

_log = logging.getLogger("darksight.explorer")


def main() -> int:
    """Run as a child of the supervisor, whose listening socket is the descriptor given."""
    settings = read_settings()
    set_up_logs("explorer", settings.log_level)
    os.nice(_NICE)
    stop = stop_event()
    bound = socket.socket(fileno=int(sys.argv[1]))
    return serve(settings, bound, stop, lambda: print("ready", flush=True))  # noqa: T201  # the supervisor waits for it


def serve(settings: Settings, bound: socket.socket, stop: threading.Event, when_ready: Callable[[], None]) -> int:
    """Serve until `stop` is set; the exit status.

    Parameters
    ----------
    settings
        Of the service.
    bound
        Listening socket.
    stop
        Ends it.
    when_ready
        Called without arguments when requests are answered.
    """
    with tempfile.TemporaryDirectory(prefix="darksight-explorer-") as folder:
        sources = _sources(settings, Path(folder))
        config = uvicorn.Config(
            make_app(sources),
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
        server = uvicorn.Server(config)
        # Not in the main thread: there uvicorn takes signals for itself.
        thread = threading.Thread(target=server.run, args=([bound],), name="uvicorn")
        thread.start()
        # Before somebody waits for it; it takes a third of a second.
        threading.Thread(target=packed_plotly, name="plotly", daemon=True).start()
        try:
            # Fails if the supervisor is gone meanwhile; then the thread must not keep the process.
            when_ready()
            stamp = _stamp(settings)
            while not stop.wait(_WATCH_SECONDS) and thread.is_alive():
                if (now := _stamp(settings)) != stamp:
                    stamp = now
                    _reload(config, settings)
        finally:
            server.should_exit = True
            thread.join()
        return 0 if stop.is_set() else 1


def _sources(settings: Settings, folder: Path) -> Sources:
    # Nothing is scored here: what the registry wants to count goes to a folder that nobody reads.
    counts = Counts(folder, 0, max_models=settings.max_models)
    state_file = StateFile(settings.data_dir / "registry.json")
    registry = Registry(state_file, settings.bundles, counts)
    registry.refresh()
    open_store = lru_cache(partial(_open_store, settings))

    def store() -> Store:
        return open_store()

    return Sources(settings, registry, Control(registry, state_file, store), store)


def _open_store(settings: Settings) -> Store:
    from darksight_service.store import Store

    store = Store.open(settings.store_url, keep_probs=settings.keep_probabilities)
    # All modules and bundles are there now. To look through them for garbage takes 100 ms, and every few thousand rows
    # that are read begin such a search.
    gc.collect()
    gc.freeze()
    return store


def _stamp(settings: Settings) -> tuple[float, ...]:
    paths = (settings.tls_cert, settings.tls_key)
    return tuple(path.stat().st_mtime if path is not None and path.exists() else 0.0 for path in paths)


def _reload(config: uvicorn.Config, settings: Settings) -> None:
    """Take a renewed certificate for connections from now on."""
    if config.ssl is None or settings.tls_cert is None:
        return
    try:
        config.ssl.load_cert_chain(settings.tls_cert, settings.tls_key)
        _log.info("certificate_read")
    except (OSError, ssl.SSLError) as error:
        _log.error("certificate_kept_as_it_was", extra={"error": str(error)})


if __name__ == "__main__":
    sys.exit(main())
