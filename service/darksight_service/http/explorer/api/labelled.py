"""The labelled points that the gate page and the review page compute from."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from darksight_service.control.registry import ActiveModel
from darksight_service.http.explorer.analysis.audit import uniform_sample
from darksight_service.http.explorer.endpoint import Sources
from darksight_service.http.explorer.inputs import DAY_MS, SpanInput
from darksight_service.store.points import PointFilter, PointTable

__all__ = [
    "COMPARED_LABELS",
    "MAX_LABELS",
    "MAX_POINTS",
    "LabelsInput",
    "drawn_points",
    "labelled_points",
    "newest_points",
]

MAX_LABELS = 50_000
"""Newest labels that promises and thresholds are measured on."""

COMPARED_LABELS = 1_500
"""Newest labels that scores are compared on: enough to see a difference of a percent, and fast."""

MAX_POINTS = 10_000
"""Newest points that are read."""

MAX_DRAWN = 5_000
"""Points drawn for the audit that are read, the first in the order of labelling."""


class LabelsInput(SpanInput):
    """An input about all labels of a span, or about those of a uniform sample from the audit."""

    default_span_ms: ClassVar[int] = 30 * DAY_MS

    labels: Literal["all", "audit"] = "all"


def newest_points(sources: Sources, active: ActiveModel, given: LabelsInput) -> PointTable:
    """The newest points of the span."""
    return sources.store().newest_points(_span(active, given), limit=MAX_POINTS)


def drawn_points(sources: Sources, active: ActiveModel, given: LabelsInput) -> tuple[PointTable, float]:
    """The points of the span that were drawn for the audit, in the order of labelling, and the depth of the draw."""
    return sources.store().drawn_points(_span(active, given), limit=MAX_DRAWN)


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
        found = uniform_sample(*drawn_points(sources, active, given))
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
