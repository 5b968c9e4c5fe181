"""States of detectors in the transaction that stores the rows, on SQLite and PostgreSQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from darksight_service.errors import StoreUnavailableError
from darksight_service.store.engine import writing
from darksight_service.store.points import PointTable
from darksight_service.store.store import Store
from darksight_service.store.tables import detector_state
from numpy.typing import NDArray

from darksight_core.drift.detector import Baseline, Detector, Evidence, RowBatch, mean_log_evidence
from darksight_core.drift.segment_cells import Segment
from darksight_core.drift.stream import DriftState, DriftTest
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
    store.follow_drift(replica, lambda model, version: [test] if (model, version) == ("digits", VERSION) else [])
    return store


def expected(test: DriftTest, batches: list[PointTable]) -> Any:
    """The state after the rows of these batches that have a score and answered a caller."""
    state = test.start()
    for points in batches:
        used = np.isfinite(points.outlier_score) & ~points.is_shadow
        columns = points.outlier_score[used], points.top[used], points.predicted[used]
        state = test.update(state, RowBatch(*columns, row_uniforms(points.ids[used])))
    return pytest.approx(np.frombuffer(test.encode(state)), rel=1e-9)


def own_state(store: Store) -> DriftState | None:
    """The state of the replica, if it has one."""
    found: DriftState | None = store.own_states([("digits", VERSION)]).get(("digits", VERSION), {}).get("stream")
    return found


def state_of(store: Store, test: DriftTest) -> NDArray[np.float64]:
    """The state of the model as numbers, equal up to rounding however rows were divided into transactions."""
    state = own_state(store)
    assert state is not None
    return np.frombuffer(test.encode(state))


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

    assert state_of(store, test) == expected(test, batches)
    assert state_of(follow(open_store(url), test), test) == expected(test, batches)
    assert own_state(follow(open_store(url), test, "b")) is None


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

    assert state_of(store, test) == expected(test, [first])
    store._inserter._count = counted  # type: ignore[method-assign]
    store.insert([second])
    assert state_of(store, test) == expected(test, [first, second])


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
    found = own_state(follow(open_store(url), test))
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
    store.follow_drift("a", fail if broken == "load" else lambda *_: [defect])

    assert store.insert([second]).points == 10
    assert state_of(follow(open_store(url), test), test) == expected(test, [first])


def test_a_test_is_loaded_before_the_transaction(url: str, open_store: Callable[..., Store], test: DriftTest) -> None:
    """A load that takes long keeps no lock of the database."""
    store, other = open_store(url), open_store(url)

    def load(*_: str) -> list[DriftTest]:
        other.append_change("policy", "digits", {})
        return [test]

    store.follow_drift("a", load)

    assert store.insert([make_points(10, ms=NOW_MS)]).points == 10


def test_a_reset_takes_effect_at_once(url: str, open_store: Callable[..., Store], test: DriftTest) -> None:
    """Rows after a reset are the only evidence, also where nobody has told of the reset yet."""
    before, after = make_points(50, ms=NOW_MS - 1, seed=1), make_points(20, ms=NOW_MS)
    store = follow(open_store(url), test)
    store.insert([before])
    assert state_of(store, test) == expected(test, [before])

    open_store(url).append_change("evidence", "digits", {"version": VERSION})
    store.insert([after])

    assert state_of(store, test) == expected(test, [after])


def test_a_reset_waits_for_a_transaction_that_has_read_the_state(
    url: str, open_store: Callable[..., Store], test: DriftTest
) -> None:
    """Its rows are not written over the reset: they were committed before it."""
    store, other, reset = follow(open_store(url), test), open_store(url), threading.Event()
    store.insert([make_points(50, ms=NOW_MS - 1, seed=1)])
    counted = store._inserter._count

    def restart() -> None:
        reset.set()
        while True:
            try:
                other.append_change("evidence", "digits", {"version": VERSION})
                return
            except StoreUnavailableError:
                time.sleep(0.01)

    thread = threading.Thread(target=restart)

    def interrupted(*arguments: Any) -> Any:
        result = counted(*arguments)
        thread.start()
        reset.wait(10)
        time.sleep(0.2)
        return result

    store._inserter._count = interrupted  # type: ignore[method-assign]
    store.insert([make_points(50, ms=NOW_MS)])
    thread.join()

    assert own_state(store) is None


def test_a_state_of_an_earlier_release_is_replaced(
    url: str, open_store: Callable[..., Store], test: DriftTest, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no evidence; the rows that replace it report it."""
    store = follow(open_store(url), test)
    store.insert([make_points(50, ms=NOW_MS - 1, seed=1)])
    with writing(store._engine) as connection:
        connection.execute(detector_state.update().values(state=b"old"))
    assert own_state(store) is None
    assert store.detector_states("digits", VERSION, test) == {}
    assert caplog.messages == []
    after = make_points(50, ms=NOW_MS)

    store.insert([after])

    assert state_of(store, test) == expected(test, [after])
    assert caplog.messages == ["drift_state_replaced"]


class Counter:
    """A detector of its own: it counts rows, and its evidence is their number."""

    name: ClassVar[str] = "counter"
    kinds: ClassVar[Mapping[str, str]] = {"rows": "number of rows"}
    is_by_segment: ClassVar[bool] = False
    level = 0.01
    threshold = 100.0

    @classmethod
    def of(cls, baseline: Baseline) -> Counter:
        """The detector of a bundle."""
        return cls()

    def start(self, segment: Segment | None = None) -> int:
        """No rows."""
        return 0

    def update(self, state: int, rows: RowBatch) -> int:
        """The number after more rows."""
        return state + len(rows)

    def evidence(self, state: int) -> dict[str, Evidence]:
        """The number as evidence."""
        return {"rows": Evidence(float(state), rows=state)}

    def encode(self, state: int) -> bytes:
        """The number as bytes."""
        return state.to_bytes(8, "little")

    def decode(self, data: bytes) -> int:
        """Inverse of `encode`."""
        return int.from_bytes(data, "little")


class CounterBySegment(Counter):
    """The same of each segment."""

    name = "counter by segment"
    is_by_segment = True


def test_any_detector_is_followed(url: str, open_store: Callable[..., Store]) -> None:
    """The store needs to know no more of a detector than the protocol; replicas are averaged."""
    counters: tuple[Detector[Any], ...] = (Counter(), CounterBySegment())
    for number, replica in enumerate("ab"):
        store = open_store(url)
        store.follow_drift(replica, lambda *_: counters)
        store.insert([make_points(10, ms=NOW_MS + number, seed=number, with_invalid=False, tags={"camera": replica})])

    whole, by_segment = (store.detector_states("digits", VERSION, each) for each in counters)

    assert whole == {None: [10, 10]}
    assert by_segment == {("camera", "a"): [10, 0], ("camera", "b"): [10, 0]}
    assert mean_log_evidence(counters[0], whole[None]) == {"rows": pytest.approx(10.0)}
    mean = mean_log_evidence(counters[1], by_segment["camera", "a"])["rows"]
    assert mean == pytest.approx(np.log((np.exp(10.0) + 1.0) / 2.0))
