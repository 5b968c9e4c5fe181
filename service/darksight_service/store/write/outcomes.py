"""What was right: kept under the name of its prediction, and joined to the points of that name.

    late          the point is there: joined at once
    early         the point is not there yet: kept open, and joined when the point comes
    never seen    stays open, is counted, and goes when outcomes of its age are pruned
    duplicate     the same label again: nothing changes
    conflicting   another label: the one observed last holds, on a tie the one that came first; marked as disputed
    refused       no class has a negative number, and no name more than `MAX_NAME_BYTES`

An outcome is about every point of its name: what was answered, and what a shadow said. A point and its outcome that are
inserted at the same moment do not see each other on PostgreSQL; `settle` looks again a little later and then closes the
outcomes that have their points, so that new points are compared with few names.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, case, exists, func, select, text, update

from darksight_service.ingest.records import MAX_ROWS, OutcomeBatch, parse_prediction_id
from darksight_service.store.engine import reading, writing
from darksight_service.store.rows import Rows
from darksight_service.store.tables import NAME_HASH, PointId, outcome, outcome_point
from darksight_service.store.write.names import Names, insert_into

__all__ = ["MAX_NAME_BYTES", "Counted", "Settler", "insert_outcomes", "match_points"]

MAX_NAME_BYTES = 1024
"""A name must fit into the entry of an index."""

_CHUNK = 500

_BY_NAME = """
    INSERT INTO outcome_point (point_id, outcome_id)
    SELECT point.id, outcome.id FROM outcome
    JOIN point ON point.prediction_id = outcome.prediction_id {hashed}
    JOIN bundle ON bundle.id = point.bundle_id AND bundle.model_id = outcome.model_id
    WHERE outcome.id IN :ids
    ON CONFLICT DO NOTHING
"""
_HASHED = f"AND {NAME_HASH.format('point.prediction_id')} = {NAME_HASH.format('outcome.prediction_id')}"
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
class Counted:
    """What became of some outcomes."""

    recorded: int = 0
    duplicate: int = 0
    conflicting: int = 0
    refused: int = 0
    matched: int = 0


@dataclass(slots=True)
class _Report:
    """What is known about one name; `add` is how reports are weighed, here and in the upsert."""

    label: int
    observed_ms: int
    received_ms: int
    is_disputed: bool = False

    def add(self, label: int, observed_ms: int) -> bool:
        """Whether another report conflicts with this one."""
        conflicts = label != self.label
        self.is_disputed |= conflicts
        if observed_ms > self.observed_ms:
            self.label, self.observed_ms = label, observed_ms
        return conflicts


def insert_outcomes(engine: Engine, names: Names, batches: Iterable[OutcomeBatch]) -> Counted:
    """Store outcomes and join them to their points; see the module for every case."""
    counted = Counted()
    folded: dict[int, dict[str, _Report]] = {}
    for batch in batches:
        reports = folded.setdefault(names.model_id(batch.model), {})
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
    for model_id, reports in folded.items():
        for chunk in _chunks(sorted(reports), 20 * _CHUNK):
            with writing(engine) as connection:
                _store(connection, model_id, {name: reports[name] for name in chunk}, counted)
    return counted


def _store(connection: Connection, model_id: int, reports: dict[str, _Report], counted: Counted) -> None:
    known = _known(connection, model_id, reports)
    for name, report in reports.items():
        if name not in known:
            counted.recorded += 1
        elif known[name] == report.label and not report.is_disputed:
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
    counted.matched += _match_outcomes(connection, _numbers(connection, model_id, fresh))


def _known(connection: Connection, model_id: int, names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for chunk in _chunks(list(names), _CHUNK):
        query = select(outcome.c.prediction_id, outcome.c.label)
        query = query.where(outcome.c.model_id == model_id, outcome.c.prediction_id.in_(chunk))
        found |= {row.prediction_id: row.label for row in connection.execute(query)}
    return found


def _numbers(connection: Connection, model_id: int, names: Sequence[str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for chunk in _chunks(names, _CHUNK):
        query = select(outcome.c.id, outcome.c.prediction_id)
        query = query.where(outcome.c.model_id == model_id, outcome.c.prediction_id.in_(chunk))
        found |= {row.id: row.prediction_id for row in connection.execute(query)}
    return found


def _match_outcomes(connection: Connection, names: dict[int, str]) -> int:
    """Join outcomes, given by number and name, to the points that are there."""
    is_postgresql = connection.dialect.name == "postgresql"
    if is_postgresql:
        # Few names among very many points: whatever the statistics say, the index is right.
        for way in ("seqscan", "hashjoin", "mergejoin"):
            connection.exec_driver_sql(f"SET LOCAL enable_{way} = off")
    by_name = text(_BY_NAME.format(hashed=_HASHED if is_postgresql else "")).bindparams(
        bindparam("ids", expanding=True)
    )
    matched = 0
    for chunk in _chunks(list(names), _CHUNK):
        matched += connection.execute(by_name, {"ids": chunk}).rowcount
    made_here = [
        {"outcome_id": number, "point_id": (int.from_bytes(found[0], "big") + found[1]).to_bytes(16, "big")}
        for number, name in names.items()
        if (found := parse_prediction_id(name)) is not None
    ]
    by_id = text(_BY_ID).bindparams(bindparam("point_id", type_=PointId))
    return matched + sum(connection.execute(by_id, each).rowcount for each in made_here)


def match_points(connection: Connection, groups: Sequence[Rows]) -> int:
    """Join points that were just inserted to outcomes that came before them; returns how many had one."""
    matched = 0
    waiting: dict[int, bool] = {}
    for rows in groups:
        if rows.model_id not in waiting:
            query = select(exists().where(outcome.c.is_open, outcome.c.model_id == rows.model_id))
            waiting[rows.model_id] = bool(connection.scalar(query))
        if waiting[rows.model_id]:
            matched += _match_points(connection, rows)
    return matched


def _match_points(connection: Connection, rows: Rows) -> int:
    ids = rows.id_bytes()
    names = [name if name is not None else _made_name(each) for each, name in zip(ids, rows.names, strict=True)]
    driver: Any = connection.connection.driver_connection
    cursor = driver.cursor()
    if connection.dialect.name == "postgresql":
        uuids = [uuid.UUID(bytes=each) for each in ids]
        cursor.execute(_OPEN_ONES, {"ids": uuids, "names": names, "model_id": rows.model_id})
    else:
        pairs = zip(ids, [rows.model_id] * len(ids), names, strict=True)
        cursor.executemany(_OPEN_ONE, pairs)
    matched: int = cursor.rowcount
    cursor.close()
    return max(matched, 0)


def _made_name(point_id: bytes) -> str:
    number = int.from_bytes(point_id, "big")
    row = number % MAX_ROWS
    return f"{uuid.UUID(int=number - row)}-{row}"


class Settler:
    """Looks again at outcomes that were inserted before it was last asked; see the module.

    Parameters
    ----------
    engine
        Of the database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looked_at = 0
        self._seen = 0

    def settle(self) -> int:
        """Join what missed its point, close what has one; returns how many were joined."""
        matched = 0
        last, self._seen = self._seen, self._last_id()
        while self._looked_at < last:
            matched += self._look(last)
        while self._close(last):
            pass
        return matched

    def _last_id(self) -> int:
        with reading(self._engine) as connection:
            return connection.scalar(select(func.max(outcome.c.id))) or 0

    def _look(self, last: int) -> int:
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

    def _close(self, last: int) -> bool:
        has_point = exists().where(outcome_point.c.outcome_id == outcome.c.id)
        some = select(outcome.c.id).where(outcome.c.is_open, outcome.c.id <= last, has_point).limit(10 * _CHUNK)
        with writing(self._engine) as connection:
            done = connection.execute(update(outcome).where(outcome.c.id.in_(some)).values(is_open=False)).rowcount
        return done == 10 * _CHUNK


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
