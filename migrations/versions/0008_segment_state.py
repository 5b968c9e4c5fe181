"""Drift evidence by bundle, replica and tag."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
release = "0.1.0"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "segment_state",
        sa.Column("bundle_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("tag_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("bundle_id", "replica", "tag_id", name="pk_segment_state"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("segment_state")
