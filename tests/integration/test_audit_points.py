"""Points that are drawn for an audit when they are stored, on SQLite and PostgreSQL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from darksight_service.http.explorer.analysis.learning import LearnedScore
from darksight_service.http.explorer.analysis.review_queue import Stream, review_queue
from darksight_service.http.explorer.api import labelled
from darksight_service.store.engine import writing
from darksight_service.store.ids import DAY_MS, id_ms
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.store import Store
from darksight_service.store.tables import audit_point, point
from darksight_service.store.write.audit_points import AUDIT_RATE
from darksight_service.store.write.retention import Limits
from sqlalchemy import delete, func, select

from darksight_core.drift.urn import audit_numbers
from tests.support.points import VERSION, make_outcomes, make_points

NOW_MS = 1_800_000_000_000
WANTED = PointFilter("digits", VERSION)


def drawn_ids(points: PointTable, depth: float = 1.0) -> list[bytes]:
    """The ids that should be drawn, in their order: without a curve all points have the same odds."""
    keys = np.where(points.predicted >= 0, audit_numbers(points.ids) / np.float32(AUDIT_RATE), 9.0)
    return points.take(np.argsort(keys)[: int((keys < depth).sum())]).id_bytes()


def listed(store: Store) -> int:
    """Rows of the table."""
    with store._engine.connect() as connection:
        return int(connection.scalar(select(func.count()).select_from(audit_point)) or 0)


def test_the_rows_that_are_drawn_are_listed_once(store: Store) -> None:
    """Those of its span with their scores, odds and probabilities; not shadow, invalid or repeated ones."""
    old, new = make_points(2_000, ms=NOW_MS - DAY_MS), make_points(2_000, ms=NOW_MS, seed=1)
    store.insert([old, make_points(500, ms=NOW_MS, seed=2, is_shadow=True)])
    store.insert([old, new])

    found, depth = store.drawn_points(WANTED, limit=1_000)
    today, _ = store.drawn_points(PointFilter("digits", VERSION, since_ms=NOW_MS), limit=1_000)

    assert depth == 1.0
    assert found.id_bytes() == drawn_ids(PointTable.join([old, new]))
    assert listed(store) == len(found) > 50
    assert today.id_bytes() == drawn_ids(new)
    row = new.id_bytes().index(today.id_bytes()[0])
    assert (found.label == -1).all()
    np.testing.assert_allclose(found.audit_odds, AUDIT_RATE, rtol=1e-6)
    assert (found.error_chance == 0.0).all()
    assert today.p_value[0] == pytest.approx(float(new.p_value[row]))
    np.testing.assert_allclose(today.probs[0], new.probs[row], atol=1e-3)


def test_more_points_than_are_read_lower_the_depth(store: Store) -> None:
    """The lowest keys are read, and all rows below the stated depth are among them."""
    points = make_points(2_000, ms=NOW_MS)
    store.insert([points])

    found, depth = store.drawn_points(WANTED, limit=20)

    assert depth < 1.0
    assert found.id_bytes() == drawn_ids(points)[:20] == drawn_ids(points, depth)


def test_drawn_rows_are_deleted_with_their_points(store: Store) -> None:
    """By age, and by number."""
    batches = [make_points(1_000, ms=NOW_MS - day * DAY_MS, seed=day) for day in range(3)]
    store.insert(batches)

    store.prune(Limits(max_age_ms=DAY_MS + DAY_MS // 4), now_ms=NOW_MS)
    assert listed(store) == len(drawn_ids(PointTable.join(batches[:2])))
    store.prune(Limits(max_rows=1_000), now_ms=NOW_MS)
    assert listed(store) == len(drawn_ids(batches[0]))
    assert store.drawn_points(WANTED, limit=1_000)[0].id_bytes() == drawn_ids(batches[0])


def test_listed_rows_without_a_point_change_nothing(store: Store) -> None:
    """Retention was stopped between the points and their list: the depth is right, and the points can come again."""
    points = make_points(2_000, ms=NOW_MS)
    store.insert([points])
    drawn = drawn_ids(points)
    with writing(store._engine) as connection:
        connection.execute(delete(point).where(point.c.id.in_(drawn[3:6])))

    found, depth = store.drawn_points(WANTED, limit=20)

    assert found.id_bytes() == drawn_ids(points, depth)[:3] + drawn_ids(points, depth)[6:]
    assert drawn_ids(points, depth) == drawn[:20]
    assert store.insert([points]).points == 3
    assert listed(store) == len(drawn)


@pytest.mark.parametrize("stream", [Stream.AUDIT, Stream.CERTIFICATE])
def test_drawn_points_of_hours_ago_are_offered_under_heavy_traffic(
    store: Store, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue has all drawn rows without a label in their order, however many newer points there are."""
    batches = [make_points(300, ms=NOW_MS - hours * 3_600_000, seed=hours, names=None) for hours in range(8)]
    store.insert(batches)
    first = drawn_ids(PointTable.join(batches))[0]
    store.insert([make_outcomes({store.points_by_id("digits", VERSION, [first]).prediction_ids()[0]: 1})])
    monkeypatch.setattr(labelled, "MAX_POINTS", 200)
    sources: Any = SimpleNamespace(store=lambda: store)
    active: Any = SimpleNamespace(model="digits", version=VERSION)
    given = labelled.LabelsInput(model="digits", since_ms=NOW_MS - DAY_MS, until_ms=NOW_MS + 1)

    newest, (drawn, _) = labelled.newest_points(sources, active, given), labelled.drawn_points(sources, active, given)
    queue = review_queue(newest, drawn, LearnedScore(0, 0, 1), stream, limit=1_000)

    table = PointTable.join(batches)
    wanted = drawn_ids(table.take(table.accepted) if stream is Stream.CERTIFICATE else table)
    offered = queue.table.take(np.array([item.row for item in queue.items])).id_bytes()
    assert len(newest) == 200
    assert offered == [each for each in wanted if each != first]
    assert min(map(id_ms, offered)) < NOW_MS - 5 * 3_600_000
    assert [item.odds for item in queue.items] == pytest.approx([AUDIT_RATE] * len(offered))
