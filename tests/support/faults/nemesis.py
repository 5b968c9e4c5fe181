"""What can go wrong, done to a real service and a real PostgreSQL.

A fault ends healed: what was killed runs again, what was stopped goes on. Only processes that are children of ours, or
of theirs, are ever signalled, found anew each time.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from darksight_client import Client, Policy

from tests.support.faults.clients import MODEL
from tests.support.postgres import Postgres
from tests.support.servers import Server, start_server, wait_until, waiting

__all__ = ["Nemesis", "Service", "free_port", "small_disk", "stalling_disk"]

_HOUR_NS = 3_600 * 10**9
_START_TRIES = 20


def children(pid: int) -> dict[int, str]:
    """Command line of each living child of a process."""
    found = {}
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                found[int(child)] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return {child: command for child, command in found.items() if command}


def send(number: signal.Signals, *pids: int) -> None:
    """Signal processes that may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Whether a process is there and not only waits to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[bool]:
    """Let a folder be a disk of this size, in memory; yields whether that was permitted, else it stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size_bytes},mode=700"
    command = ["mount", "-t", "tmpfs", "-o", options, "darksight-faults", str(folder)]
    try:
        is_mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def stalling_disk(folder: Path, size_bytes: int) -> Iterator[Callable[[float], None] | None]:
    """Let a folder be a disk of its own; yields a function that lets it not respond for some seconds, if permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    image = folder.with_name(f"{folder.name}.img")
    with image.open("wb") as file:
        file.truncate(size_bytes)
    commands = (["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(folder)])
    try:
        done = (subprocess.run(command, capture_output=True, check=False).returncode == 0 for command in commands)
        is_mounted = os.geteuid() == 0 and shutil.which("fsfreeze") is not None and all(done)
    except FileNotFoundError:
        is_mounted = False

    def stall(seconds: float) -> None:
        # Another process thaws it, whatever becomes of this one.
        script = f'fsfreeze -f "$0" && sleep {seconds}; fsfreeze -u "$0"'
        subprocess.run(["sh", "-c", script, str(folder)], check=True, timeout=60 + seconds)

    try:
        yield stall if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        image.unlink()


@dataclass(slots=True)
class Service:
    """A `darksight serve` that is started again and again on one data folder and the same ports.

    Parameters
    ----------
    data_dir, bundle
        What it serves, and from where.
    url
        Of its database; nothing for the embedded one.
    environment
        More settings.
    has_stepped_clock
        Whether its clock can be stepped.
    others
        Bundles that it serves beside the one that the clients call, by name.
    workers
        How many it has.
    """

    data_dir: Path
    bundle: Path
    url: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    has_stepped_clock: bool = False
    others: dict[str, Path] = field(default_factory=dict)
    workers: int = 2
    port: int = field(default_factory=lambda: free_port())
    http_port: int = field(default_factory=lambda: free_port())
    server: Server | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def target(self) -> str:
        """Where clients call."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the parent."""
        assert self.server is not None
        return self.server.process.pid

    @property
    def clock(self) -> Path:
        """The file with what is added to its clock, in nanoseconds."""
        return self.data_dir.with_name(f"{self.data_dir.name}.clock")

    def start(self) -> None:
        """Start it; a port that the last one's children still have is waited for, as an init system would do."""
        environment = dict(self.environment)
        if self.has_stepped_clock:
            if not self.clock.exists():
                self.clock.write_bytes(bytes(8))
            paths = os.pathsep.join([str(Path(__file__).with_name("clock")), os.environ.get("PYTHONPATH", "")])
            environment |= {"PYTHONPATH": paths, "FAULTS_CLOCK": str(self.clock)}
        options = ["--workers", str(self.workers), "--grpc-port", str(self.port), "--http-port", str(self.http_port)]
        options += ["--database-url", self.url] if self.url else []
        for attempt in range(_START_TRIES):
            try:
                self.server = start_server(
                    self.data_dir,
                    {MODEL: self.bundle, **self.others},
                    *options,
                    environment=environment,
                    seconds=300.0,
                    has_tables=False,
                )
                return
            except AssertionError as error:
                if "cannot listen" not in str(error) or attempt == _START_TRIES - 1:
                    raise
                time.sleep(0.5)

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        assert self.server is not None
        status = self.server.stop(90)
        self._gone()
        return status

    def kill(self) -> None:
        """Whatever is left of it, at once."""
        if self.server is not None:
            pids = children(self.pid)
            self.server.process.kill()
            send(signal.SIGKILL, *pids)
            self.server.process.wait()
            wait_until(lambda: not any(map(is_alive, pids)), what="the children to be gone")
            self._gone()

    def is_ready(self) -> bool:
        """Whether it says so."""
        assert self.server is not None
        return self.server.get("/v2/health/ready")[0] == 200

    def child(self, words: str) -> list[int]:
        """Children whose command line has these words."""
        return [pid for pid, command in children(self.pid).items() if words in command]

    def waiting(self) -> list[Path]:
        """Spool segments that are not in the store yet."""
        return waiting(self.data_dir)

    def waiting_bytes(self) -> int:
        """Size of these."""
        found = 0
        for path in self.waiting():
            # One that is full gets another name.
            with contextlib.suppress(FileNotFoundError):
                found += path.stat().st_size
        return found

    def set_aside(self) -> list[str]:
        """Files of damaged segments and refused records."""
        found = self.data_dir.glob("spool/*/*.log.*")
        return sorted(path.name for path in found)

    def settle(self, seconds: float = 180.0) -> None:
        """Wait until all that was written down is in the store."""
        wait_until(lambda: not self.waiting(), seconds, "the spools to be empty")

    def _gone(self) -> None:
        assert self.server is not None
        self.lines += self.server.lines
        self.server = None


class Nemesis:
    """Breaks things, and heals them.

    Parameters
    ----------
    service
        What is broken.
    postgres
        Its database, if it is one.
    has_small_disk
        Whether the data folder is a disk that may be filled.
    seed
        Of what is chosen.
    """

    def __init__(
        self, service: Service, postgres: Postgres | None = None, *, has_small_disk: bool = False, seed: int = 0
    ) -> None:
        self.service = service
        self.postgres = postgres
        self._random = random.Random(seed)
        self._has_small_disk = has_small_disk

    def faults(self) -> dict[str, Callable[[], None]]:
        """All that apply here, by name; those with a duration take a moderate one."""
        found: dict[str, Callable[[], None]] = {
            "kill -9 of a worker": self.kill_worker,
            "kill -9 of the storage worker": self.kill_storage,
            "kill -9 of the server": self.kill_server,
            "kill -9 of the parent only": self.kill_parent,
            "pause of a worker": lambda: self.pause(self._worker()),
            "pause of the storage worker": lambda: self.pause(self._storage()),
            "hung worker": lambda: self.hang(self._worker()),
            "hung storage worker": lambda: self.hang(self._storage()),
            "lost bundle": self.lose_bundle,
        }
        if self.service.has_stepped_clock:
            found["clock step"] = self.step_clock
        if self._has_small_disk:
            found["disk full"] = self.fill_disk
            found["disk full and kill -9 of the server"] = self.fill_disk_and_kill
        if self.postgres is not None:
            found |= {
                "kill -9 of PostgreSQL": self.kill_postgres,
                "kill -9 of one of its connections": self.kill_connection,
                "outage of PostgreSQL": self.outage,
                "pause of PostgreSQL": self.pause_postgres,
                "restored audit trail": self.restore_trail,
            }
        return found

    def kill_worker(self) -> None:
        """The supervisor starts another one."""
        send(signal.SIGKILL, *self._worker())

    def kill_storage(self) -> None:
        """The next one goes on from what is written down."""
        send(signal.SIGKILL, *self._storage())

    def kill_server(self) -> None:
        """Parent and children, then a new start on what they left."""
        self.service.kill()
        self.service.start()

    def kill_parent(self) -> None:
        """Its children must end by themselves before another can take the port."""
        server = self.service.server
        assert server is not None
        server.process.kill()
        server.process.wait()
        self.service._gone()
        self.service.start()

    def pause(self, pids: list[int], seconds: float = 2.0) -> None:
        """SIGSTOP, and later SIGCONT."""
        send(signal.SIGSTOP, *pids)
        time.sleep(seconds)
        send(signal.SIGCONT, *pids)

    def hang(self, pids: list[int]) -> None:
        """SIGSTOP without end; the supervisor must replace them."""
        send(signal.SIGSTOP, *pids)
        wait_until(lambda: not any(map(is_alive, pids)), what="hung processes to be replaced")
        wait_until(self.service.is_ready, what="the service to be ready again")

    def lose_bundle(self) -> None:
        """The bundles are gone when a worker starts, and are back later."""
        copies, away = self.service.data_dir / "bundles", self.service.data_dir / "away"
        wait_until(self.service.is_ready, what="the service to be ready")
        server = self.service.server
        assert server is not None
        before = len(server.events("model_reload_failed"))
        copies.rename(away)
        self.kill_worker()
        # Ready until the supervisor sees that the worker is gone, and then not until the bundle is back.
        wait_until(lambda: len(server.events("model_reload_failed")) > before, what="a worker without its bundle")
        end = time.monotonic() + 3.0
        was_ready = False
        while time.monotonic() < end:
            was_ready |= self.service.is_ready()
            time.sleep(0.1)
        away.rename(copies)
        wait_until(self.service.is_ready, what="the service to be ready again")
        assert not was_ready, "ready without a model"

    def restore_trail(self) -> None:
        """The database loses its last change, as by a restore; points stay, so that they can still be counted."""
        assert self.postgres is not None
        server, database = self.service.server, self.service.url.partition("?")[0].rpartition("/")[2]
        assert server is not None
        with Client(self.service.target, timeout_seconds=60.0) as client:
            client.set_policy(MODEL, Policy(), comment="lost by the restore")
        before = server.counted("darksight_state_rebuilds_total")
        self.postgres.execute(
            "BEGIN; SET LOCAL session_replication_role = replica; "
            "DELETE FROM policy_change WHERE id = (SELECT max(id) FROM policy_change); COMMIT",
            database,
        )
        wait_until(lambda: server.counted("darksight_state_rebuilds_total") > before, what="the state to be rebuilt")

    def kill_postgres(self) -> None:
        """All of its processes, as a machine that goes down would; what it had committed it must know again."""
        assert self.postgres is not None
        assert self.postgres.process is not None
        pids = (self.postgres.process.pid, *children(self.postgres.process.pid))
        send(signal.SIGKILL, *pids)
        self.postgres.stop(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids)), what="PostgreSQL to be gone")
        self._start_postgres()

    def kill_connection(self) -> None:
        """One of the processes that serve the storage worker; PostgreSQL then starts anew by itself."""
        assert self.postgres is not None
        assert self.postgres.process is not None
        ours = [pid for pid, command in children(self.postgres.process.pid).items() if "[local]" in command]
        send(signal.SIGKILL, *ours[:1])

    def outage(self, seconds: float = 6.0) -> None:
        """It is stopped, and started again later."""
        assert self.postgres is not None
        self.postgres.stop()
        time.sleep(seconds)
        self._start_postgres()

    def _start_postgres(self) -> None:
        """Start it; on a slow disk it may take more than a while to find out what it had committed."""
        postgres = self.postgres
        assert postgres is not None

        def answers() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                return postgres.execute("SELECT 1") == [(1,)]
            return False

        try:
            postgres.start()
        except RuntimeError:
            if postgres.process is None or postgres.process.poll() is not None:
                raise
            wait_until(answers, 180.0, "PostgreSQL to recover")

    def pause_postgres(self, seconds: float = 3.0) -> None:
        """It accepts connections and answers nothing."""
        assert self.postgres is not None
        self.postgres.pause()
        time.sleep(seconds)
        self.postgres.resume()

    def step_clock(self, seconds: float = 1.0) -> None:
        """The service's clock jumps forth, back beyond where it was, and to the right time again."""
        for step in (self._random.randint(0, _HOUR_NS), -self._random.randint(0, _HOUR_NS), 0):
            with self.service.clock.open("r+b", buffering=0) as file:
                file.write(struct.pack("<q", step))
            time.sleep(seconds if step else 0.0)

    def fill_disk(self) -> None:
        """No byte is left until records were dropped, and the service says so; clients must be calling."""
        with self._full_disk():
            self._await_drops()

    def fill_disk_and_kill(self) -> None:
        """The service must also start, and answer, on a disk without a byte left."""
        with self._full_disk():
            self.kill_server()
            self._await_drops()

    def _await_drops(self) -> None:
        server = self.service.server
        assert server is not None

        before = server.counted("darksight_spool_dropped_total")
        wait_until(lambda: server.counted("darksight_spool_dropped_total") > before, what="records to be dropped")

    @contextmanager
    def _full_disk(self) -> Iterator[None]:
        path = self.service.data_dir / "ballast"
        is_over = threading.Event()

        def fill() -> None:
            # What the drain sets free is taken too.
            with path.open("wb", buffering=0) as file:
                while not is_over.wait(0.005):
                    with contextlib.suppress(OSError):
                        while not is_over.is_set() and file.write(bytes(1 << 16)):
                            pass

        ballast = threading.Thread(target=fill)
        ballast.start()
        try:
            wait_until(lambda: os.statvfs(self.service.data_dir).f_bavail == 0, what="the disk to be full")
            yield
        finally:
            is_over.set()
            ballast.join()
            path.unlink()

    def _worker(self) -> list[int]:
        workers = self.service.child("darksight_service.processes.worker")
        return [self._random.choice(workers)] if workers else []

    def _storage(self) -> list[int]:
        return self.service.child("darksight_service.processes.storage_worker")


def free_port() -> int:
    """A free port below those that the system gives to clients, lest one of them takes it while nobody listens."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port found")
