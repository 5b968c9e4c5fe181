"""Connections with timeouts, and errors of the database as errors of the service.

Whatever happens to the database, a call ends: the server limits the time to connect, to wait for a lock and to run a
statement, and a connection whose server does not respond at all is shut down from this side.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Dialect, Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, TimeoutError
from sqlalchemy.pool import QueuePool

from darksight_core.errors import ConfigError
from darksight_service.errors import SchemaMismatchError, StoreError, StoreUnavailableError

__all__ = [
    "BUSY_SECONDS",
    "Timeouts",
    "make_engine",
    "operator_write",
    "reading",
    "translate_database_errors",
    "writing",
    "yield_to_operators",
]

BUSY_SECONDS = 30.0
"""How long a writer waits for another one on SQLite."""

_YIELD_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of PostgreSQL, in seconds.

    Parameters
    ----------
    connect
        To connect.
    lock
        To acquire a lock; enforced by the server.
    statement
        Of one statement; enforced by the server.
    silence
        Of a whole transaction; enforced on this side, for a server that does not respond at all.
    """

    connect: float = 3.0
    lock: float = 5.0
    statement: float = 60.0
    silence: float = 75.0


def make_engine(url: str | Callable[[], str], *, timeouts: Timeouts | None = None) -> Engine:
    """An engine for `sqlite:///FILE` or `postgresql://...`; nothing is connected yet.

    A function that returns the URL is called again for every new connection to PostgreSQL.
    """
    try:
        parsed = make_url(url if isinstance(url, str) else url())
    except (ArgumentError, ValueError):
        raise ConfigError("the database URL is not valid; use sqlite:///FILE or postgresql://USER@HOST/NAME") from None
    if parsed.get_backend_name() == "sqlite":
        return _sqlite(parsed)
    if parsed.get_backend_name() in ("postgresql", "postgres"):
        engine = _postgresql(parsed, timeouts or Timeouts())
        if not isinstance(url, str):
            event.listen(engine, "do_connect", partial(_use_current_url, url))
        return engine
    raise ConfigError(f"the store is SQLite or PostgreSQL, not {parsed.get_backend_name()}")


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection to read from; all statements of the block see one snapshot."""
    with translate_database_errors(engine), _connected(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execution_options(isolation_level="REPEATABLE READ")
        with _watched(connection), connection.begin():
            yield connection


@contextmanager
def writing(engine: Engine, *, seconds: float | None = None) -> Iterator[Connection]:
    """A connection to write to, in one transaction that is committed at the end of the block.

    Parameters
    ----------
    engine
        Of the database.
    seconds
        Timeout of the block; by default `Timeouts.silence`.
    """
    with translate_database_errors(engine), _connected(engine) as connection:
        connection.execution_options(is_writer=True)
        with _watched(connection, seconds), connection.begin():
            yield connection


@contextmanager
def operator_write(engine: Engine) -> Iterator[None]:
    """Have the drain wait for a write of an operator.

    SQLite has one writer at a time, and a waiting writer polls: under load a change waited for seconds. A shared lock
    on a file beside the database shows that an operator waits.
    """
    if engine.dialect.name != "sqlite":
        yield
        return
    with open(f"{engine.url.database}.waiting", "a") as flag:
        fcntl.flock(flag, fcntl.LOCK_SH)
        yield


def yield_to_operators(engine: Engine) -> None:
    """Wait until no operator writes, for a bounded time."""
    if engine.dialect.name != "sqlite":
        return
    with open(f"{engine.url.database}.waiting", "a") as flag:
        end = time.monotonic() + _YIELD_SECONDS
        while time.monotonic() < end:
            try:
                fcntl.flock(flag, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.005)


def _sqlite(url: URL) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ConfigError("the store needs a file: sqlite:///FILE")
    engine = sa.create_engine(
        url.set(drivername="sqlite+pysqlite"),
        poolclass=QueuePool,
        pool_size=4,
        max_overflow=4,
        pool_timeout=BUSY_SECONDS,
        connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False, "isolation_level": None},
    )
    path = Path(url.database)

    @event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, _record: object) -> None:
        # auto_vacuum is ignored once there are tables. Turning on WAL fails if another connection does so at once.
        for statement in ("auto_vacuum = INCREMENTAL", "journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            _execute_when_free(connection, f"PRAGMA {statement}")
        with suppress(OSError):
            if path.stat().st_mode & 0o077:
                path.chmod(0o600)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A reader that becomes a writer can fail where one that starts as a writer only waits.
        is_writer = connection.get_execution_options().get("is_writer")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")

    return engine


def _execute_when_free(connection: sqlite3.Connection, statement: str) -> None:
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute(statement).fetchall()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.02)


def _postgresql(url: URL, timeouts: Timeouts) -> Engine:
    settings = {
        "connect_timeout": str(max(1, round(timeouts.connect))),
        "application_name": "darksight",
        "tcp_user_timeout": str(round(1e3 * timeouts.statement)),
    }
    given = {name: value for name, value in settings.items() if name not in url.query}
    try:
        engine = sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            # No prepared statements: they belong to a connection, and behind a pooler each transaction may get another.
            connect_args={**given, "prepare_threshold": None},
            execution_options={"timeouts": timeouts},
            pool_size=2,
            max_overflow=4,
            pool_timeout=timeouts.connect,
            pool_recycle=1800,
            pool_use_lifo=True,
        )
    except (ImportError, NoSuchModuleError):
        raise ConfigError("PostgreSQL needs psycopg; run: pip install 'darksight[service]'") from None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # Of the transaction and not of the connection, for poolers again.
        limits: Timeouts = connection.get_execution_options()["timeouts"]
        milliseconds = {
            "statement_timeout": limits.statement,
            "lock_timeout": limits.lock,
            "idle_in_transaction_session_timeout": limits.statement,
        }
        statements = [f"SET LOCAL {name} = {round(1e3 * value)}" for name, value in milliseconds.items()]
        # A spool segment is deleted after the commit, which must be on disk then, whatever the default of the server.
        statements += ["SET LOCAL timezone = 'UTC'", "SET LOCAL synchronous_commit = on"]
        connection.exec_driver_sql("; ".join(statements))

    return engine


def _use_current_url(
    url: Callable[[], str], dialect: Dialect, _record: object, _arguments: object, parameters: dict[str, Any]
) -> None:
    """Connect with the URL of now: its password may have changed since the engine was made."""
    parameters.update(dialect.create_connect_args(make_url(url()))[1])


def _connected(engine: Engine) -> Connection:
    """A connection that the server did not close while it was in the pool.

    A query would cost a round trip, and would hang if the server has stopped. But an idle connection has something to
    read only if the server has closed it, which can be checked on this side.
    """
    connection = engine.connect()
    while engine.dialect.name == "postgresql":
        driver: Any = connection.connection.driver_connection
        if not select.select([driver], [], [], 0)[0]:
            break
        connection.invalidate()
        connection.close()
        connection = engine.connect()
    return connection


@contextmanager
def _watched(connection: Connection, seconds: float | None = None) -> Iterator[None]:
    """Shut down the connection if PostgreSQL does not respond in time: libpq itself would wait forever."""
    if connection.dialect.name != "postgresql":
        yield
        return
    driver: Any = connection.connection.driver_connection
    # A duplicate, which still belongs to this connection after the driver has closed its own.
    descriptor = os.dup(driver.fileno())
    limit: float = connection.get_execution_options()["timeouts"].silence if seconds is None else seconds
    timer = threading.Timer(limit, _shut_down, (descriptor,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        os.close(descriptor)


def _shut_down(descriptor: int) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as end:
        end.shutdown(socket.SHUT_RDWR)


@contextmanager
def translate_database_errors(engine: Engine) -> Iterator[None]:
    """Raise errors of the libraries as errors of the service, without SQL and passwords."""
    try:
        yield
    except TimeoutError:
        raise StoreUnavailableError("all connections to the database are in use") from None
    except DBAPIError as error:
        raise _translated(engine, error.orig) from error
    except sqlite3.Error as error:
        raise _translated(engine, error) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "psycopg":
            raise
        raise _translated(engine, error) from error


# Why a connection failed, by SQLSTATE or by words of libpq, which has no SQLSTATE for most of it.
_REASONS = {
    "28P01": "wrong user or password",
    "28000": "the server does not let this user in",
    "3D000": "no such database",
    "password authentication failed": "wrong user or password",
    "no password supplied": "wrong user or password",
    "no pg_hba.conf entry": "the server does not let this user in",
    'role "': "wrong user or password",
    "does not exist": "no such database",
    "SSL": "TLS",
    "certificate": "TLS",
    "could not translate host name": "unknown host name",
    "failed to resolve host": "unknown host name",
    "Name or service not known": "unknown host name",
    "Connection refused": "connection refused",
    "No such file or directory": "connection refused",
    "timeout expired": "no response",
    "database is locked": "locked by another writer",
    "disk is full": "disk full",
    "readonly database": "read-only",
    "unable to open database file": "the file cannot be opened",
}


def _reason(message: str, state: str) -> str:
    """Why a connection failed; empty if that is not known, or if a statement failed. The text itself is not shown."""
    if state:
        return _REASONS.get(state, "")
    return next((reason for sign, reason in _REASONS.items() if sign in message), "")


def _place(url: URL) -> str:
    """Server and database of a URL, without user and password; libpq also takes the server from other places."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    query = {name: each if isinstance(each, str) else ",".join(each) for name, each in url.query.items()}
    host = url.host or query.get("host") or os.environ.get("PGHOST") or "the local PostgreSQL"
    port = url.port or query.get("port")
    database = url.database or query.get("dbname") or ""
    return f"{host}{f':{port}' if port else ''}{f'/{database}' if database else ''}"


def _translated(engine: Engine, error: BaseException | None) -> Exception:
    state = getattr(error, "sqlstate", None) or ""
    kind = type(error).__name__
    where = _place(engine.url)
    what = _reason(str(error), state) or f"{kind} {state}".strip()
    if "no such table" in str(error) or "no such column" in str(error) or state in ("42P01", "42703"):
        return SchemaMismatchError("a table or column is missing from the database; run: darksight db upgrade")
    # 25006: a standby that is not promoted yet. Class 08: lost connections, 53: no resources, 57: shutting down.
    is_unavailable = isinstance(error, sqlite3.OperationalError) or state.startswith(
        ("08", "40", "53", "55", "57", "58")
    )
    if is_unavailable or state == "25006" or kind in ("OperationalError", "InterfaceError", "ConnectionTimeout"):
        return StoreUnavailableError(f"{where} is not available ({what})", state=state, place=where)
    return StoreError(f"{where} refused a statement ({what})", state=state, place=where)
