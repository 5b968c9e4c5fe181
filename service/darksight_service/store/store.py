"""The store: one object for everything that is kept in SQL. What it reads is in classes by topic, which it inherits.

It hides the two databases, fast inserts that store each row once, partitions, migrations, and failures of connections.
Every call completes or raises: StoreUnavailableError if the same call may succeed later, StoreError if not. Threads and
processes may share a database.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from sqlalchemy import Engine, delete, exists, func, select

from darksight_core.drift.detector import Detector
from darksight_core.drift.isotonic import Isotonic
from darksight_core.drift.segment_cells import Segment
from darksight_service.store import revisions
from darksight_service.store.engine import Timeouts, make_engine, operator_write, reading, writing, yield_to_operators
from darksight_service.store.ids import MINUTE_MS, first_id, id_ms
from darksight_service.store.partitions import AHEAD_DAYS, day_of, partitions
from darksight_service.store.points import OutcomeBatch, PointTable
from darksight_service.store.probabilities import parse_probability_codec
from darksight_service.store.read.audited_rows import AuditQueries
from darksight_service.store.read.hours import HourQueries
from darksight_service.store.read.map_points import MapQueries
from darksight_service.store.read.policy_evaluation import PolicyQueries
from darksight_service.store.read.region_points import RegionQueries
from darksight_service.store.rollups import RollupQueries
from darksight_service.store.tables import (
    insert_into,
    installation,
    outcome,
    outcome_point,
    point,
    rollup,
    thinned_batch,
)
from darksight_service.store.write import audit_trail
from darksight_service.store.write.audit_points import AUDIT_RATE, AuditDraw
from darksight_service.store.write.audit_trail import TrailQueries
from darksight_service.store.write.detector_state import Detectors, DriftFollower, read_states, reset_evidence
from darksight_service.store.write.insert import Inserter
from darksight_service.store.write.outcomes import OutcomeCounts, OutcomeMatcher, insert_outcomes
from darksight_service.store.write.retention import Limits, Pruned, prune, used_bytes
from darksight_service.store.write.tags import TagNumbers

__all__ = ["Inserted", "Store", "StoreStats", "Usage"]

# How long a batch of which rows were left out is noted, by the time of its id: retries come sooner.
_NOTED_MS = 2 * 60 * MINUTE_MS


@dataclass(slots=True)
class Inserted(OutcomeCounts):
    """Result of one insert: outcomes, new points, those that were stored before, and those whose id another one has."""

    points: int = 0
    repeated: int = 0
    conflicts: int = 0

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


@dataclass(frozen=True, slots=True)
class Usage:
    """Size of the points in bytes, the rate at which rows came during the last day, and the bytes that a day takes.

    Both are 0 if there were none.
    """

    bytes: int
    rows_per_second: float
    bytes_per_day: float


class Store(HourQueries, MapQueries, RegionQueries, PolicyQueries, RollupQueries, AuditQueries, TrailQueries):
    """See the module; made by `Store.open`."""

    def __init__(
        self,
        engine: Engine,
        *,
        keep_probs: str = "float16",
        max_tag_values: int = 200,
        keep_accepted: float = 1.0,
        audit_rate: float = AUDIT_RATE,
        clock: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(engine, clock=clock)
        self._tags = TagNumbers(engine, max_tag_values)
        codec = parse_probability_codec(keep_probs)
        self._inserter = Inserter(engine, self._names, self._tags, codec, AuditDraw(audit_rate), keep_accepted)
        self._matcher = OutcomeMatcher(engine)

    @classmethod
    def open(
        cls,
        url: str | Callable[[], str],
        *,
        keep_probs: str = "float16",
        max_tag_values: int = 200,
        keep_accepted: float = 1.0,
        audit_rate: float = AUDIT_RATE,
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
        keep_accepted
            Share of usual accepted rows that are stored; all are counted. See `Inserter`.
        audit_rate
            Share of the points that are drawn for the audit.
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
        options: dict[str, Any] = {"max_tag_values": max_tag_values, "keep_accepted": keep_accepted, "clock": clock}
        store = cls(engine, keep_probs=keep_probs, audit_rate=audit_rate, **options)
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

    def revision(self) -> str | None:
        """The revision of the schema; None if the database is empty."""
        return revisions.current(self._engine)

    def check(self, anchors: Mapping[int, str] | None = None) -> tuple[int, str]:
        """Compare the database with the tables, and verify the audit trail.

        Returns the number of entries of the trail and its last hash. Raises SchemaMismatchError or AuditError.
        """
        from darksight_service.store import migrate

        revisions.require(self._engine)
        migrate.forbid_differences(self._engine)
        return self.verify_trail(anchors)

    def insert(self, batches: Iterable[PointTable | OutcomeBatch]) -> Inserted:
        """Store points and outcomes; rows that were stored before are left as they are."""
        yield_to_operators(self._engine)
        given = list(batches)
        points = [batch for batch in given if isinstance(batch, PointTable)]
        outcomes = [batch for batch in given if isinstance(batch, OutcomeBatch)]
        done = Inserted()
        written = self._inserter.insert(points, today=day_of(self._clock()))
        done.points, done.matched, done.conflicts = written.points, written.matched, written.conflicts
        done.repeated = sum(map(len, points)) - done.points - done.conflicts
        insert_outcomes(self._engine, self._names, outcomes, done)
        return done

    def follow_drift(self, replica: str, detectors: Callable[[str, str], Detectors]) -> None:
        """Follow the drift of all rows that are inserted from now on; see `DriftFollower`."""
        self._inserter.follower = DriftFollower(replica, detectors)

    def predict_errors(self, curves: Callable[[str, str], Isotonic | None]) -> None:
        """Draw rows that are inserted from now on by the probability of being wrong; see `AuditDraw`."""
        self._inserter.audit.curves = curves

    def folded_tags(self) -> int:
        """Tags of points that this process stored as `_other` since its start."""
        return self._inserter.folded_tags

    def own_states(self, wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], dict[str, Any]]:
        """States of the detectors of all rows that this replica has stored, by model and version, and by detector."""
        follower = self._inserter.follower
        return {} if follower is None else follower.states(self._engine, wanted)

    def detector_states(self, model: str, version: str, detector: Detector[Any]) -> dict[Segment | None, list[Any]]:
        """States of a detector by segment, None for all rows, of each replica; see `detector_state.read_states`."""
        return read_states(self._engine, model, version, detector)

    def keep_secret(self, secret: bytes) -> bytes:
        """The secret of the installation: that of the database, or this one, which is then stored."""
        with writing(self._engine) as connection:
            connection.execute(
                insert_into(connection, installation).values(id=1, secret=secret).on_conflict_do_nothing()
            )
            return bytes(connection.execute(select(installation.c.secret)).scalar_one())

    def forget_database(self) -> None:
        """Forget what was read, because the database is another one: restored, or after a fail-over."""
        self._names.clear()
        self._tags.clear()
        self._matcher = OutcomeMatcher(self._engine)

    def maintain(self) -> int:
        """Work that is due every minute: make partitions, match outcomes that missed their point, forget old batches.

        Returns the number of outcomes matched.
        """
        if self._engine.dialect.name == "postgresql":
            today = day_of(self._clock())
            self._inserter.make_days(set(range(today, today + AHEAD_DAYS + 1)), today)
        with writing(self._engine) as connection:
            connection.execute(delete(thinned_batch).where(thinned_batch.c.id < first_id(self._clock() - _NOTED_MS)))
        return self._matcher.match_open()

    def register_bundle(self, model: str, version: str, *, class_names: Sequence[str], calibration_rows: int) -> None:
        """Store the classes and calibration rows of a bundle; its points may be stored before."""
        self._names.register(model, version, class_names=class_names, calibration_rows=calibration_rows)

    def append_change(self, kind: str, model: str, payload: dict[str, Any], author: str = "", comment: str = "") -> int:
        """Add an entry to the audit trail and return its number: 1, 2, 3, ...

        An entry of the kind `evidence` deletes the drift evidence of its version in the same transaction.
        """
        with operator_write(self._engine), writing(self._engine) as connection:
            if kind == "evidence":
                reset_evidence(connection, model, payload["version"])
            return audit_trail.append_change(connection, kind, model, payload, author, comment, now_ms=self._clock())

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
        seconds = self.server_time()
        return round(1000 * seconds) if math.isfinite(seconds) else self._clock(), newest * MINUTE_MS

    def used_bytes(self) -> int:
        """Size of the points on disk; see `retention.used_bytes`."""
        return used_bytes(self._engine)

    def usage(self) -> Usage:
        """Size and growth, from the counts of rows since the oldest point that is stored."""
        day, size = self._clock() // MINUTE_MS - 1440, self.used_bytes()
        with reading(self._engine) as connection:
            oldest = connection.scalar(select(point.c.id).order_by(point.c.id).limit(1))
            if oldest is None:
                return Usage(size, 0.0, 0.0)
            counts = select(func.sum(rollup.c.points), func.min(rollup.c.minute))
            since = rollup.c.minute >= id_ms(oldest) // MINUTE_MS
            rows, _ = connection.execute(counts.where(since)).one()
            recent, first = connection.execute(counts.where(since, rollup.c.minute > day)).one()
        minutes = day + 1440 - (first or 0) + 1
        per_second = float(recent or 0) / (60.0 * minutes)
        return Usage(size, per_second, 86_400.0 * per_second * size / max(float(rows or 0), 1.0))

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
