"""The drift test of a model: evidence of its outlier scores, its confidence and its predicted classes, row by row.

    scores       outlier score: foreign rows, and rows that are unusual in any way
    confidence   log-odds of the largest probability: the classifier is less sure, or surer, than usual
    classes      predicted class: the class mix

The state is small and immutable, so a process that stores rows can store it with them: after a crash it continues with
the state of the rows that were stored, and no row counts twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.drift.betting import Bets, BetState, class_bets, score_bets
from darksight_core.drift.checks import checked_level
from darksight_core.drift.urn import Ints, ScoreCells
from darksight_core.errors import ConfigError
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats

__all__ = ["DriftState", "DriftTest", "mean_log_evidence"]

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

    def encode(self) -> bytes:
        """The state as bytes, for `DriftTest.decode`."""
        return np.concatenate([[_FORMAT], *(each.numbers() for each in self.kinds.values())]).tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class DriftTest:
    """The test of a model for drift, anytime-valid: P(any alarm, ever | no drift) <= level.

    Of 7 parts of the level each kind of evidence has 2, and 1 is for the bounds of the class shares. The order of rows
    within a batch is that of its rows.

    Parameters
    ----------
    calibration
        Calibration of the outlier score, with the largest probabilities of its rows.
    class_counts
        Reference rows of each predicted class, (K,).
    level
        Bound on the probability of a false alarm.

    >>> rng = np.random.default_rng(0)
    >>> test = DriftTest(Calibration(rng.normal(size=999), top=rng.random(999)), np.array([500, 500]))
    >>> rows = rng.normal(-2.0, 1.0, 100), rng.random(100), rng.integers(0, 2, 100)
    >>> state, _ = test.update(test.start(), *rows, rng.random((100, 3)))
    >>> state.alarm_row is not None and state.alarm_row < 20
    True
    """

    calibration: Calibration
    class_counts: Ints
    level: float = 0.01
    _cells: tuple[ScoreCells, ScoreCells] = field(init=False)
    _bets: tuple[Bets, Bets, Bets] = field(init=False)

    def __post_init__(self) -> None:
        top = self.calibration.top
        if top is None:
            raise ConfigError("the bundle has no largest probabilities of its calibration rows; fit it again")
        cells = ScoreCells(self.calibration), ScoreCells(Calibration(_log_odds(top)))
        by_score, by_confidence = (score_bets(each.gaps, self.threshold) for each in cells)
        by_class = class_bets(self.class_counts, self.threshold, self.level / 7.0)
        object.__setattr__(self, "_cells", cells)
        object.__setattr__(self, "_bets", (by_score, by_confidence, by_class))

    @property
    def threshold(self) -> float:
        """ln(3.5 / level): log evidence of an alarm, of each kind."""
        return math.log(3.5 / checked_level(self.level))

    def start(self) -> DriftState:
        """The state before the first row."""
        return DriftState(*(bets.start() for bets in self._bets))

    def update(
        self, state: DriftState, scores: ArrayLike, top: ArrayLike, classes: ArrayLike, uniforms: Floats
    ) -> tuple[DriftState, Floats]:
        """The state after more rows, and the log evidence of each kind after each of them, (m, 3).

        The result does not depend on how rows are divided into calls.

        Parameters
        ----------
        scores
            Outlier scores in order of arrival, (m,), finite.
        top
            Largest probabilities, (m,).
        classes
            Predicted classes, (m,).
        uniforms
            Three independent uniform numbers of each row, (m, 3); see `row_uniforms`.
        """
        found = (
            self._cells[0].cells(scores, uniforms[:, 0]),
            self._cells[1].cells(_log_odds(top), uniforms[:, 1]),
            np.asarray(classes, dtype=np.int64),
        )
        states, paths = [], []
        for bets, known, cells in zip(self._bets, state.kinds.values(), found, strict=True):
            after, path = bets.update(known, cells, uniforms[:, 2])
            states.append(after)
            paths.append(path)
        return DriftState(*states), np.stack(paths, axis=1)

    def decode(self, data: bytes) -> DriftState:
        """Inverse of `DriftState.encode`; ConfigError if the state is of another model or format."""
        blank = self.start()
        size = len(blank.encode())
        if len(data) != size:
            raise ConfigError(f"the drift state has {len(data)} bytes, not {size}: it is of another model or format")
        numbers = np.frombuffer(data, dtype=np.float64)
        if numbers[0] != _FORMAT:
            raise ConfigError(f"the drift state has format {numbers[0]:g}, not {_FORMAT:g}")
        ends = 1 + np.cumsum([len(each.numbers()) for each in blank.kinds.values()])
        parts = np.split(numbers[1:], ends[:-1] - 1)
        return DriftState(*(each.like(part) for part, each in zip(parts, blank.kinds.values(), strict=True)))


def mean_log_evidence(states: Sequence[DriftState]) -> dict[str, float]:
    """ln of the mean evidence of replicas by kind: valid as the evidence of one, whatever their dependence."""
    return {
        kind: float(np.logaddexp.reduce([each.kinds[kind].log_evidence for each in states])) - math.log(len(states))
        for kind in states[0].kinds
    }


def _log_odds(top: ArrayLike) -> Floats:
    """Log-odds of largest probabilities (n,), which are float32 where they are stored."""
    values = np.minimum(np.asarray(top, dtype=np.float32).astype(np.float64), 1.0 - 2.0**-25)
    return np.log(np.maximum(values, 1e-30)) - np.log1p(-values)
