"""A pooler between service and PostgreSQL, and connections that end at any time: no row is lost, none is doubled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from darksight_service.control.state import apply_change
from darksight_service.control.state_file import StateFile
from darksight_service.ingest.drain import Drain
from darksight_service.ingest.spool import Spool
from darksight_service.metrics.files import read
from darksight_service.metrics.processes import StorageCounts
from darksight_service.processes import storage_worker
from darksight_service.processes.storage_worker import StorageWorker
from darksight_service.settings import Settings
from darksight_service.store.audit import Change
from darksight_service.store.engine import reading, writing
from darksight_service.store.store import Store
from sqlalchemy import text

from darksight_core.bundle import write_bundle
from tests.support.bundles import make_bundle
from tests.support.pgbouncer import HAS_PGBOUNCER, running_pgbouncer
from tests.support.points import encode, make_points
from tests.support.postgres import Postgres
from tests.support.servers import wait_until

WORKERS, ROUNDS, ROWS = 2, 40, 250
SETTINGS = {
    "statement_timeout": "1min", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "1min",
    "synchronous_commit": "on", "TimeZone": "UTC",
}  # fmt: skip


@pytest.fixture(params=["PostgreSQL", *["PgBouncer"] * HAS_PGBOUNCER])
def pooled(
    request: pytest.FixtureRequest, postgres: Postgres, postgres_url: str
) -> Iterator[tuple[str, Callable[[], object]]]:
    """URL of a database, and a function that ends all connections to it."""
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    postgres.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    if request.param == "PostgreSQL":
        query = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{name}'"
        yield postgres_url, lambda: postgres.execute(query)
        return
    with running_pgbouncer(postgres) as pooler:

        def restart() -> None:
            pooler.stop()
            pooler.start()

        yield pooler.url(name), restart


def test_every_transaction_has_its_settings_and_no_prepared_statement(pooled: tuple[str, Callable[[], object]]) -> None:
    """Though the connection may have been another client's before, and its options are not those of this one."""
    with Store.open(pooled[0]) as store:
        for _ in range(20):
            with writing(store._engine) as connection:
                connection.execute(text("SELECT count(*) FROM point WHERE id IS NOT NULL"))
        with reading(store._engine) as connection:
            found = {name: connection.scalar(text(f"SHOW {name}")) for name in SETTINGS}
            prepared = connection.scalar(text("SELECT count(*) FROM pg_prepared_statements"))

    assert found == SETTINGS
    assert prepared == 0


def test_no_row_is_lost_when_connections_end(
    tmp_path: Path,
    pooled: tuple[str, Callable[[], object]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """20,000 rows of two workers with drift followed, while all connections end again and again: no error, no loss."""
    monkeypatch.setattr(storage_worker, "_SYNC_SECONDS", 0.01)
    monkeypatch.setattr(storage_worker, "Drain", partial(Drain, poll_seconds=0.01))
    caplog.set_level(logging.WARNING)
    url, end_connections = pooled
    settings, counts = Settings(data_dir=tmp_path), StorageCounts(tmp_path / "counts")
    settings.bundles.mkdir()
    version = write_bundle(settings.bundles / "m.safetensors", make_bundle(400, 10))
    deploy = Change("deploy", "digits", {"version": version, "path": "m.safetensors", "activate": True})
    StateFile(tmp_path / "registry.json").update(lambda state: apply_change(state, deploy))
    spools = [Spool(tmp_path / "spool" / f"worker-{number}") for number in range(WORKERS)]
    with Store.open(url) as store:
        worker = StorageWorker(settings, store, counts)

        def drained() -> float:
            # A connection that ends after the commit, and before its answer, makes its rows come again as duplicates.
            worker.step(0.0)
            return float(read(counts.file.path).sections["drain_rows"][:2].sum())

        for round in range(ROUNDS):
            for number, spool in enumerate(spools):
                points = make_points(ROWS, seed=round * WORKERS + number, version=version, names=None)
                assert spool.append(encode(points))
            if round % 4 == 0:
                end_connections()
            elif round % 2:
                wait_until(lambda rows=(round + 1) * WORKERS * ROWS: drained() == rows, what="rows")
        for spool in spools:
            spool.close()
        wait_until(lambda: drained() == WORKERS * ROUNDS * ROWS, what="all rows")
        worker.finish()
        stored, found = store.stats(), read(counts.file.path)
        states = store.own_states({("digits", version)})

    assert stored.points == WORKERS * ROUNDS * ROWS
    assert [found.number(name) for name in ("spool_lost_bytes", "spool_files_aside")] == [0.0, 0.0]
    assert max(each.rows for each in next(iter(states.values())).values()) > 0
    # An outage is told once; nothing else went wrong.
    told = {record.message for record in caplog.records if record.name.startswith("darksight")}
    assert told <= {"store_unavailable"}
