"""A random audit with known odds: the labels that measure accuracy, accepted points included.

Who labels what was rejected, or what looks odd, learns much about those points and nothing about the errors that were
accepted. So a part of all points is drawn by a number that hangs on nothing but the point's id:

    in the audit at rate r  iff  u(id) < r,      u uniform in [0, 1), the same today and tomorrow

The audit is worked through in the order of u, so that what is labelled so far is itself a random draw, only smaller.
Labels of other origin may fall on audited points, too; a point counts only up to the depth where nearly all points with
a smaller u have a label, so they cannot tilt the draw. Points without a label above that depth were skipped: the
interval counts them as wrong at its lower end and as right at its upper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.accuracy import Accuracy, labelled_accuracy, prediction_powered
from darksight_core.simplex import Floats

if TYPE_CHECKING:
    from darksight_service.store import PointTable

__all__ = ["Audit", "AuditedAccuracy", "audit", "audit_numbers", "audited_accuracy"]

Bools: TypeAlias = NDArray[np.bool_]

_MOST_SKIPPED = 0.05
_LEAST_POWERED = 30


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """The drawn points of a frame.

    Parameters
    ----------
    rate
        Odds of each point of the frame.
    order
        Numbers of the drawn points in the frame, smallest u first, (m,).
    depth
        How many of them, from the first, count as worked through.
    """

    rate: float
    order: NDArray[np.int64]
    depth: int

    @property
    def done(self) -> NDArray[np.int64]:
        """Numbers of the points that count, (depth,)."""
        return self.order[: self.depth]


@dataclass(frozen=True, slots=True)
class AuditedAccuracy:
    """Accuracy of all points of a kind, measured on the audit.

    Parameters
    ----------
    labelled, right, skipped
        Audited points that count.
    value
        Share of right ones among the labelled; None without any.
    low, high
        Exact 95% interval, with the skipped ones as wrong and as right; 0 and 1 without any.
    powered
        The same sharpened by the confidence of the points that were not audited; None where that takes more labels.
    """

    labelled: int
    right: int
    skipped: int
    value: float | None
    low: float
    high: float
    powered: Accuracy | None


def audit_numbers(ids: NDArray[np.uint64]) -> Floats:
    """u of each id (n, 2), in [0, 1): two rounds of SplitMix64's finaliser over both halves, (n,)."""
    mixed = _mixed(ids[:, 1].astype(np.uint64))
    mixed = _mixed(ids[:, 0].astype(np.uint64) ^ mixed)
    numbers: Floats = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def audit(frame: PointTable, rate: float) -> Audit:
    """Draw from the points of a frame that have a prediction; others have nothing to label, and would never be done."""
    numbers = audit_numbers(frame.ids)
    drawn = np.flatnonzero((numbers < rate) & (frame.predicted >= 0))
    order = drawn[np.argsort(numbers[drawn], kind="stable")]
    labelled = np.cumsum(frame.is_labelled[order])
    ranks = np.arange(1, len(order) + 1)
    # The last labelled point before which at most a few are missing.
    far = np.flatnonzero(frame.is_labelled[order] & (labelled >= np.ceil((1.0 - _MOST_SKIPPED) * ranks)))
    return Audit(rate, order, int(far[-1]) + 1 if len(far) else 0)


def audited_accuracy(frame: PointTable, drawn: Audit, chosen: Bools | None = None) -> AuditedAccuracy:
    """Accuracy of the predictions of a frame, or of those that `chosen` (n,) allows, from the audit."""
    allowed = frame.predicted >= 0
    if chosen is not None:
        allowed &= chosen
    done = drawn.done[allowed[drawn.done]]
    known = done[frame.is_labelled[done]]
    rows, skipped = len(known), len(done) - len(known)
    right = int((~frame.errors[known]).sum())
    if not rows:
        return AuditedAccuracy(0, 0, skipped, None, 0.0, 1.0, None)
    worst = labelled_accuracy(right, rows + skipped).interval
    best = labelled_accuracy(right + skipped, rows + skipped).interval
    assert worst is not None
    assert best is not None
    rest = allowed & np.isfinite(frame.top)
    rest[done] = False
    powered = None
    if rows >= _LEAST_POWERED and not skipped and rest.sum() >= 2 and np.isfinite(frame.top[known]).all():
        powered = prediction_powered(frame.top[rest], frame.top[known], ~frame.errors[known])
        powered = None if powered.interval is None else powered
    return AuditedAccuracy(rows, right, skipped, right / rows, worst[0], best[1], powered)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
