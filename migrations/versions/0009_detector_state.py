"""States of all drift detectors in one table."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
release = "0.1.0"

_COPIES = (("stream", "drift_state", "0"), ("segments", "segment_state", "tag_id"))


def upgrade() -> None:
    """Create the table, and move the states of the stream test and of segments into it."""
    op.create_table(
        "detector_state",
        sa.Column("bundle_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("detector", sa.Text(), nullable=False),
        sa.Column("tag_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("bundle_id", "replica", "detector", "tag_id", name="pk_detector_state"),
    )
    for detector, table, number in _COPIES:
        op.execute(
            f"INSERT INTO detector_state (bundle_id, replica, detector, tag_id, state) "
            f"SELECT bundle_id, replica, '{detector}', {number}, state FROM {table} WHERE length(state) > 0"
        )
        op.drop_table(table)


def downgrade() -> None:
    """Move the states back into a table for each detector."""
    op.create_table(
        "drift_state",
        sa.Column("bundle_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("bundle_id", "replica", name="pk_drift_state"),
    )
    op.create_table(
        "segment_state",
        sa.Column("bundle_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("tag_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("bundle_id", "replica", "tag_id", name="pk_segment_state"),
    )
    for detector, table, number in _COPIES:
        columns = "bundle_id, replica, state" if number == "0" else "bundle_id, replica, tag_id, state"
        op.execute(
            f"INSERT INTO {table} ({columns}) SELECT {columns} FROM detector_state WHERE detector = '{detector}'"
        )
    op.drop_table("detector_state")
