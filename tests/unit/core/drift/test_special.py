"""χ² against scipy."""

from __future__ import annotations

import pytest
from scipy import stats

from darksight_core.drift.special import chi2_tail


@pytest.mark.parametrize("dof", [1, 2, 9, 19, 99, 999])
@pytest.mark.parametrize("q", [1e-6, 0.01, 0.5, 0.95, 0.99, 0.999, 1.0 - 1e-9])
def test_chi2_equals_scipy(q: float, dof: int) -> None:
    """The tail beyond a quantile of scipy is what was asked for."""
    assert chi2_tail(float(stats.chi2.ppf(q, dof)), dof) == pytest.approx(1.0 - q, rel=1e-6)


def test_chi2_tail_keeps_digits_far_out() -> None:
    """A tail of 1e-200 is computed, not rounded to zero; nothing is below zero."""
    assert chi2_tail(1_000.0, 9) == pytest.approx(stats.chi2.sf(1_000.0, 9), rel=1e-10)
    assert chi2_tail(0.0, 9) == 1.0
