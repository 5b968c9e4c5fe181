"""Risk-coverage curves against direct counts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from darksight_core.errors import ConfigError
from darksight_core.guarantees.risk_curve import lowest_accepted, risk_curve
from darksight_core.rows.simplex import entropy, log_probs


def test_curve_has_points_at_distinct_scores_only() -> None:
    """Tied rows are accepted together, and each threshold accepts exactly what its point says."""
    scores = np.array([0.5, 0.9, 0.7, 0.7, 0.7, 0.5])
    errors = np.array([1, 0, 1, 0, 0, 1])

    curve = risk_curve(scores, errors)

    assert curve.threshold.tolist() == [0.9, 0.7, -math.inf]
    np.testing.assert_allclose(curve.coverage, [1 / 6, 4 / 6, 1.0])
    np.testing.assert_allclose(curve.accuracy, [1.0, 3 / 4, 3 / 6])
    np.testing.assert_allclose(curve.joint_risk, [0.0, 1 / 6, 3 / 6])
    for threshold, coverage, risk in zip(curve.threshold, curve.coverage, curve.selective_risk, strict=True):
        assert (scores >= threshold).mean() == pytest.approx(coverage)
        assert errors[scores >= threshold].mean() == pytest.approx(risk)


@given(st.floats(-1e6, 1e6), st.floats(-1.0, 1.0))
def test_rounding_does_not_decide_on_a_tie(threshold: float, noise: float) -> None:
    """A score that is the threshold but for the rounding of another implementation, or of float32, is accepted."""
    lowest = float(lowest_accepted(threshold))

    assert threshold + 1e-12 * noise * max(abs(threshold), 1.0) >= lowest
    assert float(np.float32(threshold)) >= float(np.float32(lowest))
    assert lowest < threshold
    assert lowest_accepted(-math.inf) == -math.inf


def test_two_classes_have_one_confidence() -> None:
    """For K = 2 max-softmax, margin and entropy are monotone in each other, so their curves are one."""
    rng = np.random.default_rng(4)
    log_pi = log_probs(rng.dirichlet([0.5, 0.5], 300))
    probs = np.sort(np.exp(log_pi), axis=1)
    errors = rng.random(300) < probs[:, 0]

    msp, margin, sure = (
        risk_curve(score, errors) for score in (probs[:, 1], probs[:, 1] - probs[:, 0], -entropy(log_pi))
    )

    assert np.array_equal(msp.joint_risk, margin.joint_risk)
    assert np.array_equal(msp.selective_risk, sure.selective_risk)


@pytest.mark.parametrize(
    "call",
    [
        lambda: risk_curve([], []),
        lambda: risk_curve([0.1, np.nan], [0, 1]),
        lambda: risk_curve([0.1, 0.2], [0, 2]),
        lambda: risk_curve([0.1, 0.2], [0]),
        lambda: risk_curve([[0.1]], [[0]]),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object]) -> None:
    """Arguments that cannot work are errors."""
    with pytest.raises(ConfigError):
        call()
