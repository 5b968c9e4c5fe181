"""What a point resolves, as it was ranked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
release = "0.1.0"


def upgrade() -> None:
    """Add the column; points that are stored already count as full."""
    op.add_column("point", sa.Column("resolution", sa.SmallInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("point", "resolution")
