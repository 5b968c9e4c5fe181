"""The order in which unlabelled points should be reviewed.

    outliers      newest points, lowest p-value first
    doubtful      newest points, lowest confidence first, without outliers
    audit         points drawn at random with known odds when they were stored (see `darksight_core.drift.audit`)
    certificate   the accepted ones of these

The first two find many errors and estimate nothing. The others find few. The audit measures how good predictions are;
the accepted ones alone tell with fewer labels whether accepted points are as accurate as certified.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.schema import Reason
from darksight_service.http.explorer.analysis.learning import LearnedScore, rank_points
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
        Its row in the table of the stream.
    softmax_rank, learned_rank
        Its rank among the unlabelled points of that table by max-softmax and by the learned score, least confident
        first.
    chance
        P(correct) by the learned score; None without one.
    odds
        Probability with which it was drawn for the audit; None in other streams.
    """

    row: int
    softmax_rank: int
    learned_rank: int
    chance: float | None
    odds: float | None


@dataclass(frozen=True, slots=True)
class ReviewQueue:
    """The first items of a stream, the table they are from, and the number of unlabelled points in each stream."""

    table: PointTable
    items: tuple[QueueItem, ...]
    counts: dict[Stream, int]


def review_queue(
    newest: PointTable, drawn: PointTable, score: LearnedScore, stream: Stream, *, limit: int
) -> ReviewQueue:
    """Unlabelled points of a stream, in the order of review.

    Parameters
    ----------
    newest
        Points among which outliers and doubtful ones are found.
    drawn
        Points that were drawn for the audit, in the order of labelling.
    score
        The score that ranks doubtful points.
    stream
        The stream to return.
    limit
        Maximum number of items.
    """
    is_free, is_outlier = _is_free(newest), newest.reason == Reason.OUTLIER
    outliers = np.flatnonzero(is_free & is_outlier)
    is_drawn_free = _is_free(drawn)
    orders: dict[Stream, Ints] = {
        Stream.OUTLIERS: outliers[np.argsort(newest.p_value[outliers], kind="stable")],
        Stream.DOUBTFUL: np.flatnonzero(is_free & ~is_outlier),
        Stream.AUDIT: np.flatnonzero(is_drawn_free),
        Stream.CERTIFICATE: np.flatnonzero(is_drawn_free & drawn.accepted),
    }
    table = newest if stream in (Stream.OUTLIERS, Stream.DOUBTFUL) else drawn
    free = np.flatnonzero(_is_free(table))
    softmax, learned, chances = rank_points(score, table.take(free))
    order = np.searchsorted(free, orders[stream])
    if stream is Stream.DOUBTFUL:
        order = order[np.argsort(learned[order], kind="stable")]
    items = tuple(
        QueueItem(
            row=int(free[index]),
            softmax_rank=int(softmax[index]),
            learned_rank=int(learned[index]),
            chance=None if np.isnan(chances[index]) else float(chances[index]),
            odds=float(drawn.audit_odds[free[index]]) if table is drawn else None,
        )
        for index in order[:limit].tolist()
    )
    return ReviewQueue(table, items, {each: len(rows) for each, rows in orders.items()})


def _is_free(table: PointTable) -> NDArray[np.bool_]:
    return ~table.is_labelled & (table.predicted >= 0)
