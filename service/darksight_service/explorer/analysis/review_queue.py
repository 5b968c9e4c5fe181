"""The order in which unlabelled points should be reviewed.

    outliers      lowest p-value first
    doubtful      lowest confidence first, without outliers
    audit         a random sample, accepted points included (see `audit`)
    certificate   accepted points, drawn more often where errors are likely (see `darksight_core.drift.audit`)

The first two find many errors and estimate nothing. The others find few. The audit measures how good predictions are;
the stream for the certificate tells with fewer labels whether accepted points are as accurate as certified.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.scored import Reason
from darksight_service.explorer.analysis.audit import Audit
from darksight_service.explorer.analysis.learning import LearnedScore, rank_points
from darksight_service.store.points import PointTable

__all__ = ["QueueItem", "ReviewQueue", "Stream", "review_queue"]

Ints: TypeAlias = NDArray[np.int64]


class Stream(Enum):
    """Which points to review."""

    OUTLIERS = "outliers"
    DOUBTFUL = "doubtful"
    AUDIT = "audit"
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True)
class QueueItem:
    """An unlabelled point.

    Parameters
    ----------
    row
        Its row in the table.
    softmax_rank, learned_rank
        Its rank among unlabelled points by max-softmax and by the learned score, least confident first.
    chance
        P(correct) by the learned score; None without one.
    """

    row: int
    softmax_rank: int
    learned_rank: int
    chance: float | None


@dataclass(frozen=True, slots=True)
class ReviewQueue:
    """The first items of a stream, and the number of unlabelled points in each stream."""

    items: tuple[QueueItem, ...]
    counts: dict[Stream, int]


def review_queue(
    table: PointTable, audit: Audit, certificate: Ints, score: LearnedScore, stream: Stream, *, limit: int
) -> ReviewQueue:
    """Unlabelled points of a stream, in the order of review.

    Parameters
    ----------
    table
        Points to choose from.
    audit
        The audit of the table.
    certificate
        Rows of the table that the audit of the certificate draws, in its order.
    score
        The score that ranks doubtful points.
    stream
        The stream to return.
    limit
        Maximum number of items.
    """
    free = np.flatnonzero(~table.is_labelled & (table.predicted >= 0))
    softmax, learned, chances = rank_points(score, table.take(free))
    is_outlier = table.reason[free] == Reason.OUTLIER
    outliers, others = np.flatnonzero(is_outlier), np.flatnonzero(~is_outlier)
    index_of = np.full(len(table), -1)
    index_of[free] = np.arange(len(free))
    audited, certified = index_of[audit.order], index_of[certificate]
    orders: dict[Stream, Ints] = {
        Stream.OUTLIERS: outliers[np.argsort(table.p_value[free][outliers], kind="stable")],
        Stream.DOUBTFUL: others[np.argsort(learned[others], kind="stable")],
        Stream.AUDIT: audited[audited >= 0],
        Stream.CERTIFICATE: certified[certified >= 0],
    }
    items = tuple(
        QueueItem(
            row=int(free[index]),
            softmax_rank=int(softmax[index]),
            learned_rank=int(learned[index]),
            chance=None if np.isnan(chances[index]) else float(chances[index]),
        )
        for index in orders[stream][:limit].tolist()
    )
    return ReviewQueue(items, {each: len(order) for each, order in orders.items()})
