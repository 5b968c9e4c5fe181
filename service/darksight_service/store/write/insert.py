"""Points into SQL, each exactly once however often it is sent.

The fast path assumes that all rows are new, which they nearly always are: on PostgreSQL a binary COPY straight into the
partition of the day, on SQLite one executemany. If a row was stored before, the transaction is rolled back and the slow
path finds the new rows. Only new rows are counted and listed for the audit, in the same transaction.

With `keep_accepted` some accepted rows are counted, and not stored (`_thin`). Their batches are noted for some hours:
one that comes again is not counted again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, select, text

from darksight_core.drift.urn import audit_numbers
from darksight_core.rows.schema import AUDIT_COLUMNS, Reason
from darksight_core.rows.simplex import Floats
from darksight_service.errors import SchemaMismatchError, StoreError, StoreUnavailableError
from darksight_service.store.engine import writing
from darksight_service.store.ids import DAY_MS, LATEST_MS, MAX_ROWS
from darksight_service.store.names import Names, bundle_numbers
from darksight_service.store.partitions import DEFAULT, is_plausible, make_days
from darksight_service.store.points import SCORE_COLUMNS, PointTable, score_values
from darksight_service.store.probabilities import ProbabilityCodec
from darksight_service.store.rollups import add_counts
from darksight_service.store.tables import bundle, point
from darksight_service.store.texts import Texts
from darksight_service.store.write.audit_points import AuditDraw, list_drawn
from darksight_service.store.write.copy import HEADER, TRAILER, binary_rows
from darksight_service.store.write.detector_state import Detectors, DriftFollower, version_of
from darksight_service.store.write.outcomes import match_points, open_names
from darksight_service.store.write.tags import SetNumbers, TagNumbers, are_current

__all__ = ["BundlePoints", "Inserter", "Written", "sql_values", "sqlite_statements", "tag_blobs"]

_UNIQUE_VIOLATION = "23505"
_CHECK_VIOLATION = "23514"
_STATEMENT_ROWS = 16
_QUERY_IDS = 500
# The largest probability of a row that is scored twice differs by less.
_SAME_TOP = 1e-5
# Accepted rows up to this p-value are all stored, also by a gate without an outlier rule.
_UNUSUAL = 0.01
_COLUMNS = ", ".join(column.name for column in point.columns)
# Numbers that are NULL; sqlite3 stores NaN as NULL by itself.
_NULLS = {"event_at": 0, "delay_ms": 0} | {
    name: column.missing for name, column in SCORE_COLUMNS.items() if column.nullable and not math.isnan(column.missing)
}
_OF_DRAWN = {column.name for column in AUDIT_COLUMNS}
# The start of the year 1: psycopg and Python have no earlier times.
_EARLIEST_MS = -62_135_596_800_000


class BundlePoints(NamedTuple):
    """Points of one bundle, with numbers in the database, and its drift detectors.

    The numbers are those of the bundle, of its model, and of the tags of each set of tags. `chances` are the
    probabilities of being wrong of the points that the audit covers, NaN for others, (n,).
    """

    bundle_id: int
    model_id: int
    points: PointTable
    chances: Floats
    detectors: Detectors = ()
    tags: SetNumbers = SetNumbers(((),))

    def take(self, rows: Any) -> BundlePoints:
        """Some of the points."""
        return self._replace(points=self.points.take(rows), chances=self.chances[rows])


class Written(NamedTuple):
    """What was done with points, in rows.

    New ones, those that had an outcome waiting, their tags that are stored as `_other`, and points whose id another
    stored one has.
    """

    points: int = 0
    matched: int = 0
    folded_tags: int = 0
    conflicts: int = 0


class Inserter:
    """Writes points.

    Parameters
    ----------
    engine
        Of the database.
    names
        Numbers of bundles.
    tags
        Numbers of tags.
    codec
        What to keep of probabilities.
    audit
        The draw of points for the audit.
    keep_accepted
        Share of usual accepted rows to store.
    """

    def __init__(
        self,
        engine: Engine,
        names: Names,
        tags: TagNumbers,
        codec: ProbabilityCodec,
        audit: AuditDraw,
        keep_accepted: float = 1.0,
    ) -> None:
        self._engine = engine
        self._names = names
        self._tags = tags
        self._codec = codec
        self.audit = audit
        self._keep_accepted = keep_accepted
        self._is_postgresql = engine.dialect.name == "postgresql"
        self._days: dict[int, str] = {}
        self.follower: DriftFollower | None = None
        self.folded_tags = 0

    def insert(self, tables: Sequence[PointTable], *, today: int) -> Written:
        """Store points."""
        groups = self._grouped(tables)
        if not groups:
            return Written()
        try:
            written = self._insert(groups, today)
        except StoreUnavailableError:
            # After a fail-over the numbers may be others.
            self._names.clear()
            self._tags.clear()
            raise
        self.folded_tags += written.folded_tags
        return written

    def _insert(self, groups: Sequence[BundlePoints], today: int) -> Written:
        if not self._is_postgresql:
            return self._insert_into_sqlite(groups)
        try:
            return self._copy(groups, today)
        except StoreError as error:
            state = error.details.get("state")
            if state == _UNIQUE_VIOLATION:
                return self._merge(groups, today)
            # Another process dropped a partition since it was listed, or made one for rows of the default partition.
            if not isinstance(error, SchemaMismatchError) and state != _CHECK_VIOLATION:
                raise
            self._days = {}
        return self._merge(groups, today)

    def make_days(self, days: set[int], today: int) -> None:
        """Make sure that each of these days that is plausible has a partition."""
        if not days <= self._days.keys():
            self._days = make_days(self._engine, {day for day in days if is_plausible(day, today)})

    def _grouped(self, tables: Iterable[PointTable]) -> list[BundlePoints]:
        """The points of each bundle and number of classes in one table."""
        groups: dict[tuple[str, str, int], list[PointTable]] = {}
        for table in tables:
            for number, version in enumerate(table.versions):
                part = table if len(table.versions) == 1 else table.take(table.bundle == number)
                if len(part):
                    groups.setdefault((table.model, version, table.probs.shape[1]), []).append(part)
        found = []
        for (model, version, _), parts in groups.items():
            bundle_id, model_id = self._names.bundle_of(model, version)
            points = PointTable.join(parts)
            tags = self._tags.of_sets(model_id, points.tag_sets)
            detectors = () if self.follower is None else self.follower.detectors_of(model, version)
            chances = self.audit.draw(points, version)
            found.append(BundlePoints(bundle_id, model_id, points, chances, detectors, tags))
        return found

    def _copy(self, groups: Sequence[BundlePoints], today: int) -> Written:
        self.make_days({int(day) for group in groups for day in np.unique(group.points.id_ms // DAY_MS)}, today)
        with writing(self._engine) as connection:
            groups = self._thin(connection, groups)
            by_table: dict[str, list[BundlePoints]] = {}
            for group in _stored(groups):
                each = group.points.id_ms // DAY_MS
                found = np.unique(each).tolist()
                for day in found:
                    part = group if len(found) == 1 else group.take(each == day)
                    by_table.setdefault(self._days.get(day, DEFAULT), []).append(part)
            for table, parts in by_table.items():
                self._copy_into(connection, table, parts)
            return self._count(connection, groups)

    def _merge(self, groups: Sequence[BundlePoints], today: int) -> Written:
        self.make_days({int(day) for group in groups for day in np.unique(group.points.id_ms // DAY_MS)}, today)
        with writing(self._engine) as connection:
            groups = self._thin(connection, groups)
            stored = _stored(groups)
            connection.exec_driver_sql("CREATE TEMPORARY TABLE incoming (LIKE point) ON COMMIT DROP")
            self._copy_into(connection, "incoming", stored)
            query = (
                f"INSERT INTO point ({_COLUMNS}) SELECT {_COLUMNS} FROM incoming ORDER BY id "
                "ON CONFLICT DO NOTHING RETURNING id"
            )
            fresh = {found.bytes for (found,) in connection.execute(text(query))}
            written = self._count(connection, _only(groups, fresh))
            return written._replace(conflicts=_count_conflicts(connection, stored))

    def _copy_into(self, connection: Connection, table: str, groups: Sequence[BundlePoints]) -> None:
        driver: Any = connection.connection.driver_connection
        copy_from = f"COPY {table} ({_COLUMNS}) FROM STDIN (FORMAT BINARY)"
        with driver.cursor() as cursor, cursor.copy(copy_from) as copy:
            copy.write(HEADER)
            for group in groups:
                points = group.points
                probs = self._codec(points.probs, points.known)
                for part in binary_rows(points, sql_values(group), probs, tag_blobs(group)):
                    copy.write(part.view(np.uint8).data)
            copy.write(TRAILER)

    def _insert_into_sqlite(self, groups: Sequence[BundlePoints]) -> Written:
        with writing(self._engine) as connection:
            driver: Any = connection.connection.driver_connection
            groups = self._thin(connection, groups)
            stored = _stored(groups)
            driver.execute("SAVEPOINT fast")
            before = driver.total_changes
            self._execute(driver, stored)
            if driver.total_changes - before == sum(len(group.points) for group in stored):
                return self._count(connection, groups)
            driver.execute("ROLLBACK TO fast")
            fresh = _only(groups, _absent(driver, "point", [id for group in stored for id in group.points.id_bytes()]))
            self._execute(driver, _stored(fresh))
            return self._count(connection, fresh)._replace(conflicts=_count_conflicts(connection, stored))

    def _thin(self, connection: Connection, groups: Sequence[BundlePoints]) -> list[BundlePoints]:
        """The points with their odds, without batches that came before and of which rows were left out.

        A row is stored if a number from a hash of its id is below its odds. Rejected, unusual and labelled rows have
        odds of 1, others those of being drawn for an audit or `keep_accepted`, whichever are higher.
        """
        if self._keep_accepted >= 1.0:
            return list(groups)
        found, left_out = [], []
        for group in groups:
            points = group.points
            # A row that is not drawn is stored if its number is below `keep_accepted`, and that below its odds.
            odds = np.fmax(self._keep_accepted, points.audit_odds)
            is_usual = points.accepted & np.equal(points.reason, Reason.NONE) & np.greater(points.p_value, _UNUSUAL)
            points = replace(points, odds=np.where(is_usual, odds, 1.0).astype(np.float32))
            rest = points.take(~_is_stored(points))
            if labelled := open_names(connection, group.model_id, rest):
                is_labelled = np.array([name in labelled for name in points.prediction_ids()])
                points = replace(points, odds=np.where(is_labelled, np.float32(1.0), points.odds))
                rest = points.take(~_is_stored(points))
            left_out.append(_batches(rest))
            found.append(group._replace(points=points))
        batches = sorted({each for some in left_out for each in some})
        repeated = set(batches) - _note(connection, batches)
        if not repeated:
            return found
        masks = [np.array([each not in repeated for each in _batches(group.points)]) for group in found]
        return [group.take(mask) for group, mask in zip(found, masks, strict=True) if mask.any()]

    def _count(self, connection: Connection, groups: Sequence[BundlePoints]) -> Written:
        """Count new points, list those drawn for the audit, follow drift and match outcomes that wait for points."""
        for group in groups:
            _check_numbers(connection, group)
        add_counts(connection, [(group.bundle_id, group.points, group.tags.ids, group.chances) for group in groups])
        list_drawn(connection, [(group.bundle_id, group.points) for group in groups])
        if self.follower is not None:
            self.follower.follow(
                connection, [(group.bundle_id, group.points, group.detectors, group.tags.ids) for group in groups]
            )
        matched = match_points(connection, [(group.model_id, group.points) for group in _stored(groups)])
        return Written(sum(len(group.points) for group in groups), matched, sum(map(_folded_tags, groups)))

    def _execute(self, driver: Any, groups: Sequence[BundlePoints]) -> None:
        for group in groups:
            for statement, values in sqlite_statements(group, self._codec):
                driver.executemany(statement, values)


def sql_values(group: BundlePoints) -> dict[str, Any]:
    """Columns of `point` that are numbers, (n,) each, and the number of the bundle."""
    points = group.points
    event_at = np.clip(points.event_ms, _EARLIEST_MS, LATEST_MS)
    others = {
        "event_at": event_at,
        "delay_ms": points.delay_ms,
        "is_shadow": points.is_shadow,
        "bundle_id": group.bundle_id,
    }
    return {**score_values(points), **others}


def tag_blobs(group: BundlePoints) -> Texts:
    """The column `tags` of each row; missing in a row without tags."""
    blobs = [np.array(each, dtype=">i4").tobytes() for each in group.tags.ids]
    sizes = np.array([len(each) or -1 for each in blobs], dtype=np.int64)
    return Texts(np.frombuffer(b"".join(blobs), np.uint8), sizes)[group.points.tags]


def _folded_tags(group: BundlePoints) -> int:
    """Tags of the points that are stored as `_other`."""
    stored = set(group.tags.pairs.values())
    folded = [sum(pair not in stored for pair in each) for each in group.points.tag_sets]
    return int(np.array(folded)[group.points.tags].sum()) if any(folded) else 0


def _check_numbers(connection: Connection, group: BundlePoints) -> None:
    """StoreUnavailableError if the numbers are of another database, which may take the place of this one unnoticed.

    An idle connection is replaced without an error, and a restored backup, or a standby that lacked the last commits,
    may have given the numbers to others.
    """
    points = group.points
    current = bundle_numbers(connection, points.model, version_of(points))
    if current != (group.bundle_id, group.model_id) or not are_current(connection, group.tags):
        raise StoreUnavailableError("the database has other numbers of bundles or tags than before")


def _only(groups: Sequence[BundlePoints], fresh: set[bytes]) -> list[BundlePoints]:
    """The first row of each id that is `fresh`, and the rows that are not stored."""
    left = set(fresh)
    kept = []
    for group in groups:
        mask = ~_is_stored(group.points)
        for number, each in enumerate(group.points.id_bytes()):
            if each in left:
                left.discard(each)
                mask[number] = True
        if mask.any():
            kept.append(group.take(mask))
    return kept


def _count_conflicts(connection: Connection, groups: Sequence[BundlePoints]) -> int:
    """Rows whose id has a stored point of another model, prediction id or prediction: they are no repetition.

    Other scores are none either: another version may have scored the first attempt.
    """
    found = 0
    columns = (bundle.c.model_id, point.c.prediction_id, point.c.predicted, point.c.top)
    query = select(point.c.id, *columns).join(bundle, bundle.c.id == point.c.bundle_id)
    for group in groups:
        points, values = group.points, score_values(group.points)
        ids = points.id_bytes()
        stored: dict[bytes, Any] = {}
        for start in range(0, len(ids), _QUERY_IDS):
            rows = connection.execute(query.where(point.c.id.in_(ids[start : start + _QUERY_IDS])))
            stored |= {row.id: row for row in rows}
        given = zip(ids, points.names.tolist(), values["predicted"].tolist(), values["top"].tolist(), strict=True)
        for each, name, predicted, top in given:
            row = stored[each]
            is_same = (row.model_id, row.prediction_id, row.predicted) == (group.model_id, name, predicted)
            found += not is_same or (row.top is not None and abs(row.top - top) > _SAME_TOP)
    return found


def _absent(driver: Any, table: str, ids: Sequence[bytes]) -> set[bytes]:
    query = f"SELECT 1 FROM {table} WHERE id = ?"
    return {each for each in ids if driver.execute(query, (each,)).fetchone() is None}


def _is_stored(points: PointTable) -> NDArray[np.bool_]:
    """Whether each point is stored, by its odds, (n,)."""
    if (points.odds == 1.0).all():
        return np.ones(len(points), dtype=np.bool_)
    found: NDArray[np.bool_] = audit_numbers(points.ids) < points.odds
    return found


def _stored(groups: Sequence[BundlePoints]) -> list[BundlePoints]:
    """The points that are stored."""
    masks = [_is_stored(group.points) for group in groups]
    return [group if mask.all() else group.take(mask) for group, mask in zip(groups, masks, strict=True) if mask.any()]


def _batches(points: PointTable) -> list[bytes]:
    """The batch id of each point."""
    ids = points.ids.copy()
    ids[:, 1] &= np.uint64(0xFFFF_FFFF_FFFF_FFFF ^ (MAX_ROWS - 1))
    return replace(points, ids=ids).id_bytes()


def _note(connection: Connection, batches: Sequence[bytes]) -> set[bytes]:
    """Note batches of which rows are left out; returns those that were not noted before."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "postgresql":
        # One statement for all rows; it waits for another replica that notes the same batch.
        query = "INSERT INTO thinned_batch SELECT unnest(%s::uuid[]) ON CONFLICT DO NOTHING RETURNING id"
        return {found.bytes for (found,) in driver.execute(query, ([each.hex() for each in batches],))}
    new = _absent(driver, "thinned_batch", batches)
    driver.executemany("INSERT INTO thinned_batch (id) VALUES (?)", [(each,) for each in new])
    return new


def sqlite_statements(group: BundlePoints, codec: ProbabilityCodec) -> Iterator[tuple[str, Iterator[tuple[Any, ...]]]]:
    """Statements for sqlite3, which stores NaN as NULL, each with its values; to be used one after the other.

    sqlite3 looks for an adapter of every value that is not exactly an int, a float, a str or a bytearray, and for six
    of them in each row that took a third of the whole insert. So booleans are numbers and blobs bytearrays, and columns
    that are NULL in all rows are not named. Several rows in a statement take a fifth less time than one in each.
    """
    points, probs = group.points, codec(group.points.probs, group.points.known)
    rows = len(points)
    has_probs: list[bool] = np.asarray(np.isfinite(points.probs).all(axis=1)).tolist()
    columns: dict[str, Iterable[Any]] = {"id": map(bytearray, points.id_bytes())}
    for name, numbers in sql_values(group).items():
        null = _NULLS.get(name)
        if name == "bundle_id" or (null is not None and (numbers == null).all()):
            continue
        if name in _OF_DRAWN and np.isnan(numbers).all():
            continue
        given = (numbers.view(np.uint8) if numbers.dtype == bool else numbers).tolist()
        columns[name] = given if null is None else [None if each == null else each for each in given]
    if (points.names.sizes >= 0).any():
        columns["prediction_id"] = points.names.tolist()
    if (points.references.sizes >= 0).any():
        columns["reference"] = points.references.tolist()
    if any(group.tags.ids):
        blobs = [bytearray(np.array(each, dtype=">i4").tobytes()) or None for each in group.tags.ids]
        columns["tags"] = [blobs[number] for number in points.tags.tolist()]
    if points.traces.any():
        columns["trace_id"] = [bytearray(each) if any(each) else None for each in points.trace_bytes()]
    if probs.shape[1] and any(has_probs):
        kept = np.ascontiguousarray(probs).view(f"V{probs.shape[1]}").reshape(rows).tolist()
        columns["probs"] = [bytearray(blob) if is_kept else None for blob, is_kept in zip(kept, has_probs, strict=True)]
    values = chain.from_iterable(zip(*columns.values(), strict=True))
    row = f"({group.bundle_id}{', ?' * len(columns)})"
    for count, times in ((_STATEMENT_ROWS, rows // _STATEMENT_ROWS), (1, rows % _STATEMENT_ROWS)):
        insert = f"INSERT INTO point (bundle_id, {', '.join(columns)}) VALUES {', '.join([row] * count)}"
        yield f"{insert} ON CONFLICT DO NOTHING", islice(zip(*[values] * (count * len(columns)), strict=False), times)
