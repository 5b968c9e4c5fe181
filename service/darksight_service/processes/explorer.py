"""The explorer process, started by the supervisor or by `darksight explore`.

Requests of pages run here, at a lower priority, and do not slow the workers down. The parent opens the listening
socket, so that the port is known and reserved before anything else happens.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from darksight_service.control.changes import Control
from darksight_service.control.registry import Registry
from darksight_service.control.signatures import required_key
from darksight_service.control.state_file import StateFile
from darksight_service.http.explorer.app import make_app
from darksight_service.http.explorer.endpoint import Sources
from darksight_service.http.web.server import WebServer
from darksight_service.http.web.sockets import EXPLORER
from darksight_service.metrics.counts import Counts
from darksight_service.processes.children import keep_reporting, stop_event
from darksight_service.processes.descriptors import raise_descriptor_limit
from darksight_service.report.plotly_js import packed_plotly
from darksight_service.settings import Settings, read_settings
from darksight_service.store.store import Store
from darksight_service.telemetry.logging import set_up_logs

__all__ = ["main", "serve"]

_NICE = 10
_WATCH_SECONDS = 1.0


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
    raise_descriptor_limit()
    with tempfile.TemporaryDirectory(prefix="darksight-explorer-") as folder:
        app = make_app(_sources(settings, Path(folder)))
        server = WebServer(app, settings, bound, EXPLORER, timeout_graceful_shutdown=2)
        server.start()
        # Compressed now and not at the first request: it takes a third of a second.
        threading.Thread(target=packed_plotly, name="plotly", daemon=True).start()
        try:
            # This fails if the supervisor has exited meanwhile.
            when_ready()
            while not stop.wait(_WATCH_SECONDS) and server.is_running:
                server.reload_certificate()
        finally:
            server.stop()
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

    return Sources(settings, registry, Control(registry, state_file, store), store, counts.process)


if __name__ == "__main__":
    sys.exit(main())
