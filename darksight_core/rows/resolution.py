"""What a row resolves: probabilities below its resolution are not known, only an upper bound, or their sum.

full     every probability is known
1e-4     every probability is known to so much: the row has four decimals
top5     the five largest probabilities are known, with all their digits; the others add up to the rest

Bundles, requests and files name a resolution by such a text. A stored row has its number: 0 for full, minus the
decimals of a rounded row, and k of a row of the k largest. A row can be made coarser, in the order full, decimals,
top k, and never finer: what is missing is not invented.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

__all__ = [
    "FULL",
    "HALF_FLOAT",
    "LADDER",
    "MAX_DECIMALS",
    "MAX_TOP",
    "ROUNDING",
    "SHARP_DECIMALS",
    "SHARP_STEPS",
    "STEPS",
    "finest",
    "is_rounded",
    "name_of",
    "number_of",
    "recognise",
    "resolution_of",
    "sum_limits",
]

FULL = 0
"""The number of a row that has all of its digits."""

LADDER = (FULL, -6, -4, -3, -2)
"""Resolutions of full rows that a bundle is calibrated for, as far as its fit rows have them."""

MAX_DECIMALS, MAX_TOP = 10, 1_000
"""Most decimals that count as rounding, and most known classes of a row."""

ROUNDING, STEPS = 2.0**-22, 256.0
"""Error of a value as float32 stores it, relative; and steps above which a value loses nothing by the rounding."""

SHARP_STEPS, SHARP_DECIMALS = 2.0**17, 6
"""Steps above which it cannot be told of a float32 number whether they are whole. With more decimals than these a row
must have a smaller number besides zeros."""

HALF_FLOAT = 2.0**-14
"""Value below which float16 numbers are as far apart as at zero, so that small ones have few digits."""

_NAME = re.compile(r"1e-([1-9]\d?)|top([1-9]\d{0,3})")
_HALF_DECIMALS = -6
# Rows that are looked at together, and the share of them that must be rounded.
_FIRST_ROWS, _MOST_ROWS, _MOST_SHARE, _LEAST_SHARE = 200, 20_000, 0.999, 0.1
# How far the sum of a row may be off one: by this, and by half a step of every value up to the second number.
_SUM, _MOST = 1e-3, 0.05


def number_of(name: str) -> int:
    """Number of a resolution by name.

    >>> number_of("full"), number_of("1e-4"), number_of("top5")
    (0, -4, 5)
    """
    found = _NAME.fullmatch(name)
    number = FULL if found is None else -int(found[1]) if found[1] else int(found[2])
    if name != "full" and not (found and -MAX_DECIMALS <= number <= MAX_TOP):
        raise ConfigError(
            f"resolution is {name[:40]!r}; it must be full, 1e-1 to 1e-{MAX_DECIMALS} for rounded rows, or top1 to "
            f"top{MAX_TOP} for rows of the largest probabilities"
        )
    return number


def name_of(number: int) -> str:
    """Inverse of `number_of`.

    >>> [name_of(number) for number in (0, -4, 5)]
    ['full', '1e-4', 'top5']
    """
    return "full" if number == FULL else f"1e{number}" if number < 0 else f"top{number}"


def recognise(rows: NDArray[np.floating]) -> NDArray[np.int16]:
    """Resolution of each row (n, K) of all classes, (n,): the fewest decimals that write it, or `FULL`.

    A row is rounded if its smallest value is zero or a few steps, and all are multiples of the step. Rows of float16
    numbers that are small or zero count as rows of six decimals. A single row may look coarser than its neighbours:
    one of four decimals can be 1, 0, 0.

    >>> recognise(np.array([[0.9991, 0.0009], [0.999, 0.001], [0.99906, 0.00094], [0.9990600123, 0.0009399877]]))
    array([-4, -3, -5,  0], dtype=int16)
    """
    rows = np.asarray(rows)
    found = np.zeros(len(rows), dtype=np.int16)
    with np.errstate(all="ignore"):
        least = rows.min(axis=1, initial=np.inf).astype(np.float64)
        open_rows = np.flatnonzero((least >= 0.0) & (rows.max(axis=1, initial=-np.inf) <= 1.0 + _SUM))
        for decimals in range(1, MAX_DECIMALS + 1):
            steps = least[open_rows] * 10.0**decimals
            near = open_rows[_is_whole(steps) & (steps < STEPS)]
            values = rows[near].astype(np.float64) * 10.0**decimals
            is_rounded = _is_whole(values).all(axis=1)
            if decimals > SHARP_DECIMALS:
                is_rounded &= np.where(values > 0.0, values, np.inf).min(axis=1, initial=np.inf) < SHARP_STEPS
            found[near[is_rounded]] = -decimals
            open_rows = open_rows[found[open_rows] == FULL]
        short = open_rows[least[open_rows] < HALF_FLOAT]
        found[short[(rows[short].astype(np.float16) == rows[short]).all(axis=1)]] = _HALF_DECIMALS
    return found


def is_rounded(rows: NDArray[np.floating], levels: Collection[int]) -> NDArray[np.bool_]:
    """Whether rows (n, K) look rounded to one of these levels, (n,)."""
    if not levels:
        return np.zeros(len(rows), dtype=np.bool_)
    return np.isin(recognise(rows), [*levels])


def resolution_of(rows: NDArray[np.floating]) -> int:
    """The resolution of rows (n, K) that came together: the fewest decimals that write them all, or `FULL`.

    One row in a thousand may be other than the rest.

    >>> resolution_of(np.array([[1.0, 0.0], [0.9412, 0.0588]]))
    -4
    """
    if len(rows) > _FIRST_ROWS and resolution_of(rows[:: len(rows) // _FIRST_ROWS][:_FIRST_ROWS]) == FULL:
        return FULL
    some = np.asarray(rows[:_MOST_ROWS], dtype=np.float64)
    for decimals in range(1, MAX_DECIMALS + 1):
        steps = some * 10.0**decimals
        is_sharp = steps < SHARP_STEPS
        # Rows without a number that is sharp and not zero say nothing.
        tells = (is_sharp & (some > 0.0)).any(axis=1)
        is_rounded = (_is_whole(steps) | ~is_sharp).all(axis=1)
        if is_rounded.sum() > _MOST_SHARE * len(some) and tells.sum() >= _LEAST_SHARE * len(some) > 0.0:
            return -decimals
    with np.errstate(over="ignore"):
        is_half = len(some) > 0 and bool((some.astype(np.float16) == some).all() and some.min() < HALF_FLOAT)
    return _HALF_DECIMALS if is_half else FULL


def finest(numbers: Collection[int]) -> int:
    """The resolution of parts of full or rounded rows together; `FULL` of none.

    >>> finest([-3, -4]), finest([FULL, -4])
    (-4, 0)
    """
    return FULL if FULL in numbers else min(numbers, default=FULL)


def sum_limits(numbers: NDArray[np.integer], classes: int) -> Floats:
    """How far the sum of rows of so many classes may be off one, by resolution (n,): rounded values add up to less."""
    steps = np.where(numbers < 0, 10.0 ** np.minimum(numbers, 0), 0.0)
    limits: Floats = np.clip(0.5 * classes * steps, _SUM, _MOST)
    return limits


def _is_whole(values: Floats) -> NDArray[np.bool_]:
    whole: NDArray[np.bool_] = np.abs(values - np.rint(values)) <= ROUNDING * values
    return whole
