"""Live accuracy: what the outcomes that came back say about the gate and about its scores.

Labels come late and for a part of the traffic only. Where that part is not drawn at random (complaints, say, or what
somebody looked at), these figures describe it and not the traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from darksight_core.evaluation.failure import FailureFigures, failure_figures
from darksight_core.figures import Record
from darksight_core.guarantees.binomial import lower_bound, upper_bound
from darksight_core.guarantees.risk_curve import risk_curve

if TYPE_CHECKING:
    from darksight_service.store import PointTable

__all__ = ["COVERAGES", "LiveAccuracy", "Share", "live_accuracy"]

COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
"""Shares of rows kept at which the accuracy of the rest is told."""

_DELTA = 0.05


@dataclass(frozen=True, slots=True)
class Share(Record):
    """Right predictions among `rows`, with the exact 95% interval of their share; no share of no rows."""

    rows: int
    right: int
    share: float | None
    low: float
    high: float

    @classmethod
    def of(cls, right: NDArray[np.bool_]) -> Share:
        """Of rows that were right or not."""
        rows, hits = len(right), int(right.sum())
        wrong = rows - hits
        low = 1.0 - float(upper_bound(wrong, rows, _DELTA / 2)) if rows else 0.0
        high = 1.0 - float(lower_bound(wrong, rows, _DELTA / 2)) if rows else 1.0
        return cls(rows, hits, hits / rows if rows else None, low, high)


@dataclass(frozen=True, slots=True)
class LiveAccuracy(Record):
    """What is known about n points with outcomes.

    Parameters
    ----------
    everything, accepted, rejected
        How often they were right.
    scores
        How well each stored score finds the errors: the gate's own `confidence`, the largest probability `top`, and
        `p_value`; a score that no point has is left out.
    curves
        Accuracy of the rows kept at each of `COVERAGES`, by score.
    """

    everything: Share
    accepted: Share
    rejected: Share
    scores: dict[str, FailureFigures]
    curves: dict[str, tuple[float, ...]]


def live_accuracy(points: PointTable) -> LiveAccuracy:
    """Accuracy of accepted and rejected points, all of them labelled, and risk against coverage."""
    right = ~points.errors
    scores: dict[str, FailureFigures] = {}
    curves: dict[str, tuple[float, ...]] = {}
    for name in ("confidence", "top", "p_value"):
        values = getattr(points, name)
        known = np.isfinite(values)
        if not known.any():
            continue
        scores[name] = failure_figures(values[known], ~right[known])
        curve = risk_curve(values[known], ~right[known])
        # The first threshold that keeps as many: ties keep more.
        places = np.searchsorted(curve.coverage, np.array(COVERAGES) - 1e-12)
        curves[name] = tuple(curve.accuracy[np.minimum(places, len(curve.coverage) - 1)].tolist())
    return LiveAccuracy(
        Share.of(right), Share.of(right[points.is_accepted]), Share.of(right[~points.is_accepted]), scores, curves
    )
