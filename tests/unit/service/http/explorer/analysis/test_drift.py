from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
from darksight_service.http.explorer.analysis.drift import (
    LEVEL,
    class_counts,
    compare_clouds,
    compare_counts,
    count_inside,
    histogram,
    over_time,
    slices,
)
from darksight_service.store.rollups import ClassRate, Rates

from darksight_core.drift import OutlierCounts, OutlierRateTest, psi, psi_critical

CALIBRATION = 1_999
RANK = 20


def make_rates(bins: np.ndarray, outliers: np.ndarray) -> Rates:
    """Steps of a minute with p-values in 20 bins."""
    m = len(bins)
    reasons = np.zeros((m, 7), dtype=np.int64)
    reasons[:, 2] = outliers
    points = bins.sum(axis=1)
    reasons[:, 1] = points - outliers
    start = 60_000 * np.arange(m, dtype=np.int64)
    return Rates(start, points, points - outliers, reasons, np.zeros(m), bins)


def test_figures_over_time_are_those_of_the_core():
    """Rate, PSI and evidence of each step; a step without scored points has none, so that no line runs across it."""
    rng = np.random.default_rng(0)
    bins = rng.multinomial(500, np.full(20, 0.05), size=6)
    bins[2] = 0
    outliers = np.array([5, 4, 0, 6, 40, 45])

    rates = make_rates(bins, outliers)
    kept = np.array([0, 1, 3, 4, 5])
    without = Rates(*(getattr(rates, field.name)[kept] for field in fields(Rates)))

    found = over_time(without, step_ms=60_000, calibration_rows=CALIBRATION, rank=RANK)

    assert found.start_ms.tolist() == [0, 60_000, 120_000, 180_000, 240_000, 300_000]
    assert found.rows.tolist() == [500, 500, 0, 500, 500, 500]
    assert found.evidence is not None
    for figure in (found.low, found.high, found.psi, found.psi_critical, found.evidence):
        assert np.isnan(figure).tolist() == [False, False, True, False, False, False]
    assert found.psi[0] == pytest.approx(float(psi(bins[0].reshape(10, 2).sum(axis=1))))
    assert found.psi_critical[0] == pytest.approx(psi_critical(500, CALIBRATION))
    test = OutlierRateTest(CALIBRATION, 0.01, rank=RANK)
    assert found.evidence[-1] == pytest.approx(test.evidence(OutlierCounts(2_500, 100)).log_evidence)
    assert found.evidence[3] < found.threshold < found.evidence[-1]
    assert found.expected == RANK / (CALIBRATION + 1)
    assert found.low[0] < 0.01 < found.high[0]


def test_evidence_starts_with_the_rule():
    """What was called an outlier under another rule is no evidence against this one."""
    bins = np.full((4, 20), 25)

    rates = make_rates(bins, np.array([100, 100, 5, 5]))

    found = over_time(rates, step_ms=60_000, calibration_rows=CALIBRATION, rank=RANK, rule_since_ms=120_000)

    assert found.evidence is not None
    assert np.isnan(found.evidence[:2]).all()
    assert found.evidence[-1] < found.threshold


def test_without_an_outlier_rule_there_is_no_evidence():
    """But there is PSI."""
    rates = make_rates(np.full((2, 20), 25), np.zeros(2, dtype=int))

    found = over_time(rates, step_ms=60_000, calibration_rows=CALIBRATION, rank=None)

    assert (found.evidence, found.expected) == (None, None)
    assert len(found.psi) == 2


def test_no_traffic_is_no_steps():
    """An empty window has empty columns."""
    rates = make_rates(np.empty((0, 20), dtype=int), np.empty(0, dtype=int))

    found = over_time(rates, step_ms=60_000, calibration_rows=CALIBRATION, rank=RANK)

    assert len(found.psi) == len(found.low) == len(found.start_ms) == 0


def test_a_bin_stays_in_its_band_as_often_as_promised():
    """p-values of rows like the calibration rows: 1% of bins are outside, over 200 calibrations."""
    rng = np.random.default_rng(1)
    outside = []
    for _ in range(200):
        calibration = np.sort(rng.uniform(size=CALIBRATION))
        ranks = 1 + np.searchsorted(calibration, rng.uniform(size=2_000))
        bins = np.bincount(np.ceil(ranks / 100).astype(int) - 1, minlength=20)
        found = histogram(bins, CALIBRATION)
        share = bins / bins.sum()
        outside.append(((share < found.low) | (share > found.high)).mean())

    # Bins of one calibration go together, so the noise is taken from the 200.
    assert np.mean(outside) == pytest.approx(0.01, abs=3.0 * np.std(outside) / math.sqrt(200) + 0.002)


def test_cells_that_did_not_move_are_rarely_flagged():
    """Ten classes of equal traffic: in at most 1% of windows, plus 3 standard errors, is any of them called moved."""
    rng = np.random.default_rng(2)
    names = [str(number) for number in range(10)]
    runs = 500
    alarms = 0
    for _ in range(runs):
        before, now = rng.multinomial(1_000, np.full(10, 0.1), size=2)
        alarms += any(cell.is_moved for cell in compare_counts(names, before, now).cells)

    assert alarms <= runs * (LEVEL + 3.0 * math.sqrt(LEVEL / runs))


def test_the_class_that_moved_comes_first():
    """With its shares, the direction, and the outlier rates of both windows."""
    found = compare_counts(["a", "b", "c"], [100, 100, 100], [200, 60, 0], outliers=([1, 1, 1], [30, 0, 0]))

    assert found.cells[0].name in ("a", "c")
    by_name = {cell.name: cell for cell in found.cells}
    assert by_name["a"].is_moved
    assert by_name["a"].residual > 0 > by_name["c"].residual
    assert by_name["a"].outliers_now == 0.15
    assert by_name["c"].outliers_now is None
    assert found.test is not None
    assert found.test.p_value < 1e-9


def test_an_empty_window_has_shares_and_no_test():
    """There is nothing to compare with."""
    found = compare_counts(["a", "b"], [3, 1], [0, 0])

    assert found.test is None
    assert not any(cell.is_moved for cell in found.cells)


def test_classes_beyond_the_last_are_counted_there():
    """The store counts high classes as one, and rows that are not valid as class -1."""
    points, outliers = class_counts([ClassRate(-1, 9, 0, 0), ClassRate(0, 5, 4, 1), ClassRate(100, 7, 7, 2)], 3)

    assert (points.tolist(), outliers.tolist()) == ([5, 0, 7], [1, 0, 2])


def test_regions_share_no_point():
    """A point in two regions counts for the first, one in none for the rest, one without a place for nothing."""
    points = np.array([[0.0, 0.0], [1.0, 0.0], [5.0, 5.0], [np.nan, 0.0]])

    counts = count_inside(points, [lambda at: at[:, 0] < 0.5, lambda at: at[:, 0] < 2.0])

    assert counts.tolist() == [1, 1, 1]


def test_clouds_are_compared_where_there_are_points():
    """A shifted cloud is found at the smallest p-value, few points are not compared."""
    rng = np.random.default_rng(3)
    cloud = rng.normal(size=(200, 2))

    moved = compare_clouds(cloud, rng.normal(size=(200, 2)) + 1.0)

    assert moved is not None
    assert moved.p_value == 1 / 200
    assert compare_clouds(cloud, cloud[:5]) is None


def test_slices_hold_equally_many_points():
    """A burst gets as many slices as its points deserve."""
    rates = make_rates(np.array([[100] + [0] * 19] * 9 + [[901] + [0] * 19]), np.zeros(10, dtype=int))

    found = slices(rates, 0, 600_000, 2)

    assert found == [(0, 540_000), (540_000, 600_000)]
    assert slices(make_rates(np.zeros((1, 20), dtype=int), np.zeros(1, dtype=int)), 0, 1, 4) == []
