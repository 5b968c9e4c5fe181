"""A random audit: a sample of all points, accepted ones included, whose labels measure accuracy.

Labels of rejected or unusual points say much about these points and nothing about accepted errors. So the audit draws
points by a number that depends on nothing but the point's id:

    in the audit at rate r  iff  u(id) < r,      u uniform in [0, 1)

The audit is labelled in the order of u, so that the labelled part is itself a random sample, only smaller. Audited
points may also get labels from elsewhere. To keep the sample unbiased, only the points up to a depth count: the depth
up to which nearly all points have a label. Points without a label above that depth were skipped; the lower end of the
interval counts them as wrong and the upper end as right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.accuracy import Accuracy, accuracy_sequence, prediction_powered
from darksight_core.drift.audit import audit_gains, audit_keys
from darksight_core.drift.urn import audit_numbers
from darksight_core.rows.schema import Reason
from darksight_core.rows.simplex import Floats
from darksight_service.store.points import PointTable

__all__ = ["Audit", "AuditedAccuracy", "audited_accuracy", "draw_audit", "draw_for_certificate"]

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]

_MAX_SKIPPED = 0.05
_MIN_LABELS_POWERED = 30


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """The points of a table that were drawn.

    Parameters
    ----------
    table
        The points.
    is_whole
        Whether the table has all points of the traffic, not only those that were drawn when they were stored.
    rate
        Probability of each point to be drawn.
    order
        Row numbers of the drawn points, smallest u first, (m,).
    depth
        How many of them, from the first, count as done.
    """

    table: PointTable
    is_whole: bool
    rate: float
    order: NDArray[np.int64]
    depth: int

    @property
    def done(self) -> NDArray[np.int64]:
        """Row numbers of the points that count, (depth,)."""
        return self.order[: self.depth]


@dataclass(frozen=True, slots=True)
class AuditedAccuracy:
    """Accuracy of the predictions, measured on the audit.

    Parameters
    ----------
    labelled, right, skipped
        Numbers of audited points that count.
    value
        Share of right predictions among the labelled; None without labels.
    low, high
        95% interval that holds however often it is read while labels are added, with skipped points as wrong and as
        right; 0 and 1 without labels.
    powered
        Prediction-powered estimate, which also uses the confidence of the other points; None with too few labels.
    """

    labelled: int
    right: int
    skipped: int
    value: float | None
    low: float
    high: float
    powered: Accuracy | None


def draw_audit(table: PointTable, rate: float, *, is_whole: bool = True) -> Audit:
    """Draw from the points of a table that have a prediction; invalid rows have nothing to label."""
    numbers = audit_numbers(table.ids)
    drawn = np.flatnonzero((numbers < rate) & (table.predicted >= 0))
    order = drawn[np.argsort(numbers[drawn], kind="stable")]
    labelled = np.cumsum(table.is_labelled[order])
    ranks = np.arange(1, len(order) + 1)
    # The last labelled point up to which at most a share `_MAX_SKIPPED` lacks a label.
    far = np.flatnonzero(table.is_labelled[order] & (labelled >= np.ceil((1.0 - _MAX_SKIPPED) * ranks)))
    return Audit(table, is_whole, rate, order, int(far[-1]) + 1 if len(far) else 0)


def draw_for_certificate(table: PointTable, rate: float) -> tuple[Ints, Floats]:
    """Accepted rows of a table that the audit of their certificate draws, in its order, and their odds."""
    keys = audit_keys(table.ids, table.p_value)
    is_certified = table.accepted & (table.predicted >= 0) & (table.reason != Reason.UNSCORED)
    rows = np.flatnonzero(is_certified & (keys < rate))
    rows = rows[np.argsort(keys[rows], kind="stable")]
    return rows, np.minimum(rate * audit_gains(table.p_value[rows]), 1.0)


def audited_accuracy(audit: Audit, chosen: Bools | None = None) -> AuditedAccuracy:
    """Accuracy of the predictions of a table, or of those that `chosen` (n,) selects, from the audit."""
    table = audit.table
    allowed = table.predicted >= 0
    if chosen is not None:
        allowed &= chosen
    done = audit.done[allowed[audit.done]]
    known = done[table.is_labelled[done]]
    rows, skipped = len(known), len(done) - len(known)
    right = int((~table.errors[known]).sum())
    if not rows:
        return AuditedAccuracy(0, 0, skipped, None, 0.0, 1.0, None)
    worst = accuracy_sequence(right, rows + skipped).interval
    best = accuracy_sequence(right + skipped, rows + skipped).interval
    assert worst is not None
    assert best is not None
    rest = np.zeros(len(table), dtype=np.bool_)
    rest[slice(None) if audit.is_whole else audit.order] = True
    rest &= allowed & np.isfinite(table.top)
    rest[done] = False
    powered = None
    if rows >= _MIN_LABELS_POWERED and not skipped and rest.sum() >= 2 and np.isfinite(table.top[known]).all():
        powered = prediction_powered(table.top[rest], table.top[known], ~table.errors[known])
        powered = None if powered.interval is None else powered
    return AuditedAccuracy(rows, right, skipped, right / rows, worst[0], best[1], powered)
