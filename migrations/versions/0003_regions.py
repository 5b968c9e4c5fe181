"""Regions are part of the audit trail, so their table goes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql, sqlite

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Drop the table, which no release has written to."""
    op.drop_table("region")


def downgrade() -> None:
    """Make the table again, empty as it was."""
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    moment = postgresql.TIMESTAMP(timezone=True) if is_postgresql else sa.BigInteger()
    op.create_table(
        "region",
        sa.Column("id", sa.Integer() if is_postgresql else sqlite.INTEGER(), nullable=False),
        sa.Column("bundle_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("polygon", sa.JSON(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("expires_at", moment, nullable=True),
        sa.Column("removed_at", moment, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_region"),
        sa.ForeignKeyConstraint(["bundle_id"], ["bundle.id"], name="fk_region_bundle_id"),
        sa.CheckConstraint("mode IN ('shadow', 'enforce')", name="ck_region_mode"),
    )
    op.create_index("ix_region_bundle_id", "region", ["bundle_id"])
