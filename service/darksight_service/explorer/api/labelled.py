"""The labelled points that the gate page and the review page compute from."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from darksight_service.control.registry import ActiveModel
from darksight_service.explorer.analysis.audit import draw_audit
from darksight_service.explorer.endpoint import Sources
from darksight_service.explorer.inputs import DAY_MS, SpanInput
from darksight_service.store.points import PointFilter, PointTable

__all__ = ["COMPARED_LABELS", "MAX_LABELS", "MAX_POINTS", "LabelsInput", "labelled_points", "newest_points"]

MAX_LABELS = 50_000
"""Newest labels that promises and thresholds are measured on."""

COMPARED_LABELS = 1_500
"""Newest labels that scores are compared on: enough to see a difference of a percent, and fast."""

MAX_POINTS = 10_000
"""Newest points that an audit draws from."""


class LabelsInput(SpanInput):
    """An input about all labels of a span, or about those of the random audit."""

    default_span_ms: ClassVar[int] = 30 * DAY_MS

    labels: Literal["all", "audit"] = "all"
    rate: float = Field(0.05, gt=0.0, le=1.0)


def newest_points(sources: Sources, active: ActiveModel, given: LabelsInput) -> PointTable:
    """The newest points of the span."""
    span = PointFilter(active.model, active.version, since_ms=given.start_ms, until_ms=given.until_ms)
    return sources.store().newest_points(span, limit=MAX_POINTS)


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
            active.model, active.version, **span, limit=limit, with_probs=with_probs
        )
    else:
        table = newest_points(sources, active, given)
        done = draw_audit(table, given.rate).done
        found = table.take(done[table.is_labelled[done]])
    scored = found.take((found.predicted >= 0) & np.isfinite(found.p_value))
    return scored, {
        "labels": len(scored),
        "unscored": len(found) - len(scored),
        "max_labels": limit,
    }
