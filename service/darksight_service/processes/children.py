"""Child processes, as the supervisor and as the child itself see them.

The supervisor holds the other end of each child's stdin. When the supervisor exits, for whatever reason, the child
reads the end of stdin and stops: no process of the service outlives its supervisor. A child prints `ready` on stdout
when it has started.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping

__all__ = ["Child", "stop_event"]

# A child that dies is restarted at once, and later each time if it keeps dying.
_BACKOFF_SECONDS = (0.1, 10.0)
# A child that has run this long is healthy: the next restart is at once again.
_HEALTHY_SECONDS = 30.0

_log = logging.getLogger("darksight.supervisor")


class Child:
    """A child process that is restarted when it dies.

    Parameters
    ----------
    name
        Name in logs.
    module, arguments
        Python module to run, and its arguments.
    environment
        Variables to add to the environment of the supervisor.
    descriptors
        Open file descriptors that the child inherits.
    """

    def __init__(
        self,
        name: str,
        module: str,
        *arguments: str,
        environment: Mapping[str, str],
        descriptors: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.is_ready = False
        self._command = [sys.executable, "-m", module, *arguments]
        self._environment = {**os.environ, **environment}
        self._descriptors = descriptors
        self._backoff = _BACKOFF_SECONDS[0]
        self._start_at = 0.0
        self._started_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def keep_running(self, now: float) -> None:
        """Start the process if it is not running and its restart is due."""
        process = self._process
        if process is not None and process.poll() is not None:
            self.is_ready = False
            if now - self._started_at > _HEALTHY_SECONDS:
                self._backoff = _BACKOFF_SECONDS[0]
            _log.error(
                "child_died",
                extra={"child": self.name, "status": process.returncode, "restart_seconds": self._backoff},
            )
            self._release()
            self._start_at = now + self._backoff
            self._backoff = min(2.0 * self._backoff, _BACKOFF_SECONDS[1])
        if self._process is None and now >= self._start_at:
            self._started_at = now
            self._process = self._start()
            threading.Thread(target=self._await_ready, args=(self._process,), daemon=True).start()

    def stop(self) -> None:
        """Send SIGTERM."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    @property
    def pid(self) -> int | None:
        """Id of the process; None while it does not run."""
        # Read once: the thread that restarts it may be at work.
        process = self._process
        return None if process is None else process.pid

    def wait(self, seconds: float) -> int:
        """Exit status of the process, which is killed if it does not exit in time."""
        process = self._process
        if process is None:
            return 0
        try:
            status = process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            _log.error("child_killed", extra={"child": self.name})
            process.kill()
            status = process.wait()
        self._release()
        return status

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            pass_fds=self._descriptors,
        )

    def _release(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if line.strip() == b"ready" and process is self._process:
                    self.is_ready = True
                    _log.info("child_ready", extra={"child": self.name, "pid": process.pid})


def stop_event() -> threading.Event:
    """In a child: an event that is set on SIGTERM or SIGINT, and when the supervisor has exited."""
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        # Set by a thread: the interrupted one may hold the lock of the event, and would wait for itself.
        signal.signal(name, lambda *_: threading.Thread(target=stop.set, daemon=True).start())

    def wait_for_parent() -> None:
        # Not sys.stdin, whose lock would be held at exit.
        while os.read(0, 1):
            pass
        stop.set()

    threading.Thread(target=wait_for_parent, daemon=True).start()
    return stop
