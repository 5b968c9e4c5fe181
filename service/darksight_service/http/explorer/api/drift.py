"""Endpoints of the drift page: drift now, figures over time, and the comparison of two windows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from darksight_core.bundle import Bundle
from darksight_core.drift.segments import SegmentTest
from darksight_core.drift.segments import describe as describe_segments
from darksight_core.drift.stream import DriftTest
from darksight_core.errors import ConfigError
from darksight_core.evaluation.drift import drift_test
from darksight_core.rows.schema import Reason
from darksight_core.rows.simplex import Floats
from darksight_service.control.registry import ActiveModel
from darksight_service.http.explorer.analysis.drift import (
    LEVEL,
    CellComparison,
    class_counts,
    compare_clouds,
    compare_counts,
    count_inside,
    histogram,
    over_time,
    slices,
)
from darksight_service.http.explorer.analysis.segments import minutes_of, segment_rows, worth_a_look
from darksight_service.http.explorer.answers import Answer, to_json
from darksight_service.http.explorer.columns import Columns
from darksight_service.http.explorer.endpoint import Call, Endpoint, Sources
from darksight_service.http.explorer.inputs import DAY_MS, Milliseconds, SpanInput, VersionInput, check_span, now_ms
from darksight_service.scoring.live_drift import LiveDrift, live_audit, live_drift
from darksight_service.scoring.live_segments import live_segments
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.rollups import Rates

__all__ = ["MAP_POINTS", "endpoints"]

MAP_POINTS = 1_200
"""Maximum number of points that the map of a window shows."""

_STEPS = 120
_SLICES = 8
_MINUTE_MS = 60_000
_LONGEST_MS = 7 * DAY_MS
_ALL = 1 << 62
_LABELS = 5_000
# The store counts this class and all further ones together.
_MAX_CLASSES = 101


class _DriftInput(SpanInput):
    """Without `since_ms` the window is the last day with traffic, from its first point to its last."""

    longest_span_ms: ClassVar[int | None] = _LONGEST_MS


class _WindowsInput(VersionInput):
    before_since_ms: Milliseconds
    before_until_ms: Milliseconds
    now_since_ms: Milliseconds
    now_until_ms: Milliseconds

    @property
    def windows(self) -> dict[str, tuple[int, int]]:
        """Starts and ends in whole minutes, as points are counted: windows that touch share no minute."""
        edges = (self.before_since_ms, self.before_until_ms, self.now_since_ms, self.now_until_ms)
        before_since, before_until, now_since, now_until = (-(-edge // _MINUTE_MS) * _MINUTE_MS for edge in edges)
        return {"before": (before_since, before_until), "now": (now_since, now_until)}

    @model_validator(mode="after")
    def _check_windows(self) -> _WindowsInput:
        check_span("before_since_ms", self.before_since_ms, self.before_until_ms, _LONGEST_MS)
        check_span("now_since_ms", self.now_since_ms, self.now_until_ms, _LONGEST_MS)
        return self


def endpoints(sources: Sources) -> list[Endpoint[Any]]:
    """`/api/drift`, `/api/drift/now`, `/api/drift/segments` and `/api/drift/windows`."""
    # Of the newest versions asked for: to cut the cells of a calibration takes as long as the rest.
    tests: dict[str, DriftTest | None] = {}
    segment_tests: dict[str, SegmentTest | None] = {}

    def now(call: Call[VersionInput]) -> Answer:
        active, store = sources.active_model(call.input), sources.store()
        bundle, key = active.bundle.content, (active.model, active.version)
        if active.version not in tests:
            tests.clear()
            tests[active.version] = _drift_test(bundle)
        test = tests[active.version]
        states = [] if test is None else store.drift_states(*key, test)
        drift = None if test is None else live_drift(store, bundle, test, states, *key)
        deployed = sources.registry.state.models[active.model].versions[active.version]
        return {
            "level": LEVEL,
            "audit": live_audit(store, bundle, deployed, *key).as_dict(),
            "drift": None if drift is None else _now(sources, active, drift),
        }

    def by_segment(call: Call[VersionInput]) -> Answer:
        active, store = sources.active_model(call.input), sources.store()
        bundle, key = active.bundle.content, (active.model, active.version)
        if active.version not in segment_tests:
            segment_tests.clear()
            segment_tests[active.version] = SegmentTest(bundle.calibration) if len(bundle.calibration) else None
        test = segment_tests[active.version]
        live = None if test is None else live_segments(store, bundle, test, *key, reads_points=True)
        if test is None or live is None:
            return {"segments": [], "explanation": [], "look": [], "total": 0, "found": 0, "minutes": 0, "level": 0.0}
        minutes = minutes_of(len(live.evidence))
        counts = store.tag_counts(*key, until_ms=now_ms(), minutes=minutes)
        labelled = store.labelled_points(*key, limit=_LABELS, with_probs=False, with_tags=True)
        return {
            "segments": segment_rows(live, bundle, counts, labelled),
            "explanation": [describe_segments(each) for each in live.explanation],
            "look": worth_a_look(live, lambda ids: store.points_by_id(*key, ids)),
            "total": len(live.evidence),
            "found": len(live.found),
            "minutes": minutes,
            "level": test.level,
        }

    def describe(call: Call[_DriftInput]) -> Answer:
        active = sources.active_model(call.input)
        since, until = _window(sources, active, call.input)
        step = _step(since, until)
        rates = _rates(sources, active, since, until, step)
        rule, rule_since = active.gate.outlier, _rule_since(sources, active)
        rows = active.bundle.calibration_rows
        rank = None if rule is None else rule.rank
        series = over_time(rates, step_ms=step, calibration_rows=rows, rank=rank, rule_since_ms=rule_since)
        whole = histogram(rates.bins.sum(axis=0), rows)
        verdict = None if whole.verdict is None else asdict(whole.verdict) | {"is_alert": whole.verdict.is_alert}
        return {
            "since_ms": since,
            "until_ms": until,
            "step_ms": step,
            "rule_since_ms": rule_since,
            "level": LEVEL,
            "calibration_rows": rows,
            "points": int(rates.points.sum()),
            "over_time": series,
            "histogram": {"counts": whole.counts, "low": whole.low, "high": whole.high, "verdict": verdict},
            "newest_ms": None if len(series.rows) else _newest(sources, active),
        }

    def compare(call: Call[_WindowsInput]) -> Answer:
        given, active = call.input, sources.active_model(call.input)
        names = active.bundle.class_names
        classes = min(len(names), _MAX_CLASSES)
        shown = [*names] if len(names) == classes else [*names[: classes - 1], "all others"]
        counted, tables, totals = [], {}, {}
        for name, (since, until) in given.windows.items():
            found = sources.store().class_rates(active.model, active.version, since_ms=since, until_ms=until)
            counted.append(class_counts(found, classes))
            rates = _rates(sources, active, since, until, _step(since, until))
            tables[name] = _spread(sources, active, rates, since, until)
            totals[name] = int(rates.points.sum())
        (points_before, outliers_before), (points_now, outliers_now) = counted
        by_class = compare_counts(shown, points_before, points_now, outliers=(outliers_before, outliers_now))
        meta = {
            "class_names": names,
            "classes": _comparison(by_class),
            "regions": _regions(sources, active, {name: table.points for name, table in tables.items()}),
            "clouds": compare_clouds(tables["before"].points, tables["now"].points),
            "totals": totals,
            "drawn": {name: len(table) for name, table in tables.items()},
            "level": LEVEL,
        }
        arrays: dict[str, NDArray[Any]] = {}
        for name, table in tables.items():
            placed = table.take(np.flatnonzero(np.isfinite(table.points).all(axis=1)))
            arrays[f"{name}_x"], arrays[f"{name}_y"] = placed.points.T.astype(np.float32)
            arrays[f"{name}_class"] = placed.predicted.astype(np.int32)
            arrays[f"{name}_outlier"] = (placed.reason == Reason.OUTLIER).astype(np.uint8)
        return Columns(arrays, to_json(meta))

    return [
        Endpoint("GET", "/api/drift", "read", _DriftInput, describe),
        Endpoint("GET", "/api/drift/now", "read", VersionInput, now),
        Endpoint("GET", "/api/drift/segments", "read", VersionInput, by_segment),
        Endpoint("GET", "/api/drift/windows", "read", _WindowsInput, compare),
    ]


def _drift_test(bundle: Bundle) -> DriftTest | None:
    try:
        return drift_test(bundle, LEVEL)
    except ConfigError:
        return None


def _now(sources: Sources, active: ActiveModel, drift: LiveDrift) -> dict[str, Any]:
    clouds = {"before": active.bundle.reference.points.astype(np.float64), "now": drift.points.points}
    return {
        "rows": drift.rows,
        "evidence": drift.evidence,
        "threshold": drift.threshold,
        "since_ms": int(drift.points.received_ms.min()),
        "points": len(drift.points),
        "regions": _regions(sources, active, clouds),
        **drift.window.as_dict(),
    }


def _window(sources: Sources, active: ActiveModel, given: _DriftInput) -> tuple[int, int]:
    """The window of an input in whole minutes; without a start, the last day that has traffic."""
    since, until = given.since_ms, given.until_ms
    if since is None:
        newest = _newest(sources, active)
        until = until if newest is None else min(until, newest + 1)
        day = {"since_ms": max(0, until - DAY_MS), "until_ms": until}
        since = sources.store().filled_since(active.model, active.version, **day, points=_ALL)[0]
    until = -(-until // _MINUTE_MS) * _MINUTE_MS
    # Two minutes at least, because the page compares the two halves.
    return min(since // _MINUTE_MS * _MINUTE_MS, until - 2 * _MINUTE_MS), until


def _step(since: int, until: int) -> int:
    """Length of a time step in whole minutes, such that a window has about `_STEPS` of them."""
    return max(1, -(-(until - since) // _STEPS // _MINUTE_MS)) * _MINUTE_MS


def _rates(sources: Sources, active: ActiveModel, since: int, until: int, step: int) -> Rates:
    return sources.store().rates(active.model, active.version, since_ms=since, until_ms=until, step_ms=step)


def _rule_since(sources: Sources, active: ActiveModel) -> int:
    """When the version got its current outlier level, in Unix milliseconds; 0 if it never changed.

    A change of policy that keeps the level does not count.
    """
    rule = active.bundle.gate.outlier
    own = 0.0 if rule is None else rule.alpha
    since, level = 0, own
    for change in reversed(sources.control.history(active.model)):
        if change.payload.get("version") == active.version:
            alpha = change.payload.get("alpha")
            new = own if alpha is None else float(alpha)
            since, level = (change.changed_ms, new) if new != level else (since, level)
    return since


def _newest(sources: Sources, active: ActiveModel) -> int | None:
    """When the newest point was received."""
    found = sources.store().newest_points(PointFilter(active.model, active.version), limit=1)
    return int(found.received_ms[0]) if len(found) else None


def _spread(sources: Sources, active: ActiveModel, rates: Rates, since: int, until: int) -> PointTable:
    """Points from all parts of a window, not only the newest."""
    parts = slices(rates, since, until, _SLICES)
    filters = [PointFilter(active.model, active.version, since_ms=start, until_ms=end) for start, end in parts]
    return PointTable.join([sources.store().newest_points(each, limit=MAP_POINTS // len(parts)) for each in filters])


def _comparison(found: CellComparison) -> dict[str, Any]:
    test = found.test
    return {
        "cells": found.cells,
        "p_value": None if test is None else test.p_value,
        "statistic": None if test is None else test.statistic,
        "dof": None if test is None else test.dof,
    }


def _regions(sources: Sources, active: ActiveModel, clouds: dict[str, Floats]) -> dict[str, Any] | None:
    """Points (n, 2) in the regions that have not expired, before and now; None without regions."""
    regions = [each.saved.region for each in sources.control.regions.listed(active.model, active.version)]
    if not regions:
        return None
    counts = {name: count_inside(points, [each.inside for each in regions]) for name, points in clouds.items()}
    names = [*(each.name for each in regions), "elsewhere"]
    return _comparison(compare_counts(names, counts["before"], counts["now"]))
