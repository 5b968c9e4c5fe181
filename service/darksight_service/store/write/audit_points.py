"""Points that are drawn for an audit, listed in the transaction that stores them.

Whether a point is drawn depends on its id and its p-value alone (see `darksight_core.drift.audit`), so each row has
known odds and every replica draws the same. Shadow versions and rows without a prediction are never drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any

import numpy as np
from sqlalchemy import Connection

from darksight_core.drift.audit import DRAWN_RATE, audit_keys
from darksight_service.store.points import PointTable

__all__ = ["draw_points"]

# A point that retention has deleted may come again before its row here is deleted too.
_INSERT = "INSERT INTO audit_point (bundle_id, point_id, key) {} ON CONFLICT DO NOTHING"
_SQLITE = _INSERT.format("VALUES (?, ?, ?)")
# One statement for all rows: to send them one by one took ten times as long.
_POSTGRESQL = _INSERT.format("SELECT %s, id, key FROM unnest(%s::uuid[], %s::float8[]) AS drawn (id, key)")


def draw_points(connection: Connection, groups: Iterable[tuple[int, PointTable]]) -> None:
    """Draw from points that were inserted in this transaction, given with the numbers of their bundles."""
    driver: Any = connection.connection.driver_connection
    for bundle_id, points in groups:
        keys = audit_keys(points.ids, points.p_value)
        drawn = np.flatnonzero((keys < DRAWN_RATE) & (points.predicted >= 0) & ~points.is_shadow)
        if not len(drawn):
            continue
        ids, chosen = points.take(drawn).id_bytes(), keys[drawn].tolist()
        if connection.dialect.name == "postgresql":
            driver.execute(_POSTGRESQL, (bundle_id, [each.hex() for each in ids], chosen))
        else:
            driver.executemany(_SQLITE, zip(repeat(bundle_id, len(ids)), ids, chosen, strict=True))
