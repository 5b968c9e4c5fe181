"""Drift evidence by bundle and replica."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
release = "0.1.0"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "drift_state",
        sa.Column("bundle_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("bundle_id", "replica", name="pk_drift_state"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("drift_state")
