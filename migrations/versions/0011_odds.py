"""Odds of points, and batches of which rows are left out."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
release = "0.1.0"


def upgrade() -> None:
    """Add the column, which is NULL for odds of 1, and create the table."""
    op.add_column("point", sa.Column("odds", sa.REAL(), nullable=True))
    identifier = sa.LargeBinary(16).with_variant(postgresql.UUID(), "postgresql")
    op.create_table(
        "thinned_batch",
        sa.Column("id", identifier, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_thinned_batch"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop both."""
    op.drop_table("thinned_batch")
    op.drop_column("point", "odds")
