"""Drift evidence in the transaction that stores the rows, on SQLite and PostgreSQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from darksight_service.errors import StoreUnavailableError
from darksight_service.store.points import PointTable
from darksight_service.store.store import Store
from numpy.typing import NDArray

from darksight_core.drift.stream import DriftTest
from darksight_core.drift.urn import row_uniforms
from darksight_core.guarantees.calibration import Calibration
from tests.support.points import VERSION, make_points

NOW_MS = 1_800_000_000_000


@pytest.fixture(scope="module")
def test() -> DriftTest:
    """The drift test of points that `make_points` makes."""
    rng = np.random.default_rng(1)
    top = rng.dirichlet(np.full(10, 0.3), size=999).max(axis=1)
    return DriftTest(Calibration(rng.normal(-2.0, 1.0, 999), top=top), np.full(10, 100))


def follow(store: Store, test: DriftTest, replica: str = "a") -> Store:
    """The store, which follows the drift of one model."""
    store.follow_drift(replica, lambda model, version: test if (model, version) == ("digits", VERSION) else None)
    return store


def expected(test: DriftTest, batches: list[PointTable]) -> Any:
    """The state after the rows of these batches that have a score and answered a caller."""
    state = test.start()
    for points in batches:
        used = np.isfinite(points.outlier_score) & ~points.is_shadow
        columns = points.outlier_score[used], points.top[used], points.predicted[used]
        state, _ = test.update(state, *columns, row_uniforms(points.ids[used]))
    return pytest.approx(np.frombuffer(state.encode()), rel=1e-9)


def state_of(store: Store) -> NDArray[np.float64]:
    """The state of the model as numbers, equal up to rounding however rows were divided into transactions."""
    state = store.drift_state("digits", VERSION)
    assert state is not None
    return np.frombuffer(state.encode())


def test_a_row_counts_once_however_often_it_is_sent(
    url: str, open_store: Callable[..., Store], test: DriftTest
) -> None:
    """Repeated batches change nothing, shadow and invalid rows do not count, and a new process reads the same state."""
    batches = [make_points(60, ms=NOW_MS - 10 + number, seed=number) for number in range(4)]
    shadow = make_points(60, ms=NOW_MS, seed=9, is_shadow=True)
    store = follow(open_store(url), test)

    store.insert(batches[:2])
    store.insert([*batches[:2], batches[2]])
    store.insert([shadow, batches[3]])

    assert state_of(store) == expected(test, batches)
    assert state_of(follow(open_store(url), test)) == expected(test, batches)
    assert follow(open_store(url), test, "b").drift_state("digits", VERSION) is None


def test_rows_that_are_not_stored_are_no_evidence(url: str, open_store: Callable[..., Store], test: DriftTest) -> None:
    """A transaction that fails after the evidence was updated leaves the state as it was, in memory and in SQL."""
    first, second = (make_points(50, ms=NOW_MS - number, seed=number) for number in (1, 0))
    store = follow(open_store(url), test)
    store.insert([first])
    counted = store._inserter._count

    def fail(*arguments: Any) -> Any:
        counted(*arguments)
        raise RuntimeError("killed before the commit")

    store._inserter._count = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="killed"):
        store.insert([second])

    assert state_of(store) == expected(test, [first])
    store._inserter._count = counted  # type: ignore[method-assign]
    store.insert([second])
    assert state_of(store) == expected(test, [first, second])


def test_two_drains_share_one_order(url: str, open_store: Callable[..., Store], test: DriftTest) -> None:
    """Rows that two threads store at once are all counted, one transaction after the other."""
    store = follow(open_store(url), test)
    batches = [make_points(30, ms=NOW_MS - number, seed=number, with_invalid=False) for number in range(12)]
    failures: list[BaseException] = []

    def write(mine: list[PointTable]) -> None:
        try:
            for points in mine:
                while True:
                    try:
                        store.insert([points])
                        break
                    except StoreUnavailableError:
                        time.sleep(0.01)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(batches[start::2],)) for start in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    found = follow(open_store(url), test).drift_state("digits", VERSION)
    assert found is not None
    assert found.rows == 360


def test_a_test_that_fails_does_not_stop_the_rows(url: str, open_store: Callable[..., Store], test: DriftTest) -> None:
    """A defect of the evidence is logged; the rows are stored."""

    class Broken(DriftTest):
        def update(self, *arguments: Any) -> Any:
            raise ZeroDivisionError

    store = follow(open_store(url), Broken(test.calibration, test.class_counts))

    assert store.insert([make_points(10, ms=NOW_MS)]).points == 10
    assert store.drift_state("digits", VERSION) is None
