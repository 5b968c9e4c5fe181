"""The drift test of a model: evidence of its outlier scores, its confidence and its predicted classes, row by row.

scores       outlier score: foreign rows, and rows that are unusual in any way
confidence   log-odds of the largest probability: the classifier is less sure, or surer, than usual
classes      predicted class: the class mix
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from darksight_core.drift.betting import Bets, BetState, class_bets, score_bets
from darksight_core.drift.checks import checked_level
from darksight_core.drift.detector import Baseline, Evidence, RowBatch
from darksight_core.drift.segment_cells import Segment
from darksight_core.drift.urn import Ints, ScoreCells, log_odds
from darksight_core.errors import ConfigError
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats

__all__ = ["DriftState", "DriftTest"]

_FORMAT = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class DriftState:
    """Evidence of scores, confidence and classes after the same rows."""

    scores: BetState
    confidence: BetState
    classes: BetState

    @property
    def kinds(self) -> dict[str, BetState]:
        """The three by name."""
        return {"scores": self.scores, "confidence": self.confidence, "classes": self.classes}

    @property
    def rows(self) -> int:
        """Rows seen."""
        return self.scores.rows

    @property
    def alarm_row(self) -> int | None:
        """Number of the first row, counted from 1, at which any evidence reached its threshold, or None."""
        return min((each.alarm_row for each in self.kinds.values() if each.alarm_row is not None), default=None)

    @property
    def since_row(self) -> int:
        """Row, counted from 1, at which the change with the most evidence is estimated to have begun."""
        return max(self.kinds.values(), key=lambda each: each.log_restarting).since_row

    def encode(self) -> bytes:
        """The state as bytes."""
        return np.concatenate([[_FORMAT], *(each.numbers() for each in self.kinds.values())]).tobytes()

    def like(self, data: bytes) -> DriftState:
        """Inverse of `encode`, for a state of the same bets as this one; ConfigError if it is not of them."""
        size = len(self.encode())
        if len(data) != size:
            raise ConfigError(f"the drift state has {len(data)} bytes, not {size}: it is of another model or format")
        numbers = np.frombuffer(data, dtype=np.float64)
        if numbers[0] != _FORMAT:
            raise ConfigError(f"the drift state has format {numbers[0]:g}, not {_FORMAT:g}")
        ends = np.cumsum([len(each.numbers()) for each in self.kinds.values()])
        parts = np.split(numbers[1:], ends[:-1])
        return DriftState(*(each.like(part) for part, each in zip(parts, self.kinds.values(), strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class DriftTest:
    """The test of a model for drift, anytime-valid: P(any alarm, ever | no drift) <= level.

    Of 9 parts of the level each kind of evidence has 2, `WitnessTest` has 2, and 1 is for the bounds of the class
    shares. The order of rows within a batch is that of its rows.

    Parameters
    ----------
    calibration
        Calibration of the outlier score, with the largest probabilities of its rows.
    class_counts
        Reference rows of each predicted class, (K,).
    level
        Bound on the probability of a false alarm.
    levels
        The calibration at coarser resolutions, by number.

    >>> rng = np.random.default_rng(0)
    >>> test = DriftTest(Calibration(rng.normal(size=999), top=rng.random(999)), np.array([500, 500]))
    >>> rows = RowBatch(
    ...     rng.normal(-2.0, 1.0, 100), rng.random(100), rng.integers(0, 2, 100), rng.random((100, 3))
    ... )
    >>> state = test.update(test.start(), rows)
    >>> state.alarm_row is not None and state.alarm_row < 20
    True
    """

    name: ClassVar[str] = "stream"
    kinds: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"scores": "outlier scores", "confidence": "confidence", "classes": "predicted classes"}
    )
    is_by_segment: ClassVar[bool] = False

    calibration: Calibration
    class_counts: Ints
    level: float = 0.01
    levels: Mapping[int, Calibration] = field(default_factory=dict)
    _cells: tuple[ScoreCells, ScoreCells] = field(init=False)
    _bets: tuple[Bets, Bets, Bets] = field(init=False)

    def __post_init__(self) -> None:
        top = self.calibration.top
        if top is None:
            raise ConfigError("the bundle has no largest probabilities of its calibration rows; fit it again")
        cells = ScoreCells(self.calibration), ScoreCells(Calibration(log_odds(top)))
        by_score, by_confidence = (score_bets(each.gaps, self.threshold) for each in cells)
        by_class = class_bets(self.class_counts, self.threshold, self.level / 9.0)
        object.__setattr__(self, "_cells", cells)
        object.__setattr__(self, "_bets", (by_score, by_confidence, by_class))

    @classmethod
    def of(cls, baseline: Baseline) -> DriftTest:
        """The test of a bundle."""
        return cls(baseline.calibration, baseline.class_counts, levels=baseline.levels)

    @property
    def threshold(self) -> float:
        """ln(4.5 / level): log evidence of an alarm, of each kind."""
        return math.log(4.5 / checked_level(self.level))

    def start(self, segment: Segment | None = None) -> DriftState:
        """The state before the first row; this test has no segments."""
        return DriftState(*(bets.start() for bets in self._bets))

    def update(self, state: DriftState, rows: RowBatch) -> DriftState:
        """The state after more rows; rows of classes that the bundle does not have are left out."""
        return self.follow(state, rows)[0]

    def follow(self, state: DriftState, rows: RowBatch) -> tuple[DriftState, Floats]:
        """The state after more rows, and the log evidence of each kind after each of them, (m, 3)."""
        is_known = (rows.classes >= 0) & (rows.classes < len(self.class_counts))
        known = (rows if is_known.all() else rows.take(is_known)).on_scale(self.calibration, self.levels)
        found = (
            self._cells[0].cells(known.scores, known.uniforms[:, 0]),
            self._cells[1].cells(log_odds(known.top), known.uniforms[:, 1]),
            np.asarray(known.classes, dtype=np.int64),
        )
        states, paths = [], []
        for bets, before, cells in zip(self._bets, state.kinds.values(), found, strict=True):
            after, path = bets.update(before, cells, known.uniforms[:, 2])
            states.append(after)
            paths.append(path)
        return DriftState(*states), np.stack(paths, axis=1)

    def evidence(self, state: DriftState) -> dict[str, Evidence]:
        """Evidence by kind."""
        return {
            kind: Evidence(
                each.log_evidence, each.log_restarting, each.rows, each.since_row, each.highest, each.alarm_row
            )
            for kind, each in state.kinds.items()
        }

    def describe(self, state: DriftState, class_names: Sequence[str]) -> str:
        """Nothing: the kind of evidence says it."""
        return ""

    def encode(self, state: DriftState) -> bytes:
        """The state as bytes."""
        return state.encode()

    def decode(self, data: bytes) -> DriftState:
        """Inverse of `encode`; ConfigError if the state is of another model or format."""
        return self.start().like(data)
