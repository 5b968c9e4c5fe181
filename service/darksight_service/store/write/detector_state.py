"""States of the drift detectors of each bundle, updated in the transaction that stores the rows.

So the evidence is about exactly the rows that are stored: a crash neither loses a row nor counts it twice. Each replica
has states of its own, because they depend on the order of rows; a row lock gives the rows of all its workers one order.
A detector by segment has a state for each of up to `MAX_SEGMENTS` tags of a bundle, the first that were seen; rows of
further tags are not followed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, Select, func, select, text

from darksight_core.drift.detector import Detector, RowBatch
from darksight_core.drift.segment_cells import MAX_SEGMENTS, Segment
from darksight_core.drift.urn import row_uniforms
from darksight_core.errors import ConfigError
from darksight_service.store.engine import reading
from darksight_service.store.points import PointTable
from darksight_service.store.tables import bundle, detector_state, insert_into, tag
from darksight_service.store.tables import model as model_table

__all__ = ["Detectors", "DriftFollower", "read_states", "reset_evidence", "version_of"]

Detectors = Sequence[Detector[Any]]

# Number of the tag of a state that is about all rows.
_ALL = 0
# Name of the row that is locked; no detector has it.
_LOCK = ""
_KEY = ("bundle_id", "replica", "detector", "tag_id")
_REPLACE = text(
    f"INSERT INTO detector_state ({', '.join(_KEY)}, state) VALUES ({', '.join(f':{name}' for name in _KEY)}, :state) "
    f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET state = excluded.state"
)

_log = logging.getLogger(__name__)


class DriftFollower:
    """Follows the drift of all bundles of this replica.

    Parameters
    ----------
    replica
        Name of the replica, the same after a restart.
    detectors
        The detectors of a model and version; none if it has none, or its bundle cannot be read now.
    """

    def __init__(self, replica: str, detectors: Callable[[str, str], Detectors]) -> None:
        self._replica = replica
        self._detectors = detectors

    def detectors_of(self, model: str, version: str) -> Detectors:
        """The detectors of a version; none if they cannot be made now."""
        try:
            return self._detectors(model, version)
        except Exception:
            # Rows must be stored even if their drift cannot be followed.
            _log.exception("drift_not_followed", extra={"model": model, "version": version})
            return ()

    def follow(
        self, connection: Connection, groups: Iterable[tuple[int, PointTable, Detectors, Sequence[tuple[int, ...]]]]
    ) -> None:
        """Add points that were inserted in this transaction.

        They are given with the number and the detectors of their bundle, and with the tag numbers of each tag set.
        """
        # All writers lock rows in the same order, which prevents deadlocks.
        for bundle_id, points, detectors, tag_ids in sorted(groups, key=lambda group: group[0]):
            # Rows that answered a caller and have a score.
            used = ~points.is_shadow & np.isfinite(points.outlier_score) & np.isfinite(points.top)
            used &= points.predicted >= 0
            if detectors and used.any():
                self._lock(connection, bundle_id)
                rows = RowBatch(
                    points.outlier_score[used].astype(np.float64),
                    points.top[used],
                    points.predicted[used],
                    row_uniforms(points.ids[used]),
                    points.probs[used],
                    points.resolution[used],
                )
                parts = self._followed(connection, bundle_id, _rows_by_tag(points.tags[used], tag_ids))
                name = {"model": points.model, "version": version_of(points)}
                self._update(connection, bundle_id, detectors, {_ALL: np.arange(len(rows)), **parts}, rows, name)

    def states(self, engine: Engine, wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], dict[str, Any]]:
        """States about all rows of models and versions, by the name of the detector; versions without rows lack."""
        query = (
            select(model_table.c.name, bundle.c.version, detector_state.c.detector, detector_state.c.state)
            .join(bundle, bundle.c.id == detector_state.c.bundle_id)
            .join(model_table, model_table.c.id == bundle.c.model_id)
            .where(detector_state.c.replica == self._replica, detector_state.c.tag_id == _ALL)
            .where(bundle.c.version.in_(sorted({version for _, version in wanted})))
        )
        with reading(engine) as connection:
            stored = connection.execute(query).all()
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for model, version, name, data in stored:
            if (model, version) in wanted:
                for detector in self.detectors_of(model, version):
                    # The next row replaces a state of an earlier release.
                    with suppress(ConfigError):
                        if detector.name == name:
                            found.setdefault((model, version), {})[name] = detector.decode(bytes(data))
        return found

    def _lock(self, connection: Connection, bundle_id: int) -> None:
        of = detector_state.c
        row = (of.bundle_id == bundle_id) & (of.replica == self._replica) & (of.detector == _LOCK)
        lock = select(of.tag_id).where(row).with_for_update()
        if connection.scalar(lock) is None:
            key = {"bundle_id": bundle_id, "replica": self._replica, "detector": _LOCK, "tag_id": _ALL}
            blank = insert_into(connection, detector_state).values(**key, state=b"")
            connection.execute(blank.on_conflict_do_nothing())
            connection.execute(lock)

    def _followed(
        self, connection: Connection, bundle_id: int, rows: dict[int, NDArray[np.intp]]
    ) -> dict[int, NDArray[np.intp]]:
        """Rows by tag, without those of tags beyond the limit."""
        if not rows:
            return rows
        of = detector_state.c
        mine = (of.bundle_id == bundle_id) & (of.replica == self._replica) & (of.tag_id != _ALL)
        known = set(connection.scalars(select(of.tag_id).where(mine, of.tag_id.in_(sorted(rows))).distinct()))
        missing = sorted(rows.keys() - known)
        if missing:
            count = connection.scalar(select(func.count(of.tag_id.distinct())).where(mine)) or 0
            for number in missing[max(MAX_SEGMENTS - count, 0) :]:
                rows.pop(number)
        return rows

    def _update(
        self,
        connection: Connection,
        bundle_id: int,
        detectors: Detectors,
        parts: dict[int, NDArray[np.intp]],
        rows: RowBatch,
        name: dict[str, str],
    ) -> None:
        of = detector_state.c
        query = select(of.detector, of.tag_id, of.state).where(
            of.bundle_id == bundle_id, of.replica == self._replica, of.tag_id.in_(sorted(parts))
        )
        before = {(detector, number): bytes(data) for detector, number, data in connection.execute(query)}
        segments = self._segments(connection, parts, before) if any(each.is_by_segment for each in detectors) else {}
        values = []
        for detector in detectors:
            for number, own in sorted(parts.items()):
                if detector.is_by_segment == (number == _ALL):
                    continue
                try:
                    state = _decoded(detector, before.get((detector.name, number), b""), segments.get(number), name)
                    data = detector.encode(detector.update(state, rows if number == _ALL else rows.take(own)))
                except Exception:
                    # The other detectors, and the rows, do not depend on this one.
                    _log.exception("drift_not_followed", extra={**name, "detector": detector.name})
                    break
                key = (bundle_id, self._replica, detector.name, number)
                values.append({**dict(zip(_KEY, key, strict=True)), "state": data})
        if values:
            connection.execute(_REPLACE, values)

    def _segments(
        self, connection: Connection, numbers: Collection[int], before: Mapping[tuple[str, int], bytes]
    ) -> dict[int, Segment]:
        """Names of the tags that have no state yet."""
        new = set(numbers) - {number for _, number in before} - {_ALL}
        if not new:
            return {}
        found = connection.execute(select(tag.c.id, tag.c.key, tag.c.value).where(tag.c.id.in_(sorted(new))))
        return {number: (key, value) for number, key, value in found}


def read_states(engine: Engine, model: str, version: str, detector: Detector[Any]) -> dict[Segment | None, list[Any]]:
    """States of a detector of a bundle by segment, None for all rows; one for each replica that has stored rows."""
    of = detector_state.c
    query = (
        select(of.replica, tag.c.key, tag.c.value, of.state)
        .outerjoin(tag, tag.c.id == of.tag_id)
        .where(of.bundle_id.in_(_bundle_ids(model, version)), of.detector == detector.name)
    )
    with reading(engine) as connection:
        stored = connection.execute(query).all()
    replicas = len({row.replica for row in stored})
    found: dict[Segment | None, list[Any]] = {}
    for row in stored:
        # A state of an earlier release counts as if its replica had no rows.
        with suppress(ConfigError):
            state = detector.decode(bytes(row.state))
            found.setdefault((row.key, row.value) if detector.is_by_segment else None, []).append(state)
    return {part: [*states, *[detector.start()] * (replicas - len(states))] for part, states in found.items()}


def reset_evidence(connection: Connection, model: str, version: str) -> None:
    """Delete the drift evidence of a bundle, of all replicas; it starts again with the next row."""
    of, mine = detector_state.c, detector_state.c.bundle_id.in_(_bundle_ids(model, version))
    # A transaction that has read a state would write it again after it was deleted.
    locks = select(of.tag_id).where(mine, of.detector == _LOCK).order_by(of.bundle_id, of.replica)
    connection.execute(locks.with_for_update())
    connection.execute(detector_state.delete().where(mine, of.detector != _LOCK))


def version_of(points: PointTable) -> str:
    """The version of points of one bundle."""
    return points.versions[int(points.bundle[0])]


def _bundle_ids(model: str, version: str) -> Select[tuple[int]]:
    return select(bundle.c.id).join(model_table).where(model_table.c.name == model, bundle.c.version == version)


def _rows_by_tag(sets: NDArray[np.intp], tag_ids: Sequence[tuple[int, ...]]) -> dict[int, NDArray[np.intp]]:
    """Numbers of the rows of each tag, in order of arrival."""
    of_sets: dict[int, list[int]] = {}
    for number in np.unique(sets).tolist():
        for each in tag_ids[number]:
            of_sets.setdefault(each, []).append(number)
    return {each: np.flatnonzero(np.isin(sets, numbers)) for each, numbers in of_sets.items()}


def _decoded(detector: Detector[Any], data: bytes, segment: Segment | None, name: dict[str, str]) -> Any:
    if not data:
        return detector.start(segment)
    try:
        return detector.decode(data)
    except ConfigError as error:
        # Of an earlier release: the evidence starts again, that of a segment without its calibration rows.
        _log.warning("drift_state_replaced", extra={**name, "detector": detector.name, "error": error.message})
        return detector.start()
