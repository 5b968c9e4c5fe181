"""A real service as processes, for tests that talk to one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.databases import copy_sqlite

__all__ = ["Server", "follow", "running_server", "start_server", "wait_until", "waiting"]

_WITHOUT_NUMBA = Path(__file__).with_name("without_numba")
_ANNOUNCED = re.compile(
    r'gRPC (\S+:\d+), metrics and health on (https?://\S+?:\d+)(?:, explorer on ([^\s",]+))?'
    r'(?:, HTTP API on ([^\s"]+))?'
)


@dataclass(slots=True)
class Server:
    """A running `darksight serve`."""

    process: subprocess.Popen[str]
    data_dir: Path
    grpc_target: str = ""
    http_url: str = ""
    explorer_url: str = ""
    api_url: str = ""
    lines: list[str] = field(default_factory=list)

    def get(self, path: str, accept: str = "*/*") -> tuple[int, str]:
        """Status and body of a page."""
        request = urllib.request.Request(self.http_url + path, headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def counted(self, name: str) -> float:
        """A metric, summed over its labels."""
        samples = (line.rpartition(" ") for line in self.get("/metrics")[1].splitlines())
        return sum(float(value) for series, _, value in samples if series.partition("{")[0] == name)

    def events(self, event: str) -> list[dict[str, object]]:
        """Log lines of an event so far."""
        parsed = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [line for line in parsed if line["event"] == event]

    def children(self) -> dict[str, int]:
        """Process ids by name of child, the latest."""
        return {str(line["child"]): int(str(line["pid"])) for line in self.events("child_ready")}

    def stop(self, seconds: float = 60.0) -> int:
        """SIGTERM and its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


def start_server(
    data_dir: Path,
    models: Mapping[str, Path],
    *options: str,
    environment: Mapping[str, str] | None = None,
    seconds: float = 300.0,
    run_by: Sequence[str] = (),
    python: str | Path = sys.executable,
    has_tables: bool = True,
    is_compiled: bool = False,
) -> Server:
    """Start a service and wait until it is ready; without its explorer, unless an option names a port for it.

    Parameters
    ----------
    data_dir, models, options, environment
        What `darksight serve` is given.
    seconds
        How long it may take.
    run_by
        A command that runs the command of the service, such as one that limits its resources.
    python
        That of another environment.
    has_tables
        Whether a new data directory gets its SQLite database here. Else the service makes it.
    is_compiled
        Whether rows are scored by the compiled kernel, as soon as it is loaded. Else numpy scores them.
    """
    if has_tables and not run_by and not (data_dir / "darksight.db").exists():
        copy_sqlite(data_dir / "darksight.db")
    arguments = [f"--model={name}={path}" for name, path in models.items()]
    if not any(option.startswith("--explorer-port") for option in options):
        arguments.append("--no-explorer")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DARKSIGHT_")}
    variables = {**clean, **(environment or {})}
    if not is_compiled:
        # Last: of two files that Python runs at its start it takes the first.
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (variables.get("PYTHONPATH"), str(_WITHOUT_NUMBA))))
    process = subprocess.Popen(
        [
            *run_by,
            *(str(python), "-m", "darksight_service.cli", "serve", "--data-dir", str(data_dir)),
            *("--grpc-port", "0", "--http-port", "0", *arguments, *options),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
    )
    return follow(process, data_dir, seconds)


def follow(process: subprocess.Popen[str], data_dir: Path, seconds: float = 300.0) -> Server:
    """Read the log of a service from its stderr, and wait until it is ready."""
    server = Server(process, data_dir)
    ready = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                server.lines.append(line)
                found = _ANNOUNCED.search(line)
                if found:
                    (server.grpc_target, server.http_url, server.explorer_url, server.api_url) = found.groups(
                        default=""
                    )
                    ready.set()
        ready.set()

    threading.Thread(target=read, daemon=True).start()
    if not ready.wait(seconds) or not server.grpc_target:
        process.kill()
        process.wait()
        raise AssertionError("the service did not start:\n" + "".join(server.lines))
    return server


@contextmanager
def running_server(
    models: Mapping[str, Path],
    data_dir: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    run_by: Sequence[str] = (),
    python: str | Path = sys.executable,
    is_compiled: bool = False,
) -> Iterator[Server]:
    """A service that runs for the time of a block, on ports of its own choice."""
    server = start_server(
        data_dir,
        models,
        *options,
        environment=environment,
        run_by=run_by,
        python=python,
        is_compiled=is_compiled,
    )
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
            try:
                server.process.wait(60)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()


def waiting(data_dir: Path) -> list[Path]:
    """Spool segments that are not in the store yet."""
    return [path for path in data_dir.glob("spool/*/*") if path.suffix in (".open", ".log")]


def wait_until(is_so: object, seconds: float = 120.0, what: str = "") -> None:
    """Wait for something that happens in another process; patiently, since the machine may do other things, too.

    What takes long is asked for less often: the answer takes CPU time, too.
    """
    end, pause = time.monotonic() + seconds, 0.02
    while not is_so():  # type: ignore[operator]
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for {what or is_so}")
        time.sleep(pause)
        pause = min(1.25 * pause, 0.2)
