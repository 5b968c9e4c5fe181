"""Stored points as a `PointTable`: pages, points by id or name, the newest, those with labels or drawn for an audit.

Ids sort by time, so a page is a range of ids and the next one begins below the last id. Points inserted meanwhile are
newer, so each point is on one page.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, FromClause, LargeBinary, and_, func, select, text, type_coerce

from darksight_service.errors import RequestError
from darksight_service.store.database import FOREVER_MS, Database
from darksight_service.store.engine import reading
from darksight_service.store.ids import MINUTE_MS, first_id, point_id
from darksight_service.store.points import SCORE_COLUMNS, PointFilter, PointTable, TagColumn, score_columns
from darksight_service.store.probabilities import decode_probs
from darksight_service.store.read import search
from darksight_service.store.read.search import newest_rows, with_outcomes
from darksight_service.store.rollups import within
from darksight_service.store.tables import NAME_HASH, audit_point, outcome, outcome_point, point, rollup, tag
from darksight_service.store.texts import Texts

__all__ = [
    "Page",
    "PointQueries",
    "read_table",
    "sql_columns",
]

MAX_PAGE = 10_000
DEFAULT_PAGE = 100

_SCORES = ("id", "bundle_id", *SCORE_COLUMNS, "label", "probs")
_ALL = (*_SCORES, "event_at", "delay_ms", "is_shadow", "prediction_id", "tags", "reference", "trace_id")
_HOUR_MINUTES = 60
_MAX_SAME_NAME = 400


class Page(NamedTuple):
    """Points, and the token of the next page; empty on the last one."""

    points: PointTable
    next_token: str


def sql_columns(engine: Engine, names: Sequence[str], points: FromClause = point) -> list[Any]:
    """SQL columns of points with their outcomes, as `read_table` reads them."""

    def as_bytes(name: str) -> Any:
        # Bytes from the database on: a UUID object for each row would take as long as all the rest.
        if engine.dialect.name == "postgresql":
            return func.uuid_send(points.c[name], type_=LargeBinary)
        return type_coerce(points.c[name], LargeBinary)

    special: dict[str, Any] = {name: as_bytes(name) for name in {"id", "trace_id"} & set(names)}
    special["label"] = func.coalesce(outcome.c.label, -1)
    return [special[name] if name in special else points.c[name] for name in names]


def read_table(
    engine: Engine, rows: Sequence[Sequence[Any]], names: Sequence[str], model: str, bundles: Mapping[int, str]
) -> PointTable:
    """The table of rows with these columns, among them `id` and `bundle_id`; `bundles` has versions by number."""
    found: dict[str, Sequence[Any]] = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    found = {name: found.get(name, ()) for name in names}
    numbers = {number: place for place, number in enumerate(bundles)}
    columns: dict[str, Any] = {
        "bundle": np.array([numbers[each] for each in found["bundle_id"]], dtype=np.intp),
        **score_columns(found),
        **{column: read(found[name]) for name, (column, read) in _READERS.items() if name in found},
    }
    if "tags" in found:
        columns["tag_sets"], columns["tags"] = _read_tags(engine, found["tags"])
    ids = _pairs_of_uint64(found["id"])
    return PointTable.of(ids, model, tuple(bundles.values()), **columns)


def _pairs_of_uint64(values: Iterable[bytes]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(values), dtype=">u8").reshape(-1, 2)


def _numbers(values: Iterable[int | None]) -> NDArray[np.int64]:
    return np.array([each or 0 for each in values], dtype=np.int64)


# The field of `PointTable` that each SQL column becomes, and how; scores and tags aside.
_READERS: Mapping[str, tuple[str, Callable[[Sequence[Any]], Any]]] = {
    "label": ("label", _numbers),
    "probs": ("probs", decode_probs),
    "event_at": ("event_ms", _numbers),
    "delay_ms": ("delay_ms", _numbers),
    "is_shadow": ("is_shadow", lambda values: np.array(values, dtype=np.bool_)),
    "prediction_id": ("names", Texts.of),
    "reference": ("references", Texts.of),
    "trace_id": ("traces", lambda values: _pairs_of_uint64(each or bytes(16) for each in values)),
}


def _read_tags(engine: Engine, blobs: Sequence[bytes | None]) -> TagColumn:
    """The tags of rows, by the numbers that their column has."""
    different = {blob: number for number, blob in enumerate(dict.fromkeys(blobs))}
    numbers = [np.frombuffer(blob or b"", ">i4").tolist() for blob in different]
    stored = sorted({each for some in numbers for each in some})
    pairs = {}
    if stored:
        with reading(engine) as connection:
            query = select(tag.c.id, tag.c.key, tag.c.value).where(tag.c.id.in_(stored))
            pairs = {number: (key, value) for number, key, value in connection.execute(query)}
    sets = tuple(tuple(sorted(pairs[each] for each in some if each in pairs)) for some in numbers)
    return sets or ((),), np.array([different[blob] for blob in blobs], dtype=np.intp)


class PointQueries(Database):
    """Points as tables: pages, by id or name, the newest, labelled or drawn ones."""

    def list_points(self, wanted: PointFilter, *, page_size: int = 0, page_token: str = "") -> Page:
        """A page of points, newest first; RequestError for a page token of another request."""
        bundles = self._names.known(wanted.model, wanted.version)
        if not 0 <= page_size <= MAX_PAGE:
            raise RequestError(f"page_size: must be from 1 to {MAX_PAGE:,}, not {page_size}", field="page_size")
        size = page_size or DEFAULT_PAGE
        before = _read_token(page_token, wanted) if page_token else b""
        found = newest_rows(
            self._engine, bundles, wanted, sql_columns(self._engine, _ALL), limit=size + 1, before=before
        )
        points = read_table(self._engine, found[:size], _ALL, wanted.model, bundles)
        return Page(points, _token(found[size - 1][0], wanted) if len(found) > size else "")

    def points_by_id(self, model: str, version: str | None, ids: Sequence[bytes]) -> PointTable:
        """The stored points among these ids, in their order, of a version or of all."""
        bundles = self._names.known(model, version)
        query = select(*sql_columns(self._engine, _ALL)).select_from(with_outcomes(point))
        query = query.where(point.c.id.in_(ids), point.c.bundle_id.in_(list(bundles)))
        with reading(self._engine) as connection:
            found = {bytes(row[0]): row for row in connection.execute(query)} if ids else {}
        return read_table(self._engine, [found[each] for each in ids if each in found], _ALL, model, bundles)

    def points_by_name(self, model: str, name: str) -> PointTable:
        """The points with this prediction id, newest first, those of shadow versions included."""
        bundles = self._names.known(model, None)
        named = point.c.prediction_id == name
        if self._engine.dialect.name == "postgresql":
            # The index holds a part of the hash.
            hashed = text(f"{NAME_HASH.format('point.prediction_id')} = {NAME_HASH.format(':wanted_name')}")
            named = and_(named, hashed.bindparams(wanted_name=name))
        query = select(*sql_columns(self._engine, _ALL)).select_from(with_outcomes(point))
        query = (
            query.where(named, point.c.bundle_id.in_(list(bundles))).order_by(point.c.id.desc()).limit(_MAX_SAME_NAME)
        )
        with reading(self._engine) as connection:
            found = connection.execute(query).all()
        default = point_id(name)
        if not found and default is not None:
            return self.points_by_id(model, None, [default])
        return read_table(self._engine, found, _ALL, model, bundles)

    def newest_points(self, wanted: PointFilter, *, limit: int, with_tags: bool = False) -> PointTable:
        """The newest points that pass a filter, without names and event times, and without tags unless asked for."""
        bundles = self._names.known(wanted.model, wanted.version)
        names = (*_SCORES, "tags") if with_tags else _SCORES
        found = newest_rows(self._engine, bundles, wanted, sql_columns(self._engine, names), limit=limit)
        return read_table(self._engine, found, names, wanted.model, bundles)

    def drawn_points(
        self, wanted: PointFilter, *, limit: int, with_probs: bool = True, with_tags: bool = False
    ) -> tuple[PointTable, float]:
        """Points that are drawn for the audit, in the order of labelling, and the depth of the draw that they are.

        All points with u / o below the depth are given: 1, or less if they are more than `limit`. Of the filter, the
        span of time alone is used.
        """
        names = tuple(name for name in _SCORES if name != "probs" or with_probs) + (("tags",) if with_tags else ())
        bundles = self._names.known(wanted.model, wanted.version)
        drawn = (
            select(audit_point.c.point_id, audit_point.c.key)
            .where(
                audit_point.c.bundle_id.in_(list(bundles)),
                audit_point.c.point_id >= first_id(wanted.since_ms),
                audit_point.c.point_id < first_id(wanted.until_ms),
            )
            .order_by(audit_point.c.key)
            .limit(limit)
        )
        chosen = drawn.subquery("drawn")
        source, points = search.points_with_ids(self._engine, chosen, chosen.c.point_id)
        query = select(*sql_columns(self._engine, names, points)).select_from(with_outcomes(source, points))
        with reading(self._engine) as connection:
            # Of all that are listed: retention may have deleted points of some already.
            next_key = connection.scalar(drawn.with_only_columns(audit_point.c.key).limit(1).offset(limit))
            found = connection.execute(query.order_by(chosen.c.key)).all()
        return read_table(self._engine, found, names, wanted.model, bundles), min(float(next_key or 1.0), 1.0)

    def labelled_points(
        self,
        model: str,
        version: str | None = None,
        *,
        since_ms: int = 0,
        until_ms: int = FOREVER_MS,
        limit: int = 100_000,
        with_probs: bool = True,
        with_tags: bool = False,
    ) -> PointTable:
        """The newest points that have a label, without those of shadow versions."""
        bundles = self._names.known(model, version)
        names = _SCORES if with_probs else tuple(name for name in _SCORES if name != "probs")
        names = (*names, "tags") if with_tags else names
        source, points = search.labelled_points(self._engine)
        query = select(*sql_columns(self._engine, names, points)).select_from(source)
        query = query.where(search.labelled_within(points, bundles, since_ms, until_ms))
        query = query.order_by(outcome_point.c.point_id.desc()).limit(limit)
        with reading(self._engine) as connection:
            return read_table(self._engine, connection.execute(query).all(), names, model, bundles)

    def filled_since(
        self, model: str, version: str | None, *, since_ms: int = 0, until_ms: int, points: int
    ) -> tuple[int, int]:
        """When the newest `points` points before `until_ms` begin, in whole minutes, and how many there are since then.

        Never before `since_ms`, and never less than the last minute that has any.
        """
        bundles = self._names.known(model, version)
        bottom, top = since_ms // MINUTE_MS, (until_ms - 1) // MINUTE_MS
        first, total, look = until_ms, 0, _HOUR_MINUTES
        with reading(self._engine) as connection:
            bottom = max(bottom, _oldest_minute(connection, bundles))
            while top >= bottom:
                start = max(bottom, top - look + 1)
                query = (
                    select(rollup.c.minute, func.sum(rollup.c.points))
                    .where(within(rollup, bundles, False, start * MINUTE_MS, (top + 1) * MINUTE_MS))
                    .group_by(rollup.c.minute)
                    .order_by(rollup.c.minute.desc())
                )
                for minute, count in connection.execute(query):
                    if total and total + int(count) > points:
                        return first, total
                    first, total = max(since_ms, int(minute) * MINUTE_MS), total + int(count)
                top, look = start - 1, 4 * look
        return first, total


def _oldest_minute(connection: Connection, bundles: Iterable[int]) -> int:
    """The first minute with points; a search that starts at time 0 would take too long."""
    oldest = [
        connection.scalar(select(rollup.c.minute).where(rollup.c.bundle_id == each).order_by(rollup.c.minute).limit(1))
        for each in bundles
    ]
    return min((int(minute) for minute in oldest if minute is not None), default=1 << 40)


def _digest(wanted: PointFilter) -> bytes:
    return hashlib.sha256(json.dumps(asdict(wanted), sort_keys=True).encode()).digest()[:8]


def _token(last: bytes, wanted: PointFilter) -> str:
    return base64.urlsafe_b64encode(last + _digest(wanted)).decode()


def _read_token(token: str, wanted: PointFilter) -> bytes:
    try:
        found = base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        found = b""
    if len(found) != 24 or found[16:] != _digest(wanted):
        raise RequestError("page_token: belongs to another request", field="page_token")
    return found[:16]
