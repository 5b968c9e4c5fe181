"""Anytime-valid evidence on the outlier rate."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from darksight_core.drift import (
    OutlierCounts,
    OutlierRateTest,
    bet_weights,
    conformal_rank,
    pac_log_evidence,
    pac_rate,
    polya_log_evidence,
    ville_threshold,
)
from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

Counts = NDArray[np.int64]

CALIBRATION_ROWS, ALPHA, RANK = 2_000, 0.01, 20


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
    assert got.log_polya - math.log(2.0) < got.threshold <= got.log_pac - math.log(4.0)


def test_a_gate_with_another_rank_has_another_null() -> None:
    """A PAC cutoff flags fewer rows: what is usual at k = 20 is an alarm at k = 5, expected at 5 / 2,001."""
    counts = OutlierCounts(5_000, 60)

    usual, lower = (OutlierRateTest(CALIBRATION_ROWS, ALPHA, rank=rank).evidence(counts) for rank in (None, 5))

    assert lower.expected_rate == 5 / 2_001
    assert not usual.is_alarm
    assert lower.is_alarm


def test_a_vanished_outlier_rate_is_drift_too() -> None:
    """No outlier among 5,000 rows raises an alarm, and the rate is below the expected one."""
    got = OutlierRateTest(CALIBRATION_ROWS, ALPHA).evidence(OutlierCounts(5_000, 0))

    assert got.is_alarm
    assert got.rate == 0.0 < got.expected_rate


def test_no_rows_are_no_evidence() -> None:
    """Before the first row there is no rate and no alarm."""
    got = OutlierRateTest(CALIBRATION_ROWS, ALPHA).evidence(OutlierCounts())

    assert got.rate is None
    assert not got.is_alarm
    assert (got.log_polya, got.log_pac) == pytest.approx((0.0, 0.0), abs=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: OutlierCounts(3, 4), id="more outliers than rows"),
        pytest.param(lambda: OutlierRateTest(2_000, 0.01, level=1.0), id="level 1"),
        pytest.param(lambda: OutlierRateTest(2_000, 0.01, rank=0), id="rank 0 of the gate"),
        pytest.param(lambda: pac_rate(100, 0, 0.05), id="rank 0"),
        pytest.param(lambda: bet_weights(0.05, 0.01), id="p1 below p0"),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object]) -> None:
    """Impossible options and counts raise ConfigError."""
    with pytest.raises(ConfigError):
        call()
