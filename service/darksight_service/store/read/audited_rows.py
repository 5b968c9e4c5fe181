"""Accepted rows by day, and those of them that have a label, for the audit of a certificate."""

from __future__ import annotations

import numpy as np
from sqlalchemy import Connection, Engine, func, select

from darksight_core.drift.audit import AuditedRows, audit_gains
from darksight_core.drift.urn import audit_numbers
from darksight_core.rows.schema import Reason
from darksight_service.store.database import Database
from darksight_service.store.engine import reading
from darksight_service.store.ids import DAY_MS, MINUTE_MS
from darksight_service.store.points import PointTable
from darksight_service.store.read.point_table import read_table, sql_columns
from darksight_service.store.read.search import labelled_points, labelled_within
from darksight_service.store.rollups import within
from darksight_service.store.tables import bundle, outcome, outcome_point, rollup

__all__ = ["MAX_LABELS", "AuditQueries"]

MAX_LABELS = 100_000
"""Newest right labels, and newest wrong ones, that are read."""

_DAYS = 30
_COLUMNS = ("id", "bundle_id", "predicted", "p_value", "label")


class AuditQueries(Database):
    """Rows that audit a certificate."""

    def audited_rows(
        self, model: str, version: str, *, start_ms: int, max_labels: int = MAX_LABELS
    ) -> tuple[AuditedRows, AuditedRows]:
        """The rows of the last 30 days that have a label, and the wrong ones alone.

        Where there are more labels than are read, the first begin at the minute from which all labels were read, and
        the second on the day of the oldest wrong label that was read: a wrong row that is not read counts as right.

        Parameters
        ----------
        model, version
            The bundle.
        start_ms
            When the evidence started, in Unix milliseconds.
        max_labels
            Right labels and wrong ones that are read.
        """
        bundles, now_ms = self._names.known(model, version), self._clock()
        first = max(start_ms // DAY_MS, now_ms // DAY_MS - _DAYS + 1)
        since_ms, until_ms = max(start_ms, first * DAY_MS), now_ms + 1
        with reading(self._engine) as connection:
            right, wrong = (
                _labelled(connection, self._engine, bundles, since_ms, until_ms, is_wrong, max_labels)
                for is_wrong in (False, True)
            )
            # The minute of the oldest label may have more of them.
            read_ms = [
                -(-int(table.received_ms.min() + 1) // MINUTE_MS) * MINUTE_MS if len(table) >= max_labels else since_ms
                for table in (right, wrong)
            ]
            measured = _accepted(connection, bundles, max(read_ms), until_ms)
            accepted = _accepted(connection, bundles, since_ms, until_ms)
        table = PointTable.join([right, wrong])
        table = table.take(table.received_ms >= max(read_ms))
        oldest = int(wrong.received_ms.min()) // DAY_MS if len(wrong) >= max_labels else first
        last, start = max(now_ms // DAY_MS, first), start_ms // DAY_MS
        return _rows(table, measured, first, last, start), _rows(wrong, accepted, oldest, last, start)


def _labelled(
    connection: Connection,
    engine: Engine,
    bundles: dict[int, str],
    since_ms: int,
    until_ms: int,
    is_wrong: bool,
    limit: int,
) -> PointTable:
    source, points = labelled_points(engine)
    # Labels of other models are not looked up among the points.
    models = select(bundle.c.model_id).where(bundle.c.id.in_(list(bundles)))
    query = (
        select(*sql_columns(engine, _COLUMNS, points))
        .select_from(source)
        .where(
            outcome.c.model_id.in_(models),
            labelled_within(points, bundles, since_ms, until_ms),
            points.c.is_accepted,
            points.c.predicted >= 0,
            points.c.reason != int(Reason.UNSCORED),
            outcome.c.label != points.c.predicted if is_wrong else outcome.c.label == points.c.predicted,
        )
        .order_by(outcome_point.c.point_id.desc())
        .limit(limit)
    )
    return read_table(engine, connection.execute(query).all(), _COLUMNS, "", bundles)


def _accepted(connection: Connection, bundles: dict[int, str], since_ms: int, until_ms: int) -> dict[int, int]:
    """Accepted rows that were scored, by day."""
    day = (rollup.c.minute - rollup.c.minute % (DAY_MS // MINUTE_MS)).label("day")
    query = (
        select(day, func.sum(rollup.c.points))
        .where(
            within(rollup, bundles, False, since_ms, until_ms),
            rollup.c.is_accepted,
            rollup.c.predicted >= 0,
            rollup.c.reason != int(Reason.UNSCORED),
        )
        .group_by(day)
    )
    return {int(minute) * MINUTE_MS // DAY_MS: int(rows) for minute, rows in connection.execute(query)}


def _rows(table: PointTable, accepted: dict[int, int], first: int, last: int, start: int) -> AuditedRows:
    """Rows from the day `first` on, whose evidence started on the day `start`."""
    return AuditedRows(
        first_day=first - start,
        accepted=np.array([accepted.get(day, 0) for day in range(first, last + 1)], dtype=np.int64),
        day=table.received_ms // DAY_MS - first,
        numbers=audit_numbers(table.ids),
        gains=audit_gains(table.p_value),
        is_wrong=table.errors,
    )
