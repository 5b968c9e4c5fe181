"""Partitions of `point` on PostgreSQL: one for each day, made ahead of time, and one for implausible times.

Ids begin with the time, so a day is a range of ids. A point whose clock was wrong by more than a few days goes to
`point_default`; nothing is refused. When a partition for its day is made later, its points move there.
"""

from __future__ import annotations

import datetime
import uuid

from sqlalchemy import Connection, Engine, text

from darksight_service.store.engine import reading, writing
from darksight_service.store.ids import DAY_MS, first_id

__all__ = ["AHEAD_DAYS", "DEFAULT", "day_of", "is_plausible", "make_days", "partition_name", "partitions"]

DEFAULT = "point_default"

AHEAD_DAYS = 2
"""Days that are made before they begin; also how far ahead a clock may be."""

BEHIND_DAYS = 60
"""Days back for which a missing partition is made; a spool can be that old."""

_LOCK = 0x64617973
_EPOCH = datetime.date(1970, 1, 1).toordinal()


def day_of(ms: int) -> int:
    """Number of the UTC day."""
    return ms // DAY_MS


def partition_name(day: int) -> str:
    """Name of the partition of a day, such as point_20260131."""
    return f"point_{datetime.date.fromordinal(_EPOCH + day):%Y%m%d}"


def is_plausible(day: int, today: int) -> bool:
    """Whether a day gets a partition."""
    return today - BEHIND_DAYS <= day <= today + AHEAD_DAYS


def partitions(engine: Engine) -> dict[int, str]:
    """The days that have a partition, oldest first."""
    with reading(engine) as connection:
        return _listed(connection)


def make_days(engine: Engine, days: set[int]) -> dict[int, str]:
    """Make the partitions that are missing; returns all days that have one."""
    with writing(engine) as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        found = _listed(connection)
        for day in sorted(days - found.keys()):
            _make(connection, day)
            found[day] = partition_name(day)
        return found


def _make(connection: Connection, day: int) -> None:
    # CREATE ... PARTITION OF would lock the whole table; ATTACH lets others read and write the other days meanwhile.
    name = partition_name(day)
    low, high = (uuid.UUID(bytes=first_id(each * DAY_MS)) for each in (day, day + 1))
    connection.exec_driver_sql(f"LOCK TABLE {DEFAULT} IN ACCESS EXCLUSIVE MODE")
    connection.exec_driver_sql(f"CREATE TABLE {name} (LIKE point INCLUDING CONSTRAINTS INCLUDING INDEXES)")
    connection.exec_driver_sql(
        f"WITH moved AS (DELETE FROM {DEFAULT} WHERE id >= '{low}' AND id < '{high}' RETURNING *) "
        f"INSERT INTO {name} SELECT * FROM moved"
    )
    connection.exec_driver_sql(f"ALTER TABLE point ATTACH PARTITION {name} FOR VALUES FROM ('{low}') TO ('{high}')")


def _listed(connection: Connection) -> dict[int, str]:
    query = (
        "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
        "WHERE inhparent = 'point'::regclass ORDER BY child.relname"
    )
    names = [name for (name,) in connection.execute(text(query)) if name != DEFAULT]
    return {datetime.date.fromisoformat(name.removeprefix("point_")).toordinal() - _EPOCH: name for name in names}
