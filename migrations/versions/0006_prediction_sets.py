"""Size of the prediction set of a rejected point."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
release = "0.1.0"


def upgrade() -> None:
    """Add the column."""
    op.add_column("point", sa.Column("set_size", sa.SmallInteger(), nullable=True))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("point", "set_size")
