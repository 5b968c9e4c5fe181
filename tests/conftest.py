"""What every test may rely on."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

# Before numpy and torch are imported, here and in the processes that tests start: the rows are few, and each core has a
# worker of its own, so that several threads would only wait for each other, which takes a third of a fit's CPU time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where Python must not keep compiled modules, as in many containers, every process would compile all that it imports,
# which takes two thirds of the time of its start. They are kept in the virtual environment, not beside the sources.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode, sys.pycache_prefix = False, f"{sys.prefix}/pycache"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

# How long an example takes says how busy the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Seconds of a test that was not run here before, by folder; in all others they are next to nothing.
_GUESSED = {"e2e": 10.0, "security": 1.0, "integration": 1.0}
_RECORD = "darksight/seconds"
# Files that share the service of tests/security/conftest.py run in one process, one after the other.
_SECURITY = Path(__file__).with_name("security")
_TOGETHER = tuple(path.name for path in _SECURITY.glob("test_*.py") if "attacked: Server" in path.read_text("utf-8"))
_IN_CI = os.environ.get("CI") == "true"


def _recorded(config: pytest.Config) -> dict[str, float]:
    """Seconds by test of the runs before this one, from pytest's cache; a process of several is told by the first."""
    told: dict[str, float] | None = getattr(config, "workerinput", {}).get(_RECORD)
    if told is not None:
        return told
    cache = getattr(config, "cache", None)
    return dict(cache.get(_RECORD, {})) if cache else {}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All processes must collect the tests in one order, whatever another run records meanwhile."""
    node.workerinput[_RECORD] = _recorded(node.config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The files that take longest first, lest one of them is left to a single core at the end.

    Within a file the order stays as it is.
    """
    recorded, seconds = _recorded(config), Counter[Path]()
    for item in items:
        seconds[item.path] += recorded.get(item.nodeid, _GUESSED.get(item.path.parent.name, 0.02))
    items.sort(key=lambda item: (-seconds[item.path], item.path))


_seconds: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what a test takes, with what it sets up."""
    _seconds[report.nodeid] += round(report.duration, 3)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """With `--dist loadfile`, give files that share a service to one process."""

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
        """One process for each file but for those that share a service."""

        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "together" if file.endswith(_TOGETHER) else file

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def _skipped(config: pytest.Config) -> Counter[str]:
    """Number of skipped tests by reason; of all processes in the one that reports."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    return Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was skipped and why, one line for each reason."""
    skipped = _skipped(config)
    if skipped:
        terminalreporter.section("skipped")
        for reason, count in skipped.most_common():
            terminalreporter.write_line(f"{count} {'test' if count == 1 else 'tests'}: {reason}")
        if _IN_CI:
            terminalreporter.write_line("CI fails: it must have what every test needs")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Record how long the tests took; in CI a skipped test is a failure."""
    config = session.config
    if (cache := getattr(config, "cache", None)) and not hasattr(config, "workerinput"):
        cache.set(_RECORD, _recorded(config) | _seconds)
    if _IN_CI and exitstatus == pytest.ExitCode.OK and _skipped(config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the person who runs the tests do not reach them."""
    for name in list(os.environ):
        if name.startswith("DARKSIGHT_"):
            monkeypatch.delenv(name)
