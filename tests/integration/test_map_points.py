"""Stored points as columns for the map, on both databases."""

from __future__ import annotations

import numpy as np
import pytest
from darksight_service.errors import RequestError
from darksight_service.store.points import PointFilter
from darksight_service.store.store import Store

from tests.integration.conftest import NOW_MS
from tests.support.points import VERSION, make_outcomes, make_points, rows_of

WANTED = PointFilter("digits", VERSION)


def fill(store: Store) -> None:
    """Twelve minutes of 30 points each, every seventh not valid; the first minute has labels."""
    batches = [make_points(30, ms=NOW_MS + 60_000 * minute, seed=minute, names=None) for minute in range(12)]
    labels = {name: row % 10 for row, name in enumerate(batches[0].prediction_ids())}
    store.insert([*batches, make_outcomes(labels)])


def test_columns_are_those_of_the_points(store: Store) -> None:
    """What is asked for at once is what pages of objects give, without rows that have no place."""
    fill(store)
    listed = [point for point in rows_of(store.list_points(WANTED, page_size=1000).points) if point.reason != 5]

    found = store.map_points(WANTED, with_probs=True)

    assert [each.hex() for each in found.id_bytes()] == [point.id.replace("-", "") for point in listed]
    assert found.received_ms.tolist() == [point.received_ms for point in listed]
    assert np.array_equal(found.points, [(point.x, point.y) for point in listed])
    assert found.predicted.tolist() == [point.predicted for point in listed]
    assert found.label.tolist() == [point.label for point in listed]
    assert found.reason.tolist() == [point.reason for point in listed]
    assert all(np.array_equal(a, b.probs) for a, b in zip(found.probs, listed, strict=True))
    assert store.count_points(WANTED) == 360


def test_pages_follow_each_other_and_news_come_after_the_newest(store: Store) -> None:
    """The id of a point says where the next call goes on, in both directions."""
    fill(store)
    whole = store.map_points(WANTED)

    first = store.map_points(WANTED, limit=100)
    second = store.map_points(WANTED, limit=100, before=first.id_bytes()[-1])
    newer = store.map_points(WANTED, after=whole.id_bytes()[40])

    assert np.array_equal(np.concatenate([first.ids, second.ids]), whole.ids[:200])
    assert np.array_equal(newer.ids, whole.ids[:40])
    assert len(store.map_points(WANTED, after=whole.id_bytes()[0])) == 0


def test_filters_and_windows(store: Store) -> None:
    """Classes, decisions and times leave out what they say."""
    fill(store)
    wanted = PointFilter("digits", VERSION, NOW_MS, NOW_MS + 240_000, decisions=(2,), predicted=(1, 2))

    found = store.map_points(wanted)

    assert len(found) > 0
    assert not found.accepted.any()
    assert set(found.predicted.tolist()) <= {1, 2}
    assert found.received_ms.max() < NOW_MS + 240_000


def test_a_sample_is_spread_over_the_window(store: Store) -> None:
    """Old points are in it as well as new ones, each once."""
    fill(store)

    found = store.sample_map_points(WANTED, limit=60)

    assert 48 <= len(found) <= 60
    assert len(np.unique(found.ids, axis=0)) == len(found)
    assert len(np.unique(found.received_ms // 60_000)) == 12
    assert len(store.sample_map_points(PointFilter("letters"))) == 0


def test_a_minute_with_most_of_the_traffic_has_most_of_the_sample(store: Store) -> None:
    """One minute of 2,000 points after twelve of 30."""
    fill(store)
    store.insert([make_points(2_000, ms=NOW_MS + 20 * 60_000, names=None, with_invalid=False)])

    found = store.sample_map_points(WANTED, limit=60)

    assert 55 <= len(found) <= 60


def test_a_call_gives_so_many_points(store: Store) -> None:
    """More are asked for in further calls."""
    with pytest.raises(RequestError, match="limit"):
        store.map_points(WANTED, limit=100_001)
