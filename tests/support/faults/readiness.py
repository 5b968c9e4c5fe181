"""How long a service says that it is ready while calls fail."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from darksight_client.stubs.darksight.v1 import monitor_pb2

from tests.support.faults.clients import CLASSES, pool

__all__ = ["ReadinessProbe"]

_EVERY_SECONDS = 0.2
_DEADLINE_SECONDS = 2.0
# Failures that lie closer together belong to one episode: other calls may reach a worker that is well.
_GAP_SECONDS = 2.5


class ReadinessProbe:
    """Asks for readiness and makes a call on a new connection, again and again.

    Parameters
    ----------
    target, http_url
        Where the service takes calls, and where it says whether it is ready.
    model
        A model for these calls alone, so that nobody misses or counts their rows.
    """

    def __init__(self, target: str, http_url: str, model: str) -> None:
        self.longest_seconds = 0.0
        """Longest time from a failed call to another one, in which the service was ready all the time."""
        self.calls = self.failed = 0
        self._target, self._url = target, f"{http_url}/v2/health/ready"
        row = pool()[:1].astype("<f4")
        tensor = monitor_pb2.Tensor(shape=[1, CLASSES], data=row.tobytes())
        self._request = monitor_pb2.ScoreRequest(model=model, tensor=tensor).SerializeToString()
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """For the time of a block."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        first = last = 0.0
        while not self._stop.wait(_EVERY_SECONDS):
            started = time.monotonic()
            if not self._is_ready():
                first = 0.0
                continue
            self.calls += 1
            if self._can_call():
                continue
            self.failed += 1
            if not first or started - last > _GAP_SECONDS:
                first = started
            last = time.monotonic()
            self.longest_seconds = max(self.longest_seconds, last - first)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self._url, timeout=_DEADLINE_SECONDS) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _can_call(self) -> bool:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._target, options=options) as channel:
            try:
                channel.unary_unary("/darksight.v1.MonitorService/Score")(self._request, timeout=_DEADLINE_SECONDS)
            except grpc.RpcError:
                return False
        return True
