"""Which of the segments that changed explains the others.

The explanation is the smallest description that leaves the rest of the discoveries quiet: one value of one tag, or a
pair of values if each leaves the other quiet. It is a description of rows that were seen, not another test.

A segment is quiet outside of another if its rows there, since its change, fall into the cells as its calibration rows
and earlier rows did. Where the other is mostly inside of it, what the other had is first taken from these: without
camera 7, which was always unlike the rest, its city is expected to look different as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.segment_cells import Segment
from darksight_core.drift.special import chi2_tail
from darksight_core.rows.simplex import Floats

__all__ = ["Description", "SegmentRows", "describe", "explain", "is_alike"]

Description: TypeAlias = tuple[Segment, ...]
"""Conditions that all hold."""

Counts: TypeAlias = Sequence[NDArray[np.integer] | Floats]
"""Rows in the cells of score, confidence and class."""

_QUIET = 1e-3
_LEAST_ROWS = 20
# Cells are merged until each of them has this share of the rows that are compared with.
_LEAST_SHARE = 0.08


@dataclass(frozen=True, slots=True, eq=False)
class SegmentRows:
    """Recent rows of a segment.

    Parameters
    ----------
    inside
        Which of the recent rows, in order of arrival, are in it, (m,).
    since
        Number of its rows since its change.
    learned
        Its calibration rows, and its rows before the change, in each cell.
    """

    inside: NDArray[np.bool_]
    since: int
    learned: Counts

    @property
    def changed(self) -> NDArray[np.bool_]:
        """Which of the recent rows are in it and came since its change, (m,)."""
        rows = np.zeros_like(self.inside)
        rows[np.flatnonzero(self.inside)[-self.since :]] = True
        return rows


def explain(
    found: Mapping[Segment, SegmentRows], count: Callable[[NDArray[np.bool_]], Counts]
) -> tuple[Description, ...]:
    """Descriptions that together explain the discoveries, the one that explains most first.

    Of segments that explain equally much the one whose rows deviate most is named; two that leave each other quiet are
    named as a pair.

    Parameters
    ----------
    found
        The discoveries, most evidence first.
    count
        Rows in each cell, of some of the recent rows (m,).
    """
    changed = {segment: each.changed for segment, each in found.items()}
    sizes = {segment: _deviation(count(changed[segment]), each.learned) for segment, each in found.items()}

    def explains(segment: Segment, other: Segment) -> bool:
        rest = changed[other] & ~found[segment].inside
        usual = _without(found[other], found[segment])
        return segment == other or int(rest.sum()) < _LEAST_ROWS or is_alike(count(rest), usual, _QUIET)

    left, named = list(found), []
    while left:
        explained = {segment: {each for each in left if explains(segment, each)} for segment in left}
        best = max(left, key=lambda segment: (len(explained[segment]), sizes[segment]))
        description: Description = (best,)
        for other in left:
            is_pair = other[0] != best[0] and other in explained[best] and best in explained[other]
            if is_pair and (changed[best] & ~found[other].inside).sum() >= _LEAST_ROWS:
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


def is_alike(found: Counts, usual: Counts, level: float) -> bool:
    """Whether rows fall into the cells of score, confidence and class as others did: χ² of two samples for each."""
    pairs = [_merged(*each) for each in zip(found, usual, strict=True)]
    return all(len(own) < 2 or chi2_tail(_statistic(own, other), len(own) - 1) > level for own, other in pairs)


def _without(segment: SegmentRows, other: SegmentRows) -> Counts:
    """What is usual for the rows of a segment outside of another one."""
    both = int((segment.inside & other.inside).sum())
    share = both / max(int(other.inside.sum()), 1)
    if share * int(segment.inside.sum()) <= both:
        # The rows in both are a larger part of the segment: they are like the segment.
        return segment.learned
    return [np.maximum(own - share * less, 0.0) for own, less in zip(segment.learned, other.learned, strict=True)]


def _deviation(found: Counts, usual: Counts) -> float:
    pairs = [_merged(*each) for each in zip(found, usual, strict=True)]
    return max(_statistic(own, other) / max(float(own.sum()), 1.0) for own, other in pairs)


def _statistic(found: Floats, usual: Floats) -> float:
    """χ² of two samples of counts, (B,)."""
    rows, others = float(found.sum()), float(usual.sum())
    if not (rows and others):
        return 0.0
    gap = found * np.sqrt(others / rows) - usual * np.sqrt(rows / others)
    total = found + usual
    return float((np.square(gap[total > 0]) / total[total > 0]).sum())


def _merged(found: NDArray[np.integer] | Floats, usual: NDArray[np.integer] | Floats) -> tuple[Floats, Floats]:
    """Counts of neighbouring cells added up, to a few cells that all have rows."""
    both = np.asarray(found, dtype=np.float64) + usual
    ends = np.cumsum(both) / max(float(both.sum()), 1.0)
    groups = np.minimum((ends - 0.5 * both / max(float(both.sum()), 1.0)) / _LEAST_SHARE, 1e6).astype(np.int64)
    _, groups = np.unique(groups, return_inverse=True)
    own, other = (np.bincount(groups, each).astype(np.float64) for each in (found, usual))
    return own, other
