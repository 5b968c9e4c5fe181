"""Segments of a version now: which of them changed, which one explains it, and the newest rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.detector import RowBatch
from darksight_core.drift.segments import SegmentChanges, SegmentTest, find_changes
from darksight_core.drift.urn import row_uniforms
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.store import Store

__all__ = ["LiveSegments", "live_segments", "tag_columns"]

_NEWEST = 5_000


@dataclass(frozen=True, slots=True, eq=False)
class LiveSegments:
    """Segments of a version: what changed, and the newest rows, in order of arrival, by which it is explained."""

    changes: SegmentChanges
    points: PointTable
    test: SegmentTest


def live_segments(store: Store, test: SegmentTest, model: str, version: str) -> LiveSegments | None:
    """Segments of a version; None without any."""
    stored = {part: each for part, each in store.detector_states(model, version, test).items() if part is not None}
    if not stored:
        return None
    points = store.newest_points(PointFilter(model, version), limit=_NEWEST, with_tags=True)
    points = points.take(np.isfinite(points.outlier_score) & np.isfinite(points.top))
    points = points.take(np.argsort(points.received_ms, kind="stable"))
    rows = RowBatch(
        points.outlier_score, points.top, points.predicted, row_uniforms(points.ids), None, points.resolution
    )
    return LiveSegments(find_changes(test, stored, rows, tag_columns(points)), points, test)


def tag_columns(points: PointTable) -> dict[str, NDArray[np.str_]]:
    """Values of each key of tags, (n,), empty where a point has none."""
    keys = {key for each in points.tag_sets for key, _ in each}
    tables = {key: np.array([dict(each).get(key, "") for each in points.tag_sets], dtype=np.str_) for key in keys}
    return {key: table[points.tags] for key, table in tables.items()}
