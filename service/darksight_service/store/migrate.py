"""Migrations: run by one process at a time, and checked against the tables.

On PostgreSQL an advisory lock lets one process migrate while others wait, and each revision is one transaction. On
SQLite all revisions are one exclusive transaction. So a migration that fails half-way leaves nothing behind.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.util.exc import CommandError
from sqlalchemy import Connection, Engine, text

from darksight_core.errors import ConfigError
from darksight_service.errors import SchemaMismatchError
from darksight_service.store import revisions
from darksight_service.store.engine import Timeouts, reading, writing
from darksight_service.store.tables import metadata

__all__ = ["differences", "downgrade", "forbid_differences", "is_compared", "upgrade"]

_log = logging.getLogger("darksight.store")

LOCK = 0x6461726B
"""Key of the advisory lock; "dark"."""

LOCK_SECONDS = 120.0
"""How long a process waits while another one migrates."""


def upgrade(engine: Engine, revision: str = "head") -> tuple[str | None, str | None]:
    """Run the missing migrations; returns the revisions before and after."""
    with _exclusive(engine) as connection:
        before = _revision(connection)
        if before is None or revisions.knows(before):
            _run(connection, command.upgrade, revision)
        after = _revision(connection)
    if before != after:
        _log.info("database_migrated", extra={"before": before, "after": after})
    return before, after


def downgrade(engine: Engine, revision: str) -> tuple[str | None, str | None]:
    """Undo migrations down to a revision, `base` for all of them, and delete what they added.

    Returns the revisions before and after. ConfigError if the revision is unknown, or is not an earlier one.
    """
    with _exclusive(engine) as connection:
        before = _revision(connection)
        try:
            _run(connection, command.downgrade, revision)
        except CommandError as error:
            raise ConfigError(f"cannot downgrade from revision {before or 'none'} to {revision!r}: {error}") from error
        after = _revision(connection)
    if before != after:
        _log.info("database_migrated", extra={"before": before, "after": after})
    return before, after


def forbid_differences(engine: Engine) -> None:
    """SchemaMismatchError if the database differs from the tables though it has the right revision."""
    found = differences(engine)
    if found:
        raise SchemaMismatchError(
            f"the database differs from the tables of its revision: {'; '.join(found[:3])}",
            differences=found,
            revision=revisions.head(),
        )


def differences(engine: Engine) -> list[str]:
    """The differences between database and tables that `alembic check` would report."""
    with reading(engine) as connection:
        options: dict[str, Any] = {"compare_type": True, "include_name": is_compared}
        return [
            repr(found) for found in compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
        ]


def is_compared(name: str | None, kind: str, _parents: object) -> bool:
    """Whether alembic compares an object: not partitions, and not the index that differs between the databases."""
    if kind == "table":
        return name in metadata.tables
    return not (kind == "index" and name == "ix_point_name")


@contextmanager
def _exclusive(engine: Engine) -> Iterator[Connection]:
    """A connection for migrations while no other process migrates."""
    if engine.dialect.name != "postgresql":
        with writing(engine) as connection:
            yield connection
        return
    # A transaction of another connection holds the lock, so that it is released however this process ends.
    with writing(engine, seconds=10 * LOCK_SECONDS) as guard:
        timeouts = f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'; SET LOCAL statement_timeout = '{LOCK_SECONDS}s'"
        guard.exec_driver_sql(timeouts)
        guard.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        guard.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        # A migration that cannot get its lock fails and is run again; it must not queue in front of the writers.
        with engine.connect().execution_options(timeouts=Timeouts(lock=2.0)) as connection:
            yield connection


def _revision(connection: Connection) -> str | None:
    found = MigrationContext.configure(connection).get_current_revision()
    if connection.dialect.name == "postgresql":
        connection.commit()  # alembic leaves a transaction that it finds to its owner
    return found


def _run(connection: Connection, action: Any, revision: str) -> None:
    config = _config()
    config.attributes["connection"] = connection
    action(config, revision)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(revisions.folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
