"""Child processes, as the supervisor and as the child itself see them.

The supervisor holds the other end of each child's stdin. When the supervisor exits, for whatever reason, the child
reads the end of stdin and stops: no process of the service outlives its supervisor. A child reports on stdout, every
second, that it works and whether it is ready. A child that stops reporting hangs: it is not ready, and is replaced. So
is one that does not report within minutes of its start. Time in which a child waits for a CPU does not count: on a
machine that is overloaded, a new process would only have to wait as well.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress

from darksight_service.processes.cpu_wait import CpuWait

__all__ = ["REPORT_SECONDS", "Child", "keep_reporting", "report", "stop_event"]

REPORT_SECONDS = 1.0
"""Time between two reports of a child."""

_READY = b"ready"
_NOT_READY = b"not ready"

# A child that dies is restarted at once, and later each time if it keeps dying.
_BACKOFF_SECONDS = (0.1, 10.0)
# A child that has run this long is healthy: the next restart is at once again.
_HEALTHY_SECONDS = 30.0
# A child that has not reported for this long is not ready, and is killed. The first report may take longer, because a
# worker loads its bundles before.
_LATE_SECONDS = 4.0
_HUNG_SECONDS = 10.0
_START_SECONDS = 180.0
# A child that waits for a CPU is killed after this multiple of the limit.
_MAX_WAIT_FACTOR = 12.0
# The longest silence that one check adds: the supervisor itself may have been paused.
_MAX_CHECK_SECONDS = 0.5
# After this silence it is examined whether the child waits for a CPU, which takes some time.
_QUIET_SECONDS = 1.5 * REPORT_SECONDS

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
        self.hangs = 0
        """How often the process was killed because it did not report."""
        self._command = [sys.executable, "-m", module, *arguments]
        self._environment = {**os.environ, **environment}
        self._descriptors = descriptors
        self._backoff = _BACKOFF_SECONDS[0]
        self._start_at = 0.0
        self._started_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._last_report = b""
        # Seconds without a report, and those of them in which the child did not wait for a CPU.
        self._quiet_seconds = self._silent_seconds = 0.0
        self._checked_at = 0.0
        self._cpu_wait: CpuWait | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the process reports that it is ready."""
        return self._last_report == _READY and self._silent_seconds < _LATE_SECONDS

    def keep_running(self, now: float) -> None:
        """Start the process if it is not running and its restart is due; kill it if it hangs."""
        process = self._process
        if process is not None and process.poll() is None:
            self._kill_if_hung(process, now)
        elif process is not None:
            self._last_report = b""
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
            self._started_at = self._checked_at = now
            self._reset_silence()
            self._process = self._start()
            threading.Thread(target=self._read_reports, args=(self._process,), daemon=True).start()

    def _kill_if_hung(self, process: subprocess.Popen[bytes], now: float) -> None:
        passed = min(now - self._checked_at, _MAX_CHECK_SECONDS)
        self._checked_at = now
        self._quiet_seconds += passed
        if self._quiet_seconds > _QUIET_SECONDS:
            # Read once: a report may arrive meanwhile.
            wait = self._cpu_wait
            if wait is None:
                self._cpu_wait = CpuWait(process.pid)
            else:
                passed -= wait.seconds(passed)
        self._silent_seconds += passed
        limit = _HUNG_SECONDS if self._last_report else _START_SECONDS
        if self._silent_seconds > limit or self._quiet_seconds > _MAX_WAIT_FACTOR * limit:
            facts = {"seconds": round(self._quiet_seconds, 1), "without_cpu_wait": round(self._silent_seconds, 1)}
            _log.error("child_hung", extra={"child": self.name, "pid": process.pid, **facts})
            self._last_report = b""
            self._reset_silence()
            self.hangs += 1
            process.kill()

    def _reset_silence(self) -> None:
        """The child has reported, or was started or killed."""
        self._quiet_seconds = self._silent_seconds = 0.0
        self._cpu_wait = None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def switch_debug(self) -> None:
        """Let the process log more, or less again; not before it has started, when the signal would end it."""
        if self._last_report:
            self.send(signal.SIGHUP)

    @property
    def pid(self) -> int | None:
        """Id of the process; None while it does not run."""
        # Read once: another thread may be restarting it.
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
        # Stopped before it could handle the signal: it had done nothing.
        return 0 if status == -signal.SIGTERM and not self._last_report else status

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

    def _read_reports(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if process is not self._process:
                    continue
                self._reset_silence()
                if line.strip() == _READY != self._last_report:
                    _log.info("child_ready", extra={"child": self.name, "pid": process.pid})
                self._last_report = line.strip()


def report(is_ready: bool = True) -> None:
    """In a child: tell the supervisor that this process works, and whether it is ready."""
    # The supervisor may have exited.
    with suppress(OSError):
        os.write(1, (_READY if is_ready else _NOT_READY) + b"\n")


def keep_reporting(stop: threading.Event) -> None:
    """In a child: report from a thread until `stop` is set, for a process whose main thread may wait for long."""

    def run() -> None:
        while not stop.wait(REPORT_SECONDS):
            report()

    report()
    threading.Thread(target=run, name="report", daemon=True).start()


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
