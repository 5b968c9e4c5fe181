"""A real PgBouncer in transaction mode before a PostgreSQL of the tests: a transaction may get any connection."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.support.postgres import Postgres
from tests.support.servers import wait_until

__all__ = ["HAS_PGBOUNCER", "PgBouncer", "running_pgbouncer"]

# Debian has it where only the path of root leads to.
_PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

HAS_PGBOUNCER = _PROGRAM is not None or os.environ.get("CI") == "true"
"""Whether it is installed. CI must have it."""

_CONFIG = """
[databases]
* = host={server} user=postgres
[pgbouncer]
pool_mode = transaction
default_pool_size = 3
auth_type = any
listen_addr =
unix_socket_dir = {folder}
unix_socket_mode = 0777
pidfile = {folder}/pid
logfile = {folder}/log
"""


@dataclass
class PgBouncer:
    """A pooler on a socket in its folder."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def url(self, database: str) -> str:
        """Of a database of its server."""
        return f"postgresql://postgres@/{database}?host={self.folder}&port=6432"

    def start(self) -> None:
        """Start it and wait until it answers."""
        assert _PROGRAM is not None, "CI has no PgBouncer; on Debian: apt-get install pgbouncer"
        # It refuses to run as root.
        user = "nobody" if os.geteuid() == 0 else None
        self.process = subprocess.Popen([_PROGRAM, "-q", str(self.folder / "config.ini")], user=user, cwd="/")
        wait_until(lambda: self._is_there() or self._has_ended(), what="PgBouncer")
        assert not self._has_ended(), "PgBouncer has ended"

    def stop(self) -> None:
        """Stop it at once; its clients lose their connections."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
            self.process = None

    def _has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def _is_there(self) -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(self.url("postgres"), prepare_threshold=None):
            return True
        return False


@contextmanager
def running_pgbouncer(server: Postgres) -> Iterator[PgBouncer]:
    """A pooler of a server, until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="ds-pool-", dir="/tmp") as name:
        folder = Path(name)
        config = folder / "config.ini"
        config.write_text(_CONFIG.format(server=server.folder, folder=folder), encoding="utf-8")
        # Whatever umask a command that ran in this process has left.
        config.chmod(0o644)
        folder.chmod(0o755)
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        pooler = PgBouncer(folder)
        pooler.start()
        try:
            yield pooler
        finally:
            pooler.stop()
