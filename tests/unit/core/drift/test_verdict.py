"""Kinds of drift."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from darksight_core.drift.verdict import DriftKind, Window, classify, share_residuals, within_class_test
from darksight_core.errors import ConfigError
from darksight_core.guarantees.calibration import Calibration

CLASSES = 3
# Scores of class k are lower the higher k is, so that another class mix alone moves the p-values.
MEANS = np.array([0.0, -1.0, -3.0])


def draw(
    rng: np.random.Generator, shares: list[float], rows: int, *, shift: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and classes of rows."""
    classes = rng.choice(CLASSES, rows, p=shares)
    return rng.normal(MEANS[classes] + shift, 1.0), classes


EVEN = [1 / 3, 1 / 3, 1 / 3]


@pytest.mark.parametrize(
    ("shares", "shift", "confidence", "kind"),
    [
        ([0.1, 0.1, 0.8], 0.0, 0.9, "class_mix"),
        (EVEN, -5.0, 0.6, "new_content"),
        (EVEN, -0.3, 0.8, "less_sure"),
        (EVEN, 1.0, 0.97, "surer"),
        ([0.1, 0.1, 0.8], -5.0, 0.6, "new_content"),
    ],
)
def test_each_kind_is_recognised(shares: list[float], shift: float, confidence: float, kind: DriftKind) -> None:
    """A new class mix, foreign rows, and rows that are less or more sure are told apart."""
    rng = np.random.default_rng(41)
    calibration = Calibration(*draw(rng, EVEN, 2_999))
    scores, classes = draw(rng, shares, 600, shift=shift)
    window = Window(calibration.p_value(scores), scores, classes, np.full(600, confidence))

    found = classify(
        window, calibration, np.array([1_000, 1_000, 1_000]), reference_confidence=0.9, is_score_alarm=True,
        is_class_alarm=shares != EVEN,
    )  # fmt: skip

    assert found.kind == kind
    assert found.reason
    if kind == "class_mix":
        assert found.classes[0] == 2
        assert found.residuals[0] > 0


def test_without_an_alarm_there_is_no_drift() -> None:
    """No alarm, no kind."""
    window = Window(np.array([0.5]), np.array([0.0]), np.array([0]), np.array([0.9]))

    found = classify(
        window, Calibration(np.zeros(3)), np.array([5, 5]), reference_confidence=None, is_score_alarm=False,
        is_class_alarm=False,
    )  # fmt: skip

    assert found.kind == "none"


def test_the_test_within_classes_keeps_its_level() -> None:
    """With another class mix and unchanged scores at most 5 % of 200 windows are rejected at 5 %, beyond chance."""
    rng, rejected = np.random.default_rng(42), 0
    for _ in range(200):
        calibration = Calibration(*draw(rng, EVEN, 600))
        scores, classes = draw(rng, [0.1, 0.2, 0.7], 400)
        window = Window(calibration.p_value(scores), scores, classes, np.ones(400))
        p_value = within_class_test(calibration, window, CLASSES)
        rejected += p_value is not None and p_value <= 0.05

    assert rejected / 200 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


def test_ties_and_small_classes_keep_the_level_too() -> None:
    """Rounded scores, and classes whose rows are no multiple of ten, give no more false rejections than 5 %."""
    rng = np.random.default_rng(43)
    for rows, digits in ((54, 6), (400, 0)):
        rejected = 0
        for _ in range(60):
            known = np.round(rng.normal(size=5 * rows), digits)
            scores, classes = np.round(rng.normal(size=4_000), digits), rng.integers(0, 5, 4_000)
            calibration = Calibration(known, np.repeat(np.arange(5), rows))
            window = Window(calibration.p_value(scores), scores, classes, np.ones(4_000))
            p_value = within_class_test(calibration, window, 5)
            rejected += p_value is not None and p_value <= 0.05
        assert rejected / 60 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60)


def test_confidence_near_one_is_printed_with_enough_digits() -> None:
    """The reason shows how two values differ that both round to 1.000."""
    calibration = Calibration(np.random.default_rng(44).normal(size=999))
    window = Window(np.full(100, 0.5), np.zeros(100), np.zeros(100, dtype=np.int64), np.full(100, 0.99991))

    found = classify(
        window, calibration, np.array([99, 1]), reference_confidence=0.99997, is_score_alarm=True,
        is_class_alarm=False,
    )  # fmt: skip

    assert found.kind == "less_sure"
    assert "is 0.999910, 0.999970 in" in found.reason


def test_a_bundle_without_calibration_classes_has_no_test_within_classes() -> None:
    """The test needs the predicted classes of the calibration rows."""
    window = Window(np.full(80, 0.5), np.zeros(80), np.zeros(80, dtype=np.int64), np.ones(80))

    assert within_class_test(Calibration(np.zeros(99)), window, CLASSES) is None


def test_a_window_needs_as_many_scores_as_p_values() -> None:
    """Columns of different length are refused."""
    for scores, confidence in ((3, 2), (2, 5)):
        with pytest.raises(ConfigError, match="as many"):
            Window(np.ones(2), np.ones(scores), np.zeros(2, dtype=np.int64), np.ones(confidence))


def test_residuals_are_those_of_pearsons_test() -> None:
    """Of two cells the squared residual is χ² of the 2 × 2 table; the cell that grew has a positive one."""
    residuals = share_residuals([500, 300], [40, 60])

    expected = stats.chi2_contingency([[500, 300], [40, 60]], correction=False).statistic
    assert residuals**2 == pytest.approx([expected, expected])
    assert residuals[1] > 0.0


def test_a_cell_without_rows_has_no_residual() -> None:
    """A class that neither sample has did not change; a sample without rows has no shares."""
    assert share_residuals([10, 10, 0], [5, 5, 0]).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ConfigError, match="no rows"):
        share_residuals([1, 2], [0, 0])
