"""Live accuracy: figures of the gate and its scores on points that have a label.

Labels arrive late and for a part of the traffic only. Where that part is not a random sample (complaints, for example,
or reviewed cases), these figures describe it and not the traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darksight_core.evaluation.failure import FailureFigures, failure_figures
from darksight_core.guarantees.binomial import lower_bound, upper_bound
from darksight_core.guarantees.risk_curve import risk_curve
from darksight_core.rows.json_record import JsonRecord
from darksight_service.store.points import PointTable

__all__ = ["COVERAGES", "LiveAccuracy", "Share", "live_accuracy"]

COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
"""Coverages at which accuracy is reported."""

_DELTA = 0.05


@dataclass(frozen=True, slots=True)
class Share(JsonRecord):
    """Correct predictions among `rows`, with the exact 95% interval of their share; None for no rows."""

    rows: int
    right: int
    share: float | None
    low: float
    high: float

    @classmethod
    def of(cls, right: NDArray[np.bool_]) -> Share:
        """From whether each row was right, (n,)."""
        rows, hits = len(right), int(right.sum())
        wrong = rows - hits
        low = 1.0 - float(upper_bound(wrong, rows, _DELTA / 2)) if rows else 0.0
        high = 1.0 - float(lower_bound(wrong, rows, _DELTA / 2)) if rows else 1.0
        return cls(rows, hits, hits / rows if rows else None, low, high)


@dataclass(frozen=True, slots=True)
class LiveAccuracy(JsonRecord):
    """Figures of n labelled points.

    Parameters
    ----------
    everything, accepted, rejected
        Accuracy of all, accepted and rejected points.
    scores
        How well each stored score finds the errors: the reject score of the gate, `confidence`, the largest
        probability, `top`, and `p_value`; scores that no point has are left out.
    curves
        Accuracy at each of `COVERAGES`, by score.
    """

    everything: Share
    accepted: Share
    rejected: Share
    scores: dict[str, FailureFigures]
    curves: dict[str, tuple[float, ...]]


def live_accuracy(points: PointTable) -> LiveAccuracy:
    """Figures of points that all have a label."""
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
        # The first threshold with at least that coverage: ties raise it.
        first = np.searchsorted(curve.coverage, np.array(COVERAGES) - 1e-12)
        curves[name] = tuple(curve.accuracy[np.minimum(first, len(curve.coverage) - 1)].tolist())
    return LiveAccuracy(
        Share.of(right), Share.of(right[points.accepted]), Share.of(right[~points.accepted]), scores, curves
    )
