"""How long after the time of its id a point was received."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
release = "0.1.0"


def upgrade() -> None:
    """Add the column."""
    op.add_column("point", sa.Column("delay_ms", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("point", "delay_ms")
