"""Which points a person should look at next.

    outliers   the least usual first: what the classifier rarely produces
    doubtful   the least sure first, outliers apart: what is likely wrong
    audit      a random draw with known odds, accepted points included: what measures accuracy (see `audit`)

The first two find errors fast, and estimate nothing: whoever looks where errors are likely finds many. The third finds
few, and is the only one that can tell how good accepted predictions are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.scored import Reason
from darksight_service.explorer.analysis.audit import Audit
from darksight_service.explorer.analysis.learning import Lesson, rank_changes

if TYPE_CHECKING:
    from darksight_service.store import PointTable

__all__ = ["Place", "Stream", "Waiting", "waiting"]

Ints: TypeAlias = NDArray[np.int64]


class Stream(Enum):
    """Which points; see the module."""

    OUTLIERS = "outliers"
    DOUBTFUL = "doubtful"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class Place:
    """One point that waits.

    Parameters
    ----------
    row
        Its number in the frame.
    softmax_rank, learned_rank
        Its place among unlabelled points of the frame, the least sure first, by max-softmax and by the learned score.
    chance
        P(correct) by the learned score; None if there is none.
    """

    row: int
    softmax_rank: int
    learned_rank: int
    chance: float | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The head of a stream, and how many points wait in each stream."""

    places: tuple[Place, ...]
    counts: dict[Stream, int]


def waiting(frame: PointTable, drawn: Audit, lesson: Lesson, stream: Stream, *, limit: int) -> Waiting:
    """Unlabelled points of a stream, the most urgent first.

    Parameters
    ----------
    frame
        Points to choose from.
    drawn
        The audit of the frame.
    lesson
        What ranks the doubtful ones.
    stream
        Which.
    limit
        Most points to return.
    """
    free = np.flatnonzero(~frame.is_labelled & (frame.predicted >= 0))
    softmax, learned, chances = rank_changes(lesson, frame.take(free))
    is_outlier = frame.reason[free] == Reason.OUTLIER
    by_surprise = np.flatnonzero(is_outlier)[np.argsort(frame.p_value[free][is_outlier], kind="stable")]
    usual = np.flatnonzero(~is_outlier)
    by_doubt = usual[np.argsort(learned[usual], kind="stable")]
    place_of = np.full(len(frame), -1)
    place_of[free] = np.arange(len(free))
    in_audit = place_of[drawn.order]
    orders: dict[Stream, Ints] = {
        Stream.OUTLIERS: by_surprise,
        Stream.DOUBTFUL: by_doubt,
        Stream.AUDIT: in_audit[in_audit >= 0],
    }
    places = tuple(
        Place(
            row=int(free[number]),
            softmax_rank=int(softmax[number]),
            learned_rank=int(learned[number]),
            chance=None if np.isnan(chances[number]) else float(chances[number]),
        )
        for number in orders[stream][:limit].tolist()
    )
    return Waiting(places, {each: len(order) for each, order in orders.items()})
