"""Odds of the points that are drawn for the audit, and sums of the probabilities of being wrong.

Points that were drawn before keep their draw: their odds were 1/64, or 1/16 up to a p-value of 1/4, and they count as
drawn without knowing how likely they were wrong, as the sums of their minutes do.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
release = "0.1.0"


def upgrade() -> None:
    """Add the columns, and the odds of points that were drawn."""
    op.add_column("point", sa.Column("error_chance", sa.REAL(), nullable=True))
    op.add_column("point", sa.Column("audit_odds", sa.REAL(), nullable=True))
    op.add_column("rollup", sa.Column("chance_sum", sa.Float(53), nullable=False, server_default="0"))
    op.add_column("rollup_tag", sa.Column("audited", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("rollup_tag", sa.Column("chance_sum", sa.Float(53), nullable=False, server_default="0"))
    op.execute("UPDATE rollup_tag SET audited = accepted")
    op.execute(
        "UPDATE point SET error_chance = 0, audit_odds = CASE WHEN p_value <= 0.25 THEN 0.0625 ELSE 0.015625 END "
        "WHERE id IN (SELECT point_id FROM audit_point)"
    )
    op.execute("UPDATE audit_point SET key = key * 64")


def downgrade() -> None:
    """Drop the columns; the points that are drawn stay listed, in their order."""
    op.execute("UPDATE audit_point SET key = key / 64")
    op.drop_column("rollup_tag", "chance_sum")
    op.drop_column("rollup_tag", "audited")
    op.drop_column("rollup", "chance_sum")
    op.drop_column("point", "audit_odds")
    op.drop_column("point", "error_chance")
