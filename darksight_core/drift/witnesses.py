"""Drift by learned witnesses: directions in which recent rows differ from the fit rows, tested on later rows.

The outlier score and the confidence see a change only as far as it moves them. Slow or mild changes move the whole
vector of log-probabilities a little, and most of what they move is neither. So every 1,000 rows a direction is learned
from the last 2,000,

    v = (C + 0.02 I)⁻¹ (mean of φ over these rows - mean of φ over fit rows)

with φ the features of a row (see `RowFeatures`) and C their covariance over fit rows. Then it is frozen: v·φ of
*later* rows is ranked among that of the calibration rows, which had no part in v, by the urn of `urn`. So its bets are
fair while nothing changes, whatever was learned. A witness bets for 3,000 rows.

The j-th witness starts with the share 1 / (j (j + 1)) of the capital, and what is left of it in the end stays in the
sum: the evidence is one e-process. Evidence is added over witnesses and never multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.checks import checked_level
from darksight_core.drift.detector import Baseline, Evidence, RowBatch
from darksight_core.drift.row_features import RowFeatures
from darksight_core.drift.segment_cells import Segment
from darksight_core.errors import ConfigError
from darksight_core.rows.resolution import FULL, is_rounded
from darksight_core.rows.simplex import Floats

__all__ = ["WitnessState", "WitnessTest"]

_FORMAT = 1.0
# Rows of a block, blocks that a witness is learned from, and blocks that it bets on.
_BLOCK, _WINDOW, _LIFE = 1_000, 2, 3
# Rows that are computed together. A factor is at least 0.05 and at most 10⁴, so products stay within float64.
_CHUNK, _LARGEST, _MOST = 50, 1e4, 1e15
_CELLS = 20
_SLOPES, _POWERS = np.array([-0.4, -1.0, -1.9]), np.array([0.2, 0.5])
_BETS = len(_SLOPES) + len(_POWERS)
# Share of the unit matrix in C.
_RIDGE = 0.02
# Of more classes than this, a share of the rows is looked at, by their uniform numbers: the level does not change.
_ALL_ROWS = 100
# Noise that breaks ties, in standard deviations of v·φ: equal rows must not be told apart by rounding.
_NOISE = 1e-3
# Rows by whose share of coarse ones the next as many are looked at, and how far it may be above the usual share.
_STRETCH, _COARSE = 50, 0.2


@dataclass(frozen=True, slots=True, eq=False)
class WitnessState:
    """Everything that the next row needs; arrays are never changed in place.

    Parameters
    ----------
    rows
        Rows seen.
    idle
        Capital that is not at stake: of later witnesses, and what earlier ones have left.
    sums
        Sums of the features of the present block and of the last two, the last one first, (3, D).
    directions, edges, spread
        v of each witness, (3, D), upper ends of its cells, (3, 19), and its standard deviation, (3, 1).
    learned
        Rows that the urn of each witness has learned from, in each cell, (3, 20).
    capital
        Capital of the bets of each witness, (3, 5).
    counted
        Rows that have come, and coarse ones in the present stretch and in the one before, (3,).
    highest, alarm_row
        Largest log evidence so far, and the first row, counted from 1, at which it reached the threshold, or None.
    """

    rows: int
    idle: float
    sums: Floats
    directions: Floats
    edges: Floats
    spread: Floats
    learned: Floats
    capital: Floats
    counted: Floats
    highest: float = 0.0
    alarm_row: int | None = None

    @property
    def log_evidence(self) -> float:
        """ln M."""
        return math.log(self.idle + float(self.capital.sum()))

    @property
    def strongest(self) -> int:
        """The witness that has won most since it started."""
        return int(self._gains().argmax())

    @property
    def log_restarting(self) -> float:
        """ln of the sum of the evidence of the present witnesses, each since its start; at least 0."""
        return math.log(max(float(self._gains().sum()), 1.0))

    @property
    def since_row(self) -> int:
        """Row, counted from 1, at which the window of the strongest witness began."""
        return max((int(self._lessons()[self.strongest]) - _WINDOW) * _BLOCK + 1, 1)

    def _gains(self) -> Floats:
        """Evidence of each witness since its start, (3,)."""
        gains: Floats = self.capital.sum(axis=1) / _share(np.maximum(self._lessons(), _WINDOW))
        return gains

    def _lessons(self) -> NDArray[np.int64]:
        """After which block each witness was learned, (3,); before the second there is none."""
        blocks = self.rows // _BLOCK
        return blocks - (blocks - np.arange(_LIFE)) % _LIFE

    @classmethod
    def of(cls, rows: int, idle: float, arrays: Sequence[Floats]) -> WitnessState:
        """A state from `arrays`."""
        sums, directions, edges, spread, learned, capital, counted = arrays
        return cls(rows, idle, sums, directions, edges, spread, learned, capital, counted)

    def arrays(self) -> tuple[Floats, ...]:
        """All arrays."""
        return self.sums, self.directions, self.edges, self.spread, self.learned, self.capital, self.counted


@dataclass(frozen=True, slots=True, eq=False)
class WitnessTest:
    """The test of a model for drift by witnesses, anytime-valid: P(an alarm, ever | no drift) <= 2 level / 9.

    Parameters
    ----------
    features
        Of the bundle.
    level
        Bound on the probability of a false alarm of this test and of `DriftTest` together.
    left_out
        Numbers of resolutions coarser than that of the fit rows, whose rows this test does not look at.
    """

    name: ClassVar[str] = "witnesses"
    kinds: ClassVar[Mapping[str, str]] = MappingProxyType({"witnesses": "learned combinations of classes"})
    is_by_segment: ClassVar[bool] = False

    features: RowFeatures
    level: float = 0.01
    left_out: Collection[int] = ()
    _precision: Floats = field(init=False)
    _noise: Floats = field(init=False)
    _ends: NDArray[np.int64] = field(init=False)
    _gaps: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        covariance = self.features.covariance.astype(np.float64)
        total = len(self.features.calibration) + 1
        ends = np.maximum(np.round((np.arange(1, _CELLS + 1) / _CELLS) ** 2 * total).astype(np.int64), 1)
        object.__setattr__(self, "_precision", np.linalg.inv(covariance + _RIDGE * np.eye(len(covariance))))
        object.__setattr__(self, "_noise", np.random.default_rng(0).random(total - 1) - 0.5)
        object.__setattr__(self, "_ends", ends)
        object.__setattr__(self, "_gaps", np.diff(ends, prepend=0))

    @classmethod
    def of(cls, baseline: Baseline) -> WitnessTest | None:
        """The test of a bundle; None for a bundle of rows of which only some classes are known."""
        return None if baseline.features is None else cls(baseline.features, left_out=[*baseline.levels])

    @property
    def threshold(self) -> float:
        """ln(4.5 / level): log evidence of an alarm, as of each kind of `DriftTest`."""
        return math.log(4.5 / checked_level(self.level))

    def start(self, segment: Segment | None = None) -> WitnessState:
        """The state before the first row; this test has no segments."""
        size = len(self.features.covariance)
        shapes = ((1 + _WINDOW, size), *((_LIFE, each) for each in (size, _CELLS - 1, 1, _CELLS, _BETS)))
        return WitnessState.of(0, 1.0, [*(np.zeros(shape) for shape in shapes), np.zeros(3)])

    def update(self, state: WitnessState, rows: RowBatch) -> WitnessState:
        """The state after more rows; without their probabilities it is the same."""
        if rows.probabilities is None:
            return state
        classes = len(self.features.means)
        if rows.probabilities.shape[1:] != (classes,):
            shape = rows.probabilities.shape
            raise ConfigError(f"witnesses of {classes} classes cannot look at rows of shape {shape}")
        state, rows = self._fine(state, rows)
        probs = rows.probabilities
        assert probs is not None
        chosen = rows.uniforms[:, 1] * classes < _ALL_ROWS
        if classes > _ALL_ROWS:
            probs = probs[chosen]
        uniforms = rows.uniforms if classes <= _ALL_ROWS else rows.uniforms[chosen]
        with np.errstate(divide="ignore"):
            features = self.features.of(np.log(probs.astype(np.float64))).astype(np.float64)
        first = 0
        while first < len(features):
            # Chunks begin at the same rows in every division of the rows into calls.
            part = slice(first, first + _CHUNK - state.rows % _CHUNK)
            state = self._chunk(state, features[part], uniforms[part])
            first = part.stop
        return state

    def evidence(self, state: WitnessState) -> dict[str, Evidence]:
        """Evidence of the witnesses."""
        # Of many classes only a share of the rows is looked at.
        scale = max(len(self.features.means) / _ALL_ROWS, 1.0)
        rows, since_row = round(scale * state.rows), max(round(scale * state.since_row), 1)
        alarm_row = None if state.alarm_row is None else min(round(scale * state.alarm_row), rows)
        found = Evidence(state.log_evidence, state.log_restarting, rows, since_row, state.highest, alarm_row)
        return {"witnesses": found}

    def encode(self, state: WitnessState) -> bytes:
        """The state as bytes: 3 kB for 10 classes, 6 kB for 25 and more."""
        alarm_row = -1 if state.alarm_row is None else state.alarm_row
        head = [_FORMAT, state.rows, state.idle, state.highest, alarm_row]
        return np.concatenate([head, *(each.ravel() for each in state.arrays())]).tobytes()

    def decode(self, data: bytes) -> WitnessState:
        """Inverse of `encode`; ConfigError if the state is of another model or format."""
        blank = self.start()
        size = len(self.encode(blank))
        if len(data) != size:
            raise ConfigError(f"the witness state has {len(data)} bytes, not {size}: it is of another model or format")
        numbers = np.frombuffer(data, dtype=np.float64)
        if numbers[0] != _FORMAT:
            raise ConfigError(f"the witness state has format {numbers[0]:g}, not {_FORMAT:g}")
        rows, idle, highest, alarm_row = numbers[1:5].tolist()
        ends = np.cumsum([each.size for each in blank.arrays()])[:-1]
        parts = zip(np.split(numbers[5:], ends), blank.arrays(), strict=True)
        found = WitnessState.of(int(rows), idle, [part.reshape(each.shape) for part, each in parts])
        return replace(found, highest=highest, alarm_row=None if alarm_row < 0 else int(alarm_row))

    def describe(self, state: WitnessState, class_names: Sequence[str]) -> str:
        """What the strongest witness has found, in words; empty before the first lesson."""
        direction = state.directions[state.strongest]
        if not direction.any():
            return ""
        # The change itself, of which the direction is the whitened form.
        covariance = self.features.covariance + _RIDGE * np.eye(len(direction))
        change = covariance @ direction
        count = self.features.axes.shape[1]
        by_class = (change[:count] * self.features.inner[1, :count]) @ self.features.axes[0]
        up, down = int(by_class.argmax()), int(by_class.argmin())
        shape = "flatter" if change[-4] < 0.0 else "sharper"
        return (
            f"log-probabilities of {class_names[up]} rise and those of {class_names[down]} fall together, and rows "
            f"become {shape}"
        )

    def _fine(self, state: WitnessState, rows: RowBatch) -> tuple[WitnessState, RowBatch]:
        """The rows that have all digits, and the state after they were counted.

        Calibration rows that look rounded are left out as well. In a stream that is rounded, the few rows that do not
        look so are its undecided ones. So rows are looked at only after a stretch with no more coarse rows than usual.
        """
        assert rows.probabilities is not None
        is_coarse = np.isnan(rows.probabilities).any(axis=1)
        if rows.resolution is not None:
            is_coarse |= rows.resolution > FULL
        is_coarse |= is_rounded(rows.probabilities, self.left_out)
        seen, now, before = state.counted.astype(np.int64).tolist()
        stretch = (seen + np.arange(len(rows))) // _STRETCH - seen // _STRETCH
        counts = np.bincount(stretch, is_coarse, minlength=1)
        counts[0] += now
        earlier = np.concatenate([[before], counts[:-1]])
        usual = float(self.features.usual_coarse[0]) + _COARSE
        used = ~is_coarse & (earlier[stretch] <= usual * _STRETCH)
        seen += len(rows)
        # The next stretch begins empty.
        counts, earlier = (
            (np.append(counts, 0.0), np.append(earlier, counts[-1])) if seen % _STRETCH == 0 else (counts, earlier)
        )
        return replace(state, counted=np.array([seen, counts[-1], earlier[-1]])), rows.take(used)

    def _chunk(self, state: WitnessState, features: Floats, uniforms: Floats) -> WitnessState:
        values = -(features @ state.directions.T) + _NOISE * (uniforms[:, :1] - 0.5) * state.spread[:, 0]
        cells = np.array([np.searchsorted(*each, side="right") for each in zip(state.edges, values.T, strict=True)])
        # Each row counts for the later ones.
        own, others = cells.astype(np.int8)[:, :, None], cells.astype(np.int8)[:, None, :]
        earlier = np.tri(len(features), k=-1, dtype=np.bool_)
        counts = self._gaps + state.learned
        below = np.take_along_axis(np.cumsum(counts, axis=1), cells, axis=1)
        below += np.count_nonzero((others <= own) & earlier, axis=2)
        width = np.take_along_axis(counts, cells, axis=1) + np.count_nonzero((others == own) & earlier, axis=2)
        total = counts.sum(axis=1) + np.arange(len(features))[:, None]
        p = np.clip((below.T - (1.0 - uniforms[:, 2:]) * width.T) / total, 1e-12, 1.0)[:, :, None]
        factors = np.concatenate([1.0 + _SLOPES * (p - 0.5), _POWERS * p ** (_POWERS - 1.0)], axis=2)
        capital = np.cumprod(np.concatenate([state.capital[None], np.minimum(factors, _LARGEST)]), axis=0)[1:]
        path = np.log(state.idle + capital.sum(axis=(1, 2)))
        alarms = np.flatnonzero(path >= self.threshold)
        alarm_row = state.alarm_row
        if alarm_row is None and len(alarms):
            alarm_row = state.rows + int(alarms[0]) + 1
        # One row after the other, so that the sum does not depend on the division into calls.
        present = np.cumsum(np.vstack([state.sums[:1], features]), axis=0)[-1:]
        made = replace(
            state,
            rows=state.rows + len(features),
            sums=np.concatenate([present, state.sums[1:]]),
            learned=state.learned + (cells[:, :, None] == np.arange(_CELLS)).sum(axis=1),
            capital=capital[-1],
            highest=max(state.highest, float(path.max())),
            alarm_row=alarm_row,
        )
        if made.rows % _CHUNK == 0:
            made = replace(made, capital=made.capital / max(float(made.capital.sum()) / _MOST, 1.0))
        return self._learn(made) if made.rows % _BLOCK == 0 else made

    def _learn(self, state: WitnessState) -> WitnessState:
        """Replace the oldest witness by the direction of the last blocks."""
        lesson = state.rows // _BLOCK
        sums = np.concatenate([np.zeros_like(state.sums[:1]), state.sums[:-1]])
        if lesson < _WINDOW:
            return replace(state, sums=sums)
        direction = self._precision @ (sums[1:].sum(axis=0) / (_WINDOW * _BLOCK))
        direction /= max(float(np.linalg.norm(direction)), 1e-12)
        values = -(self.features.calibration.astype(np.float64) @ direction)
        spread, share, slot = values.std(), float(_share(lesson)), lesson % _LIFE
        edges = np.sort(values + _NOISE * self._noise * spread)[self._ends[:-1] - 1]
        idle = state.idle + float(state.capital[slot].sum()) - share
        new = (direction, edges, spread, 0.0, share / _BETS)
        arrays = [each.copy() for each in state.arrays()[1:-1]]
        for array, values in zip(arrays, new, strict=True):
            array[slot] = values
        made = WitnessState.of(state.rows, idle, [sums, *arrays, state.counted])
        return replace(made, highest=state.highest, alarm_row=state.alarm_row)


def _share(lesson: int | NDArray[np.int64]) -> Floats:
    """Capital that the witness of a lesson starts with; all shares have the sum one."""
    number = np.asarray(lesson, dtype=np.float64) - _WINDOW + 1.0
    share: Floats = 1.0 / (number * (number + 1.0))
    return share
