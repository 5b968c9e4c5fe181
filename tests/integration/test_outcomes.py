"""Outcomes: late, early, duplicate, conflicting, unknown; and what is computed from them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from darksight_service.errors import StoreUnavailableError
from darksight_service.store.engine import writing
from darksight_service.store.points import PointFilter
from darksight_service.store.store import Store
from darksight_service.store.tables import model

from tests.support.points import VERSION, make_outcomes, make_points, rows_of

NOW_MS = 1_800_000_000_000
NAMES = ("a", "b", "c", "d")


def labels(store: Store, **wanted: object) -> dict[str, int]:
    """Label of each stored point by its name."""
    page = store.list_points(PointFilter("digits", **wanted), page_size=1000)  # type: ignore[arg-type]
    return {point.prediction_id: point.label for point in rows_of(page.points)}


def test_a_late_outcome_is_joined_at_once(store: Store) -> None:
    """The point is there already."""
    store.insert([make_points(4, ms=NOW_MS, names=NAMES)])

    done = store.insert([make_outcomes({"a": 3, "c": 5})])

    assert (done.outcomes, done.matched) == (2, 2)
    assert labels(store) == {"a": 3, "b": -1, "c": 5, "d": -1}


def test_an_early_outcome_waits_for_its_point(store: Store) -> None:
    """The point comes later and finds it; until then it is counted as unmatched."""
    first = store.insert([make_outcomes({"a": 3, "zzz": 1})])
    waiting = store.stats().unmatched

    second = store.insert([make_points(4, ms=NOW_MS, names=NAMES)])

    assert (first.outcomes, first.matched, waiting) == (2, 0, 2)
    assert second.matched == 1
    assert labels(store) == {"a": 3, "b": -1, "c": -1, "d": -1}
    assert store.stats().unmatched == 1


def test_in_one_call_both_find_each_other(store: Store) -> None:
    """The order within a call means nothing."""
    done = store.insert([make_outcomes({"b": 9}), make_points(4, ms=NOW_MS, names=NAMES)])

    assert done.matched == 1
    assert labels(store)["b"] == 9


@pytest.mark.parametrize("is_early", [True, False], ids=["early", "late"])
def test_points_without_a_name_of_the_caller_are_found_by_the_one_they_got(store: Store, is_early: bool) -> None:
    """The name that the answer implies is enough."""
    batch = make_points(4, ms=NOW_MS)
    outcomes = make_outcomes({batch.prediction_ids()[2]: 7, batch.prediction_ids()[0].replace("-0", "-9"): 1})

    for each in (outcomes, batch) if is_early else (batch, outcomes):
        store.insert([each])

    assert labels(store) == dict(zip(batch.prediction_ids(), (-1, -1, 7, -1), strict=True))


def test_a_duplicate_changes_nothing(store: Store) -> None:
    """The same label again, in another call or in the same."""
    store.insert([make_points(4, ms=NOW_MS, names=NAMES)])

    counts = [store.insert([make_outcomes({"a": 3})]), store.insert([make_outcomes({"a": 3}), make_outcomes({"a": 3})])]

    assert [(count.outcomes, count.duplicate, count.conflicting) for count in counts] == [(1, 0, 0), (0, 2, 0)]
    assert labels(store)["a"] == 3
    assert store.stats().disputed == 0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)], ids=str)
@pytest.mark.parametrize("in_one_call", [True, False], ids=["one call", "three calls"])
def test_of_conflicting_outcomes_the_one_observed_last_holds(
    store: Store, order: tuple[int, ...], in_one_call: bool
) -> None:
    """In whichever order they come; that there was a conflict is marked and counted."""
    reports = [
        make_outcomes({"a": 1}, observed_ms=NOW_MS - 300),
        make_outcomes({"a": 2}, observed_ms=NOW_MS - 200),
        make_outcomes({"a": 1}, observed_ms=NOW_MS - 100),
    ]
    store.insert([make_points(4, ms=NOW_MS, names=NAMES)])

    ordered = [reports[number] for number in order]
    counts = [store.insert(ordered)] if in_one_call else [store.insert([each]) for each in ordered]

    assert labels(store)["a"] == 1
    assert store.stats().disputed == 1
    assert sum(count.conflicting for count in counts) >= 1
    assert store.stats().outcomes == 1


def test_on_a_tie_the_first_outcome_stays(store: Store) -> None:
    """Two labels of the same moment: what was known first is not overturned."""
    store.insert([make_points(4, ms=NOW_MS, names=NAMES)])

    store.insert([make_outcomes({"a": 1}, observed_ms=NOW_MS)])
    done = store.insert([make_outcomes({"a": 2}, observed_ms=NOW_MS)])

    assert done.conflicting == 1
    assert labels(store)["a"] == 1


def test_what_can_be_no_outcome_is_refused_and_counted(store: Store) -> None:
    """A negative class and a name too long for any index; the others of the call are stored."""
    done = store.insert([make_outcomes({"a": -1, "b": 2, "x" * 5000: 1})])

    assert (done.outcomes, done.refused) == (1, 2)
    assert store.stats().outcomes == 1


def test_an_outcome_is_about_its_model_only(store: Store) -> None:
    """Names are the caller's, and two classifiers may use the same ones."""
    store.insert(
        [make_points(4, ms=NOW_MS, names=NAMES), make_points(4, ms=NOW_MS, names=NAMES, seed=2, model="other")]
    )

    done = store.insert([make_outcomes({"a": 3}, model="other")])

    assert done.matched == 1
    assert labels(store)["a"] == -1


def test_numbers_of_another_database_are_not_used(store: Store) -> None:
    """A backup in which another model has the number is restored while it is cached, and no connection tells."""
    store.insert([make_outcomes({"a": 3})])
    with writing(store._engine) as connection:
        connection.execute(model.update().where(model.c.name == "digits").values(name="other"))

    with pytest.raises(StoreUnavailableError, match="other numbers"):
        store.insert([make_outcomes({"b": 5})])
    done = store.insert([make_points(4, ms=NOW_MS, names=NAMES), make_outcomes({"b": 5})])

    assert done.outcomes == 1
    assert labels(store) == {"a": -1, "b": 5, "c": -1, "d": -1}


def test_an_outcome_is_about_what_the_shadow_said_too(store: Store) -> None:
    """But live accuracy is that of what was answered."""
    shadow = make_points(4, ms=NOW_MS, names=NAMES, seed=2, is_shadow=True, version="b" * 64)
    store.insert([make_points(4, ms=NOW_MS, names=NAMES, with_invalid=False)])

    done = store.insert([make_outcomes({"a": 3})])
    late = store.insert([shadow])

    assert (done.matched, late.matched) == (1, 1)
    assert labels(store, is_shadow=True)["a"] == 3
    found = store.label_counts("digits")
    assert found.accepted_labelled + found.rejected_labelled == 1


def test_outcomes_and_points_of_the_same_moment_meet_at_the_latest_by_maintenance(
    url: str, open_store: Callable[..., Store]
) -> None:
    """Concurrent transactions do not see each other; running it twice matches what they missed."""
    batches = [
        make_points(5, ms=NOW_MS, seed=seed, names=tuple(f"{seed}-{row}" for row in range(5))) for seed in range(40)
    ]
    reports = [make_outcomes(dict.fromkeys(batch.prediction_ids(), 4)) for batch in batches]

    def write(items: list[object]) -> None:
        store = open_store(url)
        for item in items:
            while True:
                try:
                    store.insert([item])  # type: ignore[list-item]
                    break
                except StoreUnavailableError:
                    pass

    threads = [threading.Thread(target=write, args=(items,)) for items in (batches, reports)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    storage = open_store(url)
    storage.maintain()
    storage.maintain()

    assert set(labels(storage).values()) == {4}
    assert storage.stats().unmatched == 0
    assert storage.maintain() == 0


def test_live_accuracy_and_labelled_points_equal_what_was_stored(store: Store) -> None:
    """Counts of right and wrong among accepted and rejected, and the columns that risk-coverage needs."""
    batch = make_points(300, ms=NOW_MS, names=None, with_invalid=False)
    truth = np.where(np.arange(300) % 4 == 0, (batch.predicted + 1) % 10, batch.predicted)
    known = np.arange(300) % 3 > 0
    store.insert([batch])
    store.insert([make_outcomes({name: int(truth[n]) for n, name in enumerate(batch.prediction_ids()) if known[n]})])

    found = store.label_counts("digits", VERSION, since_ms=NOW_MS, until_ms=NOW_MS + 1)
    rows = store.labelled_points("digits", VERSION)

    accepted = batch.decision == 1
    correct = truth == batch.predicted
    assert (found.accepted_labelled, found.accepted_correct) == (
        (known & accepted).sum(),
        (known & accepted & correct).sum(),
    )
    assert (found.rejected_labelled, found.rejected_correct) == (
        (known & ~accepted).sum(),
        (known & ~accepted & correct).sum(),
    )
    newest_first = np.flatnonzero(known)[::-1]
    np.testing.assert_array_equal(rows.confidence.astype(np.float32), batch.confidence[newest_first])
    np.testing.assert_array_equal(~rows.errors, correct[newest_first])
    np.testing.assert_allclose(rows.probs, batch.probs[newest_first], rtol=1e-3, atol=1e-7)
    assert store.label_counts("digits", VERSION, since_ms=NOW_MS + 1).accepted_labelled == 0
    assert len(store.labelled_points("nothing").label) == 0
