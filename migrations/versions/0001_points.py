"""Models, bundles, points and their counts per minute."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

revision = "0001"
down_revision = None
release = "0.1.0"


def is_postgresql() -> bool:
    """Whether this runs on PostgreSQL."""
    return op.get_bind().dialect.name == "postgresql"


def either(on_postgresql: TypeEngine[Any], on_sqlite: TypeEngine[Any]) -> TypeEngine[Any]:
    """The type for the database that this runs on."""
    return on_postgresql if is_postgresql() else on_sqlite


def upgrade() -> None:
    """Create the tables."""
    moment = either(postgresql.TIMESTAMP(timezone=True), sa.BigInteger())
    point_id = either(postgresql.UUID(), sa.LargeBinary(16))
    serial = either(sa.Integer(), sqlite.INTEGER())
    op.create_table(
        "model",
        sa.Column("id", serial, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_model"),
        sa.UniqueConstraint("name", name="uq_model_name"),
    )
    op.create_table(
        "bundle",
        sa.Column("id", serial, nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("class_names", sa.JSON(), nullable=True),
        sa.Column("calibration_rows", sa.Integer(), nullable=True),
        sa.Column("created_at", moment, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_bundle"),
        sa.ForeignKeyConstraint(["model_id"], ["model.id"], name="fk_bundle_model_id"),
        sa.UniqueConstraint("model_id", "version", name="uq_bundle_model_id_version"),
    )
    op.create_table(
        "point",
        sa.Column("id", point_id, nullable=False),
        sa.Column("event_at", moment, nullable=True),
        *(sa.Column(name, sa.REAL(), nullable=True) for name in ("x", "y", "log_density", "log_kde", "outlier_score")),
        *(sa.Column(name, sa.REAL(), nullable=True) for name in ("p_value", "confidence", "top")),
        sa.Column("bundle_id", sa.Integer(), nullable=False),
        sa.Column("predicted", sa.SmallInteger(), nullable=False),
        sa.Column("reason", sa.SmallInteger(), nullable=False),
        sa.Column("is_accepted", sa.Boolean(), nullable=False),
        sa.Column("is_shadow", sa.Boolean(), nullable=False),
        sa.Column("prediction_id", sa.Text(), nullable=True),
        sa.Column("probs", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_point"),
        postgresql_partition_by="RANGE (id)",
        sqlite_with_rowid=False,
    )
    if is_postgresql():
        op.execute("CREATE TABLE point_default PARTITION OF point DEFAULT")
        # A few rows share a key and so the space of an entry: a third of the size of an index on the names themselves.
        hashed = "hashtext(prediction_id) & 262143"
        op.execute(f"CREATE INDEX ix_point_name ON point (({hashed})) WHERE prediction_id IS NOT NULL")
    else:
        op.execute("CREATE INDEX ix_point_name ON point (prediction_id) WHERE prediction_id IS NOT NULL")
    op.create_table(
        "rollup",
        sa.Column("bundle_id", sa.Integer(), nullable=False),
        sa.Column("minute", sa.Integer(), nullable=False),
        sa.Column("is_shadow", sa.Boolean(), nullable=False),
        sa.Column("is_accepted", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.SmallInteger(), nullable=False),
        sa.Column("predicted", sa.SmallInteger(), nullable=False),
        sa.Column("points", sa.BigInteger(), nullable=False),
        sa.Column("scored", sa.BigInteger(), nullable=False),
        sa.Column("log_density_sum", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint(
            "bundle_id", "minute", "is_shadow", "is_accepted", "reason", "predicted", name="pk_rollup"
        ),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_rollup_bundle_id_predicted_minute", "rollup", ["bundle_id", "predicted", "minute"])
    op.create_table(
        "rollup_bin",
        sa.Column("bundle_id", sa.Integer(), nullable=False),
        sa.Column("minute", sa.Integer(), nullable=False),
        sa.Column("is_shadow", sa.Boolean(), nullable=False),
        sa.Column("bin", sa.SmallInteger(), nullable=False),
        sa.Column("points", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("bundle_id", "minute", "is_shadow", "bin", name="pk_rollup_bin"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop the tables and their rows."""
    for table in ("rollup_bin", "rollup", "point", "bundle", "model"):
        op.drop_table(table)
