"""What every detector of drift has in common: evidence that is updated row by row and kept as bytes.

A detector is made for one bundle. Its state is small, immutable and bounded, so the process that stores rows can store
it with them: after a crash it continues with the state of the rows that were stored, and no row counts twice. The state
after some rows must not depend on how they were divided into batches.

Evidence is an e-process: while nothing changes it ever reaches 1/a with probability at most a. So the mean over
replicas, each of which has a state of its own, is evidence as well, whatever their dependence.

A detector that `is_by_segment` has one state for each value of each tag. It is given the name of the segment where the
state starts, and then the rows of that segment alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.row_features import RowFeatures
from darksight_core.drift.segment_cells import Segment, SegmentCounts
from darksight_core.drift.urn import Ints, ScoreCells
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats

__all__ = ["Baseline", "Detector", "Evidence", "RowBatch", "mean_log_evidence"]

State = TypeVar("State")


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """What rows are compared with.

    Parameters
    ----------
    calibration
        The calibration rows.
    class_counts
        Reference rows of each predicted class, (K,).
    segments
        Calibration rows of each segment in cells; None if the bundle has none. See `segment_cells`.
    features
        Features of fit and calibration rows; None if the bundle has none. See `witnesses`.
    levels
        The calibration rows at coarser resolutions, by number.
    """

    calibration: Calibration
    class_counts: Ints
    segments: SegmentCounts | None = None
    features: RowFeatures | None = None
    levels: Mapping[int, Calibration] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """Rows in order of arrival.

    Parameters
    ----------
    scores
        Outlier scores, (m,), finite.
    top
        Largest probabilities, (m,), finite.
    classes
        Predicted classes, (m,).
    uniforms
        Three independent uniform numbers of each row, (m, 3); see `row_uniforms`.
    probabilities
        The rows themselves, (m, K), on the simplex; None if they are not known.
    resolution
        Number of the resolution at which each row was ranked, (m,); None if all were at that of the fit rows.
    """

    scores: Floats
    top: Floats
    classes: NDArray[np.integer]
    uniforms: Floats
    probabilities: NDArray[np.floating] | None = None
    resolution: NDArray[np.integer] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def on_scale(self, calibration: Calibration, levels: Mapping[int, Calibration]) -> RowBatch:
        """The same rows with scores and largest probabilities on the scale of the fit rows.

        A row of a coarser resolution gets the values that have the same ranks among the calibration rows. So rows that
        only lost digits are no drift.

        Parameters
        ----------
        calibration, levels
            As in `Baseline`.
        """
        if self.resolution is None or not np.isin(self.resolution, [*levels]).any():
            return self
        scores, top = np.array(self.scores, dtype=np.float64), np.array(self.top, dtype=np.float64)
        for number, level in levels.items():
            rows = np.flatnonzero(self.resolution == number)
            pairs = ((scores, level, calibration, 0), (top, _by_top(level), _by_top(calibration), 1))
            for values, known, own, column in pairs:
                values[rows] = _same_rank(values[rows], known, own, self.uniforms[rows, column])
        return replace(self, scores=scores, top=np.clip(top, 0.0, 1.0), resolution=None)

    def take(self, rows: Any) -> RowBatch:
        """Some of the rows."""
        probs, resolution = (None if each is None else each[rows] for each in (self.probabilities, self.resolution))
        return RowBatch(self.scores[rows], self.top[rows], self.classes[rows], self.uniforms[rows], probs, resolution)


class Evidence(NamedTuple):
    """Evidence of one kind.

    Parameters
    ----------
    log_evidence
        ln of the evidence since the start; 0 without rows.
    log_restarting
        ln of the evidence of bets that are opened at every row, at least 0; see `betting`.
    rows
        Rows seen.
    since_row
        Row, counted from 1, at which a change is estimated to have begun.
    highest
        Largest `log_evidence` so far.
    alarm_row
        Number of the first row, counted from 1, at which it reached the threshold, or None.
    """

    log_evidence: float
    log_restarting: float = 0.0
    rows: int = 0
    since_row: int = 1
    highest: float = 0.0
    alarm_row: int | None = None


class Detector(Protocol[State]):
    """A detector of drift; `darksight_core.drift.detectors` lists all of them.

    `name` is that of its states in the database. `kinds` names the kinds of its evidence, each with what changes when
    it is high. `level` is its share of the probability of a false alarm, or of false discoveries by segment, and
    `threshold` the log evidence of an alarm.
    """

    name: ClassVar[str]
    kinds: ClassVar[Mapping[str, str]]
    is_by_segment: ClassVar[bool]

    @property
    def level(self) -> float: ...  # noqa: D102
    @property
    def threshold(self) -> float: ...  # noqa: D102

    @classmethod
    def of(cls, baseline: Baseline) -> Self | None:
        """The detector of a bundle, None if it is not for such rows; ConfigError if the bundle lacks what it needs."""
        ...

    def start(self, segment: Segment | None = None) -> State:
        """The state before the first row, of a segment or of all rows."""
        ...

    def update(self, state: State, rows: RowBatch) -> State:
        """The state after more rows."""
        ...

    def evidence(self, state: State) -> Mapping[str, Evidence]:
        """Evidence by kind."""
        ...

    def describe(self, state: State, class_names: Sequence[str]) -> str:
        """What has changed, in words, if the detector knows more than the kind of its evidence."""
        ...

    def encode(self, state: State) -> bytes:
        """The state as bytes."""
        ...

    def decode(self, data: bytes) -> State:
        """Inverse of `encode`; ConfigError if the state is of another bundle or format."""
        ...


def _by_top(calibration: Calibration) -> Calibration:
    """Largest probabilities of calibration rows as scores."""
    top = np.zeros(len(calibration)) if calibration.top is None else calibration.top
    return Calibration(np.asarray(top, dtype=np.float64))


def _same_rank(values: Floats, known: Calibration, own: Calibration, uniforms: Floats) -> Floats:
    """Values (m,) in the middle of the gap between own scores that they have the number of among known ones."""
    gaps = ScoreCells(known).gaps_below(values, uniforms)
    scores = own.scores
    middles = np.concatenate(
        [[2.0 * scores[0] - scores[-1] - 1.0], 0.5 * (scores[1:] + scores[:-1]), [scores[-1] + 1.0]]
    )
    found: Floats = middles[gaps]
    return found


def mean_log_evidence(detector: Detector[State], states: Sequence[State]) -> dict[str, float]:
    """ln of the mean evidence of replicas by kind; a replica that has seen no rows has evidence one."""
    found = [detector.evidence(state) for state in states]
    return {
        kind: float(np.logaddexp.reduce([each[kind].log_evidence for each in found])) - math.log(len(found))
        for kind in detector.kinds
    }
