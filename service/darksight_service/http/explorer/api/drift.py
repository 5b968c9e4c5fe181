"""Endpoints of the drift page: evidence, verdict, class shares and accuracy now, and the segments that changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.detector import Detector
from darksight_core.drift.detectors import KINDS, make_detectors
from darksight_core.drift.explanation import describe as describe_segments
from darksight_core.drift.segments import SegmentTest
from darksight_core.drift.verdict import CHANGED, share_residuals
from darksight_core.errors import ConfigError
from darksight_core.evaluation.drift import baseline_of
from darksight_core.rows.simplex import Floats
from darksight_service.control.registry import ActiveModel
from darksight_service.http.explorer.analysis.segments import minutes_of, segment_rows, worth_a_look
from darksight_service.http.explorer.answers import Answer
from darksight_service.http.explorer.endpoint import Call, Endpoint, Sources
from darksight_service.http.explorer.inputs import VersionInput, now_ms
from darksight_service.scoring.live_drift import LiveDrift, live_audit, live_drift
from darksight_service.scoring.live_segments import live_segments

__all__ = ["count_inside", "endpoints"]

_LABELS = 5_000


def endpoints(sources: Sources) -> list[Endpoint[Any]]:
    """`/api/drift` and `/api/drift/segments`."""
    # Of the last version asked for: to cut the cells of a calibration takes as long as the rest.
    known: dict[str, Sequence[Detector[Any]]] = {}

    def detectors(active: ActiveModel) -> Sequence[Detector[Any]]:
        if active.version not in known:
            known.clear()
            with suppress(ConfigError):
                known[active.version] = make_detectors(baseline_of(active.bundle.content))
        return known.get(active.version, ())

    def now(call: Call[VersionInput]) -> Answer:
        active, store = sources.active_model(call.input), sources.store()
        bundle, key = active.bundle.content, (active.model, active.version)
        stored = [(each, store.detector_states(*key, each)) for each in detectors(active) if not each.is_by_segment]
        drift = live_drift(store, bundle, [(each, states[None]) for each, states in stored if states], *key)
        deployed = sources.registry.state.models[active.model].versions[active.version]
        return {
            "level": sum(each.level for each, _ in stored),
            "audit": live_audit(store, bundle, deployed, *key).as_dict(),
            "drift": None if drift is None else _now(sources, active, drift),
        }

    def by_segment(call: Call[VersionInput]) -> Answer:
        active, store = sources.active_model(call.input), sources.store()
        bundle, key = active.bundle.content, (active.model, active.version)
        test = next((each for each in detectors(active) if isinstance(each, SegmentTest)), None)
        live = None if test is None else live_segments(store, test, *key)
        if test is None or live is None:
            return {"segments": [], "explanation": [], "look": [], "total": 0, "found": 0, "minutes": 0, "level": 0.0}
        minutes = minutes_of(len(live.changes.evidence))
        counts = store.tag_counts(*key, until_ms=now_ms(), minutes=minutes)
        labelled = store.labelled_points(*key, limit=_LABELS, with_probs=False, with_tags=True)
        return {
            "segments": segment_rows(live, bundle, counts, labelled),
            "explanation": [describe_segments(each) for each in live.changes.explanation],
            "look": worth_a_look(live, lambda ids: store.points_by_id(*key, ids)),
            "total": len(live.changes.evidence),
            "found": len(live.changes.found),
            "minutes": minutes,
            "level": test.level,
        }

    return [
        Endpoint("GET", "/api/drift", "read", VersionInput, now),
        Endpoint("GET", "/api/drift/segments", "read", VersionInput, by_segment),
    ]


def _now(sources: Sources, active: ActiveModel, drift: LiveDrift) -> dict[str, Any]:
    return {
        "rows": drift.rows,
        "evidence": [
            {"kind": kind, "label": KINDS[kind], "value": value, "threshold": drift.thresholds[kind]}
            for kind, value in drift.evidence.items()
        ],
        "since_ms": int(drift.points.received_ms.min()),
        "points": len(drift.points),
        "regions": _regions(sources, active, drift),
        **drift.window.as_dict(),
    }


def _regions(sources: Sources, active: ActiveModel, drift: LiveDrift) -> list[dict[str, Any]] | None:
    """Shares of reference rows and of the newest rows in the regions that have not expired; None without regions.

    Without drift no region is marked as changed.
    """
    regions = [each.saved.region for each in sources.control.regions.listed(active.model, active.version)]
    if not regions:
        return None
    places = active.bundle.reference.points.astype(np.float64), drift.points.points
    before, now = (count_inside(each, [region.inside for region in regions]) for each in places)
    if not (before.any() and now.any()):
        return None
    residuals = share_residuals(before, now).tolist()
    names = [*(each.name for each in regions), "elsewhere"]
    rows = zip(names, (before / before.sum()).tolist(), (now / now.sum()).tolist(), residuals, strict=True)
    limit = math.inf if drift.window.verdict.kind == "none" else CHANGED
    cells = [
        {"name": name, "reference": usual, "share": share, "residual": residual, "is_changed": abs(residual) > limit}
        for name, usual, share, residual in rows
    ]
    return sorted(cells, key=lambda cell: -abs(cell["residual"]))


def count_inside(points: Floats, regions: Sequence[Callable[[Floats], NDArray[np.bool_]]]) -> NDArray[np.int64]:
    """How many points (n, 2) lie in each of r regions, and how many in none, (r + 1,).

    A point in several regions counts for the first of them.
    """
    counts = np.zeros(len(regions) + 1, dtype=np.int64)
    free = np.isfinite(points).all(axis=1)
    for number, contains in enumerate(regions):
        inside = free & contains(points)
        counts[number] = inside.sum()
        free &= ~inside
    counts[-1] = free.sum()
    return counts
