"""The store: one object for everything that is kept in SQL.

It hides the two databases, fast inserts that store each row once, partitions, migrations, and failures of connections.
Every call completes or raises: StoreUnavailableError if the same call may succeed later, StoreError if not. Threads and
processes may share a database.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from sqlalchemy import Engine, exists, func, select

from darksight_core.drift.audit import AuditedRows
from darksight_core.drift.segments import Segment, SegmentTest
from darksight_core.drift.stream import DriftState, DriftTest
from darksight_core.gate.gate import Gate
from darksight_core.map.regions import Region
from darksight_service.store import revisions, rollups
from darksight_service.store.audit import Change
from darksight_service.store.engine import Timeouts, make_engine, operator_write, reading, writing, yield_to_operators
from darksight_service.store.ids import MINUTE_MS
from darksight_service.store.partitions import AHEAD_DAYS, day_of, partitions
from darksight_service.store.points import OutcomeBatch, PointFilter, PointTable
from darksight_service.store.probabilities import parse_probability_codec
from darksight_service.store.read import audited_rows, hours, map_points, point_table, policy_evaluation, region_points
from darksight_service.store.read.map_points import MAX_MAP_POINTS
from darksight_service.store.tables import outcome, outcome_point, point, rollup
from darksight_service.store.write import audit_trail
from darksight_service.store.write.drift_state import DriftFollower, read_states, reset_evidence
from darksight_service.store.write.insert import Inserter
from darksight_service.store.write.names import Names
from darksight_service.store.write.outcomes import OutcomeMatcher, insert_outcomes
from darksight_service.store.write.retention import Limits, Pruned, prune, used_bytes
from darksight_service.store.write.segment_state import SegmentEvidence, read_segments
from darksight_service.store.write.tags import TagNumbers

__all__ = ["Inserted", "Store", "StoreStats"]

_FOREVER = (1 << 48) - 1


@dataclass(frozen=True, slots=True)
class Inserted:
    """Result of one insert.

    Parameters
    ----------
    points, repeated
        New points, and points that were stored before.
    outcomes
        New outcomes.
    duplicate, conflicting, refused
        Outcomes of a prediction that had one, with the same label or another; and outcomes that cannot be stored.
    matched
        Points that had no outcome and now have one.
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
        """New rows, points and outcomes."""
        return self.points + self.outcomes

    @property
    def duplicates(self) -> int:
        """Rows that were stored before."""
        return self.repeated + self.duplicate


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Size of the store, in rows and bytes."""

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
    max_tag_values
        Values of a key of tags; further ones are stored as `_other`.
    clock
        Unix milliseconds.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        keep_probs: str = "float16",
        max_tag_values: int = 200,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._engine = engine
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._names = Names(engine, self._clock)
        self._tags = TagNumbers(engine, max_tag_values)
        self._inserter = Inserter(engine, self._names, self._tags, parse_probability_codec(keep_probs))
        self._matcher = OutcomeMatcher(engine)

    @classmethod
    def open(
        cls,
        url: str | Callable[[], str],
        *,
        keep_probs: str = "float16",
        max_tag_values: int = 200,
        auto_upgrade: bool = False,
        check: bool = True,
        timeouts: Timeouts | None = None,
        clock: Callable[[], int] | None = None,
    ) -> Store:
        """Connect to `sqlite:///FILE` or `postgresql://...`.

        Parameters
        ----------
        url
            The database, or a function that returns it and is called for every new connection to PostgreSQL: a
            password may change.
        keep_probs
            What to keep of probabilities: `float16`, `topK:<k>`, `none`.
        max_tag_values
            Values of a key of tags; further ones are stored as `_other`.
        auto_upgrade
            Whether to run missing migrations.
        check
            Whether to raise SchemaMismatchError if the database is not migrated; without it no connection is made.
        timeouts
            Timeouts of PostgreSQL.
        clock
            Unix milliseconds, for tests.
        """
        engine = make_engine(url, timeouts=timeouts)
        store = cls(engine, keep_probs=keep_probs, max_tag_values=max_tag_values, clock=clock)
        try:
            # Without a migration to run there is no need of alembic, which takes half a second to import.
            if auto_upgrade and revisions.current(engine) != revisions.head():
                store.upgrade()
            if check:
                revisions.require(store._engine)
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
        """Run the missing migrations; returns the revisions before and after."""
        from darksight_service.store import migrate

        return migrate.upgrade(self._engine)

    def downgrade(self, revision: str) -> tuple[str | None, str | None]:
        """Undo migrations down to a revision, and delete what they added; returns the revisions before and after."""
        from darksight_service.store import migrate

        return migrate.downgrade(self._engine, revision)

    def check(self, anchors: Mapping[int, str] | None = None) -> tuple[int, str]:
        """Compare the database with the tables, and verify the audit trail.

        Returns the number of entries of the trail and its last hash. Raises SchemaMismatchError or AuditError.
        """
        from darksight_service.store import migrate

        revisions.require(self._engine)
        migrate.forbid_differences(self._engine)
        return self.verify_trail(anchors)

    def verify_trail(self, anchors: Mapping[int, str] | None = None) -> tuple[int, str]:
        """Number of entries of the audit trail and its last hash; AuditError if the trail was altered."""
        return audit_trail.verify_chain(self._engine, anchors)

    def insert(self, batches: Iterable[PointTable | OutcomeBatch]) -> Inserted:
        """Store points and outcomes; rows that were stored before are left as they are."""
        yield_to_operators(self._engine)
        points: list[PointTable] = []
        outcomes: list[OutcomeBatch] = []
        for batch in batches:
            if isinstance(batch, OutcomeBatch):
                outcomes.append(batch)
            else:
                points.append(batch)
        new, matched = self._inserter.insert(points, today=day_of(self._clock()))
        counted = insert_outcomes(self._engine, self._names, outcomes)
        return Inserted(
            points=new,
            repeated=sum(map(len, points)) - new,
            outcomes=counted.recorded,
            duplicate=counted.duplicate,
            conflicting=counted.conflicting,
            refused=counted.refused,
            matched=matched + counted.matched,
        )

    def follow_drift(self, replica: str, tests: Callable[[str, str], DriftTest | None]) -> None:
        """Follow the drift of all rows that are inserted from now on; see `DriftFollower`."""
        self._inserter.follower = DriftFollower(replica, tests)

    def folded_tags(self) -> int:
        """Tags of points that this process stored as `_other` since its start."""
        return self._inserter.folded_tags

    def drift_state(self, model: str, version: str) -> DriftState | None:
        """Drift evidence of the rows of a bundle that this replica has stored; None if there are none."""
        follower = self._inserter.follower
        return None if follower is None else follower.state(self._engine, model, version)

    def drift_states(self, model: str, version: str, test: DriftTest) -> list[DriftState]:
        """Drift evidence of a bundle, of each replica that has stored rows of it."""
        return read_states(self._engine, model, version, test)

    def segment_evidence(self, model: str, version: str, test: SegmentTest) -> SegmentEvidence:
        """Drift evidence of the segments of a bundle, of all replicas."""
        return read_segments(self._engine, model, version, test)

    def tag_counts(self, model: str, version: str, *, until_ms: int, minutes: int) -> dict[Segment, rollups.TagCounts]:
        """Points, accepted points and outliers of each tag within some minutes."""
        bundles = self._names.known(model, version)
        return rollups.tag_counts(self._engine, bundles, until_ms=until_ms, minutes=minutes)

    def audited_rows(
        self, model: str, version: str, *, start_ms: int, max_labels: int = audited_rows.MAX_LABELS
    ) -> tuple[AuditedRows, AuditedRows]:
        """Labelled rows of a bundle of the last 30 days since a time, and the wrong ones; see `audited_rows`."""
        bundles = self._names.known(model, version)
        return audited_rows.audited_rows(
            self._engine, bundles, start_ms=start_ms, now_ms=self._clock(), max_labels=max_labels
        )

    def forget_drift(self, model: str, version: str) -> None:
        """Read the drift evidence of a bundle from the database again."""
        if self._inserter.follower is not None:
            self._inserter.follower.forget(model, version)

    def forget_database(self) -> None:
        """Forget what was read, because the database is another one: restored, or after a fail-over."""
        self._names.clear()
        self._tags.clear()
        self._matcher = OutcomeMatcher(self._engine)
        if self._inserter.follower is not None:
            self._inserter.follower.forget_all()

    def maintain(self) -> int:
        """Work that is due every minute: make partitions ahead of time, match outcomes that missed their point.

        Returns the number of outcomes matched.
        """
        if self._engine.dialect.name == "postgresql":
            today = day_of(self._clock())
            self._inserter.make_days(set(range(today, today + AHEAD_DAYS + 1)), today)
        return self._matcher.match_open()

    def register_bundle(self, model: str, version: str, *, class_names: Sequence[str], calibration_rows: int) -> None:
        """Store the classes and calibration rows of a bundle; its points may be stored before."""
        self._names.register(model, version, class_names=class_names, calibration_rows=calibration_rows)

    def list_points(self, wanted: PointFilter, *, page_size: int = 0, page_token: str = "") -> point_table.Page:
        """A page of points, newest first; RequestError for a page token of another request."""
        bundles = self._names.known(wanted.model, wanted.version)
        return point_table.list_points(self._engine, bundles, wanted, page_size=page_size, page_token=page_token)

    def points_by_id(self, model: str, version: str | None, ids: Sequence[bytes]) -> PointTable:
        """The stored points among these ids, in their order, of a version or of all."""
        return point_table.points_by_id(self._engine, self._names.known(model, version), model, ids)

    def points_by_name(self, model: str, name: str) -> PointTable:
        """The points with this prediction id, newest first, those of shadow versions included."""
        return point_table.points_by_name(self._engine, self._names.known(model, None), model, name)

    def newest_points(self, wanted: PointFilter, *, limit: int, with_tags: bool = False) -> PointTable:
        """The newest points that pass a filter, without names and event times, and without tags unless asked for."""
        bundles = self._names.known(wanted.model, wanted.version)
        return point_table.newest_points(self._engine, bundles, wanted, limit=limit, with_tags=with_tags)

    def drawn_points(self, wanted: PointFilter, *, rate: float, limit: int) -> tuple[PointTable, float]:
        """Points of a span of time that are drawn for an audit, and their rate; see `point_table.drawn_points`."""
        bundles = self._names.known(wanted.model, wanted.version)
        return point_table.drawn_points(self._engine, bundles, wanted, rate=rate, limit=limit)

    def labelled_points(
        self,
        model: str,
        version: str | None = None,
        *,
        since_ms: int = 0,
        until_ms: int = _FOREVER,
        limit: int = 100_000,
        with_probs: bool = True,
        with_tags: bool = False,
    ) -> PointTable:
        """The newest points that have a label: for accuracy, risk-coverage and learning."""
        bundles = self._names.known(model, version)
        return point_table.labelled_points(
            self._engine,
            bundles,
            model,
            since_ms=since_ms,
            until_ms=until_ms,
            limit=limit,
            with_probs=with_probs,
            with_tags=with_tags,
        )

    def filled_since(
        self, model: str, version: str | None, *, since_ms: int = 0, until_ms: int, points: int
    ) -> tuple[int, int]:
        """When the newest `points` points of a span of time begin, and how many there are since."""
        bundles = self._names.known(model, version)
        return point_table.filled_since(self._engine, bundles, since_ms=since_ms, until_ms=until_ms, points=points)

    def map_points(
        self,
        wanted: PointFilter,
        *,
        limit: int = MAX_MAP_POINTS,
        before: bytes = b"",
        after: bytes = b"",
        with_probs: bool = False,
        with_tags: bool = False,
    ) -> PointTable:
        """The newest points on the map, with the columns that the explorer draws; `before` and `after` are ids."""
        bundles = self._names.known(wanted.model, wanted.version)
        return map_points.newest_map_points(
            self._engine,
            bundles,
            wanted,
            limit=limit,
            before=before,
            after=after,
            with_probs=with_probs,
            with_tags=with_tags,
        )

    def sample_map_points(self, wanted: PointFilter, *, limit: int = MAX_MAP_POINTS) -> PointTable:
        """The same for points spread over a whole window."""
        bundles = self._names.known(wanted.model, wanted.version)
        return map_points.sample_points(self._engine, bundles, wanted, limit=limit)

    def count_points(self, wanted: PointFilter) -> int:
        """Number of points in the minutes of a window."""
        return map_points.count_points(self._engine, self._names.known(wanted.model, wanted.version), wanted)

    def newest_inside(
        self,
        model: str,
        version: str,
        region: Region,
        *,
        since_ms: int,
        until_ms: int,
        limit: int,
        seconds: float = math.inf,
    ) -> region_points.RegionPoints:
        """The points inside a region among the newest points of a version: `limit`, or as many as the time allows."""
        bundles = self._names.known(model, version)
        wanted = PointFilter(model, version, since_ms, until_ms)
        return region_points.newest_inside(self._engine, bundles, wanted, region, limit=limit, seconds=seconds)

    def evaluate_policy(
        self, model: str, version: str | None, gate: Gate, *, since_ms: int, until_ms: int
    ) -> tuple[policy_evaluation.DecisionCounts, policy_evaluation.DecisionCounts]:
        """Decisions on stored points as they were, and as a gate would have made them."""
        bundles = self._names.known(model, version)
        return policy_evaluation.evaluate_policy(self._engine, bundles, gate, since_ms=since_ms, until_ms=until_ms)

    def label_counts(
        self, model: str, version: str | None = None, *, since_ms: int = 0, until_ms: int = _FOREVER
    ) -> policy_evaluation.LabelCounts:
        """How often accepted and rejected predictions were correct, among points that have a label."""
        bundles = self._names.known(model, version)
        return policy_evaluation.label_counts(self._engine, bundles, since_ms=since_ms, until_ms=until_ms)

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

    def model_names(self) -> list[str]:
        """All models that have points or outcomes."""
        return hours.model_names(self._engine)

    def bundle_classes(self, model: str) -> dict[str, list[str]]:
        """Class names by version of a model; of none if they are not known."""
        return hours.bundle_classes(self._engine, model)

    def tag_keys(self, model: str) -> list[str]:
        """The keys of a model's tags, sorted."""
        return hours.tag_keys(self._engine, model)

    def stored_hours(self, model: str, *, since_ms: int = 0) -> list[hours.Hour]:
        """The hours since a time from which points are stored, with the numbers of points and labels, oldest first."""
        return hours.stored_hours(self._engine, self._names.known(model, None), model, since_ms=since_ms)

    def points_of_hour(self, model: str, hour: int) -> Iterator[PointTable]:
        """All points of an hour in parts, those of shadow versions included."""
        return hours.points_of_hour(self._engine, self._names.known(model, None), model, hour)

    def append_change(self, kind: str, model: str, payload: dict[str, Any], author: str = "", comment: str = "") -> int:
        """Add an entry to the audit trail and return its number: 1, 2, 3, ...

        An entry of the kind `evidence` deletes the drift evidence of its version in the same transaction.
        """
        with operator_write(self._engine), writing(self._engine) as connection:
            if kind == "evidence":
                reset_evidence(connection, model, payload["version"])
            return audit_trail.append_change(connection, kind, model, payload, author, comment, now_ms=self._clock())

    def changes_since(self, number: int) -> list[Change]:
        """Up to a thousand entries of the audit trail after a number, oldest first."""
        return audit_trail.changes_since(self._engine, number)

    def history(self, model: str, *, kinds: tuple[str, ...] = (), limit: int = 100) -> list[Change]:
        """The latest entries about a model, newest first."""
        return audit_trail.history(self._engine, model, kinds=kinds, limit=limit)

    def prune(self, limits: Limits, *, now_ms: int | None = None, dry_run: bool = False) -> Pruned:
        """Delete what exceeds the limits at a time, by default now; with `dry_run` only count it."""
        return prune(self._engine, limits, now_ms=self._clock() if now_ms is None else now_ms, dry_run=dry_run)

    def server_time(self) -> float:
        """Unix time of the database server in seconds; infinite on SQLite, which has no clock of its own."""
        if self._engine.dialect.name != "postgresql":
            return math.inf
        with reading(self._engine) as connection:
            return float(connection.scalar(select(func.extract("epoch", func.clock_timestamp()))) or 0.0)

    def times(self) -> tuple[int, int]:
        """Unix milliseconds by the clock of the database, and of the newest minute that has points (0 for none).

        SQLite has the clock of this machine.
        """
        with reading(self._engine) as connection:
            newest = int(connection.scalar(select(func.max(rollup.c.minute))) or 0)
            if self._engine.dialect.name != "postgresql":
                return self._clock(), newest * MINUTE_MS
            seconds = connection.scalar(select(func.extract("epoch", func.clock_timestamp())))
            return round(1000 * float(seconds or 0)), newest * MINUTE_MS

    def stats(self) -> StoreStats:
        """Size of the store; counts every row, which takes seconds for a hundred million."""
        has_point = exists().where(outcome_point.c.outcome_id == outcome.c.id)
        with reading(self._engine) as connection:
            points, outcomes, unmatched, disputed = (
                int(connection.scalar(query) or 0)
                for query in (
                    select(func.count()).select_from(point),
                    select(func.count()).select_from(outcome),
                    select(func.count()).select_from(outcome).where(outcome.c.is_open, ~has_point),
                    select(func.count()).select_from(outcome).where(outcome.c.is_disputed),
                )
            )
        is_postgresql = self._engine.dialect.name == "postgresql"
        return StoreStats(
            database=self._engine.dialect.name,
            revision=revisions.current(self._engine),
            bytes=used_bytes(self._engine),
            points=points,
            outcomes=outcomes,
            unmatched=unmatched,
            disputed=disputed,
            changes=audit_trail.count(self._engine),
            days=list(partitions(self._engine).values()) if is_postgresql else [],
        )
