"""Drift evidence of each bundle, updated in the transaction that stores the rows.

So the evidence is about exactly the rows that are stored: a crash neither loses a row nor counts it twice. Each replica
has a state of its own, because the evidence depends on the order of rows; the row lock of its state gives the rows of
all its workers one order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import numpy as np
from sqlalchemy import Connection, Engine, Select, select

from darksight_core.drift.segments import SegmentTest
from darksight_core.drift.stream import DriftState, DriftTest
from darksight_core.drift.urn import row_uniforms
from darksight_core.errors import ConfigError
from darksight_service.store.engine import reading
from darksight_service.store.points import PointTable
from darksight_service.store.tables import bundle, drift_state, insert_into
from darksight_service.store.tables import model as model_table
from darksight_service.store.write.segment_state import delete_segments, follow_segments

__all__ = ["DriftFollower", "read_states", "reset_evidence", "version_of"]

_log = logging.getLogger(__name__)


class DriftFollower:
    """Follows the drift of all bundles of this replica.

    Parameters
    ----------
    replica
        Name of the replica, the same after a restart.
    tests
        The drift test of a model and version, or None if it has none.
    """

    def __init__(self, replica: str, tests: Callable[[str, str], DriftTest | None]) -> None:
        self._replica = replica
        self._tests = tests
        self._marks: dict[tuple[str, str], object] = {}
        self._states: dict[tuple[str, str], tuple[object, DriftState | None]] = {}
        self._segment_tests: dict[str, SegmentTest] = {}

    def test_of(self, model: str, version: str) -> DriftTest | None:
        """The drift test of a version; None if it has none, or it cannot be loaded now."""
        try:
            return self._tests(model, version)
        except Exception:
            # Rows must be stored even if their drift cannot be followed.
            _log.exception("drift_not_followed", extra={"model": model, "version": version})
            return None

    def follow(
        self,
        connection: Connection,
        groups: Iterable[tuple[int, PointTable, DriftTest | None, Sequence[tuple[int, ...]]]],
    ) -> None:
        """Add points that were inserted in this transaction.

        They are given with the number and the test of their bundle, and with the numbers of the tags of each tag set.
        """
        # All writers lock rows in the same order, which prevents deadlocks.
        for bundle_id, points, test, tag_ids in sorted(groups, key=lambda group: group[0]):
            if test is None:
                continue
            key = {"bundle_id": bundle_id, "replica": self._replica}
            blank = insert_into(connection, drift_state).values(**key, state=b"")
            connection.execute(blank.on_conflict_do_nothing())
            row = (drift_state.c.bundle_id == bundle_id) & (drift_state.c.replica == self._replica)
            before = connection.scalar(select(drift_state.c.state).where(row).with_for_update())
            facts = {"model": points.model, "version": version_of(points)}
            try:
                after = _updated(test, _decoded(test, before, facts), points).encode()
            except Exception:
                _log.exception("drift_not_followed", extra=facts)
                continue
            connection.execute(drift_state.update().where(row).values(state=after))
            if any(tag_ids):
                segments = self._segment_test(facts["version"], test)
                follow_segments(connection, bundle_id, self._replica, segments, points, tag_ids)

    def _segment_test(self, version: str, test: DriftTest) -> SegmentTest:
        if version not in self._segment_tests:
            self._segment_tests[version] = SegmentTest(test.calibration)
        return self._segment_tests[version]

    def state(self, engine: Engine, model: str, version: str) -> DriftState | None:
        """The stored state, read again after each commit and `forget`; None if there is none."""
        test = self.test_of(model, version)
        if test is None:
            return None
        # Before the query: a commit during the query removes it, and the state is read again next time.
        mark = self._marks.setdefault((model, version), object())
        known, state = self._states.get((model, version), (None, None))
        if known is not mark:
            query = select(drift_state.c.state).where(
                drift_state.c.bundle_id.in_(_bundle_ids(model, version)), drift_state.c.replica == self._replica
            )
            with reading(engine) as connection:
                data = connection.scalar(query)
            state = None
            # The next row replaces a state of an earlier release.
            with suppress(ConfigError):
                state = test.decode(bytes(data)) if data else None
            self._states[model, version] = mark, state
        return state

    def forget(self, model: str, version: str) -> None:
        """Read the state of a version again when it is asked for."""
        self._marks.pop((model, version), None)

    def forget_all(self) -> None:
        """Read all states again when they are asked for."""
        self._marks.clear()


def read_states(engine: Engine, model: str, version: str, test: DriftTest) -> list[DriftState]:
    """The drift evidence of a bundle, of each replica that has stored rows of it."""
    query = select(drift_state.c.state).where(drift_state.c.bundle_id.in_(_bundle_ids(model, version)))
    with reading(engine) as connection:
        found = connection.scalars(query).all()
    states = []
    for data in found:
        # A state of an earlier release is left out.
        with suppress(ConfigError):
            if data:
                states.append(test.decode(bytes(data)))
    return states


def reset_evidence(connection: Connection, model: str, version: str) -> None:
    """Delete the drift evidence of a bundle, of all replicas; it starts again with the next row."""
    of_bundle = drift_state.c.bundle_id.in_(_bundle_ids(model, version))
    connection.execute(drift_state.update().where(of_bundle).values(state=b""))
    delete_segments(connection, _bundle_ids(model, version))


def version_of(points: PointTable) -> str:
    """The version of points of one bundle."""
    return points.versions[int(points.bundle[0])]


def _bundle_ids(model: str, version: str) -> Select[tuple[int]]:
    return select(bundle.c.id).join(model_table).where(model_table.c.name == model, bundle.c.version == version)


def _decoded(test: DriftTest, data: bytes | None, facts: dict[str, str]) -> DriftState:
    if not data:
        return test.start()
    try:
        return test.decode(bytes(data))
    except ConfigError as error:
        # Of an earlier release: the evidence starts again.
        _log.warning("drift_state_replaced", extra={**facts, "error": error.message})
        return test.start()


def _updated(test: DriftTest, state: DriftState, points: PointTable) -> DriftState:
    """The state after the points that answered a caller and have a score."""
    classes = np.asarray(points.predicted)
    used = ~points.is_shadow & np.isfinite(points.outlier_score) & np.isfinite(points.top)
    used &= (classes >= 0) & (classes < len(test.class_counts))
    if not used.any():
        return state
    uniforms = row_uniforms(points.ids[used])
    return test.update(state, points.outlier_score[used], points.top[used], classes[used], uniforms)[0]
