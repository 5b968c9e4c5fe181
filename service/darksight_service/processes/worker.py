"""A worker: one process on one core that answers gRPC calls and, if there is a port for them, HTTP requests.

The supervisor starts it, with settings in the environment and its number as argument. It reports to the supervisor from
when it listens, and stops on SIGTERM or when the supervisor has exited.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING

from darksight_core.runtime.compilation import KERNEL
from darksight_service.control.accuracy_file import AccuracyFile
from darksight_service.control.changes import Control
from darksight_service.control.installation import read_secret
from darksight_service.control.registry import Registry
from darksight_service.control.signatures import required_key
from darksight_service.control.state_file import StateFile
from darksight_service.control.tokens import TokenFile
from darksight_service.grpc_api.pools import BulkPool
from darksight_service.grpc_api.server import RpcServer
from darksight_service.http.web.sockets import API
from darksight_service.ingest.spool import Spool
from darksight_service.metrics.counts import Counts
from darksight_service.operations.callers import Callers
from darksight_service.operations.operation import Service
from darksight_service.processes.children import REPORT_SECONDS, report, stop_event
from darksight_service.scoring.service import ScoringService
from darksight_service.settings import Settings, read_settings
from darksight_service.telemetry.logging import set_up_logs
from darksight_service.telemetry.tracing import set_up_tracing, stop_tracing, traced_recorder

if TYPE_CHECKING:
    from darksight_service.http.web.server import WebServer
    from darksight_service.store.store import Store

__all__ = ["main"]

# A change of the state file reaches all workers within this time.
_WATCH_SECONDS = 0.05
# Dropped records are logged at once, and then at most once in this time.
_DROP_LOG_SECONDS = 60.0
# The interpreter's 5 ms is too long for a call of 0.2 ms that waits behind a large batch.
_SWITCH_SECONDS = 0.0005

_log = logging.getLogger("darksight.worker")


def main() -> int:
    """Run a worker until it is told to stop."""
    number = int(sys.argv[1])
    settings = read_settings()
    set_up_logs(f"worker-{number}", settings.log_level)
    set_up_tracing(f"worker-{number}")
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        # Pinned, the interpreter's lock does not move between cores, which is worth half of the throughput.
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    sys.setswitchinterval(_SWITCH_SECONDS)
    stop = stop_event()

    counts = Counts(settings.data_dir / "counts", number, max_models=settings.max_models)
    state_file = StateFile(settings.data_dir / "registry.json")
    registry = Registry(state_file, settings.bundles, counts, key=required_key(settings.require_signature))
    registry.refresh()
    spool = Spool(
        settings.data_dir / "spool" / f"worker-{number}",
        max_bytes=settings.spool_bytes,
        durability=settings.durability,
    )

    # Loaded and opened by the first call that needs it: scoring must start while the database is down, and SQLAlchemy
    # takes 27 MB.
    @lru_cache
    def store() -> Store:
        from darksight_service.store.store import Store

        return Store.open(settings.read_store_url, keep_probs=settings.keep_probabilities)

    scoring = ScoringService(registry, traced_recorder(spool), registry.clock, secret=read_secret(settings.data_dir))
    service = Service(
        scoring,
        Control(registry, state_file, store),
        store,
        AccuracyFile(settings.data_dir / "accuracy.json"),
        counts.process,
        waits_for_disk=settings.durability == "fsync",
    )
    bulk = BulkPool()
    tokens = None if settings.tokens_file is None else TokenFile(settings.tokens_file)
    callers = Callers(tokens, has_certificates=settings.tls_client_ca is not None, counts=counts.process)
    descriptors = 0 if settings.api_port is None else API.connections
    server = RpcServer(settings, number, service, counts.process, bulk, callers, api_descriptors=descriptors)
    api = _make_api(settings, service, callers, server, bulk)
    # Everything loaded so far stays. A garbage collection that visits it would delay calls by tens of milliseconds.
    gc.collect()
    gc.freeze()
    server.start()
    if api is not None:
        api.start()
    _publish_models(registry, counts, server)
    report(is_ready=registry.is_ready)
    # Rows are scored in numpy until the kernel is there.
    KERNEL.on_event = _log_kernel
    KERNEL.start()

    watcher = threading.Thread(target=_watch, args=(stop, registry, counts, server), daemon=True)
    watcher.start()
    _report_until_stopped(stop, settings, scoring, spool, counts, tokens, api)
    end = time.monotonic() + settings.grace_seconds
    if api is not None:
        api.stop(settings.grace_seconds)
    server.stop(max(end - time.monotonic(), 0.1))
    watcher.join()
    spool.close()
    stop_tracing()
    counts.close()
    return 0


def _report_until_stopped(
    stop: threading.Event,
    settings: Settings,
    scoring: ScoringService,
    spool: Spool,
    counts: Counts,
    tokens: TokenFile | None,
    api: WebServer | None,
) -> None:
    """Report to the supervisor, and publish the state of the spool and of the token file, until the worker stops."""
    dropped, drops_due = 0, 0.0
    while not stop.wait(REPORT_SECONDS):
        try:
            # This waits for a call that writes to the spool. If the disk does not respond, the report stays away.
            stats = spool.stats()
            counts.process.set_spool(stats, limit_bytes=settings.spool_bytes)
            if stats.dropped != dropped and time.monotonic() >= drops_due:
                facts = {"records": stats.dropped - dropped, "spool_bytes": stats.bytes, "error": stats.last_error}
                _log.error("records_dropped", extra=facts)
                dropped, drops_due = stats.dropped, time.monotonic() + _DROP_LOG_SECONDS
            # The storage worker has replaced it if the database has another one.
            scoring.secret = read_secret(settings.data_dir)
            if tokens is not None:
                tokens.reload()
                counts.process.set("token_file_errors", len(tokens.errors))
        except Exception:
            _log.exception("spool_failed")
        if api is not None:
            if not api.is_running:
                # The supervisor starts another worker.
                _log.error("http_api_ended")
                return
            api.reload_certificate()
        report(is_ready=scoring.registry.is_ready)


def _log_kernel(event: str) -> None:
    if event == "unavailable":
        _log.warning("kernel_unavailable", extra={"reason": KERNEL.problem})
    else:
        _log.info(f"kernel_{event}")


def _make_api(
    settings: Settings, service: Service, callers: Callers, server: RpcServer, bulk: BulkPool
) -> WebServer | None:
    """The HTTP API, if there is to be one; it is imported then only, as it takes 4 MB."""
    if settings.api_port is None:
        return None
    from darksight_service.http.api.server import make_server

    return make_server(settings, service, callers, server.pools, bulk.queue.put)


def _watch(stop: threading.Event, registry: Registry, counts: Counts, server: RpcServer) -> None:
    """Reload the state file when it changes, in a thread of its own: to load a bundle may take seconds."""
    state, served = registry.state, registry.models()
    while not stop.wait(_WATCH_SECONDS):
        try:
            registry.refresh()
            # A call may have refreshed the registry before this thread.
            if registry.models() is not served:
                served = registry.models()
                _publish_models(registry, counts, server)
            if registry.state is not state:
                state = registry.state
                _log.info("state_reloaded", extra={"change": state.last_change})
        except Exception:
            # It is tried again at the next tick, and calls are served meanwhile.
            _log.exception("state_watch_failed")


def _publish_models(registry: Registry, counts: Counts, server: RpcServer) -> None:
    """Publish which models are loaded, as health and as a metric."""
    server.set_serving(registry.models(), registry.missing, is_ready=registry.is_ready)
    counts.process.set("versions_not_loaded", len(registry.failures))


if __name__ == "__main__":
    sys.exit(main())
