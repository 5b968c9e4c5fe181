"""Isotonic calibration against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from darksight_core.drift.isotonic import fit_isotonic


def test_isotonic_equals_scikit_learn() -> None:
    """Pooling adjacent violators gives scikit-learn's curve, at the knots, between and beyond, with ties in x."""
    rng = np.random.default_rng(0)
    for x in (rng.random(300), rng.integers(10, size=300) / 10):
        y = (rng.random(300) < x**2).astype(np.float64)
        at = np.linspace(-0.2, 1.2, 501)

        expected = IsotonicRegression(out_of_bounds="clip").fit(x, y).predict(at)

        assert fit_isotonic(x, y)(at) == pytest.approx(expected, abs=1e-12)
