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
from darksight_service.store.write.copy import HEADER, TRAILER

__all__ = ["draw_points"]

_COLUMNS = "audit_point (bundle_id, point_id, key)"
_INSERT = f"INSERT INTO {_COLUMNS} VALUES (?, ?, ?)"
_COPY = f"COPY {_COLUMNS} FROM STDIN (FORMAT BINARY)"
# A row of the binary COPY: the number of fields, and each field after its length.
_ROW = np.dtype(
    [("fields", ">i2"), ("b", ">i4"), ("bundle_id", ">i4"), ("p", ">i4"), ("id", "V16"), ("k", ">i4"), ("key", ">f8")]
)
_LENGTHS = {"fields": 3, "b": 4, "p": 16, "k": 8}


def draw_points(connection: Connection, groups: Iterable[tuple[int, PointTable]]) -> None:
    """Draw from points that were inserted in this transaction, given with the numbers of their bundles."""
    driver: Any = connection.connection.driver_connection
    for bundle_id, points in groups:
        keys = audit_keys(points.ids, points.p_value)
        drawn = np.flatnonzero((keys < DRAWN_RATE) & (points.predicted >= 0) & ~points.is_shadow)
        if not len(drawn):
            continue
        ids = np.ascontiguousarray(points.ids[drawn], dtype=">u8").view("V16").reshape(-1)
        if connection.dialect.name == "postgresql":
            rows = np.empty(len(drawn), dtype=_ROW)
            for name, value in {**_LENGTHS, "bundle_id": bundle_id, "id": ids, "key": keys[drawn]}.items():
                rows[name] = value
            with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
                copy.write(HEADER + rows.tobytes() + TRAILER)
        else:
            driver.executemany(_INSERT, zip(repeat(bundle_id), ids.tolist(), keys[drawn].tolist(), strict=False))
