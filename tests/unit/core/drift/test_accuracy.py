"""Accuracy from labels and from a random audit."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from darksight_core.drift.accuracy import accuracy_sequence, prediction_powered
from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import lower_bound, upper_bound
from darksight_core.rows.simplex import Floats
from tests.support.builders import draw_labelled_probs


def make_audit(rng: np.random.Generator, *, n: int = 100_000) -> tuple[Floats, Floats]:
    """Overconfident confidence and correctness of a large population, both (n,)."""
    probs, labels = draw_labelled_probs(rng, n=n, sharpness=1.5)
    return probs.max(axis=1), (probs.argmax(axis=1) == labels).astype(np.float64)


def test_prediction_powered_intervals_cover_and_are_narrower_than_labels_alone() -> None:
    """With wrong but informative confidence 95 % of intervals contain the accuracy, 10 % narrower than without it."""
    rng = np.random.default_rng(6)
    confidence, correct = make_audit(rng)
    truth, runs = correct.mean(), 1_500
    covered, widths, plain = [], [], []
    for _ in range(runs):
        rows, audit = rng.integers(len(correct), size=3_000), rng.integers(len(correct), size=200)
        got = prediction_powered(confidence[rows], confidence[audit], correct[audit])
        assert got.interval is not None
        covered.append(got.interval[0] <= truth <= got.interval[1])
        widths.append(got.interval[1] - got.interval[0])
        plain.append(2 * 1.96 * math.sqrt(correct[audit].var() / 200))

    assert np.mean(covered) == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / runs))
    assert np.mean(widths) < 0.95 * np.mean(plain)


def test_prediction_powered_accuracy_equals_its_formula() -> None:
    """Value and interval are the closed form, and the figure is no estimate."""
    f, f_audit = np.linspace(0.5, 1.0, 40), np.linspace(0.4, 0.9, 20)
    y = np.array([1.0, 0.0] * 10)
    value = f.mean() - (f_audit - y).mean()
    radius = stats.norm.ppf(0.95) * math.sqrt(f.var(ddof=1) / 40 + (f_audit - y).var(ddof=1) / 20)

    got = prediction_powered(f, f_audit, y, level=0.9)

    assert got.value == pytest.approx(value)
    assert got.interval == pytest.approx((value - radius, value + radius))
    assert not got.is_estimate


def test_an_audit_without_errors_has_no_interval() -> None:
    """Fewer than five wrong predictions are too few for a normal approximation."""
    got = prediction_powered(np.full(100, 0.99), np.full(50, 0.99), np.ones(50))

    assert got.interval is None
    assert got.value == pytest.approx(1.0)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: prediction_powered([0.5], [0.5, 0.5], [1, 0]), id="one row"),
        pytest.param(lambda: prediction_powered([0.5, 0.5], [0.5, 0.5], [1, 0.5]), id="half right"),
        pytest.param(lambda: accuracy_sequence(3, 2), id="more right than rows"),
        pytest.param(lambda: accuracy_sequence(1, 2, level=1.0), id="level 1"),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object]) -> None:
    """Invalid rows, labels and options raise ConfigError."""
    with pytest.raises(ConfigError):
        call()


def test_a_confidence_sequence_holds_at_all_times_together() -> None:
    """Of 200 streams of 300 labels, read after every tenth, at most 5 % ever exclude the accuracy, beyond chance."""
    rng, missed = np.random.default_rng(51), 0
    for _ in range(200):
        right = np.cumsum(rng.random(300) < 0.9)
        ends = [accuracy_sequence(int(right[n - 1]), n).interval or (0.0, 1.0) for n in range(10, 301, 10)]
        missed += any(not low <= 0.9 <= high for low, high in ends)

    assert missed / 200 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


@pytest.mark.parametrize(("correct", "rows"), [(0, 5), (5, 5), (90, 100), (1, 2)])
def test_a_confidence_sequence_is_wider_than_an_interval_for_one_look(correct: int, rows: int) -> None:
    """It contains the interval of Clopper and Pearson, and its ends are shares; impossible counts are refused."""
    low, high = accuracy_sequence(correct, rows).interval or (1.0, 0.0)
    exact = float(lower_bound(correct, rows, 0.025)), float(upper_bound(correct, rows, 0.025))

    assert 0.0 <= low <= exact[0] + 1e-9
    assert exact[1] - 1e-9 <= high <= 1.0
    with pytest.raises(ConfigError, match="between 0 and rows"):
        accuracy_sequence(rows + 1, rows)
