"""Back-tests of label-free estimates, and when these are withheld."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from darksight_core.drift.backtest import Backtest, backtest, estimate_accuracy
from darksight_core.drift.label_free import Cbpe, Doc
from darksight_core.errors import ConfigError


def test_a_back_test_is_estimate_minus_truth() -> None:
    """Bias keeps its sign, the absolute error does not."""
    probs = np.array([[0.8, 0.2], [0.8, 0.2]])

    got = backtest(Cbpe(None), [(probs, np.array([0, 0])), (probs, np.array([0, 1]))])

    assert got.errors == pytest.approx((-0.2, 0.3))
    assert (got.mean_error, got.mean_absolute_error) == pytest.approx((0.05, 0.25))


def test_the_radius_of_a_back_test_covers_the_next_error() -> None:
    """The radius of 19 past errors at 90 % is the 18th smallest and covers the next one 90 % of the time."""
    errors = np.random.default_rng(5).normal(size=(4_000, 20))

    radii = [Backtest("cbpe", tuple(row[:19].tolist())).radius(0.9) for row in errors]

    covered = np.abs(errors[:, 19]) <= np.array(radii, dtype=np.float64)
    assert covered.mean() == pytest.approx(0.9, abs=3 * math.sqrt(0.09 / 4_000))
    assert Backtest("cbpe", (0.3, -0.1)).radius(0.9) is None
    assert Backtest("cbpe", (0.01, -0.02, 0.03, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)).radius(0.9) == 0.03


def test_an_estimate_is_marked_and_carries_its_past_error() -> None:
    """A shown estimate says that it is one, with the error of its past and an interval from it."""
    past = Backtest("doc", (0.01, -0.02) * 10)

    got = estimate_accuracy(Doc(0.8, 0.9), np.array([[0.9, 0.1]]), past=past, outlier_rate=0.03, alpha=0.01)

    assert got.is_estimate
    assert got.withheld is None
    assert got.value == pytest.approx(0.8)
    assert got.interval == pytest.approx((0.78, 0.82))
    assert got.error == pytest.approx(0.015)


def test_an_estimate_is_withheld_when_traffic_left_the_reference() -> None:
    """Above three times the calibrated outlier rate there is no value, and the reason names both figures."""
    past = Backtest("doc", (0.01,))

    got = estimate_accuracy(Doc(0.8, 0.9), np.array([[0.9, 0.1]]), past=past, outlier_rate=0.031, alpha=0.01)

    assert (got.value, got.interval) == (None, None)
    assert got.withheld is not None
    assert "0.031 is above 3 alpha = 0.03" in got.withheld


def test_an_estimate_without_a_back_test_is_withheld() -> None:
    """No past, no figure; and the past of another method does not count."""
    probs = np.array([[0.9, 0.1]])

    got = estimate_accuracy(Doc(0.8, 0.9), probs, past=None, outlier_rate=0.0, alpha=0.01)

    assert got.value is None
    assert got.withheld is not None
    with pytest.raises(ConfigError, match="back-test is of cbpe"):
        estimate_accuracy(Doc(0.8, 0.9), probs, past=Backtest("cbpe", (0.0,)), outlier_rate=0.0, alpha=0.01)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: backtest(Cbpe(None), []), id="no windows"),
        pytest.param(lambda: Backtest("cbpe", (0.1,)).radius(1.0), id="coverage 1"),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object]) -> None:
    """Invalid rows, labels and options raise ConfigError."""
    with pytest.raises(ConfigError):
        call()
