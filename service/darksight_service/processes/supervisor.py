"""The parent of all processes of the service.

It starts workers, storage worker and explorer, restarts what dies, and serves metrics and health. It never makes a
gRPC object: a process that has one cannot be forked or cleaned up reliably. On SIGTERM it says at once that it is not
ready, lets the workers finish what they have in hand, and the storage worker bring it to the store.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType

from darksight_core import __version__
from darksight_service.errors import SettingsError
from darksight_service.explorer.sockets import explorer_url, listen
from darksight_service.metrics.exposition import render
from darksight_service.metrics.processes import clear_gauges
from darksight_service.processes.children import start_child
from darksight_service.settings import Settings

__all__ = ["Child", "Supervisor"]

_TICK_SECONDS = 0.1
# A child that dies is started again at once, and ever later if it goes on dying.
_BACKOFF_SECONDS = (0.1, 10.0)
_STEADY_SECONDS = 30.0
# One thread each: a worker has one core, and BLAS would start as many threads as the machine has.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
# Memory of a large batch is kept for the next one: given back to the system, it comes again page by page, which takes a
# twentieth of the time of the batch. These are variables of glibc.
_KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}

_log = logging.getLogger("darksight.supervisor")


class Child:
    """A process that is kept running.

    Parameters
    ----------
    name
        In logs.
    start
        Starts it.
    """

    def __init__(self, name: str, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self.name = name
        self._start = start
        self._wait = _BACKOFF_SECONDS[0]
        self._start_at = 0.0
        self._born = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.is_ready = False

    def tend(self, now: float) -> None:
        """Start it if it is not running and it is time."""
        process = self.process
        if process is not None and process.poll() is not None:
            self.is_ready = False
            if now - self._born > _STEADY_SECONDS:
                self._wait = _BACKOFF_SECONDS[0]
            _log.error(
                "child_died", extra={"child": self.name, "status": process.returncode, "restart_seconds": self._wait}
            )
            self._let_go()
            self._start_at = now + self._wait
            self._wait = min(2.0 * self._wait, _BACKOFF_SECONDS[1])
        if self.process is None and now >= self._start_at:
            self._born = now
            self.process = self._start()
            threading.Thread(target=self._await_ready, args=(self.process,), daemon=True).start()

    def stop(self) -> None:
        """Ask it to end."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int:
        """Its exit status; killed if it has not ended in time."""
        process = self.process
        if process is None:
            return 0
        try:
            status = process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            _log.error("child_killed", extra={"child": self.name})
            process.kill()
            status = process.wait()
        self._let_go()
        return status

    def _let_go(self) -> None:
        process, self.process = self.process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                if line.strip() == b"ready" and process is self.process:
                    self.is_ready = True
                    _log.info("child_ready", extra={"child": self.name, "pid": process.pid})


class Supervisor:
    """Runs the service.

    Parameters
    ----------
    settings
        For it and all its children.
    """

    def __init__(self, settings: Settings) -> None:
        # Bound and never listening, it keeps the port for the workers, who share it.
        self._port_holder = _bind(settings)
        # A worker is pinned to one core and cannot count them.
        update = {"grpc_port": self._port_holder.getsockname()[1], "workers": settings.worker_count}
        self.settings = settings.model_copy(update=update)
        self.is_stopping = False
        environment = {**_ONE_THREAD, **self.settings.environment()}
        kept = {name: os.environ.get(name, value) for name, value in _KEPT_MEMORY.items()}
        self._workers = [
            Child(
                f"worker-{number}",
                partial(
                    start_child, "darksight_service.processes.worker", str(number), environment={**kept, **environment}
                ),
            )
            for number in range(settings.worker_count)
        ]
        self._storage = Child(
            "storage", partial(start_child, "darksight_service.processes.storage_worker", environment=environment)
        )
        self._explorer, self._explorer_socket = self._make_explorer(environment)
        self._counts = settings.data_dir / "counts"
        clear_gauges(self._counts)
        self._http = _HttpServer((settings.host, settings.http_port), self)

    @property
    def grpc_port(self) -> int:
        """Where workers listen."""
        return self.settings.grpc_port

    @property
    def http_port(self) -> int:
        """Where metrics and health are."""
        port: int = self._http.server_address[1]
        return port

    @property
    def explorer_url(self) -> str:
        """Where the explorer is; empty if there is none."""
        if self._explorer_socket is None:
            return ""
        return explorer_url(self.settings, self._explorer_socket)

    @property
    def is_ready(self) -> bool:
        """Whether every worker takes calls."""
        return not self.is_stopping and all(worker.is_ready for worker in self._workers)

    def render_metrics(self, accept: str) -> tuple[bytes, str]:
        """The page of all workers' metrics and its content type."""
        return render(self._counts, accept)

    def run(self, when_ready: Callable[[], None] = lambda: None) -> int:
        """Run until SIGTERM or SIGINT; the exit status."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._on_signal)
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        is_told = False
        while not self.is_stopping:
            now = time.monotonic()
            for child in (*self._workers, self._storage, *self._explorer):
                child.tend(now)
            if self.is_ready and not is_told:
                is_told = True
                when_ready()
            time.sleep(_TICK_SECONDS)
        return self._shut_down()

    def stop(self) -> None:
        """End `run`; only a flag, because a signal may come while this very thread holds the lock of an event."""
        self.is_stopping = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop()

    def _make_explorer(self, environment: dict[str, str]) -> tuple[list[Child], socket.socket | None]:
        """The explorer and its socket, if it is wanted and its port is free: nothing about it keeps us from scoring."""
        if not self.settings.explorer:
            return [], None
        try:
            bound = listen(self.settings)
        except SettingsError as error:
            _log.error("explorer_left_out", extra={"error": error.message})
            return [], None
        start = partial(
            start_child,
            "darksight_service.processes.explorer",
            str(bound.fileno()),
            environment=environment,
            descriptors=(bound.fileno(),),
        )
        return [Child("explorer", start)], bound

    def _shut_down(self) -> int:
        _log.info("stopping_began")
        end = time.monotonic() + self.settings.grace_seconds + 5.0
        for explorer in self._explorer:
            explorer.stop()
        for worker in self._workers:
            worker.stop()
        statuses = [worker.wait(end - time.monotonic()) for worker in self._workers]
        self._storage.stop()
        statuses.append(self._storage.wait(end + 15.0 - time.monotonic()))
        statuses += [explorer.wait(end - time.monotonic()) for explorer in self._explorer]
        if self._explorer_socket is not None:
            self._explorer_socket.close()
        self._http.shutdown()
        self._http.server_close()
        self._port_holder.close()
        _log.info("stopped", extra={"statuses": statuses})
        return 0 if not any(statuses) else 1


def _bind(settings: Settings) -> socket.socket:
    """Bind the port of gRPC, to be sure that it is ours, and learn its number if any will do."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    port, bound = settings.grpc_port, None
    # First without sharing: another service that shares the port would go unnoticed and get half of the calls.
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        if bound is not None:
            bound.close()
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            bound.bind((settings.host, port))
        except OSError as error:
            bound.close()
            raise SettingsError(
                f"cannot listen on {settings.host}:{port}: {error.strerror}; choose another --grpc-port"
            ) from error
        port = bound.getsockname()[1]
    assert bound is not None
    return bound


class _HttpServer(ThreadingHTTPServer):
    """Metrics and health."""

    daemon_threads = True
    supervisor: Supervisor

    def __init__(self, address: tuple[str, int], supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            super().__init__(address, _Handler)
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {address[0]}:{address[1]}: {error.strerror}; choose another --http-port"
            ) from error


class _Handler(BaseHTTPRequestHandler):
    """GET of four pages."""

    server: _HttpServer
    server_version = f"darksight/{__version__}"
    sys_version = ""
    timeout = 10

    def do_GET(self) -> None:
        """Answer a request."""
        supervisor, path = self.server.supervisor, self.path.split("?")[0]
        if path == "/metrics":
            body, kind = supervisor.render_metrics(self.headers.get("Accept", ""))
            self._answer(200, body, kind)
        elif path == "/v2/health/live":
            self._answer_json(200, {"live": True})
        elif path == "/v2/health/ready":
            self._answer_json(200 if supervisor.is_ready else 503, {"ready": supervisor.is_ready})
        elif path == "/":
            self._answer_json(
                200,
                {
                    "name": "darksight",
                    "version": __version__,
                    "pages": ["/metrics", "/v2/health/live", "/v2/health/ready"],
                    "explorer": supervisor.explorer_url,
                },
            )
        else:
            self._answer_json(404, {"error": "there is no such page"})

    def _answer_json(self, status: int, value: object) -> None:
        self._answer(status, json.dumps(value).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a scrape every few seconds is not news."""
