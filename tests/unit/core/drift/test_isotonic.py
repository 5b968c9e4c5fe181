"""Isotonic calibration against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from darksight_core.drift.isotonic import calibration_error, fit_isotonic


def test_isotonic_equals_scikit_learn() -> None:
    """Pooling adjacent violators gives scikit-learn's curve, at the knots, between and beyond, with ties in x."""
    rng = np.random.default_rng(0)
    for x in (rng.random(300), rng.integers(10, size=300) / 10):
        y = (rng.random(300) < x**2).astype(np.float64)
        at = np.linspace(-0.2, 1.2, 501)

        expected = IsotonicRegression(out_of_bounds="clip").fit(x, y).predict(at)

        assert fit_isotonic(x, y)(at) == pytest.approx(expected, abs=1e-12)


def test_calibration_error_is_zero_for_shares_and_grows_with_overconfidence() -> None:
    """Confidence that equals the share of right answers has no error; a constant excess is the error."""
    correct = np.tile([1.0, 1.0, 1.0, 0.0], 100)

    assert calibration_error(np.full(400, 0.75), correct) == pytest.approx(0.0, abs=1e-12)
    assert calibration_error(np.full(400, 0.95), correct) == pytest.approx(0.2, abs=1e-12)
