"""A uniform random sample of labelled points, taken from those that were drawn for the audit.

Points are drawn with different odds o: each iff u(id) < o, with u uniform in [0, 1). So the points with u below the
smallest odds are a uniform sample of all points. The audit is labelled in the order of u / o, nearly that of u.
Audited points may also get labels from elsewhere, so only the points up to a depth count: that up to which nearly all
points have a label.
"""

from __future__ import annotations

import numpy as np

from darksight_core.drift.urn import audit_numbers
from darksight_service.store.points import PointTable

__all__ = ["uniform_sample"]

_MAX_SKIPPED = 0.05


def uniform_sample(drawn: PointTable, depth: float) -> PointTable:
    """The labelled part of a uniform sample, smallest u first.

    Parameters
    ----------
    drawn
        Points that were drawn, all of those with u / o below `depth`.
    depth
        At most 1.
    """
    numbers = audit_numbers(drawn.ids)
    order = np.argsort(numbers, kind="stable")
    order = order[numbers[order] < depth * drawn.audit_odds.min(initial=1.0)]
    labelled = drawn.is_labelled[order]
    ranks = np.arange(1, len(order) + 1)
    # The last labelled point up to which at most a share `_MAX_SKIPPED` lacks a label.
    far = np.flatnonzero(labelled & (np.cumsum(labelled) >= np.ceil((1.0 - _MAX_SKIPPED) * ranks)))
    done = order[: int(far[-1]) + 1 if len(far) else 0]
    return drawn.take(done[drawn.is_labelled[done]])
