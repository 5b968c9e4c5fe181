"""A worker: one process on one core that answers gRPC calls.

Started by the supervisor, with its settings in the environment and its number as argument. It says `ready` on stdout
when it listens, and ends when it gets SIGTERM or when the supervisor is gone.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from darksight_core.runtime.compilation import KERNEL
from darksight_service.control.changes import Control
from darksight_service.control.registry import Registry
from darksight_service.control.state_file import StateFile
from darksight_service.grpc_api.admin import Admin
from darksight_service.grpc_api.inference import InferenceServicer
from darksight_service.grpc_api.pools import BulkPool
from darksight_service.grpc_api.scoring import Scoring
from darksight_service.grpc_api.server import RpcServer
from darksight_service.ingest.spool import Spool
from darksight_service.logging import set_up_logs
from darksight_service.metrics.counts import Counts
from darksight_service.processes.children import stop_event
from darksight_service.scoring.service import ScoringService
from darksight_service.settings import Settings, read_settings

if TYPE_CHECKING:
    from darksight_service.store import Store

__all__ = ["main"]

# Looks at the state file: a change reaches all workers within this time.
_WATCH_SECONDS = 0.05
_SPOOL_SECONDS = 1.0
# The interpreter's 5 ms is an age for a call of 0.2 ms that waits behind a large batch.
_SWITCH_SECONDS = 0.0005

_log = logging.getLogger("darksight.worker")


def main() -> int:
    """Run a worker until it is told to stop."""
    number = int(sys.argv[1])
    settings = read_settings()
    set_up_logs(f"worker-{number}", settings.log_level)
    cores = sorted(os.sched_getaffinity(0))
    # Pinned, the interpreter's lock does not travel between cores, which is worth half of the pace.
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    sys.setswitchinterval(_SWITCH_SECONDS)
    stop = stop_event()

    counts = Counts(settings.data_dir / "counts", number, max_models=settings.max_models)
    state_file = StateFile(settings.data_dir / "registry.json")
    registry = Registry(state_file, settings.bundles, counts)
    registry.refresh()
    spool = Spool(
        settings.data_dir / "spool" / f"worker-{number}",
        max_bytes=settings.spool_bytes,
        durability=settings.durability,
    )
    monitor = ScoringService(registry, spool)
    open_store = lru_cache(partial(_open_store, settings))

    def store() -> Store:
        return open_store()

    bulk = BulkPool()
    scoring = Scoring(monitor, bulk, store, counts.process, waits_for_disk=settings.durability == "fsync")
    admin = Admin(Control(registry, state_file, store), monitor)
    inference = InferenceServicer(monitor, bulk)
    server = RpcServer(settings, number, scoring, admin, inference, counts.process, bulk)
    # What is there by now stays. A collection that goes through it holds up calls for tens of milliseconds.
    gc.collect()
    gc.freeze()
    server.start()
    server.set_serving(list(registry.models()))
    print("ready", flush=True)  # noqa: T201  # the supervisor waits for it
    # Rows are scored in numpy until the kernel is there.
    KERNEL.on_event = lambda event: _log.info(f"kernel_{event}")
    KERNEL.start()

    watcher = threading.Thread(target=_watch, args=(stop, registry, spool, counts, server, settings), daemon=True)
    watcher.start()
    stop.wait()
    server.stop(settings.grace_seconds)
    watcher.join()
    spool.close()
    counts.close()
    return 0


def _open_store(settings: Settings) -> Store:
    # Only administration and stored points need it, and it takes a while to import.
    from darksight_service.store import Store

    return Store.open(settings.store_url, keep_probs=settings.keep_probabilities)


def _watch(
    stop: threading.Event, registry: Registry, spool: Spool, counts: Counts, server: RpcServer, settings: Settings
) -> None:
    """Serve what the state file says, and close spool segments in time."""
    elapsed = _SPOOL_SECONDS
    while not stop.wait(_WATCH_SECONDS):
        try:
            if registry.refresh():
                server.set_serving(list(registry.models()))
                _log.info("state_taken_over", extra={"change": registry.state.last_change})
            elapsed += _WATCH_SECONDS
            if elapsed >= _SPOOL_SECONDS:
                elapsed = 0.0
                spool.tick()
                counts.process.set_spool(spool.stats(), limit_bytes=settings.spool_bytes)
        except Exception:
            # Whatever it was, it will be tried again; what serves goes on.
            _log.exception("watch_failed")


if __name__ == "__main__":
    sys.exit(main())
