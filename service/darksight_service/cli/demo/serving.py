"""The service of the demo: a real `darksight serve`, and the traffic that it gets until it is interrupted."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from darksight_client import Client, DarkSightClientError
from numpy.typing import NDArray

from darksight_service.cli.console import say
from darksight_service.errors import RefusedError

__all__ = ["DemoService", "command_line", "compiling", "run_service", "send_traffic"]

CALL_SECONDS = 60.0
"""Patience with one call, on a machine that compiles the scorer at the same time."""

_ROWS_PER_SECOND = 2.0
_CLEAN_SECONDS = 180.0
_DRIFT_SECONDS = 60.0
_ROOT = Path(__file__).parents[4]


@dataclass(frozen=True, slots=True)
class DemoService:
    """A running service and its addresses; `explorer` is empty if it has none."""

    process: subprocess.Popen[bytes]
    target: str
    url: str
    explorer: str

    def client(self) -> Client:
        """A client that waits for slow calls."""
        return Client(self.target, timeout_seconds=CALL_SECONDS, gate_timeout_seconds=CALL_SECONDS)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Compile the scorer beside the block, so that a service that starts after it is fast from its first call."""
    say("compiling the scorer on another core, once per installation")
    process = subprocess.Popen([sys.executable, "-m", "darksight_core.runtime.compilation"])
    try:
        yield
        if process.poll() is None:
            say("waiting for the compiled scorer")
        process.wait()
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def run_service(models: Mapping[str, Path], data_dir: Path) -> Iterator[DemoService]:
    """Run `darksight serve` on free ports until the end of the block; the data directory is emptied."""
    shutil.rmtree(data_dir, ignore_errors=True)
    data_dir.mkdir()
    log = data_dir / "serve.log"
    say(f"starting a service with an embedded database; its log is {log}")
    with log.open("w") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "darksight_service.cli", "serve", "--data-dir", str(data_dir)),
                *("--grpc-port", "0", "--http-port", "0", "--explorer-port", "0"),
                *(f"--model={name}={bundle}" for name, bundle in models.items()),
            ],
            stderr=file,
        )
    try:
        found = None
        while found is None:
            if process.poll() is not None:
                raise RefusedError(f"the service did not start; see {log}")
            time.sleep(0.1)
            text = log.read_text(encoding="utf-8")
            found = re.search(r'gRPC (\S+), metrics and health on ([^\s,"]+)(?:, explorer on ([^\s"]+))?"', text)
        yield DemoService(process, *found.groups(default=""))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def send_traffic(service: DemoService, model: str, traffic: Mapping[str, NDArray[np.float32]]) -> None:
    """Send two rows a second until an interrupt: mostly of the first kind, now and then a minute of another one."""
    usual, *others = traffic
    rng = np.random.default_rng(0)
    with contextlib.suppress(KeyboardInterrupt), service.client() as client:
        for other in cycle(others):
            for kind, seconds in ((usual, _CLEAN_SECONDS), (other, _DRIFT_SECONDS)):
                say(f"now sending {kind} traffic to the model {model} for {seconds / 60:.0f} min")
                for _ in range(int(seconds * _ROWS_PER_SECOND)):
                    try:
                        client.gate(model, rng.choice(traffic[kind]))
                    except DarkSightClientError:
                        if service.process.poll() is not None:
                            return
                    time.sleep(1.0 / _ROWS_PER_SECOND)
    say("interrupted; the service is stopping")


def command_line(*arguments: str) -> str:
    """A `darksight` command that can be pasted into the shell that runs this one."""
    if Path(sys.prefix).parent == _ROOT and (_ROOT / "dev").is_file():
        program = [os.path.relpath(_ROOT / "dev"), "run"]
        if os.sep not in program[0]:
            program[0] = f".{os.sep}{program[0]}"
    elif shutil.which("darksight") == str(Path(sys.executable).with_name("darksight")):
        program = ["darksight"]
    else:
        program = [sys.executable, "-m", "darksight_service.cli"]
    return shlex.join([*program, *arguments])
