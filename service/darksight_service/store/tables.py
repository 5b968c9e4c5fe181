"""The tables, as they are after all migrations.

    model ─┬─ bundle ─┬─ point          one row per scored prediction; the id is a UUIDv7 and so also the time
           │          ├─ audit_point    points that are drawn for an audit, in the order of labelling
           │          ├─ rollup         counts per minute of decisions and reasons
           │          ├─ rollup_bin     counts per minute of p-values, in 20 bins
           │          └─ rollup_tag     counts per minute by tag
           ├─ tag                       the different tags of points, by key and value
           └─ outcome ── outcome_point  labels, and the points they belong to
    detector_state                      drift evidence by bundle, replica and detector; of a tag, or 0 of all rows
    policy_change                       the audit trail: versions, policies, regions
    thinned_batch                       batches of the last hours of which rows were counted and not stored
    installation                        one row: the secret of which the ids of batches are made

The score columns of `point` come from `darksight_core.rows.schema.SCHEMA`. A point is small: real numbers have 4 bytes,
model and version are one number, tags are the sorted numbers of `tag`, 4 big-endian bytes each, as one value, and what
is missing is NULL, never NaN. A row of ten classes and a name of 16 letters
takes 128 bytes on PostgreSQL; one byte more would be 8 more. It has no foreign keys: they would be checked row by row,
and bundles are never deleted. On PostgreSQL `point` is partitioned by day; its index on names holds 18 bits of a hash,
because entries with equal keys share their space: it takes a third of the size of a full index, and finds a name after
reading a few rows. `ix_point_name` differs between the databases, so the migrations alone create it.

Times are Unix milliseconds in Python, `timestamptz` on PostgreSQL and integers on SQLite; minutes are Unix minutes.
"""

from __future__ import annotations

import datetime
import uuid
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import REAL, TypeDecorator, TypeEngine

from darksight_service.store.points import SCORE_COLUMNS

__all__ = [
    "BINS",
    "NAME_HASH",
    "OTHER_CLASSES",
    "Moment",
    "PointId",
    "audit_point",
    "bundle",
    "detector_state",
    "insert_into",
    "installation",
    "metadata",
    "model",
    "outcome",
    "outcome_point",
    "point",
    "policy_change",
    "rollup",
    "rollup_bin",
    "rollup_tag",
    "tag",
    "tag_bin",
    "thinned_batch",
]

OTHER_CLASSES = 100
"""The rollup counts this class and all above as one."""

BINS = 20
"""Bins of the p-value in the rollup, of equal width."""

NAME_HASH = "hashtext({}) & 262143"
"""The expression of the index on names in PostgreSQL, with a place for the column."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


class PointId(TypeDecorator[bytes]):
    """16 bytes: `uuid` on PostgreSQL, a blob on SQLite, so that both sort by time."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:  # noqa: D102
        found = postgresql.UUID(as_uuid=True) if dialect.name == "postgresql" else LargeBinary(16)
        return dialect.type_descriptor(found)

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> Any:  # noqa: D102
        return uuid.UUID(bytes=value) if value is not None and dialect.name == "postgresql" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> bytes | None:  # noqa: D102
        return value.bytes if isinstance(value, uuid.UUID) else value


class Moment(TypeDecorator[int]):
    """A time in UTC, in Python as Unix milliseconds."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:  # noqa: D102
        found = postgresql.TIMESTAMP(timezone=True) if dialect.name == "postgresql" else BigInteger()
        return dialect.type_descriptor(found)

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Any:  # noqa: D102
        return _EPOCH + value * _MILLISECOND if value is not None and dialect.name == "postgresql" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:  # noqa: D102
        return (value - _EPOCH) // _MILLISECOND if isinstance(value, datetime.datetime) else value


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers only a column of exactly this type by itself.
_Serial = Integer().with_variant(sqlite.INTEGER(), "sqlite")
_BigSerial = BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def _key(**types: Any) -> list[Column[Any]]:
    """Columns of a primary key whose values come from elsewhere."""
    return [Column(name, kind, primary_key=True, autoincrement=False) for name, kind in types.items()]


model = Table(
    "model",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("created_at", Moment, nullable=False),
)

bundle = Table(
    "bundle",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("model_id", ForeignKey(model.c.id), nullable=False),
    Column("version", Text, nullable=False),
    Column("class_names", JSON, nullable=True),
    Column("calibration_rows", Integer, nullable=True),
    Column("created_at", Moment, nullable=False),
    UniqueConstraint("model_id", "version"),
)

# SQL types of score columns by their type in the schema, and the bytes that each takes.
_SCORE_TYPES: dict[str, tuple[Any, int]] = {
    "<f4": (REAL, 4),
    "<i4": (SmallInteger, 2),
    "<i2": (SmallInteger, 2),
    "i1": (SmallInteger, 2),
    "is_accepted": (Boolean, 1),
}


def _point_columns() -> list[Column[Any]]:
    """The columns of `point`, widest first, which leaves no gaps between them on PostgreSQL."""
    sized: list[tuple[int, Column[Any]]] = [
        (4, Column("bundle_id", Integer, nullable=False)),
        # NULL in nearly all rows, where it takes no space.
        (4, Column("delay_ms", Integer, nullable=True)),
        (1, Column("is_shadow", Boolean, nullable=False)),
    ]
    for name, column in SCORE_COLUMNS.items():
        kind, size = _SCORE_TYPES.get(name) or _SCORE_TYPES[column.stored]
        sized.append((size, Column(name, kind, nullable=column.nullable)))
    return [column for _, column in sorted(sized, key=lambda pair: -pair[0])]


point = Table(
    "point",
    metadata,
    Column("id", PointId, primary_key=True),
    Column("event_at", Moment, nullable=True),
    *_point_columns(),
    Column("prediction_id", Text, nullable=True),
    Column("probs", LargeBinary, nullable=True),
    Column("tags", LargeBinary, nullable=True),
    Column("reference", Text, nullable=True),
    Column("trace_id", PointId, nullable=True),
    postgresql_partition_by="RANGE (id)",
    sqlite_with_rowid=False,
)

audit_point = Table(
    "audit_point",
    metadata,
    Column("point_id", PointId, primary_key=True),
    Column("key", Float(53), nullable=False),
    Column("bundle_id", Integer, nullable=False),
    Index(None, "bundle_id", "key", "point_id"),
    sqlite_with_rowid=False,
)

rollup = Table(
    "rollup",
    metadata,
    *_key(bundle_id=Integer, minute=Integer, is_shadow=Boolean, is_accepted=Boolean),
    *_key(reason=SmallInteger, predicted=SmallInteger),
    Column("points", BigInteger, nullable=False),
    Column("scored", BigInteger, nullable=False),
    Column("log_density_sum", Float(53), nullable=False),
    Column("chance_sum", Float(53), nullable=False),
    Index(None, "bundle_id", "predicted", "minute"),
    sqlite_with_rowid=False,
)

rollup_bin = Table(
    "rollup_bin",
    metadata,
    *_key(bundle_id=Integer, minute=Integer, is_shadow=Boolean, bin=SmallInteger),
    Column("points", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

tag = Table(
    "tag",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("model_id", ForeignKey(model.c.id), nullable=False),
    Column("key", Text, nullable=False),
    Column("value", Text, nullable=False),
    UniqueConstraint("model_id", "key", "value"),
)


def tag_bin(number: int) -> str:
    """Name of the column of `rollup_tag` that counts p-values of a bin."""
    return f"bin_{number}"


rollup_tag = Table(
    "rollup_tag",
    metadata,
    # The minute is not second: a search, and a page about the values of a key, read a few tags over a long time.
    *_key(bundle_id=Integer, tag_id=Integer, minute=Integer, is_shadow=Boolean),
    *(Column(name, BigInteger, nullable=False) for name in ("points", "accepted", "outliers", "scored", "audited")),
    Column("chance_sum", Float(53), nullable=False),
    *(Column(tag_bin(number), Integer, nullable=False) for number in range(BINS)),
    sqlite_with_rowid=False,
)

detector_state = Table(
    "detector_state",
    metadata,
    Column("bundle_id", Integer, primary_key=True, autoincrement=False),
    Column("replica", Text, primary_key=True),
    Column("detector", Text, primary_key=True),
    Column("tag_id", Integer, primary_key=True, autoincrement=False),
    Column("state", LargeBinary, nullable=False),
)

_is_open = text("is_open")

outcome = Table(
    "outcome",
    metadata,
    Column("id", _BigSerial, primary_key=True),
    Column("model_id", ForeignKey(model.c.id), nullable=False),
    Column("prediction_id", Text, nullable=False),
    Column("label", Integer, nullable=False),
    Column("observed_at", Moment, nullable=False),
    Column("received_at", Moment, nullable=False, index=True),
    Column("is_disputed", Boolean, nullable=False),
    Column("is_open", Boolean, nullable=False),
    UniqueConstraint("model_id", "prediction_id"),
    Index("ix_outcome_open", "model_id", "prediction_id", postgresql_where=_is_open, sqlite_where=_is_open),
)

outcome_point = Table(
    "outcome_point",
    metadata,
    Column("point_id", PointId, primary_key=True),
    Column("outcome_id", ForeignKey(outcome.c.id, ondelete="CASCADE"), nullable=False, index=True),
    sqlite_with_rowid=False,
)

policy_change = Table(
    "policy_change",
    metadata,
    Column("id", _BigSerial, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("comment", Text, nullable=False),
    Column("changed_at", Moment, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Index(None, "model", "id"),
)

thinned_batch = Table("thinned_batch", metadata, Column("id", PointId, primary_key=True), sqlite_with_rowid=False)

installation = Table("installation", metadata, *_key(id=SmallInteger), Column("secret", LargeBinary, nullable=False))


def insert_into(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that supports ON CONFLICT."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
