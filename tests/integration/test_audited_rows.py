"""Accepted rows and labels of an audit from the store, on SQLite and PostgreSQL."""

from __future__ import annotations

import numpy as np
import pytest
from darksight_service.store.ids import DAY_MS
from darksight_service.store.store import Store

from darksight_core.drift.audit import AuditedRows, audit_gains
from darksight_core.drift.urn import audit_numbers
from tests.support.points import VERSION, make_outcomes, make_points

NOW_MS = 1_800_000_000_000


@pytest.fixture
def rows(store: Store) -> AuditedRows:
    """Of 40 points yesterday and 40 today, every second one with a label that is right, wrong, right, ..."""
    store._clock = lambda: NOW_MS
    for number, ms in enumerate((NOW_MS - DAY_MS, NOW_MS)):
        points = make_points(40, ms=ms, seed=number, names=None)
        names = points.prediction_ids()
        wrong = np.arange(40) % 4 == 2
        labels = (points.predicted + wrong) % 10
        store.insert(
            [points, make_outcomes({names[k]: int(labels[k]) for k in range(0, 40, 2) if points.predicted[k] >= 0})]
        )
    store.insert([make_points(40, ms=NOW_MS, seed=7, is_shadow=True)])
    return store.audited_rows("digits", VERSION, start_ms=NOW_MS - 3 * DAY_MS)[0]


def test_accepted_rows_are_counted_by_day_with_the_labels_that_they_have(rows: AuditedRows) -> None:
    """Rejected, shadow and invalid rows do not count."""
    days = [make_points(40, ms=NOW_MS - (1 - number) * DAY_MS, seed=number) for number in (0, 1)]

    assert rows.first_day == 0
    assert rows.accepted.tolist() == [0, 0, *(int(points.accepted.sum()) for points in days)]
    for number, points in enumerate(days):
        known = points.accepted & (np.arange(40) % 2 == 0)
        found = rows.day == 2 + number
        assert sorted(rows.is_wrong[found]) == sorted((np.arange(40) % 4 == 2)[known])
        assert sorted(rows.gains[found]) == sorted(audit_gains(points.p_value[known]))


def test_rows_before_the_start_do_not_count(store: Store, rows: AuditedRows) -> None:
    """Days are numbered from the start, and at most the last 30 are read."""
    late = store.audited_rows("digits", VERSION, start_ms=NOW_MS - 60_000)[0]
    old = store.audited_rows("digits", VERSION, start_ms=NOW_MS - 100 * DAY_MS)[0]

    assert late.accepted.tolist() == rows.accepted[-1:].tolist()
    assert len(late.day) == (rows.day == 3).sum()
    assert (old.first_day, len(old.accepted)) == (71, 30)
    assert old.accepted.sum() == rows.accepted.sum()


def test_the_number_of_a_row_is_that_of_its_id(store: Store, rows: AuditedRows) -> None:
    """The same as when it was drawn."""
    table = store.labelled_points("digits", VERSION)

    assert sorted(rows.numbers) == sorted(audit_numbers(table.ids[table.accepted]))


def test_many_right_labels_leave_the_evidence_as_it_is(store: Store, rows: AuditedRows) -> None:
    """Of the wrong rows the newest are read, with all accepted rows of their days."""
    start_ms = NOW_MS - 3 * DAY_MS
    _, wrong = store.audited_rows("digits", VERSION, start_ms=start_ms)
    newest = int((wrong.day == 3).sum())
    few, capped = store.audited_rows("digits", VERSION, start_ms=start_ms, max_labels=newest)

    assert wrong.is_wrong.all()
    assert len(wrong.day) == rows.is_wrong.sum() > newest > 0
    assert wrong.accepted.tolist() == rows.accepted.tolist()
    assert (capped.first_day, capped.accepted.tolist()) == (3, rows.accepted[-1:].tolist())
    assert sorted(capped.numbers) == sorted(wrong.numbers[wrong.day == 3])
    # All labels of today have one time, so none is known to be of a minute whose labels were all read.
    assert (len(few.day), few.accepted.sum()) == (0, 0)


def test_rows_accepted_without_a_score_do_not_count(store: Store) -> None:
    """`fail_open` accepts them, and the certificate says nothing about them."""
    store._clock = lambda: NOW_MS
    points = make_points(10, ms=NOW_MS, names=None, with_invalid=False, decision=np.ones(10), reason=np.full(10, 6))
    labels = {name: int(each + 1) % 10 for name, each in zip(points.prediction_ids(), points.predicted, strict=True)}
    store.insert([points, make_outcomes(labels)])

    for found in store.audited_rows("digits", VERSION, start_ms=NOW_MS - DAY_MS):
        assert (int(found.accepted.sum()), len(found.day)) == (0, 0)
