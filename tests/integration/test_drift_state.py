"""Drift evidence in the transaction that stores the rows, on SQLite and PostgreSQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from darksight_service.errors import StoreUnavailableError
from darksight_service.store.engine import writing
from darksight_service.store.points import PointTable
from darksight_service.store.store import Store
from darksight_service.store.tables import drift_state
from numpy.typing import NDArray
from sqlalchemy import event

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


@pytest.mark.parametrize("broken", ["load", "decode", "update"])
def test_a_test_that_fails_does_not_stop_the_rows(
    url: str, open_store: Callable[..., Store], test: DriftTest, broken: str
) -> None:
    """A defect of the evidence is logged; the rows are stored, and the stored evidence stays."""

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    first, second = (make_points(10, ms=NOW_MS - number, seed=number) for number in (1, 0))
    follow(open_store(url), test).insert([first])
    store = open_store(url)
    defect = type("Broken", (DriftTest,), {broken: fail})(test.calibration, test.class_counts)
    store.follow_drift("a", fail if broken == "load" else lambda *_: defect)

    assert store.insert([second]).points == 10
    assert state_of(follow(open_store(url), test)) == expected(test, [first])


def test_a_test_is_loaded_before_the_transaction(url: str, open_store: Callable[..., Store], test: DriftTest) -> None:
    """A load that takes long keeps no lock of the database."""
    store, other = open_store(url), open_store(url)

    def load(*_: str) -> DriftTest:
        other.append_change("policy", "digits", {})
        return test

    store.follow_drift("a", load)

    assert store.insert([make_points(10, ms=NOW_MS)]).points == 10


def test_a_reset_takes_effect_at_once(url: str, open_store: Callable[..., Store], test: DriftTest) -> None:
    """Rows after a reset are the only evidence, also where nobody has told of the reset yet."""
    before, after = make_points(50, ms=NOW_MS - 1, seed=1), make_points(20, ms=NOW_MS)
    store = follow(open_store(url), test)
    store.insert([before])
    assert state_of(store) == expected(test, [before])

    open_store(url).append_change("evidence", "digits", {"version": VERSION})
    store.insert([after])

    assert state_of(store) == expected(test, [after])


def test_a_late_commit_does_not_undo_a_reset(url: str, open_store: Callable[..., Store], test: DriftTest) -> None:
    """Though the thread that committed before the reset runs on only after it."""
    store = follow(open_store(url), test)
    write = "_copy" if url.startswith("postgresql") else "_insert_into_sqlite"
    written = getattr(store._inserter, write)

    def interrupted(*arguments: Any) -> Any:
        result = written(*arguments)
        store.append_change("evidence", "digits", {"version": VERSION})
        store.forget_drift("digits", VERSION)
        assert store.drift_state("digits", VERSION) is None
        return result

    setattr(store._inserter, write, interrupted)
    store.insert([make_points(50, ms=NOW_MS)])

    assert store.drift_state("digits", VERSION) is None


def test_the_state_is_read_once_after_a_commit(
    url: str, open_store: Callable[..., Store], test: DriftTest, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if there is none; a state of an earlier release is reported once, by the rows that replace it."""
    store, queries = follow(open_store(url), test), [0]
    event.listen(store._engine, "before_cursor_execute", lambda *_: queries.append(1))

    def asked() -> int:
        queries.clear()
        assert [store.drift_state("digits", VERSION) for _ in range(3)] == [None] * 3
        return len(queries)

    assert asked() <= 2
    assert asked() == 0
    store.insert([make_points(50, ms=NOW_MS - 1, seed=1)])
    with writing(store._engine) as connection:
        connection.execute(drift_state.update().values(state=b"old"))
    assert asked() <= 2
    assert caplog.messages == []
    store.insert([make_points(50, ms=NOW_MS)])
    assert store.drift_state("digits", VERSION) is not None
    assert caplog.messages == ["drift_state_replaced"]
