"""Databases for the tests of this folder: an SQLite file and a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from darksight_service.store.store import Store

from tests.support.databases import copy_sqlite
from tests.support.postgres import Postgres, running_postgres

NOW_MS = 1_800_000_000_000


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests; each takes a database of its own."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def migrated(postgres: Postgres) -> str:
    """Name of a database that was brought up by the migrations, to copy from."""
    return postgres.migrated_database().partition("?")[0].rpartition("/")[2]


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.fresh_database()
    yield url
    server.drop_database(url)


@pytest.fixture
def postgres_url(postgres: Postgres, migrated: str) -> Iterator[str]:
    """A migrated PostgreSQL database."""
    url = postgres.fresh_database(template=migrated)
    yield url
    postgres.drop_database(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated database of each kind."""
    if request.param == "postgresql":
        found: str = request.getfixturevalue("postgres_url")
        return found
    return copy_sqlite(tmp_path / "store.db")


@pytest.fixture
def open_store() -> Iterator[Callable[..., Store]]:
    """Opens stores whose clock stands still, and closes them at the end."""
    opened = []

    def open_one(url: str, *, now_ms: int = NOW_MS, **options: object) -> Store:
        opened.append(Store.open(url, clock=lambda: now_ms, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(url: str, open_store: Callable[..., Store]) -> Store:
    """A store on each kind of database, at `NOW_MS`."""
    return open_store(url)
