"""Clients log what they are told while a nemesis breaks the service and its database: nothing is lost, nothing doubled.

The short version of `./dev bench faults`.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from darksight_client import Client, DarkSightClientError, Policy
from darksight_service.store import migrate, revisions
from darksight_service.store.store import Store

from darksight_core.bundle import write_bundle
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from tests.support.bundles import CERTIFICATE, make_bundle
from tests.support.commands import run_command
from tests.support.faults.checker import NO_FAULTS, check, opened, read_logs
from tests.support.faults.clients import CLASSES, MODEL, pool, running_clients
from tests.support.faults.nemesis import Nemesis, Service, small_disk, stalling_disk
from tests.support.postgres import Postgres
from tests.support.replicas import SETTINGS, service_links
from tests.support.servers import wait_until

# Calls per second: enough that something is under way whenever a fault comes.
RATE = 60.0
DISK_BYTES = 32 << 20


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with both rules."""
    path = tmp_path_factory.mktemp("bundle") / "digits.safetensors"
    made = make_bundle(rows=900, classes=CLASSES)
    gate = Gate(outlier=cutoff(len(made.calibration), 0.05), reject_score="msp", threshold=1.0)
    write_bundle(path, made.with_gate(gate, CERTIFICATE))
    return path


@pytest.fixture
def service(bundle: Path, tmp_path: Path) -> Iterator[Service]:
    """A service that is not started yet; nothing of it is left at the end."""
    service = Service(tmp_path / "data", bundle)
    yield service
    service.kill()


def test_every_acknowledged_point_is_in_postgresql_once_whatever_is_broken(
    service: Service, postgres: Postgres, url: str, bundle: Path, tmp_path: Path
):
    """Killed, paused and stopped services and databases, a full disk, stepped clocks: 0 lost, 0 doubled, all right."""
    service.url, service.has_stepped_clock = url, True
    with small_disk(service.data_dir, DISK_BYTES) as is_small:
        service.start()
        nemesis = Nemesis(service, postgres, has_small_disk=is_small)
        with running_clients(service.target, tmp_path / "logs", rate=RATE):
            # A restored trail is in the test of a restored database.
            for fault in (
                nemesis.kill_storage,
                nemesis.kill_connection,
                nemesis.step_clock,
                nemesis.kill_worker,
                lambda: nemesis.pause_postgres(1.0),
                nemesis.kill_postgres,
                lambda: nemesis.pause(service.child("darksight_service"), 0.5),
                # A disk that cannot be made small here is not filled.
                nemesis.fill_disk_and_kill if is_small else nemesis.kill_server,
                lambda: nemesis.outage(2.0),
            ):
                fault()
                time.sleep(0.5)
        service.settle()
        assert service.stop() == 0

        report = check(read_logs(tmp_path / "logs"), url, bundle)

        assert report.faults() == NO_FAULTS
        assert report.recorded > 0
        assert report.stored >= report.recorded
        assert (report.unrecorded > 0) == is_small


def test_every_acknowledged_point_is_in_sqlite_once(service: Service, bundle: Path, tmp_path: Path):
    """The store that a plain `darksight serve` makes and migrates by itself, under the same clients."""
    service.start()
    nemesis = Nemesis(service)
    with running_clients(service.target, tmp_path / "logs", rate=RATE):
        for fault in (nemesis.kill_storage, nemesis.kill_worker, nemesis.kill_server):
            time.sleep(0.7)
            fault()
    service.settle()
    assert service.stop() == 0
    url = f"sqlite:///{service.data_dir / 'darksight.db'}"

    report = check(read_logs(tmp_path / "logs"), url, bundle)

    assert report.faults() == NO_FAULTS
    assert report.recorded > 0
    with opened(url) as engine:
        assert revisions.current(engine) == revisions.head()


@pytest.mark.parametrize("state", ["empty", "downgraded"])
def test_a_postgresql_without_the_tables_is_refused_with_the_command(
    state: str, postgres: Postgres, bundle: Path, tmp_path: Path
):
    """Exit 2 and nothing changed: a database that others share is not migrated by whoever starts first."""
    url = postgres.fresh_database()
    if state == "downgraded":
        with opened(url) as engine:
            migrate.upgrade(engine)
            migrate.downgrade(engine, "base")
    command = [sys.executable, "-m", "darksight_service.cli", "serve", "--model", f"{MODEL}={bundle}"]
    command += ["--data-dir", str(tmp_path), "--database-url", url, "--grpc-port", "0", "--http-port", "0"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 2
    assert "run: darksight db upgrade" in done.stderr
    with opened(url) as engine:
        assert revisions.current(engine) is None


def test_a_service_starts_without_its_postgresql_and_brings_the_points_when_it_is_there(
    service: Service, postgres: Postgres
):
    """Scoring needs no database, not even to begin; a pod of deploy/helm makes the tables when there is one."""
    url = service.url = postgres.fresh_database()
    service.environment = {**service_links(), **SETTINGS}
    postgres.stop()
    try:
        service.start()
        with Client(service.target, timeout_seconds=60.0) as client:
            scored = client.score(MODEL, pool()[:7])
    finally:
        postgres.start()

    with opened(url) as engine:
        wait_until(lambda: revisions.current(engine) == revisions.head(), 60.0, "the tables")
    with Store.open(url) as store:
        wait_until(lambda: store.stats().points == 7, 60.0, "the points")
        wait_until(lambda: store.changes_since(0), 60.0, "the deployment to be in the audit trail")
        (change,) = store.changes_since(0)
    assert (change.kind, change.model, change.payload["version"]) == ("deploy", MODEL, scored.version)
    assert scored.recorded
    assert service.server is not None
    assert any("points wait in the spool" in line for line in service.server.lines)


def test_hung_processes_are_replaced_and_a_service_without_its_bundle_is_not_ready(
    service: Service, bundle: Path, tmp_path: Path
):
    """A worker and the storage worker that stand still, then a worker that finds no bundle; nothing is lost."""
    service.start()
    assert service.server is not None
    server, nemesis = service.server, Nemesis(service)
    # Before its first report a process is not taken for hung for minutes.
    wait_until(lambda: "storage" in server.children(), 60.0, "the storage worker's first report")
    with running_clients(service.target, tmp_path / "logs", rate=RATE):
        hung = [*service.child("processes.worker")[:1], *service.child("processes.storage_worker")]
        hanging = threading.Thread(target=nemesis.hang, args=(hung,))
        hanging.start()
        wait_until(lambda: not service.is_ready(), 60.0, "the service to be not ready")
        hanging.join()
        # On a busy machine another process may be late enough to be replaced.
        assert service.server.counted("darksight_hung_processes_total") >= 2
        nemesis.lose_bundle()
    service.settle()
    events = {str(line["event"]) for line in service.server.events("model_reload_failed")}
    assert service.stop() == 0

    report = check(read_logs(tmp_path / "logs"), f"sqlite:///{service.data_dir / 'darksight.db'}", bundle)

    assert events == {"model_reload_failed"}
    assert report.faults() == NO_FAULTS
    assert report.recorded > 0


def test_a_service_whose_disk_stalls_is_not_ready_until_it_responds(service: Service):
    """Calls hang while the spool cannot be written; the service says so within seconds, and goes on afterwards."""
    with stalling_disk(service.data_dir, 128 << 20) as stall:
        if stall is None:
            pytest.skip("a disk cannot be mounted and frozen; run the tests as root")
        service.workers = 1
        service.start()
        assert service.server is not None
        with Client(service.target, timeout_seconds=0.5, retries=1) as client:
            stalled = threading.Thread(target=stall, args=(12.0,))
            stalled.start()
            was_ready = True
            while was_ready and stalled.is_alive():
                with suppress(DarkSightClientError):
                    client.score(MODEL, pool()[:1])
                was_ready = service.is_ready()
            hung = service.server.events("child_hung")
            stalled.join()
        wait_until(service.is_ready, what="the service to be ready again")
        # A channel whose connections failed waits before it connects again.
        with Client(service.target, timeout_seconds=60.0) as client:
            recorded = client.score(MODEL, pool()[:1]).recorded
        assert service.stop() == 0

    # Before the supervisor kills the worker, which it does 10 seconds after its last report.
    assert (was_ready, hung) == (False, [])
    assert recorded


def test_scoring_does_not_wait_behind_calls_that_wait_for_the_database(service: Service, postgres: Postgres, url: str):
    """PostgreSQL stands still while more callers ask for points than a worker has threads for calls."""
    service.url, service.workers = url, 1
    service.start()
    with (
        Client(service.target, timeout_seconds=60.0) as client,
        ThreadPoolExecutor(8) as callers,
    ):
        client.score(MODEL, pool()[:7])
        service.settle()
        list(client.points(MODEL))
        postgres.pause()
        try:
            asked = [callers.submit(lambda: list(client.points(MODEL))) for _ in range(8)]
            assert service.server is not None
            wait_until(lambda: service.server.counted("darksight_calls_in_flight") >= 8)
            # Well below the 60 seconds after which a caller of points gives up.
            scored = client.score(MODEL, pool()[:7], timeout_seconds=30.0)
        finally:
            postgres.resume()
        assert scored.recorded
        assert all(each.result() for each in asked)


class SqliteFiles:
    """Backup and restore of an SQLite store as docs/how-to/operations.md describes them."""

    def __init__(self, service: Service, folder: Path) -> None:
        self._database, self._backup = service.data_dir / "darksight.db", folder / "backup.db"

    def back_up(self) -> None:
        """While the service runs."""
        with closing(sqlite3.connect(self._database)) as source, closing(sqlite3.connect(self._backup)) as target:
            source.backup(target)

    def restore(self) -> None:
        """Without the files of the write-ahead log."""
        for path in self._database.parent.glob("darksight.db*"):
            path.unlink()
        shutil.copy(self._backup, self._database)


class PostgresDump:
    """The same for PostgreSQL."""

    def __init__(self, postgres: Postgres, url: str) -> None:
        self._postgres, self._url = postgres, url
        self._name = url.partition("?")[0].rpartition("/")[2]
        self._dump = str(postgres.folder / f"{self._name}.dump")

    def back_up(self) -> None:
        """While the service runs."""
        self._postgres.run("pg_dump", "--format=custom", f"--file={self._dump}", self._url)

    def restore(self) -> None:
        """Into an empty database of the same name."""
        self._postgres.drop_database(self._url)
        self._postgres.execute(f"CREATE DATABASE {self._name}")
        self._postgres.run("pg_restore", f"--dbname={self._url}", self._dump)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_restored_database_takes_new_changes_and_goes_on(
    kind: str, service: Service, tmp_path: Path, request: pytest.FixtureRequest
):
    """A backup made while the service runs, changes and points after it, a restore, and changes again.

    Until then the stricter gate, of the changes that the backup lacks, stays.
    """
    database: SqliteFiles | PostgresDump = SqliteFiles(service, tmp_path)
    if kind == "postgresql":
        service.url = request.getfixturevalue("url")
        database = PostgresDump(request.getfixturevalue("postgres"), service.url)
    service.workers = 1
    service.start()
    with Client(service.target, timeout_seconds=60.0) as client:
        client.score(MODEL, pool()[:7])
        service.settle()
        database.back_up()
        for alpha in (0.2, 0.3):
            client.set_policy(MODEL, Policy(alpha=alpha), comment="after the backup")
    assert service.stop() == 0

    database.restore()
    service.start()
    with Client(service.target, timeout_seconds=60.0) as client:
        restored = client.policy(MODEL)
        client.set_policy(MODEL, Policy(alpha=0.1), comment="after the restore")
        changed = client.policy(MODEL)
        client.score(MODEL, pool()[:7])
        service.settle()
        points = len(list(client.points(MODEL)))
    assert service.server is not None
    server = service.server
    wait_until(lambda: server.counted("darksight_state_rebuilds_total") == 1.0, what="the rebuild to be counted")
    where = ("--database-url", service.url) if service.url else ("--data-dir", str(service.data_dir))
    check = run_command("db", "check", *where)

    assert (restored.policy.alpha, changed.policy.alpha) == (0.3, 0.1)
    assert (points, check.returncode) == (14, 0)
    assert server.events("state_rebuilt")
