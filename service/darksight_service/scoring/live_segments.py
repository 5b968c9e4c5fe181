"""Segments of a version now: their evidence, which of them changed, which one explains it, and figures of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darksight_core.bundle import Bundle
from darksight_core.drift.detector import mean_log_evidence
from darksight_core.drift.segments import Description, Segment, SegmentState, SegmentTest, discoveries, explain
from darksight_core.drift.urn import row_uniforms
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.store import Store

__all__ = ["LiveSegments", "live_segments", "tag_columns"]

_NEWEST = 5_000


@dataclass(frozen=True, slots=True, eq=False)
class LiveSegments:
    """Segments of a version.

    Parameters
    ----------
    evidence
        ln of the mean evidence of the replicas, by segment, most first.
    states
        State of each segment, of the replica with the most evidence.
    found
        The discoveries, most evidence first.
    explanation
        Descriptions that explain them, the one that explains most first.
    points
        The newest rows, of which the explanation is; none without discoveries.
    test
        The test.
    """

    evidence: Mapping[Segment, float]
    states: Mapping[Segment, SegmentState]
    found: Sequence[Segment]
    explanation: Sequence[Description]
    points: PointTable | None
    test: SegmentTest


def live_segments(
    store: Store, bundle: Bundle, test: SegmentTest, model: str, version: str, *, reads_points: bool = False
) -> LiveSegments | None:
    """Segments of a version; None without any. With `reads_points` the newest rows are read without discoveries too."""
    stored = {part: each for part, each in store.detector_states(model, version, test).items() if part is not None}
    if not stored:
        return None
    means = {segment: mean_log_evidence(test, states)["segment"] for segment, states in stored.items()}
    evidence = {segment: means[segment] for segment in sorted(means, key=lambda each: -means[each])}
    found = discoveries(evidence, test.level)
    points: PointTable | None = None
    named: tuple[Description, ...] = ()
    if found or reads_points:
        points = store.newest_points(PointFilter(model, version), limit=_NEWEST, with_tags=True)
        points = points.take(np.isfinite(points.outlier_score))
    if found and points is not None and len(points):
        ranks = test.p_values(points.outlier_score, row_uniforms(points.ids))
        named = explain(found, ranks, tag_columns(points), len(bundle.calibration))
    strongest = {segment: max(states, key=test.log_evidence) for segment, states in stored.items()}
    return LiveSegments(evidence, strongest, found, named, points, test)


def tag_columns(points: PointTable) -> dict[str, NDArray[np.str_]]:
    """Values of each key of tags, (n,), empty where a point has none."""
    keys = {key for each in points.tag_sets for key, _ in each}
    tables = {key: np.array([dict(each).get(key, "") for each in points.tag_sets], dtype=np.str_) for key in keys}
    return {key: table[points.tags] for key, table in tables.items()}
