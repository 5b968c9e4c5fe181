"""The secret of the installation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
release = "0.1.0"


def upgrade() -> None:
    """Create the table; the service fills it."""
    op.create_table(
        "installation",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_installation"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("installation")
