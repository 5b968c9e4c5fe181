"""Which segments of the traffic have changed, and which are always unlike the rest.

A segment is the rows with one value of one tag, such as camera=7. Segments differ from each other without any drift, so
each is compared with itself: with its own calibration rows if the bundle has at least `LEAST_ROWS` of them, otherwise
with its own earlier rows. Its rows are ranked by an urn that starts with the former, or empty, and learns from each
row; a row is ranked among the earlier ones and itself. While the rows of the segment are exchangeable with each other
and with its calibration rows, the ranks are uniform whatever their distribution: a constant difference is no evidence.

There are three such urns, as for all rows: of the outlier score, of confidence and of the predicted class. The evidence
E of a segment is the mean of the three, each stopped when it reaches its threshold: a supermartingale that starts at
one. Of S segments the k with the most evidence are discoveries if the least of them has E >= S / (k q), for the largest
such k (e-BH, Wang and Ramdas 2022). At most a share q of discoveries is false on average, whatever the dependence of
segments, which share rows, and however often it is read while S stays the same. A segment that appears later raises S
and starts at E = 1, so a reader who stops at the first discovery while segments keep appearing has a few chances more.

That a segment is unlike the rest is a statement of its own, and no drift.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.drift.betting import Bets, BetState, range_bets, score_bets
from darksight_core.drift.checks import checked_level
from darksight_core.drift.detector import Baseline, Evidence, RowBatch, mean_log_evidence
from darksight_core.drift.explanation import Description, SegmentRows, explain, is_alike
from darksight_core.drift.segment_cells import MAX_SEGMENTS, Segment, SegmentCells
from darksight_core.drift.stream import DriftState
from darksight_core.drift.urn import Ints

__all__ = ["SegmentChanges", "SegmentTest", "discoveries", "find_changes"]

# So unlikely by chance that it can be read often and of many segments.
_UNLIKE = 1e-6
# Rows without which a segment is not called unlike the rest.
_LEAST_ROWS = 50

_Name = TypeVar("_Name", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTest:
    """The test of the segments of a model, with a state for each.

    Parameters
    ----------
    baseline
        What rows are compared with.
    level
        q: bound on the expected share of false ones among the discoveries.

    >>> from darksight_core.guarantees.calibration import Calibration
    >>> rng = np.random.default_rng(0)
    >>> calibration = Calibration(rng.normal(size=999), top=rng.random(999))
    >>> test = SegmentTest(Baseline(calibration, np.array([500, 500])))
    >>> scores = np.concatenate([rng.normal(size=300), rng.normal(-2.0, 1.0, 100)])
    >>> rows = RowBatch(scores, rng.random(400), rng.integers(0, 2, 400), rng.random((400, 3)))
    >>> test.log_evidence(test.update(test.start(("camera", "7")), rows)) > math.log(10 / test.level)
    True
    """

    name: ClassVar[str] = "segments"
    kinds: ClassVar[Mapping[str, str]] = MappingProxyType({"segment": "rows of a segment"})
    is_by_segment: ClassVar[bool] = True

    baseline: Baseline
    level: float = 0.05
    cells: SegmentCells = field(init=False)
    _bets: tuple[Bets, ...] = field(init=False)

    def __post_init__(self) -> None:
        cells = SegmentCells(self.baseline.calibration, self.baseline.class_counts)
        scores, confidence, classes = (np.zeros(len(each), dtype=np.int64) for each in cells.usual)
        by_score, by_confidence = (score_bets(each, self.threshold, includes_row=True) for each in (scores, confidence))
        object.__setattr__(self, "cells", cells)
        object.__setattr__(self, "_bets", (by_score, by_confidence, range_bets(len(classes), self.threshold)))

    @classmethod
    def of(cls, baseline: Baseline) -> SegmentTest:
        """The test of a bundle."""
        return cls(baseline)

    @property
    def threshold(self) -> float:
        """Log evidence at which a process stops: its segment is then a discovery among `MAX_SEGMENTS`."""
        return math.log(3.0 * MAX_SEGMENTS / checked_level(self.level))

    def start(self, segment: Segment | None = None) -> DriftState:
        """The state before the first row of a segment."""
        blank, known = DriftState(*(bets.start() for bets in self._bets)), self.baseline.segments
        counts = None if known is None or segment is None else known.counts_of(segment, self.cells)
        if counts is None:
            return blank
        pairs = zip(blank.kinds.values(), counts, strict=True)
        return DriftState(*(replace(each, learned=own.astype(np.float64)) for each, own in pairs))

    def update(self, state: DriftState, rows: RowBatch) -> DriftState:
        """The state after more rows of the segment."""
        parts = zip(self._bets, state.kinds.values(), self.cells_of(rows).T, strict=True)
        return DriftState(*(bets.update(known, cells, rows.uniforms[:, 2])[0] for bets, known, cells in parts))

    def evidence(self, state: DriftState) -> dict[str, Evidence]:
        """Evidence of the segment; it has no restarting bets."""
        return {"segment": Evidence(self.log_evidence(state), rows=state.rows, since_row=state.since_row)}

    def describe(self, state: DriftState, class_names: Sequence[str]) -> str:
        """Nothing: the kind of evidence says it."""
        return ""

    def encode(self, state: DriftState) -> bytes:
        """The state as bytes."""
        return state.encode()

    def decode(self, data: bytes) -> DriftState:
        """Inverse of `encode`; ConfigError if the state is of another model or format."""
        return self.start().like(data)

    def log_evidence(self, state: DriftState) -> float:
        """ln E, at most `threshold`."""
        return float(np.logaddexp.reduce([self._stopped(each) for each in state.kinds.values()])) - math.log(3.0)

    def is_unlike(self, state: DriftState) -> bool:
        """Whether the rows of a segment before any change, and its calibration rows, are unlike the rest."""
        own = tuple(each.learned for each in state.kinds.values())
        usual = tuple(each * len(self.baseline.calibration) for each in self.cells.usual)
        return bool(own[0].sum() >= _LEAST_ROWS) and not is_alike(own, usual, _UNLIKE)

    def cells_of(self, rows: RowBatch) -> Ints:
        """Cells of rows, (m, 3)."""
        rows = rows.on_scale(self.baseline.calibration, self.baseline.levels)
        return self.cells.cells(rows.scores, rows.top, rows.classes, rows.uniforms)

    def _stopped(self, state: BetState) -> float:
        return self.threshold if state.alarm_row is not None else min(state.log_evidence, self.threshold)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentChanges:
    """Which segments have changed.

    Parameters
    ----------
    evidence
        ln of the mean evidence of the replicas, by segment: discoveries first, then by evidence.
    states
        State of each segment, of the replica with the most evidence.
    found
        The discoveries, most evidence first.
    explanation
        Descriptions that explain them, the one that explains most first.
    """

    evidence: Mapping[Segment, float]
    states: Mapping[Segment, DriftState]
    found: Sequence[Segment]
    explanation: Sequence[Description]


def find_changes(
    test: SegmentTest, states: Mapping[Segment, Sequence[DriftState]], rows: RowBatch, tags: Mapping[str, ArrayLike]
) -> SegmentChanges:
    """The segments that have changed, and what explains them.

    Parameters
    ----------
    test
        The test.
    states
        States of each segment, one for each replica.
    rows
        Recent rows in order of arrival, by which the discoveries are explained.
    tags
        Values of each key for the same rows, (m,), empty where a row has none.
    """
    means = {segment: mean_log_evidence(test, each)["segment"] for segment, each in states.items()}
    found = discoveries(means, test.level)
    ranked = sorted(means, key=lambda segment: (segment not in found, -means[segment]))
    strongest = {segment: max(each, key=test.log_evidence) for segment, each in states.items()}
    named: tuple[Description, ...] = ()
    if found and len(rows):
        cells, parts = test.cells_of(rows), {}
        for key, value in (each for each in found if each[0] in tags):
            state = strongest[key, value]
            learned = tuple(each.learned for each in state.kinds.values())
            inside = np.asarray(tags[key]) == value
            parts[key, value] = SegmentRows(inside, state.rows - state.since_row + 1, learned)
        named = explain(parts, lambda chosen: test.cells.count(cells[chosen]))
    return SegmentChanges({each: means[each] for each in ranked}, strongest, found, named)


def discoveries(log_evidence: Mapping[_Name, float], level: float) -> tuple[_Name, ...]:
    """The segments that have changed, most evidence first, by e-BH at a level of false discoveries.

    >>> discoveries({"a": math.log(70.0), "b": math.log(50.0), "c": 0.0}, 0.05)
    ('a', 'b')
    """
    checked_level(level)
    ranked = sorted(log_evidence, key=lambda name: -log_evidence[name])
    least = [math.log(len(ranked) / (k * level)) for k in range(1, len(ranked) + 1)]
    # Evidence that stopped at exactly its threshold must not fail by rounding.
    passed = [k for k, name in enumerate(ranked) if log_evidence[name] >= least[k] - 1e-9]
    return tuple(ranked[: passed[-1] + 1]) if passed else ()
