"""The resolutions that a bundle is calibrated for, and rows brought to one of them.

A row is ranked among calibration rows of its own resolution, so that its p-value is an exact rank. The first level is
that of the fit rows. The others are coarser, and their outlier score was fitted to the same rows made coarser.

rounded rows   values are rounded to the step. Those that become zero are unknown, and their sum is lost in the
               rounding: each is raised to half a step, or to 0.01 / K where that is less.
top k          the rest is spread over the unknown classes in proportion to exp(mean log π) of fit rows of the predicted
               class; see `rows.partial.complete`. Their mean has three more rows, of the average of all classes.

Values of at most two decimals are shares of votes, as of trees, or given by hand. If the fit rows have no more, zeros
are zeros and are not raised.

`other` of a row, the probability of tokens that are no class, is one more view of how unusual it is: the rank of
-log other among known rows counts twice in the outlier score.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.partial import TopRows, complete, top_rows
from darksight_core.rows.resolution import FULL, LADDER, name_of, sum_limits
from darksight_core.rows.simplex import Floats, largest_probs, log_probs
from darksight_core.scores.outlier import OutlierScore
from darksight_core.scores.ranks import RankTransform

__all__ = ["Level", "Resolutions", "Rows", "coarser_numbers", "completion_weights"]

Rows = TopRows | NDArray[np.floating]
"""Rows as they come: of all classes (n, K), or of the most probable ones."""

_LevelRows = tuple[NDArray[np.floating], Floats | None]
# Rows of average log-probabilities that every class has besides its own.
_PSEUDO_ROWS = 3.0
_PASSES = 3
_OTHER_WEIGHT, _LEAST_OTHER = 2.0, 1e-6
# Largest share of a row that raised zeros may take.
_RAISED = 0.01
_VOTE_DECIMALS, _NO_DIGITS = -2, -4
# Classes above which the Gaussians of the ladder would fill a file, and calibration rows above which scores would.
_MOST_CLASSES, _MOST_ROWS = 1_000, 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """What ranks rows of one resolution.

    Parameters
    ----------
    number
        The resolution; see `darksight_core.rows.resolution`.
    outlier_score, calibration
        Fitted to known rows of this resolution, and ranks among calibration rows of it.
    other_rank
        Rank of -log other among known rows; None if rows of this resolution have none.
    """

    number: int
    outlier_score: OutlierScore
    calibration: Calibration
    other_rank: RankTransform | None = None

    @classmethod
    def fit(cls, number: int, known: _LevelRows, held: _LevelRows) -> Level:
        """The level of rows (n, K) with their `other` (n,): known ones, and those that calibrate."""
        outlier_score = OutlierScore.fit(log_probs(known[0]))
        other_rank = None if known[1] is None else RankTransform.fit(_surprise(known[1]))
        log_pi = log_probs(held[0])
        scores = cls(number, outlier_score, Calibration(np.empty(0)), other_rank).score(log_pi, held[1])
        calibration = Calibration(scores, held[0].argmax(axis=1), largest_probs(held[0]))
        return cls(number, outlier_score, calibration, other_rank)

    def score(self, log_pi: Floats, other: Floats | None) -> Floats:
        """Outlier scores (n,) of rows (n, K) with their `other` (n,)."""
        return self.outlier_score.score(log_pi) + self.other_term(other)

    def other_term(self, other: Floats | None) -> Floats | float:
        """What `other` (n,) adds to the outlier score of the classes."""
        return 0.0 if self.other_rank is None or other is None else _OTHER_WEIGHT * self.other_rank(_surprise(other))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        parts = {"outlier_score": self.outlier_score.tensors(), "calibration": self.calibration.tensors()}
        if self.other_rank is not None:
            parts["other"] = {"scores": self.other_rank.scores, "log_ranks": self.other_rank.log_ranks}
        return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    def settings(self) -> dict[str, Any]:
        """All that is not an array, as JSON knows it."""
        slope = None if self.other_rank is None else self.other_rank.slope
        return {"outlier_score": self.outlier_score.settings(), "other_slope": slope}

    @classmethod
    def from_tensors(cls, number: int, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Level:
        """Inverse of `tensors` and `settings`."""

        def part(prefix: str) -> dict[str, NDArray[Any]]:
            return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}

        slope, other = settings["other_slope"], part("other.")
        rank = None if slope is None else RankTransform(other["scores"], other["log_ranks"], float(slope))
        outlier_score = OutlierScore.from_tensors(part("outlier_score."), settings["outlier_score"])
        return cls(number, outlier_score, Calibration.from_tensors(part("calibration.")), rank)


@dataclass(frozen=True, slots=True, eq=False)
class Resolutions:
    """The resolution of the fit rows, and the coarser levels of a bundle.

    Parameters
    ----------
    own
        Resolution of the fit rows.
    coarser
        Further levels, from fine to coarse.
    log_weights
        Mean log-probabilities by predicted class, (K, K) float32, by which the rest of a row is spread; None if no
        level is of the most probable classes.
    own_other
        `other_rank` of the own level.
    usual_coarser
        Share of the calibration rows that look coarser than they are.
    """

    own: int = FULL
    coarser: tuple[Level, ...] = ()
    log_weights: NDArray[np.float32] | None = None
    own_other: RankTransform | None = None
    usual_coarser: float = 0.0

    def __post_init__(self) -> None:
        if len({*self.numbers}) < len(self.numbers):
            raise ConfigError("a bundle has two levels of one resolution")
        if self.log_weights is None and any(number > 0 for number in self.numbers):
            raise ConfigError("a bundle for rows of the most probable classes has no weights to complete them")

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of all levels, the own one first."""
        return (self.own, *(level.number for level in self.coarser))

    @property
    def names(self) -> str:
        """Names of all levels, for people."""
        return ", ".join(map(name_of, self.numbers))

    def choose(self, number: int, among: Collection[int], *, is_stated: bool) -> int:
        """The finest level that rows of a resolution can be brought to; ConfigError if there is none.

        A single row may look coarser than it is, so a resolution that was recognised and not stated is never too
        coarse: the coarsest level of all classes then ranks it. A row such as 1, 0, 0 has no digits at all and counts
        as one of four decimals, the most frequent rounding.

        Parameters
        ----------
        number
            Resolution of the rows.
        among
            Levels to choose from.
        is_stated
            Whether it was stated.
        """
        number = _NO_DIGITS if number == -1 and not is_stated else number
        kept = [each for each in self.numbers if each in among]
        rounded = [each for each in kept if each <= 0]
        if number > 0:
            found = [each for each in kept if 0 < each <= number]
        else:
            found = [each for each in rounded if number == FULL or FULL > each >= number]
            found += rounded[-1:] if not is_stated else []
            found += [each for each in kept if each > 0]
        if found:
            return found[0]
        levels, least = ", ".join(map(name_of, kept)), min((each for each in kept if each > 0), default=0)
        text = "give rows with more digits, or fit and calibrate a bundle on rows like these"
        if number > 0:
            text = f"ask the classifier for {least} classes" if least else "give the probabilities of all classes"
            text += f", or fit the bundle with --top-k {number} and calibrate it again"
        raise ConfigError(
            f"the bundle is calibrated for rows of resolution {levels}, not {name_of(number)}; {text}",
            resolution=name_of(number),
            levels=levels,
        )

    def coarsen(self, rows: Rows, number: int) -> tuple[Floats, Floats | None]:
        """Rows of all classes (n, K) at a level, and their `other` (n,), None at levels that have none.

        Rows that are no probabilities stay as they are.
        """
        if isinstance(rows, TopRows) and number > 0:
            return complete(rows.largest(number), self._weights), rows.other
        if isinstance(rows, TopRows):
            rows = complete(rows, np.ones(rows.classes.max(initial=0) + 1))
        given = np.asarray(rows, dtype=np.float64)
        if number == FULL:
            return given, None
        with np.errstate(invalid="ignore", over="ignore"):
            gaps = np.abs(given.sum(axis=1) - 1.0)
            is_valid = (gaps <= sum_limits(np.array([number]), given.shape[1])) & (given >= -1e-6).all(axis=1)
        made, other = np.array(given), np.zeros(len(given)) if number > 0 else None
        usable = np.maximum(given[is_valid], 0.0)
        if number > 0:
            made[is_valid] = complete(top_rows(usable, min(number, given.shape[1])), self._weights)
        else:
            made[is_valid] = self._rounded(usable, number)
        return made, other

    def _rounded(self, rows: Floats, number: int) -> Floats:
        step = 10.0**number
        rounded = step * np.rint(rows / step)
        if not _VOTE_DECIMALS <= self.own < 0:
            rounded[rounded == 0.0] = min(0.5 * step, _RAISED / rows.shape[1])
        totals = rounded.sum(axis=1, keepdims=True)
        return np.where(totals > 0.0, rounded / np.where(totals > 0.0, totals, 1.0), rows)

    @property
    def _weights(self) -> Floats:
        assert self.log_weights is not None
        return np.exp(self.log_weights.astype(np.float64))


def coarser_numbers(own: int, classes: int, rows: int, top_k: Sequence[int] = ()) -> tuple[int, ...]:
    """Numbers of the further levels of a bundle with so many calibration rows, from fine to coarse."""
    named = sorted({k for k in top_k if 0 < k < classes and not 0 < own <= k}, reverse=True)
    ladder = LADDER if own <= 0 and classes <= _MOST_CLASSES and rows <= _MOST_ROWS else ()
    return (*(each for each in ladder if each != FULL and (own == FULL or each > own)), *named)


def completion_weights(rows: Rows, classes: int) -> NDArray[np.float32]:
    """Mean log-probabilities by predicted class, (K, K), of known rows.

    Rows of the most probable classes are completed by the means of the rows that the last pass has completed, three
    times, at first with an even spread.
    """
    weights = np.zeros((classes, classes))
    for _ in range(_PASSES if isinstance(rows, TopRows) else 1):
        full = complete(rows, np.exp(weights)) if isinstance(rows, TopRows) else rows
        log_pi = log_probs(full)
        predicted, average = log_pi.argmax(axis=1), log_pi.mean(axis=0)
        sums = np.zeros((classes, classes))
        np.add.at(sums, predicted, log_pi)
        sizes = np.bincount(predicted, minlength=classes)[:, None]
        weights = (sums + _PSEUDO_ROWS * average) / (sizes + _PSEUDO_ROWS)
    return weights.astype(np.float32)


def _surprise(other: Floats) -> Floats:
    surprise: Floats = -np.log(np.maximum(other, _LEAST_OTHER))
    return surprise
