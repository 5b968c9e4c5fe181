"""Endpoints of the drift page: figures over time, and two windows side by side."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.scored import Reason
from darksight_service.control.registry import ActiveModel
from darksight_service.explorer.analysis.windows import (
    LEVEL,
    PSI_BINS,
    Moved,
    class_counts,
    compare_clouds,
    compare_counts,
    count_inside,
    histogram,
    over_time,
    slices,
)
from darksight_service.explorer.columns import Columns
from darksight_service.explorer.endpoint import Answer, Call, Endpoint, Sources
from darksight_service.explorer.spans import DAY_MS, plain, read_span

if TYPE_CHECKING:
    from darksight_service.store import PointTable, Rates

__all__ = ["MAP_POINTS", "endpoints"]

MAP_POINTS = 1_200
"""Points of each window that are drawn on the map."""

_STEPS = 120
_SLICES = 8
_MINUTE_MS = 60_000
_MOST_MS = 7 * DAY_MS
# The store counts this class and all above as one.
_MOST_CLASSES = 101


def endpoints(sources: Sources) -> list[Endpoint]:
    """`/api/drift` and `/api/drift/windows`."""

    def describe(call: Call) -> Answer:
        serving = sources.registry.get(call.text("model"), call.text("version", ""))
        since, until = read_span(call, most_ms=_MOST_MS)
        step = _step(since, until)
        rates = _rates(sources, serving, since, until, step)
        rule_since = _rule_since(sources, serving)
        rule = serving.gate.outlier
        n = serving.bundle.calibration_rows
        figures = over_time(
            rates, calibration_rows=n, rank=None if rule is None else rule.rank, rule_since_ms=rule_since
        )
        whole = histogram(rates.bins.sum(axis=0), n)
        verdict = None if whole.verdict is None else {**asdict(whole.verdict), "is_alert": whole.verdict.is_alert}
        return {
            "since_ms": since,
            "until_ms": until,
            "step_ms": step,
            "rule_since_ms": rule_since,
            "level": LEVEL,
            "psi_bins": PSI_BINS,
            "calibration_rows": n,
            "alpha": None if rule is None else rule.alpha,
            "points": int(rates.points.sum()),
            "over_time": plain({name: getattr(figures, name) for name in figures.__dataclass_fields__}),
            "histogram": {
                "counts": whole.counts.tolist(),
                "low": whole.low,
                "high": whole.high,
                "verdict": plain(verdict),
            },
            "newest_ms": _newest(sources, serving) if not len(figures.rows) else None,
        }

    def compare(call: Call) -> Answer:
        serving = sources.registry.get(call.text("model"), call.text("version", ""))
        names = serving.bundle.class_names
        spans = {name: read_span(call, most_ms=_MOST_MS, prefix=f"{name}_") for name in ("before", "now")}
        classes = min(len(names), _MOST_CLASSES)
        shown = [*names[:classes]] if len(names) == classes else [*names[: classes - 1], "all others"]
        counted, frames, totals = [], {}, {}
        for name, (since, until) in spans.items():
            found = sources.store().class_rates(serving.model, serving.version, since_ms=since, until_ms=until)
            counted.append(class_counts(found, classes))
            rates = _rates(sources, serving, since, until, _step(since, until))
            frames[name] = _spread(sources, serving, rates, since, until)
            totals[name] = int(rates.points.sum())
        moved = compare_counts(shown, counted[0][0], counted[1][0], outliers=(counted[0][1], counted[1][1]))
        clouds = compare_clouds(frames["before"].points, frames["now"].points)
        meta = {
            "class_names": list(names),
            "classes": _moved(moved),
            "regions": _regions(sources, serving, frames),
            "clouds": None if clouds is None else asdict(clouds),
            "totals": totals,
            "drawn": {name: len(frame) for name, frame in frames.items()},
            "level": LEVEL,
        }
        arrays: dict[str, NDArray[Any]] = {}
        for name, frame in frames.items():
            placed = frame.take(np.flatnonzero(np.isfinite(frame.points).all(axis=1)))
            arrays[f"{name}_x"], arrays[f"{name}_y"] = placed.points.T.astype(np.float32)
            arrays[f"{name}_class"] = placed.predicted.astype(np.int32)
            arrays[f"{name}_outlier"] = (placed.reason == Reason.OUTLIER).astype(np.uint8)
        return Columns(arrays, plain(meta))

    return [
        Endpoint("GET", "/api/drift", "read", describe),
        Endpoint("GET", "/api/drift/windows", "read", compare),
    ]


def _step(since: int, until: int) -> int:
    """Length of a step of which a window has about as many as a plot can show, in whole minutes."""
    return max(1, -(-(until - since) // _STEPS // _MINUTE_MS)) * _MINUTE_MS


def _rates(sources: Sources, serving: ActiveModel, since: int, until: int, step: int) -> Rates:
    return sources.store().rates(serving.model, serving.version, since_ms=since, until_ms=until, step_ms=step)


def _rule_since(sources: Sources, serving: ActiveModel) -> int:
    """Since when this version has its outlier rule, in Unix milliseconds; 0 for ever.

    A change of policy that leaves the level as it was does not start a new rule.
    """
    rule = serving.bundle.gate.outlier
    own = 0.0 if rule is None else rule.alpha
    since, level = 0, own
    for change in reversed(sources.control.history(serving.model)):
        if change.payload.get("version") == serving.version:
            alpha = change.payload.get("alpha")
            new = own if alpha is None else float(alpha)
            since, level = (change.changed_ms, new) if new != level else (since, level)
    return since


def _newest(sources: Sources, serving: ActiveModel) -> int | None:
    """When the last point of all came."""
    from darksight_service.store import PointFilter

    found = sources.store().frame(PointFilter(serving.model, serving.version), limit=1)
    return int(found.received_ms[0]) if len(found) else None


def _spread(sources: Sources, serving: ActiveModel, rates: Rates, since: int, until: int) -> PointTable:
    """Points from all of a window, not only from its end."""
    from darksight_service.store import PointFilter, joined

    parts = slices(rates, since, until, _SLICES)
    return joined(
        [
            sources.store().frame(
                PointFilter(serving.model, serving.version, since_ms=start, until_ms=end),
                limit=MAP_POINTS // len(parts),
            )
            for start, end in parts
        ]
    )


def _moved(moved: Moved) -> dict[str, Any]:
    test = moved.test
    return {
        "cells": [asdict(each) for each in moved.cells],
        "p_value": None if test is None else test.p_value,
        "statistic": None if test is None else test.statistic,
        "dof": None if test is None else test.dof,
    }


def _regions(sources: Sources, serving: ActiveModel, frames: dict[str, PointTable]) -> dict[str, Any] | None:
    """How regions of the map that have not ended are occupied; None if there are none."""
    regions = [each.saved.region for each in sources.control.regions.listed(serving.model, serving.version)]
    if not regions:
        return None
    counts = {name: count_inside(frame.points, [each.inside for each in regions]) for name, frame in frames.items()}
    return _moved(compare_counts([*(each.name for each in regions), "elsewhere"], counts["before"], counts["now"]))
