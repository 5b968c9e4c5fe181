"""Tags, references and traces of points, and counts per minute by tag."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql, sqlite

revision = "0007"
down_revision = "0006"
release = "0.1.0"

_BINS = 20


def upgrade() -> None:
    """Add the dictionary of tags, the columns of points and the counts."""
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        "tag",
        sa.Column("id", sa.Integer() if is_postgresql else sqlite.INTEGER(), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["model.id"], name="fk_tag_model_id"),
        sa.PrimaryKeyConstraint("id", name="pk_tag"),
        sa.UniqueConstraint("model_id", "key", "value", name="uq_tag_model_id_key_value"),
    )
    for column in (
        sa.Column("tags", sa.LargeBinary(), nullable=True),
        sa.Column("reference", sa.Text(), nullable=True),
        sa.Column("trace_id", postgresql.UUID() if is_postgresql else sa.LargeBinary(16), nullable=True),
    ):
        op.add_column("point", column)
    op.create_table(
        "rollup_tag",
        sa.Column("bundle_id", sa.Integer(), nullable=False),
        sa.Column("tag_id", sa.Integer(), nullable=False),
        sa.Column("minute", sa.Integer(), nullable=False),
        sa.Column("is_shadow", sa.Boolean(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("points", "accepted", "outliers", "scored")),
        *(sa.Column(f"bin_{number}", sa.Integer(), nullable=False) for number in range(_BINS)),
        sa.PrimaryKeyConstraint("bundle_id", "tag_id", "minute", "is_shadow", name="pk_rollup_tag"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop all of it."""
    op.drop_table("rollup_tag")
    for name in ("trace_id", "reference", "tags"):
        op.drop_column("point", name)
    op.drop_table("tag")
