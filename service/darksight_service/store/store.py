"""The store: one object with everything that is kept in SQL.

What it hides: two databases, how rows are written fast and only once, partitions, migrations, and what can go wrong
with a connection. Every call either does all of what it says or raises: StoreUnavailableError if the same call may
succeed later, StoreError if not. It is safe to use from several threads and processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from sqlalchemy import Engine, exists, func, select

from darksight_core.map.regions import Region
from darksight_service.control.state import Change
from darksight_service.ingest.records import OutcomeBatch, PointBatch, PointRows, received_ms
from darksight_service.store import migrate as schema
from darksight_service.store import rollups
from darksight_service.store.engine import Timeouts, ahead, give_way, make_engine, reading
from darksight_service.store.partitions import AHEAD_DAYS, day_of, partitions
from darksight_service.store.read import map_points as mapped
from darksight_service.store.read import point_table as frames
from darksight_service.store.read import policy_evaluation as verdicts
from darksight_service.store.read import region_points as places
from darksight_service.store.read import search
from darksight_service.store.rows import MINUTE_MS, gather, parse_probability_codec
from darksight_service.store.tables import outcome, outcome_point, point, rollup
from darksight_service.store.write import changes
from darksight_service.store.write.insert import Inserter
from darksight_service.store.write.names import Names
from darksight_service.store.write.outcomes import Settler, insert_outcomes
from darksight_service.store.write.retention import Limits, Pruned, prune, used_bytes

__all__ = ["Inserted", "Store", "StoreStats"]

_FOREVER = (1 << 48) - 1


@dataclass(frozen=True, slots=True)
class Inserted:
    """What one call of `insert` did; all but `refused` is stored for good.

    Parameters
    ----------
    points
        New points.
    repeated
        Points that were there already.
    outcomes
        New outcomes.
    duplicate, conflicting, refused
        Outcomes of a name that had one, with the same label or another; and those that no label can have.
    matched
        Points that now have an outcome, and had none before.
    """

    points: int = 0
    repeated: int = 0
    outcomes: int = 0
    duplicate: int = 0
    conflicting: int = 0
    refused: int = 0
    matched: int = 0

    @property
    def inserted(self) -> int:
        """Rows that are new, points and outcomes."""
        return self.points + self.outcomes

    @property
    def duplicates(self) -> int:
        """Rows that were there."""
        return self.repeated + self.duplicate


@dataclass(frozen=True, slots=True)
class StoreStats:
    """How much there is; `points` are those since the minute of the oldest one."""

    database: str
    revision: str | None
    bytes: int
    points: int
    outcomes: int
    unmatched: int
    disputed: int
    changes: int
    days: list[str] = field(default_factory=list)


class Store:
    """See the module; made by `Store.open`.

    Parameters
    ----------
    engine
        Of the database.
    keep_probs
        `float16`, `topK:<k>` or `none`.
    clock
        Unix milliseconds.
    """

    def __init__(self, engine: Engine, *, keep_probs: str = "float16", clock: Callable[[], int] | None = None) -> None:
        self._engine = engine
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._storage = parse_probability_codec(keep_probs)
        self._names = Names(engine, self._clock)
        self._inserter = Inserter(engine)
        self._settler = Settler(engine)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        keep_probs: str = "float16",
        auto_upgrade: bool = False,
        check: bool = True,
        timeouts: Timeouts | None = None,
        clock: Callable[[], int] | None = None,
    ) -> Store:
        """Connect to `sqlite:///FILE` or `postgresql://...`.

        Parameters
        ----------
        url
            Where.
        keep_probs
            What to keep of probabilities: `float16`, `topK:<k>`, `none`.
        auto_upgrade
            Whether to migrate an SQLite file that is behind; PostgreSQL is migrated by `darksight db upgrade` only.
        check
            Whether to raise SchemaMismatchError if the database is behind; without it nothing is connected yet.
        timeouts
            Limits of waiting for PostgreSQL.
        clock
            Unix milliseconds, for tests.
        """
        store = cls(make_engine(url, timeouts=timeouts), keep_probs=keep_probs, clock=clock)
        try:
            if auto_upgrade and store._engine.dialect.name == "sqlite":
                store.upgrade()
            if check:
                schema.require(store._engine)
        except BaseException:
            store.close()
            raise
        return store

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def upgrade(self) -> tuple[str | None, str | None]:
        """Run the migrations that are missing; returns the revisions before and after."""
        return schema.upgrade(self._engine)

    def check(self) -> tuple[int, str]:
        """Compare the database with the tables, and verify the audit trail.

        Returns the number of entries of the trail and its last hash; SchemaMismatchError or AuditError if not sound.
        """
        schema.require(self._engine)
        schema.forbid_differences(self._engine)
        return changes.verify_chain(self._engine)

    def insert(self, batches: Iterable[PointBatch | PointRows | OutcomeBatch]) -> Inserted:
        """Store points and outcomes; what is there already is left as it is."""
        give_way(self._engine)
        points: list[PointBatch | PointRows] = []
        outcomes: list[OutcomeBatch] = []
        for batch in batches:
            if isinstance(batch, OutcomeBatch):
                outcomes.append(batch)
            else:
                points.append(batch)
        groups = gather(points, self._names.bundle_of, self._storage)
        new, matched = self._inserter.insert(groups, today=day_of(self._clock()))
        counted = insert_outcomes(self._engine, self._names, outcomes)
        return Inserted(
            points=new,
            repeated=sum(map(len, groups)) - new,
            outcomes=counted.recorded,
            duplicate=counted.duplicate,
            conflicting=counted.conflicting,
            refused=counted.refused,
            matched=matched + counted.matched,
        )

    def tend(self) -> int:
        """What is due every minute: partitions of the days ahead, outcomes that just missed their point.

        Returns how many of these were joined.
        """
        if self._engine.dialect.name == "postgresql":
            today = day_of(self._clock())
            self._inserter.make_days(set(range(today, today + AHEAD_DAYS + 1)), today)
        return self._settler.settle()

    def register_bundle(self, model: str, version: str, *, class_names: Sequence[str], calibration_rows: int) -> None:
        """Write down what is known about a bundle; points may come before."""
        self._names.register(model, version, class_names=class_names, calibration_rows=calibration_rows)

    def list_points(self, wanted: search.PointFilter, *, page_size: int = 0, page_token: str = "") -> search.Page:
        """Stored points, newest first; RequestError for a page token of another request."""
        bundles = self._names.known(wanted.model, wanted.version)
        return search.list_points(self._engine, bundles, wanted, page_size=page_size, page_token=page_token)

    def newest_inside(
        self, model: str, version: str, region: Region, *, since_ms: int, until_ms: int, limit: int
    ) -> places.Places:
        """Of the newest points of a version those that are inside a region."""
        bundles = self._names.known(model, version)
        wanted = search.PointFilter(model, version, since_ms, until_ms)
        return places.newest_inside(self._engine, bundles, wanted, region, limit=limit)

    def points_by_id(self, model: str, version: str, ids: Sequence[bytes]) -> list[search.StoredPoint]:
        """The points with these ids, in their order, as far as they are stored."""
        return places.points_by_id(self._engine, self._names.known(model, version), model, ids)

    def find_points(self, model: str, name: str) -> list[search.StoredPoint]:
        """The points whose prediction has this name."""
        return frames.points_by_name(self._engine, self._names.known(model, None), model, name)

    def frame(self, wanted: search.PointFilter, *, limit: int) -> frames.PointTable:
        """The newest points of a filter as columns."""
        bundles = self._names.known(wanted.model, wanted.version)
        return frames.newest_frame(self._engine, bundles, wanted, limit=limit)

    def labelled_frame(
        self,
        model: str,
        version: str | None = None,
        *,
        since_ms: int = 0,
        until_ms: int = _FOREVER,
        limit: int = 100_000,
    ) -> frames.PointTable:
        """The newest points whose right class is known, as columns: for accuracy, risk-coverage and learning."""
        bundles = self._names.known(model, version)
        return frames.labelled_frame(self._engine, bundles, since_ms=since_ms, until_ms=until_ms, limit=limit)

    def filled_since(
        self, model: str, version: str | None, *, since_ms: int = 0, until_ms: int, points: int
    ) -> tuple[int, int]:
        """When the newest `points` points of a span of time begin, and how many there are since."""
        bundles = self._names.known(model, version)
        return frames.filled_since(self._engine, bundles, since_ms=since_ms, until_ms=until_ms, points=points)

    def map_points(
        self,
        wanted: search.PointFilter,
        *,
        limit: int = mapped.MAX_MAPPED,
        before: bytes = b"",
        after: bytes = b"",
        with_probs: bool = False,
    ) -> mapped.MapPoints:
        """The newest points that were placed, as columns; `before` and `after` are ids of points."""
        bundles = self._names.known(wanted.model, wanted.version)
        return mapped.newest_points(
            self._engine, bundles, wanted, limit=limit, before=before, after=after, with_probs=with_probs
        )

    def sample_map_points(self, wanted: search.PointFilter, *, limit: int = mapped.MAX_MAPPED) -> mapped.MapPoints:
        """Points spread over a whole window, as columns."""
        return mapped.sample_points(self._engine, self._names.known(wanted.model, wanted.version), wanted, limit=limit)

    def count_points(self, wanted: search.PointFilter) -> int:
        """How many points there are, by the minute."""
        return mapped.count_points(self._engine, self._names.known(wanted.model, wanted.version), wanted)

    def dry_run(
        self, model: str, version: str | None, cutoffs: verdicts.Cutoffs, *, since_ms: int, until_ms: int
    ) -> tuple[verdicts.DecisionCounts, verdicts.DecisionCounts]:
        """Decisions on stored points as they were and as `cutoffs` would have made them."""
        bundles = self._names.known(model, version)
        return verdicts.dry_run(self._engine, bundles, cutoffs, since_ms=since_ms, until_ms=until_ms)

    def accuracy(
        self, model: str, version: str | None = None, *, since_ms: int = 0, until_ms: int = _FOREVER
    ) -> verdicts.Accuracy:
        """How often accepted and rejected predictions were right, where that is known."""
        bundles = self._names.known(model, version)
        return verdicts.accuracy(self._engine, bundles, since_ms=since_ms, until_ms=until_ms)

    def rates(
        self,
        model: str,
        version: str | None = None,
        *,
        since_ms: int,
        until_ms: int,
        step_ms: int = 60_000,
        is_shadow: bool = False,
    ) -> rollups.Rates:
        """Decisions, densities and p-values over time, from the counts per minute."""
        bundles = self._names.known(model, version)
        return rollups.rates(
            self._engine, bundles, since_ms=since_ms, until_ms=until_ms, step_ms=step_ms, is_shadow=is_shadow
        )

    def class_rates(
        self, model: str, version: str | None = None, *, since_ms: int, until_ms: int, is_shadow: bool = False
    ) -> list[rollups.ClassRate]:
        """Decisions by predicted class, from the counts per minute."""
        bundles = self._names.known(model, version)
        return rollups.class_rates(self._engine, bundles, since_ms=since_ms, until_ms=until_ms, is_shadow=is_shadow)

    def append_change(self, kind: str, model: str, payload: dict[str, Any], author: str = "", comment: str = "") -> int:
        """Add an entry to the audit trail and return its number: 1, 2, 3, ..."""
        with ahead(self._engine):
            return changes.append_change(self._engine, kind, model, payload, author, comment, now_ms=self._clock())

    def changes_since(self, number: int) -> list[Change]:
        """Up to a thousand entries of the audit trail after that number, oldest first."""
        return changes.changes_since(self._engine, number)

    def history(self, model: str, *, kinds: tuple[str, ...] = (), limit: int = 100) -> list[Change]:
        """The latest entries about a model, newest first."""
        return changes.history(self._engine, model, kinds=kinds, limit=limit)

    def prune(self, limits: Limits, *, dry_run: bool = False) -> Pruned:
        """Delete what is over the limits, or only say what that would be."""
        return prune(self._engine, limits, now_ms=self._clock(), dry_run=dry_run)

    def stats(self) -> StoreStats:
        """How much there is."""
        has_point = exists().where(outcome_point.c.outcome_id == outcome.c.id)
        with reading(self._engine) as connection:
            first = connection.scalar(select(point.c.id).order_by(point.c.id).limit(1))
            oldest = received_ms(first) // MINUTE_MS if first is not None else 1 << 30
            points, outcomes, unmatched, disputed = (
                int(connection.scalar(query) or 0)
                for query in (
                    select(func.sum(rollup.c.points)).where(rollup.c.minute >= oldest),
                    select(func.count()).select_from(outcome),
                    select(func.count()).select_from(outcome).where(outcome.c.is_open, ~has_point),
                    select(func.count()).select_from(outcome).where(outcome.c.is_disputed),
                )
            )
        is_postgresql = self._engine.dialect.name == "postgresql"
        return StoreStats(
            database=self._engine.dialect.name,
            revision=schema.current(self._engine),
            bytes=used_bytes(self._engine),
            points=points,
            outcomes=outcomes,
            unmatched=unmatched,
            disputed=disputed,
            changes=changes.count(self._engine),
            days=list(partitions(self._engine).values()) if is_postgresql else [],
        )
