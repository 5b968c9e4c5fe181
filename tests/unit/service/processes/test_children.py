"""Children that are silent, as the supervisor sees them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from darksight_service.processes import children
from darksight_service.processes.children import Child
from darksight_service.processes.cpu_wait import CpuWait

LOOK = 0.5


class Watched:
    """A child process that runs until it is killed, and the clock of its supervisor."""

    def __init__(self, program: str) -> None:
        self.child = Child("one", "unused", environment={})
        self.child._command = [sys.executable, "-c", program]
        self.now = 1000.0
        self.look(LOOK)
        self.pid = self.child.pid

    def look(self, seconds: float) -> None:
        """Look at the child, as often as the supervisor does in this time."""
        for _ in range(round(seconds / LOOK)):
            self.now += LOOK
            self.child.keep_running(self.now)

    def wait_for_report(self) -> None:
        """Wait until the child has reported."""
        while not self.child._last_report:
            time.sleep(0.01)


@pytest.fixture
def watched() -> Iterator[Callable[[str], Watched]]:
    """Starts children, and ends them."""
    started = []

    def start(program: str) -> Watched:
        started.append(Watched(program))
        return started[-1]

    yield start
    for each in started:
        each.child.wait(0.0)


def tell(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Let the system say that all processes wait for a CPU, for this share of the time."""
    monkeypatch.setattr(children, "CpuWait", lambda pid: SimpleNamespace(seconds=lambda passed: share * passed))


SILENT = "import time; time.sleep(60)"
ONE_REPORT = "import os, time; os.write(1, b'ready\\n'); time.sleep(60)"


def test_a_child_that_stops_reporting_is_replaced_after_ten_seconds(
    watched: Callable[[str], Watched], monkeypatch: pytest.MonkeyPatch
):
    """It is not ready before that."""
    tell(monkeypatch, 0.0)
    one = watched(ONE_REPORT)
    one.wait_for_report()
    assert one.child.is_ready

    one.look(5.0)
    assert not one.child.is_ready
    one.look(4.5)
    assert one.child.hangs == 0
    one.look(1.5)

    assert one.child.hangs == 1


def test_a_child_that_never_reports_is_replaced_after_minutes(
    watched: Callable[[str], Watched], monkeypatch: pytest.MonkeyPatch
):
    """Nobody would notice it otherwise: it is not ready, and does not die."""
    tell(monkeypatch, 0.0)
    one = watched(SILENT)

    one.look(175.0)
    assert one.child.hangs == 0
    one.look(10.0)
    assert one.child.hangs == 1
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    one.look(15.0)

    assert one.child.pid not in (None, one.pid)


def test_a_child_that_waits_for_a_cpu_is_not_hung(watched: Callable[[str], Watched], monkeypatch: pytest.MonkeyPatch):
    """Not for minutes; for ever it may not."""
    tell(monkeypatch, 1.0)
    one = watched(ONE_REPORT)
    one.wait_for_report()

    one.look(110.0)
    assert one.child.hangs == 0
    one.look(15.0)

    assert one.child.hangs == 1


def test_the_supervisor_may_have_been_paused(watched: Callable[[str], Watched]):
    """A look after an hour is a short silence."""
    one = watched(ONE_REPORT)
    one.wait_for_report()
    one.now += 3600.0

    one.look(3.0)

    assert one.child.is_ready


def busy(core: int) -> subprocess.Popen[bytes]:
    """A process that never rests, on one core."""
    program = f"import os; os.sched_setaffinity(0, {{{core}}})\nos.write(1, b'.')\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    return process


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux tells what a process waits for")
def test_what_a_process_waits_for():
    """Of processes on one core each waits for its turn; one that sleeps waits for no CPU."""
    core = min(os.sched_getaffinity(0))
    processes = [busy(core) for _ in range(3)]
    sleeping = subprocess.Popen([sys.executable, "-c", SILENT])
    try:
        waits = [CpuWait(process.pid) for process in (*processes, sleeping)]
        started = time.monotonic()
        time.sleep(0.6)
        passed = time.monotonic() - started

        found = [wait.seconds(passed) for wait in waits]
    finally:
        for process in (*processes, sleeping):
            process.kill()
            process.communicate()

    assert all(seconds > 0.2 * passed for seconds in found[:3]), found
    assert found[3] < 0.5 * passed, found
    assert CpuWait(processes[0].pid).seconds(1.0) == 0.0
