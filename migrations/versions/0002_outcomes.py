"""Outcomes and the audit trail."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

revision = "0002"
down_revision = "0001"
release = "0.1.0"


def is_postgresql() -> bool:
    """Whether this runs on PostgreSQL."""
    return op.get_bind().dialect.name == "postgresql"


def either(on_postgresql: TypeEngine[Any], on_sqlite: TypeEngine[Any]) -> TypeEngine[Any]:
    """The type for the database that this runs on."""
    return on_postgresql if is_postgresql() else on_sqlite


def upgrade() -> None:
    """Create the tables, with triggers that make the audit trail append-only."""
    moment = either(postgresql.TIMESTAMP(timezone=True), sa.BigInteger())
    point_id = either(postgresql.UUID(), sa.LargeBinary(16))
    big_serial = either(sa.BigInteger(), sqlite.INTEGER())
    op.create_table(
        "outcome",
        sa.Column("id", big_serial, nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("prediction_id", sa.Text(), nullable=False),
        sa.Column("label", sa.Integer(), nullable=False),
        sa.Column("observed_at", moment, nullable=False),
        sa.Column("received_at", moment, nullable=False),
        sa.Column("is_disputed", sa.Boolean(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_outcome"),
        sa.ForeignKeyConstraint(["model_id"], ["model.id"], name="fk_outcome_model_id"),
        sa.UniqueConstraint("model_id", "prediction_id", name="uq_outcome_model_id_prediction_id"),
    )
    op.create_index("ix_outcome_received_at", "outcome", ["received_at"])
    is_open = sa.text("is_open")
    op.create_index(
        "ix_outcome_open", "outcome", ["model_id", "prediction_id"], postgresql_where=is_open, sqlite_where=is_open
    )
    op.create_table(
        "outcome_point",
        sa.Column("point_id", point_id, nullable=False),
        sa.Column("outcome_id", big_serial, nullable=False),
        sa.PrimaryKeyConstraint("point_id", name="pk_outcome_point"),
        sa.ForeignKeyConstraint(["outcome_id"], ["outcome.id"], name="fk_outcome_point_outcome_id", ondelete="CASCADE"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_outcome_point_outcome_id", "outcome_point", ["outcome_id"])
    op.create_table(
        "policy_change",
        sa.Column("id", big_serial, autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("changed_at", moment, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_policy_change"),
    )
    op.create_index("ix_policy_change_model_id", "policy_change", ["model", "id"])
    if is_postgresql():
        op.execute(
            "CREATE FUNCTION refuse_policy_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'policy_change is append-only'; END $$"
        )
        op.execute(
            "CREATE TRIGGER policy_change_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON policy_change "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_policy_change()"
        )
    else:
        for action in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER policy_change_no_{action.lower()} BEFORE {action} ON policy_change "
                "BEGIN SELECT RAISE(ABORT, 'policy_change is append-only'); END"
            )


def downgrade() -> None:
    """Drop the tables and their rows."""
    for table in ("policy_change", "outcome_point", "outcome"):
        op.drop_table(table)
    if is_postgresql():
        op.execute("DROP FUNCTION refuse_policy_change()")
