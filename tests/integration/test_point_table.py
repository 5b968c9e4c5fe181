from __future__ import annotations

import numpy as np
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.store import Store
from sqlalchemy import text

from tests.integration.conftest import NOW_MS
from tests.support.points import VERSION, make_outcomes, make_points, rows_of


def test_the_newest_points_are_those_of_a_page(store: Store) -> None:
    """The same points in the same order, as columns, also where a filter leaves gaps between them."""
    for minute in range(5):
        store.insert([make_points(50, ms=NOW_MS - 60_000 * minute, seed=minute)])
    wanted = PointFilter("digits", reasons=(2, 5))

    frame = store.newest_points(wanted, limit=1_000)
    points = rows_of(store.list_points(wanted, page_size=1_000).points)

    assert len(frame) == len(points) > 10
    assert [each.hex() for each in frame.id_bytes()] == [point.id.replace("-", "") for point in points]
    np.testing.assert_array_equal(frame.p_value, [point.p_value for point in points])
    np.testing.assert_array_equal(frame.predicted, [point.predicted for point in points])
    valid = np.flatnonzero(frame.predicted >= 0)
    np.testing.assert_array_equal(frame.probs[valid], np.stack([points[row].probs for row in valid]))
    assert np.isnan(frame.probs[frame.predicted < 0]).all()
    assert len(store.newest_points(wanted, limit=7)) == 7


def test_labelled_points_have_outcomes(store: Store) -> None:
    """Newest first, of the time that was asked for, and not what a shadow said."""
    batch = make_points(20, with_invalid=False)
    store.insert([batch, make_points(20, ms=NOW_MS - 60_000, seed=1, names=tuple("abcdefghijklmnopqrst"))])
    store.insert([make_points(1, ms=NOW_MS + 5, names=("a",), is_shadow=True)])
    labels = {batch.prediction_ids()[3]: 7, "a": 1, "b": 2}
    store.insert([make_outcomes(labels)])

    found = store.labelled_points("digits", limit=10)

    assert found.label.tolist() == [7, 2, 1]
    assert found.errors.tolist() == (found.predicted != found.label).tolist()
    assert store.labelled_points("digits", since_ms=NOW_MS, limit=10).label.tolist() == [7]
    assert store.labelled_points("digits", limit=1).label.tolist() == [7]


def test_prediction_sets_are_stored_by_their_size(store: Store) -> None:
    """Their classes are the most probable ones; a point without a set has NULL."""
    probs = np.array([[0.5, 0.1, 0.4], [0.9, 0.1, 0.0], [0.3, 0.3, 0.4]])
    batch = make_points(3, classes=3, probs=probs, set_size=[2, 0, 2], with_invalid=False)
    store.insert([batch])

    points = {point.prediction_id: point for point in rows_of(store.list_points(PointFilter("digits")).points)}

    found = [points[name] for name in batch.prediction_ids()]
    assert [point.set_size for point in found] == [2, 0, 2]
    # Two classes of the last row are equally probable, so it is not known which of them is in the set.
    assert [point.prediction_set for point in found] == [[0, 2], [], []]
    with store._engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM point WHERE set_size IS NULL")).scalar() == 1


def test_points_are_found_by_the_name_of_their_prediction(store: Store) -> None:
    """By the caller's name or by ours; nobody's name finds nothing."""
    batch = make_points(5)
    store.insert([batch, make_points(3, seed=1, names=("order-1", "order-2", "order-3"))])
    ours = batch.prediction_ids()[4]

    assert store.points_by_name("digits", "order-2").prediction_ids() == ["order-2"]
    assert store.points_by_name("digits", ours).prediction_ids() == [ours]
    assert len(store.points_by_name("digits", "order-9")) == 0
    assert len(store.points_by_name("other", "order-2")) == 0


def test_the_newest_points_are_found_by_their_counts(store: Store) -> None:
    """As many whole minutes as hold the points asked for, and at least one."""
    for minute in (0, 1, 500):
        store.insert([make_points(100, ms=NOW_MS - 60_000 * minute, seed=minute)])
    start = NOW_MS // 60_000 * 60_000
    until = NOW_MS + 1

    assert store.filled_since("digits", VERSION, until_ms=until, points=250) == (start - 60_000, 200)
    assert store.filled_since("digits", VERSION, until_ms=until, points=10) == (start, 100)
    assert store.filled_since("digits", VERSION, until_ms=until, points=1_000) == (start - 30_000_000, 300)
    assert store.filled_since("digits", VERSION, since_ms=NOW_MS - 90_000, until_ms=until, points=1_000)[1] == 200
    assert store.filled_since("nobody", None, until_ms=until, points=10) == (until, 0)


def test_tables_are_joined_row_after_row(store: Store) -> None:
    """Also with one that has no points, and none at all."""
    store.insert([make_points(30)])
    frame, empty = (
        store.newest_points(PointFilter("digits"), limit=30),
        store.newest_points(PointFilter("nobody"), limit=30),
    )

    whole = PointTable.join([frame.take(np.arange(10)), empty, frame.take(np.arange(10, 30))])

    np.testing.assert_array_equal(whole.ids, frame.ids)
    np.testing.assert_array_equal(whole.probs, frame.probs)
    assert len(PointTable.join([])) == 0
