"""Classes on the map against naive loops and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.evaluation.classes import class_medians, cluster_monotonicity, global_fidelity, spearman
from darksight_core.rows.simplex import log_probs
from tests.support.builders import draw_map


def test_monotonicity_of_rings_is_one() -> None:
    """Rows that grow less certain with every step from their centre score exactly 1, reversed rows exactly -1."""
    steps = np.arange(1, 21)
    points = np.concatenate([np.column_stack([steps, 0 * steps]), np.column_stack([100 - steps, 0 * steps])])
    sure = 1.0 - 0.02 * steps
    rows = np.concatenate([np.column_stack([sure, 1 - sure]), np.column_stack([1 - sure, sure])])
    centres = np.array([[0.0, 0.0], [100.0, 0.0]])

    good = cluster_monotonicity(log_probs(rows), points, centres)
    bad = cluster_monotonicity(log_probs(np.concatenate([rows[19::-1], rows[:19:-1]])), points, centres)

    assert (good.mean, good.per_class) == (1.0, (1.0, 1.0))
    assert (bad.mean, bad.per_class) == (-1.0, (-1.0, -1.0))


def test_monotonicity_is_the_correlation_within_each_predicted_class() -> None:
    """Each class has scipy's correlation over the rows predicted as that class; the mean weighs classes equally."""
    stats = pytest.importorskip("scipy.stats")
    log_pi, _, points, centres, _ = draw_map()
    predicted = log_pi.argmax(axis=1)
    unsure = stats.entropy(np.exp(log_pi), axis=1)
    expected = []
    for label in range(4):
        far = np.linalg.norm(points[predicted == label] - centres[label], axis=1)
        expected.append(stats.spearmanr(unsure[predicted == label], far).statistic)

    got = cluster_monotonicity(log_pi, points, centres)

    assert got.per_class == pytest.approx(expected)
    assert got.mean == pytest.approx(np.mean(expected))


def test_monotonicity_skips_classes_it_cannot_judge() -> None:
    """A class with nine rows, with constant entropy, at one place or without a centre has no figure."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), [9, 30, 30, 30, 30])
    sure = np.where(labels == 1, 0.9, rng.uniform(0.6, 0.9, size=len(labels)))
    rows = (1 - sure)[:, None] / 4 + (sure - (1 - sure) / 4)[:, None] * np.eye(5)[labels]
    points = rng.normal(size=(len(labels), 2))
    points[labels == 2] = 1.0
    centres = np.zeros((5, 2))
    centres[3] = np.nan

    got = cluster_monotonicity(log_probs(rows), points, centres)

    assert got.per_class[:4] == (None, None, None, None)
    assert got.per_class[4] == got.mean is not None


def test_class_medians_are_robust_and_leave_absent_classes_empty() -> None:
    """The centre of a predicted class is its median point; a class never predicted has none."""
    log_pi = log_probs(np.eye(3)[[0, 0, 0, 2]])
    points = np.array([[0.0, 1.0], [1.0, 2.0], [50.0, 90.0], [7.0, 8.0]])

    assert np.array_equal(class_medians(log_pi, points), [[1.0, 2.0], [np.nan] * 2, [7.0, 8.0]], equal_nan=True)


def test_global_fidelity_is_positive_when_confused_classes_are_close() -> None:
    """Classes on a line whose rows and labels leak most to the nearest class score 1, and moved apart they score -1."""
    leak = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]])
    log_pi = log_probs(np.repeat(leak, 10, axis=0))
    labels = np.concatenate([np.repeat([0, 1, 2], (10 * row).round().astype(int)) for row in leak])
    good = np.array([[0.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    bad = np.array([[0.0, 0.0], [3.0, 0.0], [1.0, 0.0]])

    assert global_fidelity(log_pi, good, labels).as_dict() == {"soft": 1.0, "ground": 1.0}
    assert global_fidelity(log_pi, good).as_dict() == {"soft": 1.0, "ground": None}
    got = global_fidelity(log_pi, bad, labels)
    assert got.soft == pytest.approx(-0.5)
    assert got.ground == pytest.approx(-0.5)


def test_global_fidelity_equals_the_naive_loop() -> None:
    """Both confusions equal those counted pair by pair, correlated by scipy."""
    stats = pytest.importorskip("scipy.stats")
    log_pi, _, _, centres, labels = draw_map(classes=6, noise=2.0)
    predicted = log_pi.argmax(axis=1)
    pairs = [(k, m) for k in range(6) for m in range(k + 1, 6)]
    far = [math.dist(centres[k], centres[m]) for k, m in pairs]

    def soft(k: int, m: int) -> float:
        return float(np.exp(log_pi[predicted == k, m]).mean())

    def ground(k: int, m: int) -> float:
        return float((predicted[labels == k] == m).mean())

    got = global_fidelity(log_pi, centres, labels)

    assert got.soft == pytest.approx(-stats.spearmanr(far, [soft(k, m) + soft(m, k) for k, m in pairs]).statistic)
    assert got.ground == pytest.approx(-stats.spearmanr(far, [ground(k, m) + ground(m, k) for k, m in pairs]).statistic)


def test_global_fidelity_leaves_out_classes_it_knows_nothing_about() -> None:
    """A class that is never predicted, never a label and has no centre changes nothing."""
    log_pi, _, _, centres, labels = draw_map(classes=4)
    wider = np.column_stack([log_pi, np.full(len(log_pi), -69.0)])

    got = global_fidelity(wider, np.concatenate([centres, [[np.nan, np.nan]]]), labels)

    assert got == global_fidelity(log_pi, centres, labels)
    assert global_fidelity(wider, np.concatenate([centres, [[99.0, 99.0]]]), labels) == got


@pytest.mark.parametrize("levels", [3, 10, 10**9], ids=["many ties", "some ties", "no ties"])
def test_spearman_equals_scipy(levels: int) -> None:
    """Average ranks are those of scipy.stats, with and without ties."""
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(levels)
    a = rng.integers(levels, size=80).astype(float)
    b = 0.3 * a + rng.integers(levels, size=80)

    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


def test_spearman_of_a_constant_is_unknown() -> None:
    """Without variation there is no correlation, and one value or none has no variation."""
    assert spearman(np.zeros(5), np.arange(5.0)) is None
    assert spearman(np.arange(5.0), np.ones(5)) is None
    assert spearman(np.zeros(1), np.zeros(1)) is None
    assert spearman(np.zeros(0), np.zeros(0)) is None
    with pytest.raises(ConfigError):
        spearman(np.zeros(3), np.zeros(4))
