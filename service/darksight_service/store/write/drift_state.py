"""Drift evidence of each bundle, updated in the transaction that stores the rows.

So the evidence is about exactly the rows that are stored: a crash neither loses a row nor counts it twice. Each replica
has a state of its own, because the evidence depends on the order of rows; the row lock of its state gives the rows of
all its workers one order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
from sqlalchemy import Connection, select

from darksight_core.drift.stream import DriftState, DriftTest
from darksight_core.drift.urn import row_uniforms
from darksight_core.errors import ConfigError
from darksight_service.store.points import PointTable
from darksight_service.store.tables import drift_state, insert_into

__all__ = ["DriftFollower", "States"]

States: TypeAlias = dict[tuple[str, str], DriftState]

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

    def follow(self, connection: Connection, groups: Iterable[tuple[int, PointTable]]) -> States:
        """Add points that were inserted in this transaction, given with the numbers of their bundles.

        Returns the states after them, by model and version.
        """
        states: States = {}
        # All writers lock rows in the same order, which prevents deadlocks.
        for bundle_id, points in sorted(groups, key=lambda group: group[0]):
            version = points.versions[points.bundle[0]]
            test = self._tests(points.model, version)
            if test is None:
                continue
            key = {"bundle_id": bundle_id, "replica": self._replica}
            blank = insert_into(connection, drift_state).values(**key, state=b"")
            connection.execute(blank.on_conflict_do_nothing())
            before = self._locked(connection, bundle_id, test)
            try:
                state = _updated(test, before, points)
            except Exception:
                # Rows must be stored even if their drift cannot be followed.
                _log.exception("drift_not_followed", extra={"model": points.model, "version": version})
                continue
            row = (drift_state.c.bundle_id == bundle_id) & (drift_state.c.replica == self._replica)
            connection.execute(drift_state.update().where(row).values(state=state.encode()))
            states[points.model, version] = state
        return states

    def read(self, connection: Connection, bundle_id: int, model: str, version: str) -> DriftState | None:
        """The stored state; None if there is none."""
        test = self._tests(model, version)
        return None if test is None else self._stored(connection, bundle_id, test, is_locked=False)

    def _locked(self, connection: Connection, bundle_id: int, test: DriftTest) -> DriftState:
        return self._stored(connection, bundle_id, test, is_locked=True) or test.start()

    def _stored(self, connection: Connection, bundle_id: int, test: DriftTest, *, is_locked: bool) -> DriftState | None:
        query = select(drift_state.c.state).where(
            drift_state.c.bundle_id == bundle_id, drift_state.c.replica == self._replica
        )
        data = connection.scalar(query.with_for_update() if is_locked else query)
        if not data:
            return None
        try:
            return test.decode(bytes(data))
        except ConfigError as error:
            # Of an earlier release: the evidence starts again.
            _log.warning("drift_state_replaced", extra={"bundle_id": bundle_id, "error": error.message})
            return None


def _updated(test: DriftTest, state: DriftState, points: PointTable) -> DriftState:
    """The state after the points that answered a caller and have a score."""
    classes = np.asarray(points.predicted)
    used = ~points.is_shadow & np.isfinite(points.outlier_score) & np.isfinite(points.top)
    used &= (classes >= 0) & (classes < len(test.class_counts))
    if not used.any():
        return state
    uniforms = row_uniforms(points.ids[used])
    return test.update(state, points.outlier_score[used], points.top[used], classes[used], uniforms)[0]
