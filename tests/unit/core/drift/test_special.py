"""χ² against scipy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from darksight_core.drift.special import chi2_quantile, chi2_tail
from darksight_core.errors import ConfigError

Counts = NDArray[np.int64]

CALIBRATION_ROWS, ALPHA, RANK = 2_000, 0.01, 20


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


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: chi2_quantile(1.0, 3), id="quantile 1"),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object]) -> None:
    """Impossible options and counts raise ConfigError."""
    with pytest.raises(ConfigError):
        call()
