"""PSI of p-values: its formula and its null distribution."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from tests.support.psi import p_value_counts, psi, psi_critical

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


def standard_error(share: float, trials: int) -> float:
    """Of a share measured in independent trials."""
    return math.sqrt(share * (1.0 - share) / trials)


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
    """The customary PSI > 0.1 fires on 40 % of windows of 100 rows, 31 % with half counts; not the critical value."""
    counts = null_windows(rows=100)
    share = np.maximum(counts, 1e-9) / 100
    plain = ((share - 0.1) * np.log(share / 0.1)).sum(axis=1)

    assert float((plain > 0.1).mean()) == pytest.approx(0.40, abs=0.02)
    assert float((psi(counts) > 0.1).mean()) == pytest.approx(0.31, abs=0.02)
    assert float((psi(counts) > psi_critical(100, 9_999)).mean()) < 0.02


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: psi([1.0]), id="one bin"),
        pytest.param(lambda: psi([1.0, -1.0]), id="negative count"),
        pytest.param(lambda: psi([1.0, math.nan]), id="nan count"),
        pytest.param(lambda: psi_critical(0, 100), id="no rows"),
        pytest.param(lambda: p_value_counts([0.0]), id="p-value 0"),
        pytest.param(lambda: p_value_counts([math.nan]), id="nan p-value"),
        pytest.param(lambda: p_value_counts([0.5], bins=1), id="one p-value bin"),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object]) -> None:
    """Impossible options and counts raise ConfigError."""
    with pytest.raises(ConfigError):
        call()
