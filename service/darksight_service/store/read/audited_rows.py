"""Accepted rows by day, and those of them that have a label, for the audit of a certificate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import Engine, func, select

from darksight_core.drift.audit import AuditedRows, audit_gains
from darksight_core.drift.urn import audit_numbers
from darksight_core.map.regions import Region, inside_any
from darksight_service.store.engine import reading
from darksight_service.store.ids import DAY_MS, MINUTE_MS
from darksight_service.store.read.point_table import read_table, sql_columns
from darksight_service.store.read.search import labelled_points, labelled_within
from darksight_service.store.rollups import within
from darksight_service.store.tables import outcome_point, rollup

__all__ = ["audited_rows"]

_DAYS = 30
_MOST_LABELS = 100_000
_COLUMNS = ("id", "bundle_id", "predicted", "p_value", "x", "y", "label")


def audited_rows(
    engine: Engine, bundles: dict[int, str], regions: Sequence[Region], *, start_ms: int, now_ms: int
) -> AuditedRows:
    """The rows of the last 30 days.

    Parameters
    ----------
    engine
        Of the database.
    bundles
        Versions by their numbers in the database.
    regions
        Parts of the map whose rows are drawn more often.
    start_ms, now_ms
        When the evidence started, and the present time, in Unix milliseconds.
    """
    first = max(start_ms // DAY_MS, now_ms // DAY_MS - _DAYS + 1)
    since_ms, until_ms = max(start_ms, first * DAY_MS), now_ms + 1
    day = (rollup.c.minute - rollup.c.minute % (DAY_MS // MINUTE_MS)).label("day")
    counted = (
        select(day, func.sum(rollup.c.points))
        .where(within(rollup, bundles, False, since_ms, until_ms), rollup.c.is_accepted, rollup.c.predicted >= 0)
        .group_by(day)
    )
    source, points = labelled_points(engine)
    labelled = (
        select(*sql_columns(engine, _COLUMNS, points))
        .select_from(source)
        .where(labelled_within(points, bundles, since_ms, until_ms), points.c.is_accepted, points.c.predicted >= 0)
        .order_by(outcome_point.c.point_id.desc())
        .limit(_MOST_LABELS)
    )
    accepted = np.zeros(max(now_ms // DAY_MS - first + 1, 1), dtype=np.int64)
    with reading(engine) as connection:
        for minute, rows in connection.execute(counted):
            accepted[int(minute) * MINUTE_MS // DAY_MS - first] = int(rows)
        table = read_table(connection.execute(labelled).all(), _COLUMNS, "", bundles)
    return AuditedRows(
        first_day=first - start_ms // DAY_MS,
        accepted=accepted,
        day=table.received_ms // DAY_MS - first,
        numbers=audit_numbers(table.ids),
        gains=audit_gains(table.p_value, inside_any(regions, table.points)),
        is_wrong=table.errors,
    )
