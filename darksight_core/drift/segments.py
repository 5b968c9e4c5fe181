"""Which segments of the traffic have changed, and which of them explains a drift.

A segment is the rows with one value of one tag, such as camera=7. Each has two e-processes on its outlier scores:

    calibrated   its rows are exchangeable with the calibration rows     finds a segment that was never calibrated
    own          its rows are exchangeable with each other               finds a segment that changed, also one whose
                                                                         scores were always different

The evidence E of a segment is the mean of the two, each stopped when it reaches its threshold: a supermartingale that
starts at one while the segment is like the calibration rows. Of S segments the k with the most evidence are discoveries
if the least of them has E >= S / (k q), for the largest such k (e-BH, Wang and Ramdas 2022). At most a share q of
discoveries is false on average, whatever the dependence of segments, which share rows, and however often it is read
while S stays the same. A segment that appears later raises S and starts at E = 1, so a reader who stops at the first
discovery while segments keep appearing has a few chances more.

The explanation is the smallest description that leaves the rest of the discoveries quiet: one value of one tag, or a
pair of values if each leaves the other quiet. It is a description of rows that were seen, not another test.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.drift.betting import Bets, BetState, score_bets
from darksight_core.drift.checks import checked_level
from darksight_core.drift.detector import Baseline, Evidence, RowBatch
from darksight_core.drift.urn import ScoreCells
from darksight_core.errors import ConfigError
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats

__all__ = [
    "MAX_SEGMENTS",
    "Description",
    "Segment",
    "SegmentState",
    "SegmentTest",
    "describe",
    "discoveries",
    "explain",
]

Segment: TypeAlias = tuple[str, str]
"""Key and value of a tag."""

Description: TypeAlias = tuple[Segment, ...]
"""Conditions that all hold."""

MAX_SEGMENTS = 400
"""Most segments that one family of tests has."""

_FORMAT = 1.0
# A part of a segment is quiet if neither figure is off by this many standard errors, or it has fewer rows than this.
_LOUD, _LEAST_ROWS = 3.0, 20
_LOW = 0.05

_Name = TypeVar("_Name", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentState:
    """Evidence of one segment; see the module."""

    calibrated: BetState
    own: BetState

    @property
    def rows(self) -> int:
        """Rows seen."""
        return self.own.rows

    @property
    def since_row(self) -> int:
        """Row of the segment, counted from 1, at which the change is estimated to have begun."""
        return max((self.calibrated, self.own), key=lambda each: each.log_restarting).since_row


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTest:
    """The test of the segments of a model, with a state for each.

    Parameters
    ----------
    calibration
        Calibration of the outlier score.
    level
        q: bound on the expected share of false ones among the discoveries.

    >>> rng = np.random.default_rng(0)
    >>> test = SegmentTest(Calibration(rng.normal(size=999)))
    >>> scores, uniforms = rng.normal(-2.0, 1.0, 100), rng.random((100, 3))
    >>> state = test.update(test.start(), RowBatch(scores, np.ones(100), np.zeros(100, dtype=np.int64), uniforms))
    >>> test.log_evidence(state) > math.log(400 / test.level)
    True
    """

    name: ClassVar[str] = "segments"
    kinds: ClassVar[Mapping[str, str]] = MappingProxyType({"segment": "outlier scores of a segment"})
    is_by_segment: ClassVar[bool] = True

    calibration: Calibration
    level: float = 0.05
    _cells: ScoreCells = field(init=False)
    _bets: tuple[Bets, Bets] = field(init=False)

    def __post_init__(self) -> None:
        cells = ScoreCells(self.calibration)
        by_calibration = score_bets(cells.gaps, self.threshold)
        by_past = score_bets(np.zeros_like(cells.gaps), self.threshold, includes_row=True)
        object.__setattr__(self, "_cells", cells)
        object.__setattr__(self, "_bets", (by_calibration, by_past))

    @classmethod
    def of(cls, baseline: Baseline) -> SegmentTest:
        """The test of a bundle."""
        return cls(baseline.calibration)

    @property
    def threshold(self) -> float:
        """Log evidence at which a process stops: its segment is then a discovery among `MAX_SEGMENTS`."""
        return math.log(2.0 * MAX_SEGMENTS / checked_level(self.level))

    def start(self) -> SegmentState:
        """The state before the first row."""
        return SegmentState(*(bets.start() for bets in self._bets))

    def update(self, state: SegmentState, rows: RowBatch) -> SegmentState:
        """The state after more rows of the segment."""
        cells = self._cells.cells(rows.scores, rows.uniforms[:, 0])
        pairs = zip(self._bets, (state.calibrated, state.own), strict=True)
        return SegmentState(*(bets.update(known, cells, rows.uniforms[:, 2])[0] for bets, known in pairs))

    def evidence(self, state: SegmentState) -> dict[str, Evidence]:
        """Evidence of the segment; it has no restarting bets."""
        return {"segment": Evidence(self.log_evidence(state), rows=state.rows, since_row=state.since_row)}

    def encode(self, state: SegmentState) -> bytes:
        """The state as bytes."""
        return np.concatenate([[_FORMAT], state.calibrated.numbers(), state.own.numbers()]).tobytes()

    def log_evidence(self, state: SegmentState) -> float:
        """ln E, at most `threshold`."""
        return float(np.logaddexp(self._stopped(state.calibrated), self._stopped(state.own))) - math.log(2.0)

    def is_changed(self, state: SegmentState) -> bool:
        """Whether the rows of a discovery differ from its own earlier ones, not only from the calibration rows."""
        return self._stopped(state.own) >= math.log(1.0 / self.level)

    def p_values(self, scores: ArrayLike, uniforms: Floats) -> Floats:
        """Ranks of rows among the calibration rows, uniform in (0, 1) without drift, (m,); for `explain`."""
        cells = self._cells.cells(scores, uniforms[:, 0])
        low: Floats = self._cells.edges[cells] - (1.0 - uniforms[:, 2]) * self._cells.gaps[cells]
        return low / (len(self.calibration) + 1)

    def decode(self, data: bytes) -> SegmentState:
        """Inverse of `encode`; ConfigError if the state is of another model or format."""
        blank = self.start()
        size = len(self.encode(blank))
        numbers = np.frombuffer(data, dtype=np.float64) if len(data) == size else np.zeros(1)
        if numbers[0] != _FORMAT:
            raise ConfigError(f"the segment state of {len(data)} bytes is of another model or format")
        cut = 1 + len(blank.calibrated.numbers())
        return SegmentState(blank.calibrated.like(numbers[1:cut]), blank.own.like(numbers[cut:]))

    def _stopped(self, state: BetState) -> float:
        return self.threshold if state.alarm_row is not None else min(state.log_evidence, self.threshold)


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


def explain(
    found: Sequence[Segment], p_values: Floats, tags: Mapping[str, ArrayLike], calibration_rows: int
) -> tuple[Description, ...]:
    """Descriptions that together explain the discoveries, the one that explains most first.

    A description explains a discovery if the rows of the discovery outside of it are quiet: their mean p-value and
    their share of p-values up to 0.05 are what calibration says. Of segments that explain equally much the one whose
    rows deviate most is named; two that leave each other quiet are named as a pair.

    Parameters
    ----------
    found
        The discoveries, most evidence first.
    p_values
        Recent rows, (m,); see `SegmentTest.p_values`.
    tags
        Values of each key for the same rows, (m,), empty where a row has none.
    calibration_rows
        n.
    """
    rows = {segment: np.asarray(tags[segment[0]]) == segment[1] for segment in found if segment[0] in tags}
    sizes = {segment: _deviation(p_values[mask]) for segment, mask in rows.items()}
    left, named = [segment for segment in found if segment in rows], []
    while left:
        explained = {
            segment: {each for each in left if _is_quiet(p_values[rows[each] & ~rows[segment]], calibration_rows)}
            for segment in left
        }
        best = max(left, key=lambda segment: (len(explained[segment]), sizes[segment]))
        description: Description = (best,)
        for other in left:
            is_pair = other[0] != best[0] and other in explained[best] and best in explained[other]
            if is_pair and (rows[best] & ~rows[other]).sum() >= _LEAST_ROWS:
                description = (best, other)
                break
        named.append(description)
        left = [each for each in left if each not in explained[best]]
    return tuple(named)


def describe(description: Description) -> str:
    """A description in words.

    >>> describe((("camera", "7"), ("city", "Lyon")))
    'camera=7 and city=Lyon'
    """
    return " and ".join(f"{key}={value}" for key, value in description)


def _deviation(p_values: Floats) -> float:
    """How much rows differ from uniform ones, in standard deviations of a row."""
    if not len(p_values):
        return 0.0
    moved = abs(float(p_values.mean()) - 0.5) * math.sqrt(12.0)
    low = abs(float((p_values <= _LOW).mean()) - _LOW) / math.sqrt(_LOW * (1.0 - _LOW))
    return max(moved, low)


def _is_quiet(p_values: Floats, calibration_rows: int) -> bool:
    rows = len(p_values)
    return rows < _LEAST_ROWS or _deviation(p_values) < _LOUD * math.sqrt(1.0 / rows + 1.0 / calibration_rows)
