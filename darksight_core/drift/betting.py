"""Evidence of drift: the capital of bets that cannot win while nothing changes.

A bet multiplies its stake by a factor whose mean is at most one without drift, so the capital M of any set of bets ever
reaches c with probability at most 1/c (Ville). After a change the bet that fits it grows exponentially.

    score      1 + e (p - 1/2), e in ±0.4, ±1, ±1.9: scores rise or fall
               ε p^(ε - 1), ε in 0.2, 0.5: a few scores are very low
    segment    1 - l + l [p in I] / |I|, l = 0.4: classes are more frequent whose p are in I, a 4th to a 16th of (0, 1)
    classes    1 - l + l [k] / u_k, l in 0.1, 0.4: class k is more frequent than u_k
               1 - l + l [not k] / (1 - v_k), l = 0.9: class k is less frequent than v_k

For a score in cell b of the urn, or the class of a row of a segment, p = Σ_{j<b} f_j + U f_b is exactly uniform in
(0, 1). For all rows the share of a class is known only through its reference rows: with confidence 1 - δ all shares lie
between v_k and u_k (Clopper and Pearson), and δ is part of the probability of a false alarm.

When the change comes is not known, so new bets are opened at every row, in two ways:

    since the start   the share T(t-1) - T(t) of the capital at row t, the rest waits: T(t) = 1 / (1 + ln(1 + t / 20)).
                      P(M ever reaches 1/a | no drift) <= a. T falls so slowly that a change after 20,000 quiet rows
                      costs 6 nats more than one after 300.
    restarting        one unit at every row (Shiryaev-Roberts): R_t - t is a martingale, so R first reaches c after at
                      least c rows on average, and is small again soon after traffic is as before.

An urn that learns from drifted rows would take them for normal. So it does not learn while the evidence is above the
threshold: the guarantee is about the rows before an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.urn import Ints
from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import lower_bound, upper_bound
from darksight_core.rows.simplex import Floats

__all__ = ["BetState", "Bets", "class_bets", "range_bets", "score_bets"]

Factors: TypeAlias = Callable[[Any], Floats]

# Rows whose factors are multiplied. A factor is at least 0.05 and at most 10⁴, so products stay within float64.
_CHUNK = 64
# Factors of the chunks that are computed at once: they stay in the cache.
_BLOCK = 1 << 15
_LARGEST = 1e4
# Largest capital that is kept. To give capital away is always valid, and less of it is lost sooner when a drift ends.
_MOST = 1e15
# Least share of a class for a bet that it becomes rarer: the absence of a rarer one takes too many rows to notice.
_FREQUENT = 0.01
_SLOPES = np.array([-1.9, -1.0, -0.4, 0.4, 1.0, 1.9])
_POWERS = np.array([0.2, 0.5])
_MORE, _LESS = (0.1, 0.4), 0.9
_PARTS, _PART_STAKE = (4, 8, 16), 0.4


@dataclass(frozen=True, slots=True, eq=False)
class BetState:
    """Everything that the next row needs; arrays are never changed in place.

    Parameters
    ----------
    rows
        Rows seen.
    learned
        Rows that the urn has learned from, in each cell, (B,).
    capital
        Capital of each bet, (3, bets): since the start, restarting, and restarting times the row where it was opened.
    is_learning
        Whether the urn learns from rows at present.
    highest
        Largest log evidence since the start so far.
    alarm_row
        Number of the first row, counted from 1, at which the evidence since the start reached the threshold, or None.
    """

    rows: int
    learned: Floats
    capital: Floats
    is_learning: bool = True
    highest: float = 0.0
    alarm_row: int | None = None

    @property
    def log_evidence(self) -> float:
        """ln M: evidence since the start."""
        return math.log(float(self.capital[0].sum()) + _tail(self.rows))

    @property
    def log_restarting(self) -> float:
        """ln R, at least 0: evidence of the restarting bets."""
        return math.log(max(float(self.capital[1].sum()), 1.0))

    @property
    def since_row(self) -> int:
        """Row, counted from 1, at which the winning bets were opened: the estimated first row of the change."""
        total = float(self.capital[1].sum())
        return max(round(float(self.capital[2].sum()) / total), 1) if total else 1

    def numbers(self) -> Floats:
        """The state as one array, for `like`."""
        alarm_row = -1 if self.alarm_row is None else self.alarm_row
        head = [self.rows, float(self.is_learning), self.highest, alarm_row]
        return np.concatenate([head, self.learned, self.capital.ravel()])

    def like(self, numbers: Floats) -> BetState:
        """Inverse of `numbers`, for a state of the same bets as this one."""
        rows, is_learning, highest, alarm_row = numbers[:4].tolist()
        cells = len(self.learned)
        return BetState(
            rows=int(rows),
            learned=numbers[4 : 4 + cells],
            capital=numbers[4 + cells :].reshape(self.capital.shape),
            is_learning=bool(is_learning),
            highest=highest,
            alarm_row=None if alarm_row < 0 else int(alarm_row),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Bets:
    """Bets on the cells of rows.

    Parameters
    ----------
    gaps
        a_b of each cell of the urn, (B,); empty for bets without an urn.
    factors
        Factors (m, bets) of rows: from p (m,) for bets on an urn, else from cells (m,).
    shares
        Start share of each bet, (bets,), with sum one.
    threshold
        Log evidence of an alarm.
    includes_row
        Whether p ranks a row among the earlier rows and itself, so that an urn without gaps has a null too: rows are
        exchangeable with each other, whatever their distribution.
    """

    gaps: Ints
    factors: Factors
    shares: Floats
    threshold: float
    includes_row: bool = False

    def start(self) -> BetState:
        """The state before the first row."""
        return BetState(0, np.zeros(len(self.gaps)), np.zeros((3, len(self.shares))))

    def update(self, state: BetState, cells: Ints, uniforms: Floats) -> tuple[BetState, Floats]:
        """The state after more rows, in order of arrival, and ln M after each of them, (m,).

        The result does not depend on how rows are divided into calls.

        Parameters
        ----------
        cells
            Cell of each row, (m,).
        uniforms
            Uniform number of each row, independent of its cell, (m,).
        """
        paths = [np.empty(0)]
        first = 0
        # Chunks begin at the same rows in every division, because learning stops and capital is cut only there.
        while first < len(cells):
            left, begun = len(cells) - first, state.rows % _CHUNK
            whole = 0 if begun else min(left, max(_BLOCK // len(self.shares), _CHUNK)) // _CHUNK * _CHUNK
            part = slice(first, first + (whole or min(left, _CHUNK - begun)))
            shape = (-1, _CHUNK) if whole else (1, -1)
            state, path = self._chunks(state, cells[part].reshape(shape), uniforms[part].reshape(shape))
            paths.append(path)
            first += len(path)
        return state, np.concatenate(paths)

    def _chunks(self, state: BetState, cells: Ints, uniforms: Floats) -> tuple[BetState, Floats]:
        """The state after rows (chunks, size), and ln M after each; up to the chunk after which learning changes."""
        values: Floats | Ints = cells
        counts = np.zeros((len(cells), 0), dtype=np.int64)
        if len(self.gaps):
            counts, values = self._uniform(state, cells, uniforms)
        numbers = state.rows + 1 + np.arange(cells.size).reshape(cells.shape)
        tails = _tail(numbers)
        product = np.minimum(self.factors(values.ravel()), _LARGEST).reshape(*cells.shape, -1)
        np.cumprod(product, axis=1, out=product)
        # A unit that a row puts on a bet is worth its share of the product so far at the end of the chunk.
        units = np.concatenate([np.ones_like(product[:, :1]), product[:, :-1]], axis=1)
        np.divide(self.shares, units, out=units)
        opened = np.stack([_tail(numbers - 1) - tails, np.ones(cells.shape), numbers], axis=1)
        stakes = np.einsum("ckm,cmb->ckb", opened, units)

        capital, before, is_learning, done = state.capital, [], state.is_learning, 0
        while done < len(cells) and is_learning == state.is_learning:
            before.append(capital[0])
            capital = product[done, -1] * (capital + stakes[done])
            done += 1
            if not (state.rows + done * cells.shape[1]) % _CHUNK:
                totals = capital.sum(axis=1)
                is_learning = math.log(totals[0] + tails[done - 1, -1]) < self.threshold
                if max(totals[0], totals[1]) > _MOST:
                    capital = capital / np.maximum(totals / _MOST, 1.0)[[0, 1, 1], None]

        held = opened[:done, 0, :, None] * units[:done]
        held[:, 0] += before
        np.cumsum(held, axis=1, out=held)
        path = np.log(np.einsum("cmb,cmb->cm", product[:done], held) + tails[:done]).ravel()
        alarms = np.flatnonzero(path >= self.threshold)
        alarm_row = state.alarm_row
        if alarm_row is None and len(alarms):
            alarm_row = state.rows + 1 + int(alarms[0])
        made = BetState(
            rows=state.rows + len(path),
            learned=state.learned + state.is_learning * counts[:done].sum(axis=0),
            capital=capital,
            is_learning=is_learning,
            highest=max(state.highest, float(path.max())),
            alarm_row=alarm_row,
        )
        return made, path

    def _uniform(self, state: BetState, cells: Ints, uniforms: Floats) -> tuple[Ints, Floats]:
        """Rows in each cell by chunk, (chunks, B), and p of each row, (chunks, size)."""
        (chunks, size), bins = cells.shape, len(self.gaps)
        chunk = np.arange(chunks)[:, None]
        counts = np.bincount((chunk * bins + cells).ravel(), minlength=chunks * bins).reshape(chunks, bins)
        learned = state.is_learning * (np.cumsum(counts, axis=0) - counts)
        urn = self.gaps + state.learned + learned
        # Rows of the chunk that came earlier, in the cell of a row and up to it.
        is_earlier = np.tri(size, size, -1, dtype=bool)
        small = cells.astype(np.int16)
        own, other = small[:, :, None], small[:, None, :]
        here, upto = (
            state.is_learning * (each & is_earlier).sum(axis=2, dtype=np.uint8) for each in (other == own, other <= own)
        )
        width, below = urn[chunk, cells] + here, np.cumsum(urn, axis=1)[chunk, cells] + upto
        total = urn.sum(axis=1)[:, None] + state.is_learning * np.arange(size)
        itself = float(self.includes_row)
        p = (below + itself - (1.0 - uniforms) * (width + itself)) / (total + itself)
        return counts, np.clip(p, 1e-12, 1.0)


def score_bets(gaps: Ints, threshold: float, *, includes_row: bool = False) -> Bets:
    """Bets on a score, whose cells have these gaps; `includes_row` as in `Bets`.

    A segment, whose rows are ranked among themselves, has few rows: its bets are on large changes.
    """
    even = np.array([0.12] * len(_SLOPES) + [0.14] * len(_POWERS))
    shares = np.array([0.2, 0.2, 0.05, 0.05, 0.15, 0.15, 0.1, 0.1]) if includes_row else even

    def factors(p: Floats) -> Floats:
        column = p[:, None]
        return np.hstack([1.0 + _SLOPES * (column - 0.5), _POWERS * column ** (_POWERS - 1.0)])

    return Bets(gaps, factors, shares, threshold, includes_row)


def range_bets(cells: int, threshold: float) -> Bets:
    """Bets on classes in so many cells, by an urn that starts empty: ranges of p are more frequent than usual."""
    shares = np.concatenate([np.full(each, 1.0 / (each * len(_PARTS))) for each in _PARTS])

    def factors(p: Floats) -> Floats:
        at = [np.minimum((p * each).astype(np.int64), each - 1) for each in _PARTS]
        won = [np.eye(each)[cell] * each for each, cell in zip(_PARTS, at, strict=True)]
        return 1.0 + _PART_STAKE * (np.hstack(won) - 1.0)

    return Bets(np.zeros(cells, dtype=np.int64), factors, shares, threshold, includes_row=True)


def class_bets(counts: Ints, threshold: float, delta: float) -> Bets:
    """Bets on the predicted class, of which the reference rows have these counts (K,).

    Parameters
    ----------
    delta
        Probability that the share of any class is outside of its bounds.
    """
    classes = len(counts)
    least, most = _share_bounds(tuple(counts.tolist()), delta / (2 * classes))
    frequent = np.flatnonzero(least >= _FREQUENT)
    won = np.eye(classes) / most
    kept = (1.0 - np.eye(classes)[:, frequent]) / (1.0 - least[frequent])
    # One row of factors for each class.
    table = 1.0 + np.hstack([*(stake * (won - 1.0) for stake in _MORE), _LESS * (kept - 1.0)])
    shares = [0.35 / classes] * (2 * classes) + [0.3 / max(len(frequent), 1)] * len(frequent)
    return Bets(np.empty(0, dtype=np.int64), table.__getitem__, np.array(shares) / sum(shares), threshold)


@lru_cache(maxsize=32)
def _share_bounds(counts: tuple[int, ...], delta: float) -> tuple[Floats, Floats]:
    """Lower and upper bound of the share of each class, each wrong with probability delta at most, (K,)."""
    if not sum(counts):
        raise ConfigError("drift evidence needs the predicted classes of calibration rows")
    return lower_bound(counts, sum(counts), delta), upper_bound(counts, sum(counts), delta)


def _tail(rows: int | NDArray[np.int64]) -> Floats:
    """T: the share of the capital that still waits after some rows."""
    tail: Floats = 1.0 / (1.0 + np.log1p(np.asarray(rows, dtype=np.float64) / 20.0))
    return tail
