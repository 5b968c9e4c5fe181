"""Points that are drawn for an audit.

Points stored before, and those of the previous release while it still runs, are not added: to draw them would read
them all. Under heavy traffic the audit of the explorer therefore starts with the upgrade; with few points it reads them
all, old ones included. The evidence about certificates needs no drawn points.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
release = "0.1.0"


def upgrade() -> None:
    """Create the table."""
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        "audit_point",
        sa.Column("point_id", postgresql.UUID() if is_postgresql else sa.LargeBinary(16), nullable=False),
        sa.Column("key", sa.Float(53), nullable=False),
        sa.Column("bundle_id", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("point_id", name="pk_audit_point"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_audit_point_bundle_id_key_point_id", "audit_point", ["bundle_id", "key", "point_id"])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("audit_point")
