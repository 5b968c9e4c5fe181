"""How good the decisions were, and what others would have been: live accuracy, risk-coverage, dry runs of a policy."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from sqlalchemy import ColumnElement, Connection, Engine, and_, case, func, literal, or_, select

from darksight_core.gate.gate import RULES, accepted_reasons
from darksight_core.map.regions import Region, inside_any
from darksight_core.scored import Reason
from darksight_service.store.engine import reading
from darksight_service.store.partitions import first_id
from darksight_service.store.read.region_points import within_box
from darksight_service.store.read.search import span, with_outcomes
from darksight_service.store.tables import outcome, outcome_point, point

__all__ = [
    "LABELLED",
    "Accuracy",
    "Cutoffs",
    "DecisionCounts",
    "accuracy",
    "dry_run",
    "labelled_within",
    "prefer_index",
]


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """A gate as far as stored numbers can repeat it.

    Parameters
    ----------
    outlier
        Largest p-value of an outlier; None for no such rule.
    threshold
        Accept iff the reject score is above; None for no such rule.
    fail_open
        Whether rows that could not be scored are accepted.
    regions
        Where rows are refused that all else accepts.
    """

    outlier: float | None = None
    threshold: float | None = None
    fail_open: bool = False
    regions: tuple[Region, ...] = ()


@dataclass(slots=True)
class DecisionCounts:
    """Points by what was decided, and how many of them were right where that is known."""

    points: int = 0
    accepted: int = 0
    outliers: int = 0
    low_confidence: int = 0
    regions: int = 0
    invalid: int = 0
    unscored: int = 0
    accepted_labelled: int = 0
    accepted_correct: int = 0
    rejected_labelled: int = 0
    rejected_correct: int = 0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Points whose right class is known, and of them those predicted right."""

    accepted_labelled: int
    accepted_correct: int
    rejected_labelled: int
    rejected_correct: int


_FEW = 50_000

_FIELDS = {
    Reason.OUTLIER: "outliers",
    Reason.LOW_CONFIDENCE: "low_confidence",
    Reason.REGION: "regions",
    Reason.INVALID: "invalid",
    Reason.UNSCORED: "unscored",
}

LABELLED = point.join(outcome_point, outcome_point.c.point_id == point.c.id).join(
    outcome, outcome.c.id == outcome_point.c.outcome_id
)
"""Points whose right class is known."""

_CORRECT = func.coalesce(func.sum(case((outcome.c.label == point.c.predicted, 1), else_=0)), 0)


def dry_run(
    engine: Engine, bundles: Collection[int], cutoffs: Cutoffs, *, since_ms: int, until_ms: int
) -> tuple[DecisionCounts, DecisionCounts]:
    """What was decided on stored points, and what a policy would have decided."""
    after = _reason(cutoffs)
    key = (point.c.is_accepted, point.c.reason, after.label("after"))
    where = _where(bundles, since_ms, until_ms)
    counted = select(*key, func.count()).where(where).group_by(*key)
    known = select(*key, func.count(), _CORRECT).select_from(LABELLED).group_by(*key)
    known = known.where(labelled_within(bundles, since_ms, until_ms))
    results = DecisionCounts(), DecisionCounts()
    accepting = accepted_reasons(cutoffs.fail_open)
    with reading(engine) as connection:
        for is_accepted, reason, new_reason, points in connection.execute(counted):
            _count(results[0], is_accepted, reason, points)
            _count(results[1], new_reason in accepting, new_reason, points)
        prefer_index(connection, since_ms, until_ms)
        for is_accepted, _, new_reason, points, correct in connection.execute(known):
            _count_labelled(results[0], is_accepted, points, correct)
            _count_labelled(results[1], new_reason in accepting, points, correct)
        if cutoffs.regions:
            accepted = and_(where, after.in_([int(reason) for reason in accepting]))
            _refuse_inside(connection, results[1], cutoffs.regions, accepted, after)
    return results


def _refuse_inside(
    connection: Connection,
    counts: DecisionCounts,
    regions: tuple[Region, ...],
    where: ColumnElement[bool],
    reason: ColumnElement[int],
) -> None:
    """Take accepted points that are inside a region over to the rejected ones."""
    query = (
        select(point.c.x, point.c.y, reason, point.c.predicted, func.coalesce(outcome.c.label, -1))
        .select_from(with_outcomes(point))
        .where(where, or_(*(within_box(point.c.x, point.c.y, region) for region in regions)))
    )
    for part in connection.execute(query).partitions(_FEW):
        table = np.array([tuple(row) for row in part], dtype=np.float64)
        reasons, predicted, label = table[inside_any(regions, table[:, :2]), 2:].T
        refused = len(reasons)
        counts.accepted -= refused
        counts.regions += refused
        counts.unscored -= int((reasons == Reason.UNSCORED).sum())
        known, correct = int((label >= 0).sum()), int(((label >= 0) & (label == predicted)).sum())
        _count_labelled(counts, True, -known, -correct)
        _count_labelled(counts, False, known, correct)


def accuracy(engine: Engine, bundles: Collection[int], *, since_ms: int, until_ms: int) -> Accuracy:
    """How often accepted and rejected predictions were right, of points received in a span of time."""
    query = (
        select(point.c.is_accepted, func.count(), _CORRECT)
        .select_from(LABELLED)
        .where(labelled_within(bundles, since_ms, until_ms))
        .group_by(point.c.is_accepted)
    )
    counts = DecisionCounts()
    with reading(engine) as connection:
        prefer_index(connection, since_ms, until_ms)
        for is_accepted, points, correct in connection.execute(query):
            _count_labelled(counts, is_accepted, points, correct)
    return Accuracy(
        counts.accepted_labelled, counts.accepted_correct, counts.rejected_labelled, counts.rejected_correct
    )


def _where(bundles: Collection[int], since_ms: int, until_ms: int) -> ColumnElement[bool]:
    return and_(
        span(first_id(since_ms), first_id(until_ms)),
        point.c.bundle_id.in_(list(bundles)),
        point.c.is_shadow == literal(False),
    )


def labelled_within(bundles: Collection[int], since_ms: int, until_ms: int) -> ColumnElement[bool]:
    """Which of `LABELLED` were received in a span of time; what a shadow said is left out."""
    return and_(_where(bundles, since_ms, until_ms), _known_within(since_ms, until_ms))


def _known_within(since_ms: int, until_ms: int) -> ColumnElement[bool]:
    return and_(outcome_point.c.point_id >= first_id(since_ms), outcome_point.c.point_id < first_id(until_ms))


def prefer_index(connection: Connection, since_ms: int, until_ms: int) -> None:
    """Look labelled points up one by one if they are few.

    Before PostgreSQL has counted new outcomes it takes them for many, and reads all points of the time instead.
    """
    if connection.dialect.name == "postgresql":
        some = select(outcome_point.c.point_id).where(_known_within(since_ms, until_ms)).limit(_FEW + 1).subquery()
        if (connection.scalar(select(func.count()).select_from(some)) or 0) <= _FEW:
            for way in ("seqscan", "hashjoin", "mergejoin"):
                connection.exec_driver_sql(f"SET LOCAL enable_{way} = off")


def _reason(cutoffs: Cutoffs) -> ColumnElement[int]:
    """The reason that a gate without regions would give."""
    unscored: ColumnElement[bool] = point.c.p_value.is_(None)
    applies = {Reason.INVALID: point.c.reason == Reason.INVALID, Reason.UNSCORED: unscored}
    # Stored numbers were rounded to float32, so what they are compared with must be too.
    if cutoffs.outlier is not None:
        applies[Reason.OUTLIER] = point.c.p_value <= float(np.float32(cutoffs.outlier))
    if cutoffs.threshold is not None:
        applies[Reason.UNSCORED] = or_(unscored, point.c.confidence.is_(None))
        if cutoffs.threshold > -math.inf:
            applies[Reason.LOW_CONFIDENCE] = point.c.confidence <= float(np.float32(cutoffs.threshold))
    return case(*((applies[rule], int(rule)) for rule in RULES if rule in applies), else_=int(Reason.NONE))


def _count(counts: DecisionCounts, is_accepted: bool, reason: int, points: int) -> None:
    counts.points += points
    counts.accepted += points if is_accepted else 0
    field = _FIELDS.get(Reason(reason))
    if field is not None:
        setattr(counts, field, getattr(counts, field) + points)


def _count_labelled(counts: DecisionCounts, is_accepted: bool, points: int, correct: int) -> None:
    if is_accepted:
        counts.accepted_labelled += points
        counts.accepted_correct += int(correct)
    else:
        counts.rejected_labelled += points
        counts.rejected_correct += int(correct)
