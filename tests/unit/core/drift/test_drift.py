from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special, stats

from darksight_core.drift import (
    AdaptiveLevel,
    ChangeDetector,
    Detector,
    Kernel,
    OutlierCounts,
    OutlierRateTest,
    bet_weights,
    chi2_quantile,
    chi2_tail,
    conformal_rank,
    detector_path,
    ks_critical,
    ks_distance,
    mmd_test,
    occupancy_test,
    p_value_counts,
    pac_log_evidence,
    pac_rate,
    polya_log_evidence,
    psi,
    psi_critical,
    psi_verdict,
    ville_threshold,
    wasserstein,
)
from darksight_core.errors import ConfigError
from darksight_core.simplex import Floats

Counts = NDArray[np.int64]

CALIBRATION_ROWS, ALPHA, RANK = 2_000, 0.01, 20


def null_windows(*, rows: int, windows: int = 20_000, calibration_rows: int = 9_999, bins: int = 10) -> Counts:
    """Counts of p-values in windows without drift, each ranked by a calibration set of its own, (windows, B).

    The calibration scores cut the real line into n + 1 pieces of Dirichlet(1, ..., 1) probability; a bin has
    (n + 1) / B of them.
    """
    rng = np.random.default_rng(rows)
    shares = rng.dirichlet(np.full(bins, (calibration_rows + 1) / bins), size=windows)
    return rng.multinomial(rows, shares)


def null_peaks(*, runs: int, rows: int) -> list[tuple[Counts, Counts]]:
    """For each undisturbed stream the counts (outliers, rows) at which evidence can have a local maximum.

    Between two outliers ln M is convex in the number of rows, so its maxima are at an outlier, just before one, and at
    the end.
    """
    rng = np.random.default_rng(7)
    streams = []
    for rate in rng.beta(RANK, CALIBRATION_ROWS + 1 - RANK, size=runs):
        at = np.flatnonzero(rng.random(rows) < rate) + 1
        hits = np.arange(1, len(at) + 1)
        streams.append((np.concatenate([hits, hits - 1, [len(at)]]), np.concatenate([at, at - 1, [rows]])))
    return streams


def naive_log_evidence(outliers: Counts, rows: Counts, rate: float) -> Floats:
    """ln M of the same mixture against a rate that is taken for known."""
    mixture = special.betaln(1.0 + outliers, 20.0 + rows - outliers) - special.betaln(1.0, 20.0)
    known = outliers * math.log(rate) + (rows - outliers) * math.log1p(-rate)
    return np.asarray(mixture - known, dtype=np.float64)


def standard_error(share: float, trials: int) -> float:
    """Of a share measured in independent trials."""
    return math.sqrt(share * (1.0 - share) / trials)


@pytest.mark.parametrize("dof", [1, 2, 9, 19, 99, 999])
@pytest.mark.parametrize("q", [1e-6, 0.01, 0.5, 0.95, 0.99, 0.999, 1.0 - 1e-9])
def test_chi2_equals_scipy(q: float, dof: int) -> None:
    """Quantiles agree with scipy to 1e-9, and the tail beyond a quantile is what was asked for."""
    got = chi2_quantile(q, dof)

    assert got == pytest.approx(stats.chi2.ppf(q, dof), rel=1e-9, abs=1e-9)
    assert chi2_tail(got, dof) == pytest.approx(1.0 - q, rel=1e-9)


def test_chi2_tail_keeps_digits_far_out() -> None:
    """A tail of 1e-200 is computed, not rounded to zero; nothing is below zero."""
    assert chi2_tail(1_000.0, 9) == pytest.approx(stats.chi2.sf(1_000.0, 9), rel=1e-10)
    assert chi2_tail(0.0, 9) == 1.0


def test_p_values_on_an_edge_belong_to_the_lower_bin() -> None:
    """Every rank j / (n + 1) of a grid that B divides falls in its own bin, whatever rounding does to the product."""
    for steps in (1_000, 9_990, 10_000):
        counts = p_value_counts(np.arange(1, steps + 1) / steps)
        assert counts.tolist() == [steps // 10] * 10


def test_psi_equals_the_recording_rule() -> None:
    """PSI is the formula of the Prometheus rule, term by term, empty cells included."""
    counts = [0, 3, 120, 95, 101, 88, 0, 7, 400, 99]
    share = [(c + 0.5) / (sum(counts) + 0.5 * 10) for c in counts]
    expected = sum((s - 0.1) * math.log(s / 0.1) for s in share)

    assert float(psi(counts)) == pytest.approx(expected, rel=1e-12)


def test_psi_of_five_replicas_is_that_of_one() -> None:
    """Counts add up, so five replicas and one server give the same index."""
    rng = np.random.default_rng(0)
    p_values = rng.integers(1, 10_001, size=5_000) / 10_000

    replicas = sum(p_value_counts(part) for part in np.array_split(p_values, 5))

    assert psi(replicas) == psi(p_value_counts(p_values))


@pytest.mark.parametrize("rows", [500, 1_000, 5_000])
def test_psi_false_alarms_are_one_percent(rows: int) -> None:
    """From 500 rows on PSI passes its critical value in 1 % ± 0.3 % of windows without drift."""
    share = float((psi(null_windows(rows=rows)) > psi_critical(rows, 9_999)).mean())

    # 0.003 is four standard errors of 20,000 windows.
    assert share == pytest.approx(0.01, abs=0.003)


def test_psi_has_its_null_mean() -> None:
    """The mean of PSI without drift is (B - 1)(1/n + 1/m)."""
    rows, windows = 5_000, 20_000
    expected = 9 * (1 / rows + 1 / 9_999)

    mean = float(psi(null_windows(rows=rows, windows=windows)).mean())

    # χ²_9 has a relative spread of √(2/9); the half counts take a share B/n off.
    assert mean == pytest.approx(expected, rel=3 * math.sqrt(2 / 9 / windows) + 10 / rows)


def test_a_fixed_limit_is_passed_by_undisturbed_small_windows() -> None:
    """The customary PSI > 0.1 fires on 40 % of windows of 100 rows, 31 % with half counts; the verdict on none."""
    counts = null_windows(rows=100)
    share = np.maximum(counts, 1e-9) / 100
    plain = ((share - 0.1) * np.log(share / 0.1)).sum(axis=1)

    assert float((plain > 0.1).mean()) == pytest.approx(0.40, abs=0.02)
    assert float((psi(counts) > 0.1).mean()) == pytest.approx(0.31, abs=0.02)
    verdicts = [psi_verdict(row, 9_999) for row in counts[:200]]
    assert not any(verdict is None or verdict.is_alert for verdict in verdicts)


@pytest.mark.parametrize(
    ("counts", "is_alert"),
    [
        pytest.param([300] + [100] * 9, True, id="drift"),
        pytest.param([100] * 10, False, id="none"),
        pytest.param([20_000] + [10_000] * 9, False, id="significant but below the floor"),
        pytest.param([100] + [33] * 9, False, id="too few rows"),
    ],
)
def test_psi_verdict_needs_significance_effect_and_rows(counts: list[int], is_alert: bool) -> None:
    """An alert needs PSI above its critical value and above 0.1, and 50 rows per bin."""
    verdict = psi_verdict(counts, 9_999)

    assert verdict is not None
    assert verdict.is_alert is is_alert


def test_an_empty_window_has_no_verdict() -> None:
    """No rows, no verdict."""
    assert psi_verdict([0] * 10, 9_999) is None


@pytest.mark.parametrize(("n", "m"), [(50, 50), (30, 77), (1, 5)])
def test_distances_equal_scipy(n: int, m: int) -> None:
    """KS and Wasserstein-1 agree with scipy, for unequal sizes and ties, too."""
    rng = np.random.default_rng(n)
    pairs = [
        (rng.normal(size=n), rng.normal(0.5, size=m)),
        (rng.integers(5, size=n).astype(np.float64), rng.integers(6, size=m).astype(np.float64)),
    ]
    for a, b in pairs:
        assert ks_distance(a, b) == pytest.approx(stats.ks_2samp(a.tolist(), b.tolist()).statistic, abs=1e-12)
        assert wasserstein(a, b) == pytest.approx(stats.wasserstein_distance(a.tolist(), b.tolist()), abs=1e-12)


def test_ks_false_alarms_are_below_the_level() -> None:
    """Without drift the KS distance passes its 5 % critical value in about 5 % of windows, never clearly more."""
    rng = np.random.default_rng(1)
    passed = [
        ks_distance(rng.normal(size=300), rng.normal(size=200)) > ks_critical(300, 200, level=0.05)
        for _ in range(1_500)
    ]

    # The critical value is asymptotic and on the safe side: 4 % here.
    assert 0.02 < np.mean(passed) < 0.05 + 3 * standard_error(0.05, 1_500)


@pytest.mark.parametrize("kernel", ["rbf", "energy"])
def test_mmd_equals_the_naive_sum(kernel: Kernel) -> None:
    """The distance is the formula, pair by pair."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(7, 2)), rng.normal(1.0, size=(5, 2))
    pooled = np.concatenate([x, y])
    gaps = [math.dist(a, b) for i, a in enumerate(pooled) for b in pooled[:i]]

    def similar(a: Floats, b: Floats) -> float:
        gap = math.dist(a, b)
        return -gap if kernel == "energy" else math.exp(-(gap**2) / (2 * np.median(np.square(gaps))))

    within_x = sum(similar(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j) / (7 * 6)
    within_y = sum(similar(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j) / (5 * 4)
    across = sum(similar(a, b) for a in x for b in y) / 35

    got = mmd_test(x, y, kernel=kernel, permutations=19)

    assert got.distance == pytest.approx(within_x + within_y - 2 * across, abs=1e-12)
    assert got.rows == (7, 5)


@pytest.mark.parametrize("kernel", ["rbf", "energy"])
def test_mmd_p_values_are_uniform_without_drift(kernel: Kernel) -> None:
    """The permutation p-value takes each of its 20 values equally often when both samples are alike."""
    rng = np.random.default_rng(3)
    p_values = [
        mmd_test(rng.normal(size=(20, 2)), rng.normal(size=(15, 2)), kernel=kernel, permutations=19, seed=seed).p_value
        for seed in range(2_000)
    ]

    counts = np.bincount(np.rint(np.array(p_values) * 20).astype(int), minlength=21)[1:]

    assert stats.chisquare(counts).pvalue > 0.001


def test_mmd_finds_a_moved_cloud_and_is_reproducible() -> None:
    """A cloud moved by one spread has the least p-value possible, and the same seed gives the same answer."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(3_000, 2)), rng.normal(1.0, size=(300, 2))

    first, second = (mmd_test(x, y, permutations=99, max_rows=200, seed=5) for _ in range(2))

    assert first == second
    assert first.p_value == 0.01
    assert first.rows == (200, 200)


def test_mmd_of_coinciding_points_finds_nothing() -> None:
    """When all points are one point every split is equal: distance 0, p-value 1."""
    got = mmd_test(np.zeros((5, 2)), np.zeros((6, 2)))

    assert (got.distance, got.p_value) == pytest.approx((0.0, 1.0), abs=1e-12)


def test_occupancy_equals_scipy() -> None:
    """Statistic, degrees of freedom and p-value are those of Pearson's test on the 2 × K table."""
    reference, window = [500, 300, 200], [40, 50, 10]

    got = occupancy_test(reference, window)

    expected = stats.chi2_contingency([reference, window], correction=False)
    assert (got.statistic, got.dof, got.p_value) == pytest.approx(
        (expected.statistic, expected.dof, expected.pvalue), rel=1e-9
    )


def test_occupancy_names_the_class_and_pools_the_rare() -> None:
    """The class that grew has the largest residual; classes with few rows make one cell, absent ones none."""
    got = occupancy_test([500, 480, 3, 4, 0], [50, 90, 1, 0, 0])

    assert got.dof == 2
    assert int(np.argmax(got.residuals)) == 1
    assert got.residuals[4] == 0.0
    assert got.p_value < 0.01


def test_occupancy_of_one_class_says_nothing() -> None:
    """With all rows in one class there is nothing to compare."""
    got = occupancy_test([10, 0], [20, 0])

    assert (got.dof, got.p_value) == (0, 1.0)


@pytest.mark.parametrize("calibration_rows", [99, 199, 999, 2_000, 9_999])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.07, 0.1, 0.29])
def test_the_rank_is_the_number_of_p_values_that_the_gate_flags(calibration_rows: int, alpha: float) -> None:
    """k counts the j with j / (n + 1) <= α as floats compare, not as a rounded product says."""
    steps = calibration_rows + 1

    assert conformal_rank(calibration_rows, alpha) == sum(j / steps <= alpha for j in range(1, steps + 1))


def test_alpha_needs_enough_calibration_rows() -> None:
    """α = 0.01 cannot be tested with 98 rows, and the message says that 99 are needed."""
    with pytest.raises(ConfigError, match="at least 99 calibration rows, not 98"):
        conformal_rank(98, 0.01)


def test_pac_rate_is_the_beta_quantile() -> None:
    """p0 is the 1 - δ quantile of Beta(k, n + 1 - k)."""
    for n, rank, delta in [(2_000, 20, 0.005), (199, 1, 0.05), (9_999, 100, 0.0025)]:
        assert pac_rate(n, rank, delta) == pytest.approx(stats.beta.ppf(1 - delta, rank, n + 1 - rank), rel=1e-9)


def test_polya_evidence_equals_the_product_of_predictions() -> None:
    """ln M is the sum over rows of log predictive probabilities of the mixture minus those of the urn, to 1e-9."""
    flags = np.random.default_rng(8).random(5_000) < 0.02
    total, hits = 0.0, 0
    for t, is_outlier in enumerate(flags.tolist()):
        drifted, null = (1 + hits) / (21 + t), (RANK + hits) / (CALIBRATION_ROWS + 1 + t)
        total += math.log(drifted / null) if is_outlier else math.log((1 - drifted) / (1 - null))
        hits += is_outlier

    got = polya_log_evidence(hits, len(flags), calibration_rows=CALIBRATION_ROWS, rank=RANK)

    assert float(got) == pytest.approx(total, abs=1e-9)
    assert float(polya_log_evidence(0, 0, calibration_rows=CALIBRATION_ROWS, rank=RANK)) == 0.0


def test_pac_evidence_never_grows_in_the_mean_below_p0() -> None:
    """Whatever the counts so far, the expected M after one more row is at most M for every rate up to p0."""
    rows, p0 = np.array([0, 10, 500, 5_000]), 0.017
    hits = np.array([0, 3, 12, 80])
    now, miss, hit = (np.exp(pac_log_evidence(hits + s, rows + t, p0=p0)) for s, t in [(0, 0), (0, 1), (1, 1)])

    for rate in (0.0, 0.005, 0.01, p0):
        assert (rate * hit + (1 - rate) * miss <= now * (1 + 1e-9)).all()
    assert now[0] == pytest.approx(1.0)


def test_bet_weights_are_the_bet_of_the_recording_rule() -> None:
    """ln(1 + λ(1 - p0)) and ln(1 - λ p0) with λ = (p1 - p0) / (p0 (1 - p0)) are the same two weights."""
    p0, p1 = 0.017, 0.05
    bet = (p1 - p0) / (p0 * (1 - p0))

    assert bet_weights(p0, p1) == pytest.approx((math.log(1 + bet * (1 - p0)), math.log(1 - bet * p0)), rel=1e-12)


def test_five_replicas_have_the_evidence_of_one_server() -> None:
    """Counts of five replicas, added in any order, give exactly the evidence of all rows together."""
    flags = np.random.default_rng(9).random(1_003) < 0.03
    test = OutlierRateTest(CALIBRATION_ROWS, ALPHA)
    parts = [OutlierCounts().update(rows=len(p), outliers=int(p.sum())) for p in np.array_split(flags, 5)]

    merged = sum(reversed(parts), OutlierCounts())

    assert test.evidence(merged) == test.evidence(OutlierCounts(len(flags), int(flags.sum())))


def test_false_alarms_of_the_evidence_stay_at_their_level_where_the_naive_test_fails() -> None:
    """Over 50,000 undisturbed rows at most 1 % of streams alarm; taking α for the true rate alarms in 44 % of them."""
    runs = 1_200
    test = OutlierRateTest(CALIBRATION_ROWS, ALPHA, level=0.01)
    streams = null_peaks(runs=runs, rows=50_000)

    alarms = np.mean([test.log_evidence(s, t).max() >= ville_threshold(0.01) for s, t in streams])
    naive = np.mean([naive_log_evidence(s, t, ALPHA).max() >= ville_threshold(0.01) for s, t in streams])

    assert alarms <= 0.01 + 3 * standard_error(0.01, runs)
    assert naive == pytest.approx(0.445, abs=3 * standard_error(0.445, runs))


@pytest.mark.parametrize(("rate", "most"), [(0.03, 900), (0.05, 300), (0.10, 80)])
def test_the_evidence_alarms_soon(rate: float, most: int) -> None:
    """A rate of 5 % instead of 1 % is found within 300 rows by more than half of all streams."""
    flags = np.random.default_rng(10).random((300, most)) < rate
    hits = flags.cumsum(axis=1)

    evidence = OutlierRateTest(CALIBRATION_ROWS, ALPHA).log_evidence(hits, np.arange(1, most + 1)[None] + 0 * hits)

    assert np.mean((evidence >= ville_threshold(0.01)).any(axis=1)) > 0.5


def test_the_pac_half_finds_a_small_excess_that_the_polya_half_gets_used_to() -> None:
    """After 100,000 rows at twice the calibrated rate the PAC test alarms and the Polya test does not."""
    got = OutlierRateTest(CALIBRATION_ROWS, ALPHA).evidence(OutlierCounts(100_000, 2_000))

    assert got.is_alarm
    assert got.is_above
    assert got.log_polya - math.log(2.0) < got.threshold <= got.log_pac - math.log(4.0)


def test_a_gate_with_another_rank_has_another_null() -> None:
    """A PAC cutoff flags fewer rows: what is usual at k = 20 is an alarm at k = 5, expected at 5 / 2,001."""
    counts = OutlierCounts(5_000, 60)

    usual, lower = (OutlierRateTest(CALIBRATION_ROWS, ALPHA, rank=rank).evidence(counts) for rank in (None, 5))

    assert lower.expected_rate == 5 / 2_001
    assert not usual.is_alarm
    assert lower.is_alarm


def test_a_vanished_outlier_rate_is_drift_too() -> None:
    """No outlier among 5,000 rows alarms, and the evidence says that the rate is not above."""
    got = OutlierRateTest(CALIBRATION_ROWS, ALPHA).evidence(OutlierCounts(5_000, 0))

    assert got.is_alarm
    assert not got.is_above


def test_no_rows_are_no_evidence() -> None:
    """Before the first row there is no rate and no alarm."""
    got = OutlierRateTest(CALIBRATION_ROWS, ALPHA).evidence(OutlierCounts())

    assert got.rate is None
    assert not got.is_alarm
    assert (got.log_polya, got.log_pac) == pytest.approx((0.0, 0.0), abs=1e-12)


@pytest.mark.parametrize("kind", ["sr", "cusum"])
def test_a_detector_fed_in_pieces_equals_the_recursion(kind: Detector) -> None:
    """Values follow the textbook recursion, and a stream cut in pieces gives the same state."""
    flags = np.random.default_rng(11).random(500) < 0.05
    won, lost = bet_weights(0.01, 0.03)
    value, path = 0.0, []
    for is_outlier in flags.tolist():
        value = (value + 1.0 if kind == "sr" else max(value, 1.0)) * math.exp(won if is_outlier else lost)
        path.append(value)

    whole = ChangeDetector(0.01, 0.03, run_length=50.0, kind=kind).update(flags)
    pieces = ChangeDetector(0.01, 0.03, run_length=50.0, kind=kind)
    for part in np.array_split(flags, 7):
        pieces = pieces.update(part)

    assert detector_path(flags, 0.01, 0.03, kind=kind) == pytest.approx(np.log(path), abs=1e-9)
    assert pieces.log_value == pytest.approx(whole.log_value, abs=1e-9)
    assert replace(pieces, log_value=whole.log_value) == whole
    assert whole.alarm_row == 1 + int(np.argmax(np.array(path) >= 50.0))


def test_the_run_length_of_a_detector_is_at_least_its_bound() -> None:
    """Without change e-SR runs for c rows on average, hardly more; with a change it alarms after about 200."""
    rng = np.random.default_rng(12)
    runs, rows, c = 400, 12_000, 1_000

    passed = detector_path(rng.random((runs, rows)) < 0.01, 0.01, 0.03) >= math.log(c)
    length = np.where(passed.any(axis=1), passed.argmax(axis=1) + 1, rows)
    changed = detector_path(rng.random((runs, 3_000)) < 0.03, 0.01, 0.03) >= math.log(c)

    error = float(length.std() / math.sqrt(runs))
    assert c - 3 * error <= length.mean() <= 1.6 * c
    assert changed.any(axis=1).all()
    assert 150 < (changed.argmax(axis=1) + 1).mean() < 250


def test_cusum_alarms_no_sooner_than_shiryaev_roberts() -> None:
    """Row by row e-CUSUM is at most e-SR, so its run length is at least as long."""
    flags = np.random.default_rng(13).random((20, 2_000)) < 0.03

    assert (detector_path(flags, 0.01, 0.03, kind="cusum") <= detector_path(flags, 0.01, 0.03, kind="sr") + 1e-12).all()


def test_added_detectors_keep_the_run_length() -> None:
    """The sum over five replicas runs for c rows on average, counted over all of them."""
    rng = np.random.default_rng(14)
    runs, replicas, rows, c = 300, 5, 2_500, 1_000

    paths = detector_path(rng.random((runs, replicas, rows)) < 0.01, 0.01, 0.03)
    passed = np.logaddexp.reduce(paths, axis=1) >= math.log(c)
    length = replicas * np.where(passed.any(axis=1), passed.argmax(axis=1) + 1, rows)

    assert length.mean() >= c - 3 * length.std() / math.sqrt(runs)


def test_adding_detectors_adds_values_and_rows() -> None:
    """M and rows of two replicas add up; detectors that differ do not."""
    flags = np.random.default_rng(15).random(200) < 0.05
    a, b = (ChangeDetector(0.01, 0.03, run_length=1e9).update(part) for part in (flags[:80], flags[80:]))

    both = a + b

    assert both.rows == 200
    assert math.exp(both.log_value) == pytest.approx(math.exp(a.log_value) + math.exp(b.log_value))
    assert not both.is_alarm
    with pytest.raises(ConfigError, match="cannot be added"):
        _ = a + replace(b, p1=0.05)


def test_states_are_plain_numbers() -> None:
    """Every state survives strict JSON, new or used."""
    flags = np.array([True, False, True])
    for state in (
        OutlierCounts(10, 1),
        ChangeDetector(0.01, 0.03),
        ChangeDetector(0.01, 0.03, run_length=2.0).update(flags),
        AdaptiveLevel(0.05).update([0.01, 0.5]),
    ):
        assert type(state)(**json.loads(json.dumps(asdict(state), allow_nan=False))) == state


@given(
    p_values=st.lists(st.floats(0.0, 1.0, exclude_min=True), min_size=1, max_size=300),
    target=st.floats(0.001, 0.999),
    step=st.floats(0.001, 1.0),
)
def test_the_adaptive_level_keeps_its_bound_for_every_sequence(
    p_values: list[float], target: float, step: float
) -> None:
    """The flagged share is within the bound of its target after every row, whatever the rows."""
    state = AdaptiveLevel(target, step)
    for p_value in p_values:
        state = state.update([p_value])
        assert abs(state.flagged / state.rows - target) <= state.bound + 1e-9


def test_the_adaptive_level_follows_its_recursion_and_hides_drift() -> None:
    """When p-values halve, the flagged share comes back to its target, and only the level tells."""
    rng = np.random.default_rng(16)
    p_values = 0.1 * rng.random(20_000)
    level, flagged = 0.05, 0
    for p_value in p_values[:100].tolist():
        is_flagged = p_value <= level
        level, flagged = level + 0.005 * (0.05 - is_flagged), flagged + is_flagged

    short = AdaptiveLevel(0.05, 0.005).update(p_values[:100])
    long = AdaptiveLevel(0.05, 0.005).update(p_values)

    assert (short.flagged, short.level) == pytest.approx((flagged, level), abs=1e-12)
    assert long.flagged / long.rows == pytest.approx(0.05, abs=long.bound)
    assert long.is_drifting
    assert not AdaptiveLevel(0.05).is_drifting


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: psi([1.0]), id="one bin"),
        pytest.param(lambda: psi([1.0, -1.0]), id="negative count"),
        pytest.param(lambda: psi([1.0, math.nan]), id="nan count"),
        pytest.param(lambda: psi_verdict([[1, 2]], 100), id="two windows"),
        pytest.param(lambda: psi_critical(0, 100), id="no rows"),
        pytest.param(lambda: psi_critical(100, 100, level=0.0), id="level 0"),
        pytest.param(lambda: p_value_counts([0.0]), id="p-value 0"),
        pytest.param(lambda: p_value_counts([0.5], bins=1), id="one p-value bin"),
        pytest.param(lambda: ks_distance([], [1.0]), id="empty sample"),
        pytest.param(lambda: ks_critical(0, 5), id="no sample"),
        pytest.param(lambda: mmd_test(np.zeros((1, 2)), np.zeros((5, 2))), id="one point"),
        pytest.param(lambda: mmd_test(np.zeros((5, 3)), np.zeros((5, 2))), id="two dimensions"),
        pytest.param(lambda: mmd_test(np.full((5, 2), np.nan), np.zeros((5, 2))), id="nan point"),
        pytest.param(lambda: mmd_test(np.zeros((5, 2)), np.zeros((5, 2)), permutations=0), id="no permutations"),
        pytest.param(lambda: mmd_test(np.zeros((5, 2)), np.zeros((5, 2)), kernel="other"), id="unknown kernel"),  # type: ignore[arg-type] # on purpose
        pytest.param(lambda: occupancy_test([1, 2], [0, 0]), id="empty window"),
        pytest.param(lambda: OutlierCounts(3, 4), id="more outliers than rows"),
        pytest.param(lambda: OutlierRateTest(2_000, 0.01, level=1.0), id="level 1"),
        pytest.param(lambda: OutlierRateTest(2_000, 0.01, rank=0), id="rank 0 of the gate"),
        pytest.param(lambda: pac_rate(100, 0, 0.05), id="rank 0"),
        pytest.param(lambda: bet_weights(0.05, 0.01), id="p1 below p0"),
        pytest.param(lambda: ChangeDetector(0.01, 0.03, run_length=0.5), id="run length below 1"),
        pytest.param(lambda: detector_path(np.array([True]), 0.01, 0.03, kind="other"), id="unknown detector"),  # type: ignore[arg-type] # on purpose
        pytest.param(lambda: AdaptiveLevel(0.05, 0.0), id="step 0"),
        pytest.param(lambda: chi2_quantile(1.0, 3), id="quantile 1"),
    ],
)
def test_what_cannot_work_is_refused(call: object) -> None:
    """Impossible options and counts raise ConfigError instead of giving a figure."""
    assert callable(call)
    with pytest.raises(ConfigError):
        call()
