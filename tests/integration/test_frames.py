from __future__ import annotations

import numpy as np
from darksight_service.ingest.records import prediction_id
from darksight_service.store import PointFilter, Store, joined

from tests.integration.conftest import NOW_MS
from tests.support.points import VERSION, make_batch, make_outcomes


def test_a_frame_has_what_a_page_of_points_has(store: Store) -> None:
    """The same points in the same order, as columns, also where a filter leaves gaps between them."""
    for minute in range(5):
        store.insert([make_batch(50, ms=NOW_MS - 60_000 * minute, seed=minute)])
    wanted = PointFilter("digits", reasons=(2, 5))

    frame = store.frame(wanted, limit=1_000)
    points = store.list_points(wanted, page_size=1_000).points

    assert len(frame) == len(points) > 10
    assert [each.hex() for each in frame.id_bytes()] == [point.id.replace("-", "") for point in points]
    np.testing.assert_array_equal(frame.p_value, [point.p_value for point in points])
    np.testing.assert_array_equal(frame.predicted, [point.predicted for point in points])
    valid = np.flatnonzero(frame.predicted >= 0)
    np.testing.assert_array_equal(frame.probs[valid], np.stack([points[row].probs for row in valid]))
    assert np.isnan(frame.probs[frame.predicted < 0]).all()
    assert len(store.frame(wanted, limit=7)) == 7


def test_a_labelled_frame_has_the_points_with_outcomes(store: Store) -> None:
    """Newest first, of the time that was asked for, and not what a shadow said."""
    batch = make_batch(20, with_invalid=False)
    store.insert([batch, make_batch(20, ms=NOW_MS - 60_000, seed=1, names=tuple("abcdefghijklmnopqrst"))])
    store.insert([make_batch(1, ms=NOW_MS + 5, names=("a",), is_shadow=True)])
    labels = {prediction_id(batch.batch_id, 3): 7, "a": 1, "b": 2}
    store.insert([make_outcomes(labels)])

    found = store.labelled_frame("digits", limit=10)

    assert found.label.tolist() == [7, 2, 1]
    assert found.errors.tolist() == (found.predicted != found.label).tolist()
    assert store.labelled_frame("digits", since_ms=NOW_MS, limit=10).label.tolist() == [7]
    assert store.labelled_frame("digits", limit=1).label.tolist() == [7]


def test_points_are_found_by_the_name_of_their_prediction(store: Store) -> None:
    """By the caller's name or by ours; nobody's name finds nothing."""
    batch = make_batch(5)
    store.insert([batch, make_batch(3, seed=1, names=("order-1", "order-2", "order-3"))])
    ours = prediction_id(batch.batch_id, 4)

    assert [point.prediction_id for point in store.find_points("digits", "order-2")] == ["order-2"]
    assert [point.prediction_id for point in store.find_points("digits", ours)] == [ours]
    assert store.find_points("digits", "order-9") == []
    assert store.find_points("other", "order-2") == []


def test_the_newest_points_are_found_by_their_counts(store: Store) -> None:
    """As many whole minutes as hold the points asked for, and at least one."""
    for minute in (0, 1, 500):
        store.insert([make_batch(100, ms=NOW_MS - 60_000 * minute, seed=minute)])
    start = NOW_MS // 60_000 * 60_000
    until = NOW_MS + 1

    assert store.filled_since("digits", VERSION, until_ms=until, points=250) == (start - 60_000, 200)
    assert store.filled_since("digits", VERSION, until_ms=until, points=10) == (start, 100)
    assert store.filled_since("digits", VERSION, until_ms=until, points=1_000) == (start - 30_000_000, 300)
    assert store.filled_since("digits", VERSION, since_ms=NOW_MS - 90_000, until_ms=until, points=1_000)[1] == 200
    assert store.filled_since("nobody", None, until_ms=until, points=10) == (until, 0)


def test_frames_are_joined_row_after_row(store: Store) -> None:
    """Also with one that has no points, and none at all."""
    store.insert([make_batch(30)])
    frame, empty = store.frame(PointFilter("digits"), limit=30), store.frame(PointFilter("nobody"), limit=30)

    whole = joined([frame.take(np.arange(10)), empty, frame.take(np.arange(10, 30))])

    np.testing.assert_array_equal(whole.ids, frame.ids)
    np.testing.assert_array_equal(whole.probs, frame.probs)
    assert len(joined([])) == 0
