"""Decisions on stored points: how often they were right, and what another policy would have decided."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from sqlalchemy import ColumnElement, Connection, FromClause, and_, case, false, func, or_, select, true

from darksight_core.gate.gate import RULES, Gate, accepted_reasons
from darksight_core.map.regions import Region, inside_any
from darksight_core.rows.schema import Reason
from darksight_service.store.database import FOREVER_MS, Database
from darksight_service.store.engine import reading
from darksight_service.store.read.search import (
    labelled_points,
    labelled_within,
    received_within,
    weight,
    with_outcomes,
    within_box,
)
from darksight_service.store.tables import outcome, point

__all__ = ["DecisionCounts", "LabelCounts", "PolicyQueries"]

_AT_ONCE = 50_000

_FIELDS: dict[int, str] = {
    Reason.OUTLIER: "outliers",
    Reason.LOW_CONFIDENCE: "low_confidence",
    Reason.REGION: "regions",
    Reason.INVALID: "invalid",
    Reason.UNSCORED: "unscored",
}


@dataclass(slots=True)
class LabelCounts:
    """Points that have a label, and those of them that were predicted correctly."""

    accepted_labelled: int = 0
    accepted_correct: int = 0
    rejected_labelled: int = 0
    rejected_correct: int = 0

    def add_labelled(self, is_accepted: bool, points: int, correct: int) -> None:
        """Count points of one decision."""
        if is_accepted:
            self.accepted_labelled += points
            self.accepted_correct += int(correct)
        else:
            self.rejected_labelled += points
            self.rejected_correct += int(correct)


@dataclass(slots=True)
class DecisionCounts(LabelCounts):
    """Points by decision and reason; a stored point counts as the rows that it stands for.

    `stored` are the points that the numbers are from.
    """

    points: int = 0
    stored: int = 0
    accepted: int = 0
    outliers: int = 0
    low_confidence: int = 0
    regions: int = 0
    invalid: int = 0
    unscored: int = 0

    def add(self, is_accepted: bool, reason: int, points: int, stored: int) -> None:
        """Count points of one decision and reason."""
        self.points += points
        self.stored += stored
        self.accepted += points if is_accepted else 0
        field = _FIELDS.get(reason)
        if field is not None:
            setattr(self, field, getattr(self, field) + points)


class PolicyQueries(Database):
    """Decisions on stored points, and their labels."""

    def evaluate_policy(
        self, model: str, version: str | None, gate: Gate, *, since_ms: int, until_ms: int
    ) -> tuple[DecisionCounts, DecisionCounts]:
        """Decisions on stored points as they were, and as a gate with the same reject score would have made them."""
        bundles = self._names.known(model, version)
        after = _reason(gate, point)
        key = (point.c.is_accepted, point.c.reason, after.label("after"))
        where = received_within(bundles, since_ms, until_ms)
        counted = select(*key, _rows(point), func.count()).where(where).group_by(*key)
        source, labelled = labelled_points(self._engine)
        labelled_key = (labelled.c.is_accepted, _reason(gate, labelled).label("after"))
        known = select(*labelled_key, _rows(labelled), _correct(labelled)).select_from(source).group_by(*labelled_key)
        known = known.where(labelled_within(labelled, bundles, since_ms, until_ms))
        before_counts, after_counts = DecisionCounts(), DecisionCounts()
        accepting = accepted_reasons(gate.fail_open)
        with reading(self._engine) as connection:
            for is_accepted, reason, new_reason, points, stored in connection.execute(counted):
                before_counts.add(is_accepted, reason, round(points), stored)
                after_counts.add(new_reason in accepting, new_reason, round(points), stored)
            for is_accepted, new_reason, points, correct in connection.execute(known):
                before_counts.add_labelled(is_accepted, round(points), round(correct))
                after_counts.add_labelled(new_reason in accepting, round(points), round(correct))
            if gate.regions:
                accepted = and_(where, after.in_([int(reason) for reason in accepting]))
                _reject_inside(connection, after_counts, gate.regions, accepted, after)
        return before_counts, after_counts

    def label_counts(
        self, model: str, version: str | None = None, *, since_ms: int = 0, until_ms: int = FOREVER_MS
    ) -> LabelCounts:
        """How often accepted and rejected predictions were correct, of points received in a span of time."""
        bundles = self._names.known(model, version)
        source, points = labelled_points(self._engine)
        query = (
            select(points.c.is_accepted, _rows(points), _correct(points))
            .select_from(source)
            .where(labelled_within(points, bundles, since_ms, until_ms))
            .group_by(points.c.is_accepted)
        )
        counts = LabelCounts()
        with reading(self._engine) as connection:
            for is_accepted, labelled, correct in connection.execute(query):
                counts.add_labelled(is_accepted, round(labelled), round(correct))
        return counts


def _reject_inside(
    connection: Connection,
    counts: DecisionCounts,
    regions: tuple[Region, ...],
    where: ColumnElement[bool],
    reason: ColumnElement[int],
) -> None:
    """Count accepted points that are inside a region as rejected."""
    query = (
        select(point.c.x, point.c.y, weight(point), reason, point.c.predicted, func.coalesce(outcome.c.label, -1))
        .select_from(with_outcomes(point))
        .where(where, or_(*(within_box(point.c.x, point.c.y, region) for region in regions)))
    )
    for part in connection.execute(query).partitions(_AT_ONCE):
        table = np.array([tuple(row) for row in part], dtype=np.float64)
        weights, reasons, predicted, label = table[inside_any(regions, table[:, :2]), 2:].T
        counts.accepted -= round(weights.sum())
        counts.regions += round(weights.sum())
        counts.unscored -= round(weights[reasons == Reason.UNSCORED].sum())
        is_known = label >= 0
        known, correct = round(weights[is_known].sum()), round(weights[is_known & (label == predicted)].sum())
        counts.add_labelled(True, -known, -correct)
        counts.add_labelled(False, known, correct)


def _rows(points: FromClause) -> ColumnElement[float]:
    return func.coalesce(func.sum(weight(points)), 0.0)


def _correct(points: FromClause) -> ColumnElement[float]:
    return func.coalesce(func.sum(case((outcome.c.label == points.c.predicted, weight(points)), else_=0.0)), 0.0)


def _reason(gate: Gate, points: FromClause) -> ColumnElement[int]:
    """The reason that a gate without its regions would give, as `Gate.decide` does."""
    unscored: ColumnElement[bool] = points.c.p_value.is_(None)
    applies = {Reason.INVALID: points.c.reason == Reason.INVALID, Reason.UNSCORED: unscored}
    # Stored numbers were rounded to float32, so what they are compared with must be too.
    if gate.class_limits is not None:
        # Not overridden: an override has one level for all rows.
        applies[Reason.OUTLIER] = points.c.reason == Reason.OUTLIER
    elif gate.outlier is not None:
        applies[Reason.OUTLIER] = points.c.p_value <= float(np.float32(gate.outlier.p_value))
    if gate.reject_score is not None:
        applies[Reason.UNSCORED] = or_(unscored, points.c.confidence.is_(None))
        lowest = [float(each) for each in gate.lowest_by_class.astype(np.float32)]
        low: ColumnElement[bool] = points.c.confidence < lowest[0]
        if gate.segments is not None:
            # A row has the threshold of its segment, by which it was decided; only what was an outlier was not.
            was_passed = points.c.reason.in_([Reason.NONE, Reason.REGION])
            applies[Reason.LOW_CONFIDENCE] = case(
                (was_passed, false()), (points.c.reason == Reason.LOW_CONFIDENCE, true()), else_=low
            )
        elif len(lowest) > 1:
            thresholds = {k: each for k, each in enumerate(lowest) if each > -math.inf}
            if thresholds:
                # NULL for a class without a threshold, which no confidence is below.
                applies[Reason.LOW_CONFIDENCE] = points.c.confidence < case(thresholds, value=points.c.predicted)
        elif gate.threshold > -math.inf:
            applies[Reason.LOW_CONFIDENCE] = low
    return case(*((applies[rule], int(rule)) for rule in RULES if rule in applies), else_=int(Reason.NONE))
