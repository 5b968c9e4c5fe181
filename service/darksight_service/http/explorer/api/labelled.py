"""The labelled points that the gate page and the review page compute from."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from darksight_core.drift.audit import DRAWN_RATE
from darksight_service.control.registry import ActiveModel
from darksight_service.http.explorer.analysis.audit import Audit, draw_audit
from darksight_service.http.explorer.endpoint import Sources
from darksight_service.http.explorer.inputs import DAY_MS, SpanInput
from darksight_service.store.points import PointFilter, PointTable

__all__ = ["COMPARED_LABELS", "MAX_LABELS", "MAX_POINTS", "LabelsInput", "audit_of", "labelled_points", "newest_points"]

MAX_LABELS = 50_000
"""Newest labels that promises and thresholds are measured on."""

COMPARED_LABELS = 1_500
"""Newest labels that scores are compared on: enough to see a difference of a percent, and fast."""

MAX_POINTS = 10_000
"""Newest points that are read; an audit of more draws from those that were drawn when they were stored."""

MAX_DRAWN = 5_000
"""Drawn points that are read."""


class LabelsInput(SpanInput):
    """An input about all labels of a span, or about those of the random audit."""

    default_span_ms: ClassVar[int] = 30 * DAY_MS

    labels: Literal["all", "audit"] = "all"
    rate: float = Field(0.05, gt=0.0, le=1.0)


def newest_points(sources: Sources, active: ActiveModel, given: LabelsInput) -> PointTable:
    """The newest points of the span."""
    return sources.store().newest_points(_span(active, given), limit=MAX_POINTS)


def audit_of(sources: Sources, active: ActiveModel, given: LabelsInput, newest: PointTable) -> Audit:
    """The audit of the span whose newest points are given: of all its points, or of the drawn ones if it has more."""
    # Where rows were left out, only the drawn ones are complete.
    if len(newest) < MAX_POINTS and newest.odds.min(initial=1.0) >= 1.0:
        return draw_audit(newest, given.rate)
    rate = min(given.rate, DRAWN_RATE)
    drawn, rate = sources.store().drawn_points(_span(active, given), rate=rate, limit=MAX_DRAWN)
    return draw_audit(drawn, rate, is_whole=False)


def labelled_points(
    sources: Sources,
    active: ActiveModel,
    given: LabelsInput,
    *,
    limit: int = COMPARED_LABELS,
    with_probs: bool = True,
) -> tuple[PointTable, dict[str, Any]]:
    """The labelled points of an input, at most the newest `limit`, and facts about them for the page."""
    if given.labels == "all":
        span = {"since_ms": given.start_ms, "until_ms": given.until_ms}
        found = sources.store().labelled_points(
            active.model, active.version, **span, limit=limit, with_probs=with_probs, with_tags=False
        )
    else:
        audit = audit_of(sources, active, given, newest_points(sources, active, given))
        found = audit.table.take(audit.done[audit.table.is_labelled[audit.done]])
    labelled, found = len(found), found.sample()
    scored = found.take((found.predicted >= 0) & np.isfinite(found.p_value))
    return scored, {
        "labels": len(scored),
        "unscored": len(found) - len(scored),
        "left_out": labelled - len(found),
        "max_labels": limit,
    }


def _span(active: ActiveModel, given: LabelsInput) -> PointFilter:
    return PointFilter(active.model, active.version, since_ms=given.start_ms, until_ms=given.until_ms)
