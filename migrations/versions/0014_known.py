"""What came with a point that is known in part: the number of its classes, and the probability of no class."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
release = "0.1.0"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("point", sa.Column("known", sa.SmallInteger(), nullable=True))
    op.add_column("point", sa.Column("other", sa.REAL(), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("point", "other")
    op.drop_column("point", "known")
