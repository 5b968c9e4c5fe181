"""Evidence of each segment of a bundle, updated in the transaction that stores the rows, after its drift evidence.

The row lock of the drift state gives the rows of all workers of a replica one order, so segments need no lock of their
own. A bundle has up to `MAX_SEGMENTS` segments, the first that were seen; rows of further ones are not followed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, Select, delete, func, select

from darksight_core.drift.segments import MAX_SEGMENTS, Segment, SegmentState, SegmentTest
from darksight_core.drift.urn import row_uniforms
from darksight_core.errors import ConfigError
from darksight_service.store.engine import reading
from darksight_service.store.points import PointTable
from darksight_service.store.tables import bundle, insert_into, segment_state, tag
from darksight_service.store.tables import model as model_table

__all__ = ["SegmentEvidence", "delete_segments", "follow_segments", "read_segments"]

SegmentEvidence = Mapping[Segment, tuple[float, SegmentState]]
"""Of each segment the log of the mean evidence of replicas, and the state of the replica with the most evidence."""


def follow_segments(
    connection: Connection,
    bundle_id: int,
    replica: str,
    test: SegmentTest,
    points: PointTable,
    tag_ids: Sequence[tuple[int, ...]],
) -> None:
    """Add points that were inserted in this transaction.

    Parameters
    ----------
    connection
        Of the transaction, which holds the lock of the drift state.
    bundle_id, replica
        Whose evidence it is.
    test
        The test of the bundle.
    points
        Points of the bundle.
    tag_ids
        Numbers of the tags of each set of `points.tag_sets`.
    """
    used = ~points.is_shadow & np.isfinite(points.outlier_score)
    sets = points.tags[used]
    rows = _rows_by_tag(sets, tag_ids)
    if not rows:
        return
    mine = (segment_state.c.bundle_id == bundle_id) & (segment_state.c.replica == replica)
    query = select(segment_state.c.tag_id, segment_state.c.state)
    of_tags = segment_state.c.tag_id.in_(sorted(rows))
    before = {number: bytes(data) for number, data in connection.execute(query.where(mine, of_tags))}
    missing = sorted(rows.keys() - before.keys())
    if missing:
        count = connection.scalar(select(func.count()).select_from(segment_state).where(mine)) or 0
        for number in missing[max(MAX_SEGMENTS - count, 0) :]:
            rows.pop(number)
    scores, uniforms = points.outlier_score[used].astype(np.float64), row_uniforms(points.ids[used])
    for number, own in sorted(rows.items()):
        state = _decoded(test, before.get(number, b""))
        data = test.update(state, scores[own], uniforms[own]).encode()
        values = {"bundle_id": bundle_id, "replica": replica, "tag_id": number, "state": data}
        insert = insert_into(connection, segment_state).values(values)
        key = ("bundle_id", "replica", "tag_id")
        connection.execute(insert.on_conflict_do_update(index_elements=key, set_={"state": data}))


def read_segments(engine: Engine, model: str, version: str, test: SegmentTest) -> SegmentEvidence:
    """Evidence of the segments of a bundle, of all replicas that have stored rows of it."""
    query = (
        select(segment_state.c.replica, tag.c.key, tag.c.value, segment_state.c.state)
        .join(tag, tag.c.id == segment_state.c.tag_id)
        .join(bundle, bundle.c.id == segment_state.c.bundle_id)
        .join(model_table, model_table.c.id == bundle.c.model_id)
        .where(model_table.c.name == model, bundle.c.version == version)
    )
    with reading(engine) as connection:
        found = connection.execute(query).all()
    replicas = len({row.replica for row in found})
    states: dict[Segment, list[SegmentState]] = {}
    for row in found:
        # A state of an earlier release is left out.
        with suppress(ConfigError):
            state = test.decode(bytes(row.state))
            states.setdefault((row.key, row.value), []).append(state)
    return {segment: _mean(test, several, replicas) for segment, several in states.items()}


def delete_segments(connection: Connection, bundle_ids: Select[tuple[int]]) -> None:
    """Delete the evidence of bundles, of all replicas; it starts again with the next row."""
    connection.execute(delete(segment_state).where(segment_state.c.bundle_id.in_(bundle_ids)))


def _rows_by_tag(sets: NDArray[np.intp], tag_ids: Sequence[tuple[int, ...]]) -> dict[int, NDArray[np.intp]]:
    """Numbers of the rows of each tag, in order of arrival."""
    of_sets: dict[int, list[int]] = {}
    for number in np.unique(sets).tolist():
        for each in tag_ids[number]:
            of_sets.setdefault(each, []).append(number)
    return {each: np.flatnonzero(np.isin(sets, numbers)) for each, numbers in of_sets.items()}


def _decoded(test: SegmentTest, data: bytes) -> SegmentState:
    with suppress(ConfigError):
        return test.decode(data) if data else test.start()
    # Of an earlier release: the evidence starts again.
    return test.start()


def _mean(test: SegmentTest, states: Sequence[SegmentState], replicas: int) -> tuple[float, SegmentState]:
    """The mean is valid as the evidence of one, whatever the dependence; a replica without rows has evidence one."""
    logs = [test.log_evidence(each) for each in states]
    rest = [0.0] * (replicas - len(states))
    best = max(states, key=test.log_evidence)
    return float(np.logaddexp.reduce([*logs, *rest])) - math.log(replicas), best
