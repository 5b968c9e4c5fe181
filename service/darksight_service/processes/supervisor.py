"""The supervisor: the parent of all processes of the service.

It starts the workers, the storage worker and the explorer, restarts those that die or hang, and serves metrics and
health. It never creates a gRPC object: a process that has one cannot be forked or cleaned up reliably. On SIGTERM it
reports not ready at once, lets the workers finish their calls, and then lets the storage worker write what they left.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from darksight_service.control.installation import read_secret
from darksight_service.errors import SettingsError
from darksight_service.http.api.health import HealthServer
from darksight_service.http.web.sockets import bind, listen, socket_url
from darksight_service.metrics.exposition import render
from darksight_service.metrics.instance import RENEWAL_SECONDS, certificate_expiry
from darksight_service.metrics.processes import SupervisorCounts, clear_gauges
from darksight_service.processes.children import Child
from darksight_service.processes.descriptors import raise_descriptor_limit
from darksight_service.settings import Settings
from darksight_service.telemetry.logging import switch_debug

__all__ = ["Supervisor", "warn_of_expiry"]

_TICK_SECONDS = 0.1
# Time beyond the grace period for workers to exit, and for the storage worker to write what they left.
_EXIT_SECONDS = 5.0
_STORAGE_SECONDS = 15.0
# How often a warning is repeated.
_CERTIFICATE_SECONDS = 86_400.0
# A worker has one core, and BLAS would start as many threads as the machine has cores.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
# The C library of gRPC writes lines of its own to stderr, about failed handshakes and the like, which are not JSON.
_QUIET_GRPC = {"GRPC_VERBOSITY": os.environ.get("GRPC_VERBOSITY", "NONE")}
# glibc keeps the memory of a large batch for the next one. Returned to the system, it comes back page by page, which
# takes a twentieth of the time of the batch.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}

_log = logging.getLogger("darksight.supervisor")


class Supervisor:
    """Runs the service.

    Parameters
    ----------
    settings
        Settings of the service, which all children get.
    """

    def __init__(self, settings: Settings) -> None:
        raise_descriptor_limit()
        # Bound but not listening, it reserves the port that the workers share.
        self._grpc_socket = _reserve_port(settings, "grpc_port")
        # A worker is pinned to one core, so it cannot count the cores itself.
        update = {"grpc_port": self._grpc_socket.getsockname()[1], "workers": settings.worker_count}
        self._api_socket = None if settings.api_port is None else _reserve_port(settings, "api_port")
        if self._api_socket is not None:
            update["api_port"] = self._api_socket.getsockname()[1]
        self.settings = settings.model_copy(update=update)
        self.is_stopping = False
        environment = {**_ONE_THREAD, **_QUIET_GRPC, **self.settings.environment()}
        memory = {name: os.environ.get(name, value) for name, value in _KEEP_MEMORY.items()}
        self._workers = [
            Child(
                f"worker-{number}",
                "darksight_service.processes.worker",
                str(number),
                environment={**memory, **environment},
            )
            for number in range(settings.worker_count)
        ]
        self._storage = Child("storage", "darksight_service.processes.storage_worker", environment=environment)
        self._explorer_socket = self._listen_for_explorer()
        self._explorer: list[Child] = []
        if self._explorer_socket is not None:
            descriptor = self._explorer_socket.fileno()
            self._explorer.append(
                Child(
                    "explorer",
                    "darksight_service.processes.explorer",
                    str(descriptor),
                    environment=environment,
                    descriptors=(descriptor,),
                )
            )
        self._counts = settings.data_dir / "counts"
        clear_gauges(self._counts)
        self._own_counts = SupervisorCounts(self._counts)
        # Before its workers do, of which each would draw one.
        read_secret(settings.data_dir)
        self._http = HealthServer(settings, self)

    def run(self, when_ready: Callable[[], None] = lambda: None) -> int:
        """Run until SIGTERM or SIGINT and return the exit status; calls `when_ready` once, when calls are taken."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._on_signal)
        # The terminal was closed; without a terminal SIGHUP is the request of an operator to log more, or less.
        signal.signal(signal.SIGHUP, self._on_signal if os.isatty(0) else self._switch_debug)
        self._http.start()
        was_ready, certificate_due = False, 0.0
        while not self.is_stopping:
            now = time.monotonic()
            children = (*self._workers, self._storage, *self._explorer)
            for child in children:
                child.keep_running(now)
            if self.is_ready and not was_ready:
                was_ready = True
                when_ready()
            self._http.reload_certificate()
            if now >= certificate_due:
                certificate_due = now + _CERTIFICATE_SECONDS
                warn_of_expiry(self.settings.tls_cert)
            time.sleep(_TICK_SECONDS)
        return self._shut_down()

    def stop(self) -> None:
        """End `run`."""
        # A flag and not an event: a signal may interrupt the thread that holds the lock of the event.
        self.is_stopping = True

    @property
    def grpc_port(self) -> int:
        """Port of the workers."""
        return self.settings.grpc_port

    @property
    def http_port(self) -> int:
        """Port of metrics and health."""
        return self._http.port

    @property
    def api_url(self) -> str:
        """Address of the HTTP API; empty if there is none."""
        return "" if self._api_socket is None else socket_url(self.settings, self._api_socket)

    @property
    def explorer_url(self) -> str:
        """Address of the explorer; empty if it does not run."""
        if self._explorer_socket is None:
            return ""
        return socket_url(self.settings, self._explorer_socket)

    @property
    def is_ready(self) -> bool:
        """Whether every worker takes calls (see `Registry.is_ready`)."""
        return not self.is_stopping and all(worker.is_ready for worker in self._workers)

    def render_metrics(self, accept: str) -> tuple[bytes, str]:
        """The metrics page of all workers and its content type."""
        children = (*self._workers, self._storage, *self._explorer)
        # Here and not in `run`, which must not wait for a disk that does not respond.
        self._own_counts.follow("hung_processes", sum(child.hangs for child in children))
        self._own_counts.set("ready", float(self.is_ready))
        processes = {child.name: pid for child in children if (pid := child.pid) is not None}
        return render(self._counts, accept, {"supervisor": os.getpid(), **processes}, self.settings.tls_cert)

    def _listen_for_explorer(self) -> socket.socket | None:
        """The socket of the explorer; None if it is switched off or its port is taken, which must not stop scoring."""
        if not self.settings.explorer:
            return None
        try:
            return listen(self.settings, "explorer_port")
        except SettingsError as error:
            _log.error("explorer_not_started", extra={"error": error.message})
            return None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop()

    def _switch_debug(self, number: int, frame: FrameType | None) -> None:
        switch_debug()
        for child in (*self._workers, self._storage, *self._explorer):
            child.switch_debug()

    def _shut_down(self) -> int:
        _log.info("shutdown_started")
        end = time.monotonic() + self.settings.grace_seconds + _EXIT_SECONDS
        for child in (*self._explorer, *self._workers):
            child.send(signal.SIGTERM)
        statuses = [worker.wait(end - time.monotonic()) for worker in self._workers]
        self._storage.send(signal.SIGTERM)
        statuses.append(self._storage.wait(end + _STORAGE_SECONDS - time.monotonic()))
        statuses += [explorer.wait(end - time.monotonic()) for explorer in self._explorer]
        if self._explorer_socket is not None:
            self._explorer_socket.close()
        self._http.stop()
        self._grpc_socket.close()
        if self._api_socket is not None:
            self._api_socket.close()
        _log.info("shutdown_finished", extra={"statuses": statuses})
        return 0 if not any(statuses) else 1


def warn_of_expiry(certificate: Path | None) -> None:
    """Log that a certificate has expired or expires soon."""
    expiry = None if certificate is None else certificate_expiry(certificate)
    if expiry is not None and (left := expiry - time.time()) < RENEWAL_SECONDS:
        facts = {"file": str(certificate), "days": math.floor(left / 86_400.0)}
        _log.warning("certificate_expires" if left > 0 else "certificate_expired", extra=facts)


def _reserve_port(settings: Settings, name: str) -> socket.socket:
    """Bind a port of the workers, to be sure that no other service has it, and to learn its number if it is 0."""
    port, bound = None, None
    # First without sharing: another service that shares the port would go unnoticed and get half of the calls.
    # One worker can do without sharing, where the system has none.
    options = [getattr(socket, name) for name in ("SO_REUSEADDR", "SO_REUSEPORT") if hasattr(socket, name)]
    if len(options) < 2 and settings.worker_count > 1:
        raise SettingsError("this system cannot share a port between workers; use --workers 1", name="workers")
    for option in options:
        if bound is not None:
            port = bound.getsockname()[1]
            bound.close()
        bound = bind(settings, name, option, port=port)
    assert bound is not None
    return bound
