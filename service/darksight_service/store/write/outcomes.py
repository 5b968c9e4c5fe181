"""Outcomes: true labels, stored under their prediction id and matched with the points of that id.

    late          the point is stored: matched at once
    early         the point is not stored yet: the outcome stays open, and is matched when the point is inserted
    unmatched     stays open, is counted, and is deleted when outcomes of its age are pruned
    duplicate     the same label again: nothing changes
    conflicting   another label: the one observed last is kept, on a tie the first one; marked as disputed
    refused       a negative class, or a prediction id of more than `MAX_NAME_BYTES`

An outcome belongs to every point of its prediction id, those of shadow versions included. A point and its outcome that
are inserted in concurrent transactions do not see each other on PostgreSQL. `OutcomeMatcher` matches them later, and
closes the outcomes that have points, so that new points are compared with few open ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, case, exists, func, select, text, update

from darksight_service.errors import StoreUnavailableError
from darksight_service.store.engine import reading, writing
from darksight_service.store.ids import point_id
from darksight_service.store.names import Names, check_model
from darksight_service.store.points import OutcomeBatch, PointTable
from darksight_service.store.tables import NAME_HASH, PointId, insert_into, outcome, outcome_point

__all__ = ["MAX_NAME_BYTES", "OutcomeCounts", "OutcomeMatcher", "insert_outcomes", "match_points", "open_names"]

MAX_NAME_BYTES = 1024
"""A prediction id must fit into an index entry."""

_CHUNK = 500

_BY_NAME = """
    INSERT INTO outcome_point (point_id, outcome_id)
    SELECT named.id, outcome.id FROM outcome
    JOIN {named}
    JOIN bundle ON bundle.id = named.bundle_id AND bundle.model_id = outcome.model_id
    WHERE outcome.id IN :ids
    ON CONFLICT DO NOTHING
"""
_NAMED_SQLITE = "point AS named ON named.prediction_id = outcome.prediction_id"
# Each name is looked up in the index. Without LATERAL PostgreSQL may read all points instead.
_NAMED_POSTGRESQL = f"""LATERAL (
        SELECT id, bundle_id FROM point WHERE prediction_id = outcome.prediction_id
        AND {NAME_HASH.format("prediction_id")} = {NAME_HASH.format("outcome.prediction_id")} OFFSET 0
    ) AS named ON true"""
_BY_ID = """
    INSERT INTO outcome_point (point_id, outcome_id)
    SELECT point.id, outcome.id FROM outcome
    JOIN point ON point.id = :point_id AND point.prediction_id IS NULL
    JOIN bundle ON bundle.id = point.bundle_id AND bundle.model_id = outcome.model_id
    WHERE outcome.id = :outcome_id
    ON CONFLICT DO NOTHING
"""
_OPEN_ONES = """
    INSERT INTO outcome_point (point_id, outcome_id)
    SELECT found.id, outcome.id FROM unnest(%(ids)s::uuid[], %(names)s::text[]) AS found (id, name)
    JOIN outcome ON outcome.model_id = %(model_id)s AND outcome.prediction_id = found.name AND outcome.is_open
    ON CONFLICT DO NOTHING
"""
_OPEN_ONE = """
    INSERT INTO outcome_point (point_id, outcome_id)
    SELECT ?, id FROM outcome WHERE model_id = ? AND prediction_id = ? AND is_open ON CONFLICT DO NOTHING
"""


@dataclass(slots=True)
class OutcomeCounts:
    """Outcomes by result.

    Parameters
    ----------
    outcomes
        New outcomes.
    duplicate, conflicting, refused
        Outcomes of a prediction that had one, with the same label or another; and outcomes that cannot be stored.
    matched
        Points that had no outcome and now have one.
    """

    outcomes: int = 0
    duplicate: int = 0
    conflicting: int = 0
    refused: int = 0
    matched: int = 0


@dataclass(slots=True)
class _Report:
    """The label of one prediction id; `add` resolves conflicts as the upsert does."""

    label: int
    observed_ms: int
    received_ms: int
    is_disputed: bool = False

    def add(self, label: int, observed_ms: int) -> bool:
        """Add another report; whether it conflicts with this one."""
        conflicts = label != self.label
        self.is_disputed |= conflicts
        if observed_ms > self.observed_ms:
            self.label, self.observed_ms = label, observed_ms
        return conflicts


def insert_outcomes(engine: Engine, names: Names, batches: Iterable[OutcomeBatch], counted: OutcomeCounts) -> None:
    """Store outcomes, match them with their points, and count them."""
    folded: dict[str, dict[str, _Report]] = {}
    for batch in batches:
        reports = folded.setdefault(batch.model, {})
        rows = zip(batch.prediction_ids, batch.labels.tolist(), batch.observed_ms.tolist(), strict=True)
        for name, label, observed_ms in rows:
            if label < 0 or len(name.encode()) > MAX_NAME_BYTES:
                counted.refused += 1
            elif name not in reports:
                reports[name] = _Report(label, observed_ms or batch.received_ms, batch.received_ms)
            elif reports[name].add(label, observed_ms or batch.received_ms):
                counted.conflicting += 1
            else:
                counted.duplicate += 1
    try:
        for model, reports in folded.items():
            model_id = names.model_id(model)
            for chunk in _chunks(sorted(reports), 20 * _CHUNK):
                with writing(engine) as connection:
                    check_model(connection, model, model_id)
                    _store(connection, model_id, {name: reports[name] for name in chunk}, counted)
    except StoreUnavailableError:
        # After a fail-over the numbers may be others.
        names.clear()
        raise


def _store(connection: Connection, model_id: int, reports: dict[str, _Report], counted: OutcomeCounts) -> None:
    known = _stored(connection, model_id, list(reports))
    for name, report in reports.items():
        if name not in known:
            counted.outcomes += 1
        elif known[name].label == report.label and not report.is_disputed:
            counted.duplicate += 1
        else:
            counted.conflicting += 1
    insert = insert_into(connection, outcome)
    later = insert.excluded.observed_at > outcome.c.observed_at
    differs = insert.excluded.label != outcome.c.label
    # PostgreSQL's GREATEST is SQLite's MAX; CASE is both.
    chosen = {name: case((later, insert.excluded[name]), else_=outcome.c[name]) for name in ("label", "observed_at")}
    disputed = outcome.c.is_disputed | insert.excluded.is_disputed | differs
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=["model_id", "prediction_id"],
            set_={**chosen, "is_disputed": disputed},
            where=later | differs,
        ),
        [
            {
                "model_id": model_id,
                "prediction_id": name,
                "label": report.label,
                "observed_at": report.observed_ms,
                "received_at": report.received_ms,
                "is_disputed": report.is_disputed,
                "is_open": True,
            }
            for name, report in reports.items()
        ],
    )
    fresh = [name for name in reports if name not in known]
    stored = _stored(connection, model_id, fresh)
    counted.matched += _match_outcomes(connection, {row.id: name for name, row in stored.items()})


def _stored(connection: Connection, model_id: int, names: Sequence[str]) -> dict[str, Any]:
    """Number and label of the stored outcomes among these prediction ids."""
    found: dict[str, Any] = {}
    for chunk in _chunks(names, _CHUNK):
        query = select(outcome.c.prediction_id, outcome.c.id, outcome.c.label)
        query = query.where(outcome.c.model_id == model_id, outcome.c.prediction_id.in_(chunk))
        found |= {row.prediction_id: row for row in connection.execute(query)}
    return found


def _match_outcomes(connection: Connection, names: dict[int, str]) -> int:
    """Match outcomes, given by number and prediction id, with stored points."""
    named = _NAMED_POSTGRESQL if connection.dialect.name == "postgresql" else _NAMED_SQLITE
    by_name = text(_BY_NAME.format(named=named)).bindparams(bindparam("ids", expanding=True))
    matched = 0
    for chunk in _chunks(list(names), _CHUNK):
        matched += connection.execute(by_name, {"ids": chunk}).rowcount
    defaults = [
        {"outcome_id": number, "point_id": found}
        for number, name in names.items()
        if (found := point_id(name)) is not None
    ]
    by_id = text(_BY_ID).bindparams(bindparam("point_id", type_=PointId))
    return matched + sum(connection.execute(by_id, each).rowcount for each in defaults)


def match_points(connection: Connection, groups: Iterable[tuple[int, PointTable]]) -> int:
    """Match points of this transaction, given by number of their model, with open outcomes; returns how many."""
    matched = 0
    has_open: dict[int, bool] = {}
    for model_id, points in groups:
        if model_id not in has_open:
            query = select(exists().where(outcome.c.is_open, outcome.c.model_id == model_id))
            has_open[model_id] = bool(connection.scalar(query))
        if has_open[model_id]:
            matched += _match_points(connection, model_id, points)
    return matched


def open_names(connection: Connection, model_id: int, points: PointTable) -> set[str]:
    """Prediction ids of points that an open outcome waits for."""
    if not connection.scalar(select(exists().where(outcome.c.is_open, outcome.c.model_id == model_id))):
        return set()
    query = select(outcome.c.prediction_id).where(outcome.c.model_id == model_id, outcome.c.is_open)
    found: set[str] = set()
    for chunk in _chunks(points.prediction_ids(), _CHUNK):
        found.update(connection.scalars(query.where(outcome.c.prediction_id.in_(chunk))))
    return found


def _match_points(connection: Connection, model_id: int, points: PointTable) -> int:
    ids, names = points.id_bytes(), points.prediction_ids()
    driver: Any = connection.connection.driver_connection
    cursor = driver.cursor()
    if connection.dialect.name == "postgresql":
        uuids = [uuid.UUID(bytes=each) for each in ids]
        cursor.execute(_OPEN_ONES, {"ids": uuids, "names": names, "model_id": model_id})
    else:
        cursor.executemany(_OPEN_ONE, zip(ids, [model_id] * len(ids), names, strict=True))
    matched: int = cursor.rowcount
    cursor.close()
    return max(matched, 0)


class OutcomeMatcher:
    """Matches outcomes that missed a point of a concurrent transaction, and closes those that have points.

    Parameters
    ----------
    engine
        Of the database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looked_at = 0
        self._seen = 0

    def match_open(self) -> int:
        """Match and close the outcomes that were stored before the previous call; returns how many were matched."""
        matched = 0
        last, self._seen = self._seen, self._last_id()
        while self._looked_at < last:
            matched += self._match_some(last)
        while self._close_some(last):
            pass
        return matched

    def _last_id(self) -> int:
        with reading(self._engine) as connection:
            return connection.scalar(select(func.max(outcome.c.id))) or 0

    def _match_some(self, last: int) -> int:
        query = (
            select(outcome.c.id, outcome.c.prediction_id)
            .where(outcome.c.id > self._looked_at, outcome.c.id <= last, outcome.c.is_open)
            .order_by(outcome.c.id)
            .limit(10 * _CHUNK)
        )
        with writing(self._engine) as connection:
            names = {row.id: row.prediction_id for row in connection.execute(query)}
            matched = _match_outcomes(connection, names) if names else 0
        self._looked_at = max(names) if len(names) == 10 * _CHUNK else last
        return matched

    def _close_some(self, last: int) -> bool:
        has_point = exists().where(outcome_point.c.outcome_id == outcome.c.id)
        some = select(outcome.c.id).where(outcome.c.is_open, outcome.c.id <= last, has_point).limit(10 * _CHUNK)
        with writing(self._engine) as connection:
            done = connection.execute(update(outcome).where(outcome.c.id.in_(some)).values(is_open=False)).rowcount
        return done == 10 * _CHUNK


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
