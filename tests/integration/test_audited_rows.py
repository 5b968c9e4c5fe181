"""Rows, drawn rows and labels of an audit from the store, on SQLite and PostgreSQL."""

from __future__ import annotations

import numpy as np
import pytest
from darksight_service.store.ids import DAY_MS
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.store import Store
from darksight_service.store.write.audit_points import AuditDraw
from darksight_service.store.write.retention import Limits

from darksight_core.drift.audit import AuditedRows, error_chances
from darksight_core.drift.isotonic import Isotonic
from darksight_core.drift.urn import audit_numbers
from tests.support.points import VERSION, make_outcomes, make_points

NOW_MS = 1_800_000_000_000
CURVE = Isotonic(np.array([0.2, 1.0]), np.array([0.4, 1.0]))
START_MS = NOW_MS - 3 * DAY_MS
EVERY = PointFilter("digits", VERSION)


def covered(points: PointTable) -> np.ndarray:
    """Accepted rows that have a prediction."""
    return points.accepted & (points.predicted >= 0)


@pytest.fixture
def days(store: Store) -> list[PointTable]:
    """400 points yesterday and 400 today, with tags, half of the drawn ones with a label, and others of a shadow."""
    store._clock = lambda: NOW_MS
    store._inserter.audit = AuditDraw(0.3, lambda model, version: CURVE)
    tags = [{"camera": str(number % 2)} for number in range(400)]
    found = [make_points(400, ms=NOW_MS - (1 - day) * DAY_MS, seed=day, names=None, tags=tags) for day in (0, 1)]
    store.insert(found)
    # A batch that is sent again is neither drawn nor counted again, whatever the rate.
    store._inserter.audit.rate = 1.0
    store.insert([found[0], make_points(40, ms=NOW_MS, seed=7, is_shadow=True)])
    table, depth = store.drawn_points(EVERY, limit=1_000)
    assert depth == 1.0
    half = table.take(np.arange(len(table)) % 2 == 0)
    labels = (half.predicted + (np.arange(len(half)) % 4 == 0)) % 10
    names = store.points_by_id("digits", VERSION, half.id_bytes()).prediction_ids()
    store.insert([make_outcomes(dict(zip(names, labels.tolist(), strict=True)))])
    return found


def test_all_accepted_rows_are_counted_by_day_with_the_sum_of_their_chances(
    store: Store, days: list[PointTable]
) -> None:
    """Exactly once, and those of each class and each segment too; rejected, shadow and invalid rows do not count."""
    found = store.audited_rows("digits", VERSION, start_ms=START_MS, with_groups=True)

    rows = found.rows
    assert rows.first_day == 0
    assert rows.rows.tolist() == [0, 0, *(int(covered(points).sum()) for points in days)]
    for number, points in enumerate(days):
        chances = error_chances(CURVE, points.top)
        assert rows.chance_sums[2 + number] == pytest.approx(chances[covered(points)].sum(), rel=1e-6)
        for group, chosen in ((3, points.predicted == 3), (5, points.predicted == 5)):
            mask = covered(points) & chosen
            assert found.classes[group].rows[2 + number] == mask.sum()
            assert found.classes[group].chance_sums[2 + number] == pytest.approx(chances[mask].sum(), rel=1e-6)
    assert sum(each.rows.sum() for each in found.classes.values()) == rows.rows.sum()
    assert sum(len(each.day) for each in found.classes.values()) == len(rows.day)
    assert found.segments == {}


def test_drawn_rows_have_their_odds_and_labels(store: Store, days: list[PointTable]) -> None:
    """Odds, chance and order are as they were drawn, and half have a label."""
    rows = store.audited_rows("digits", VERSION, start_ms=START_MS).rows
    table, _ = store.drawn_points(EVERY, limit=1_000)
    table = table.take(table.accepted)

    np.testing.assert_allclose(rows.keys, audit_numbers(table.ids) / table.audit_odds)
    assert (rows.keys < 1.0).all()
    assert (np.diff(rows.keys) > 0.0).all()
    np.testing.assert_allclose(rows.chances, error_chances(CURVE, table.top), rtol=1e-5)
    assert 0.27 * (1.0 - 1e-6) <= rows.odds.min() < rows.odds.max() < 0.6
    assert 0 < rows.is_wrong.sum() < rows.is_labelled.sum() < len(rows.day)
    expected = sum(0.3 * covered(points).sum() for points in days)
    assert abs(len(rows.day) - expected) < 4.0 * np.sqrt(expected)


def test_rejected_rows_are_audited_too_if_asked_for(store: Store, days: list[PointTable]) -> None:
    """All rows with a prediction."""
    rows = store.audited_rows("digits", VERSION, start_ms=START_MS, is_accepted=False).rows

    assert rows.rows.sum() == sum((points.predicted >= 0).sum() for points in days)


def test_rows_before_the_start_do_not_count(store: Store, days: list[PointTable]) -> None:
    """Days are numbered from the start, and at most the last 30 are read."""
    late = store.audited_rows("digits", VERSION, start_ms=NOW_MS - 60_000).rows
    old = store.audited_rows("digits", VERSION, start_ms=NOW_MS - 100 * DAY_MS).rows

    assert late.rows.tolist() == [int(covered(days[1]).sum())]
    assert (late.day == 0).all()
    assert (old.first_day, len(old.rows)) == (71, 30)
    assert old.rows.sum() == sum(covered(points).sum() for points in days)


def test_rows_that_retention_has_deleted_do_not_count(store: Store, days: list[PointTable]) -> None:
    """Their counts outlive them, and would look like rows that were not drawn."""
    store.prune(Limits(max_age_ms=DAY_MS // 2), now_ms=NOW_MS + DAY_MS // 4)
    store.insert([make_points(10, ms=NOW_MS + 120_000, seed=9)])
    store._clock = lambda: NOW_MS + 180_000

    rows = store.audited_rows("digits", VERSION, start_ms=START_MS).rows

    assert 0 < rows.rows.sum() <= int(covered(days[1]).sum()) + 10


def test_rows_accepted_without_a_score_do_not_count(store: Store) -> None:
    """`fail_open` accepts them, and the certificate says nothing about them."""
    store._clock = lambda: NOW_MS
    store._inserter.audit = AuditDraw(1.0)
    points = make_points(10, ms=NOW_MS, names=None, with_invalid=False, decision=np.ones(10), reason=np.full(10, 6))
    store.insert([points])

    found = store.audited_rows("digits", VERSION, start_ms=NOW_MS - DAY_MS).rows

    assert (int(found.rows.sum()), len(found.day)) == (0, 0)


def test_a_version_whose_curve_cannot_be_read_is_drawn_uniformly(store: Store) -> None:
    """Its rows count as right until they are labelled, so labels stay usable when the curve is known later."""

    def curves(model: str, version: str) -> Isotonic | None:
        raise OSError("the disk is away")

    store._clock = lambda: NOW_MS
    store._inserter.audit = AuditDraw(0.3, curves)
    early = make_points(400, ms=NOW_MS, names=None)
    store.insert([early])
    store._inserter.audit = AuditDraw(0.3, lambda model, version: CURVE)
    store.insert([make_points(400, ms=NOW_MS, seed=1, names=None)])

    rows: AuditedRows = store.audited_rows("digits", VERSION, start_ms=NOW_MS - DAY_MS).rows

    assert {round(each, 6) for each in rows.odds[rows.chances == 0.0]} == {0.3}
    assert rows.chance_sums.sum() > 0.0
    assert rows.base >= 0.27 * (1.0 - 1e-6)
