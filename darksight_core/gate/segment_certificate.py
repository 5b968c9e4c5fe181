"""Certified thresholds of segments: each value of a tag whose rows support the target has its own (Mondrian).

The guarantee holds in each of these segments, with the δ of that segment alone. The other segments share the pooled
threshold, certified on their rows together. A segment that fails its own test joins them, which costs no confidence:
given the scores, errors are independent, a segment that fails has more of them than usual, and more errors only make
the pooled threshold stricter (Harris 1960). If the rows of these segments together do not support the target, they use
the threshold that all rows certify, and no promise is made about them.

The predicted class is one more way to divide rows (`PREDICTED_CLASS`). There the δ of the segments is chosen so that
the guarantees of all classes hold together, see `class_delta`.

A threshold that all rows certify is not valid for the segments that are left: if the easy ones have looser thresholds
of their own, what is left is harder than all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.errors import ConfigError
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.gate.segment_thresholds import MAX_THRESHOLDS, SegmentThresholds
from darksight_core.guarantees.binomial import rows_without_error
from darksight_core.guarantees.thresholds import Threshold
from darksight_core.rows.simplex import Floats

__all__ = ["PREDICTED_CLASS", "CertifiedSegments", "certify_segments", "class_delta"]

PREDICTED_CLASS = "predicted class"
"""Key of segments that are predicted classes, their values the numbers of classes; no tag can have it."""


@dataclass(frozen=True, slots=True, eq=False)
class CertifiedSegments:
    """Thresholds by value of a tag.

    Parameters
    ----------
    key
        Key of the tag, or `PREDICTED_CLASS`.
    thresholds
        Threshold that each segment supports by itself, by value, most rows first; None if the outlier rule rejects all
        its rows.
    rows
        Certifying rows of each.
    delta
        Probability that the guarantee of one segment fails, of any class for predicted classes; None if it holds on
        average.
    others
        Certifying rows of the segments that have no threshold of their own, and rows without the tag.
    are_certified
        Whether these rows certify the pooled threshold, and not all rows.
    """

    key: str
    thresholds: dict[str, Threshold | None]
    rows: dict[str, int]
    delta: float | None
    others: int = 0
    are_certified: bool = False

    @property
    def own(self) -> dict[str, Threshold]:
        """The segments that have a threshold of their own."""
        return {value: each for value, each in self.thresholds.items() if each is not None and _is_own(each)}

    def table(self) -> SegmentThresholds:
        """What the gate enforces."""
        return SegmentThresholds(self.key, {value: each.value for value, each in self.own.items()})

    def by_class(self, classes: int, pooled: float) -> Floats:
        """Thresholds of all classes, (K,), where segments are predicted classes; others have the pooled one."""
        thresholds = np.full(classes, pooled)
        for value, each in self.own.items():
            thresholds[int(value)] = each.value
        return thresholds

    def promise(self, pooled: str) -> str:
        """The promise in words; `pooled` is that of the pooled threshold."""
        if not self.own:
            return pooled
        segments = f"segments of {self.key} separately"
        if self.key == PREDICTED_CLASS:
            segments = "predicted classes, in all of them together"
        each = f"in each of {len(self.own)} {segments}, {pooled}"
        if self.are_certified:
            return f"{each}; and so for all other rows together"
        return f"{each}; nothing is promised for other values of {self.key}"

    def certificate(self) -> dict[str, Any]:
        """JSON values."""
        own = self.own
        return {
            "key": self.key,
            "confidence": None if self.delta is None else 1.0 - self.delta,
            "confidence_is": "of all classes together"
            if self.key == PREDICTED_CLASS
            else "of each segment separately, not of all together",
            "pooled": {
                "rows": self.others,
                "certified_on": "the rows of these segments together" if self.are_certified else "all rows",
            },
            "values": [
                {
                    "value": value,
                    "rows": self.rows[value],
                    "uses": "own" if value in own else "pooled",
                    **_describe(each),
                }
                for value, each in self.thresholds.items()
            ],
        }


def certify_segments(
    rows: ScoredPredictions,
    key: str,
    delta: float | None,
    threshold_of: Callable[[ScoredPredictions], Threshold | None],
) -> tuple[CertifiedSegments, Threshold | None]:
    """Thresholds of the segments, and the pooled one if the rows of other segments certify it.

    Parameters
    ----------
    rows
        Certifying rows, with the value of the tag for each.
    key, delta
        As in `CertifiedSegments`.
    threshold_of
        The threshold that rows support; None if there is no row to certify on.
    """
    if rows.segments is None:
        raise ConfigError(f"the rows have no tag {key!r}")
    values, counts = np.unique(rows.segments[rows.segments != ""], return_counts=True)
    # Most rows first; those beyond the limit stay pooled.
    sizes = {str(values[k]): int(counts[k]) for k in np.argsort(-counts, kind="stable")[:MAX_THRESHOLDS]}
    made = CertifiedSegments(
        key, {value: threshold_of(rows.take(rows.segments == value)) for value in sizes}, sizes, delta
    )
    others = rows.take(~np.isin(rows.segments, list(made.own)))
    made = replace(made, others=len(others))
    pooled = threshold_of(others) if made.own and len(others) else None
    if pooled is None or not pooled.feasible:
        return made, None
    return replace(made, are_certified=True), pooled


def class_delta(counts: ArrayLike, accuracy: float, delta: float) -> float:
    """δ / J for the test of each class, so that all classes with thresholds and the others together hold at δ.

    J is the smallest number that covers the tests: one of the other classes, and one of each class with enough rows for
    an accuracy at δ / J. Other classes cannot pass, so they are no tests. Counts of rows choose J, not labels.

    Parameters
    ----------
    counts
        Certifying rows of each predicted class, (K,).
    accuracy, delta
        As in `threshold_by_accuracy`.
    """
    rows = np.asarray(counts)
    tests = 1
    while 1 + int((rows >= rows_without_error(1.0 - accuracy, delta / tests)).sum()) > tests:
        tests += 1
    return delta / tests


def _is_own(threshold: Threshold) -> bool:
    # A coverage that needs more rows than a segment has is met by accepting all of them, which certifies nothing.
    return threshold.feasible and (threshold.kind != "coverage" or threshold.value > -math.inf)


def _describe(threshold: Threshold | None) -> dict[str, Any]:
    if threshold is None:
        return {"threshold": None, "coverage": None, "errors_accepted": None, "labels_needed": None}
    value = threshold.value if _is_own(threshold) else None
    return {
        "threshold": str(value) if value is not None and math.isinf(value) else value,
        "coverage": threshold.coverage if threshold.feasible else None,
        "errors_accepted": threshold.errors_accepted if threshold.feasible else None,
        "labels_needed": threshold.labels_needed,
    }
