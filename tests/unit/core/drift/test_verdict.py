"""Kinds of drift."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from darksight_core.drift.verdict import DriftKind, Window, classify, share_residuals
from darksight_core.drift.within_class import within_class_ranks
from darksight_core.errors import ConfigError
from darksight_core.guarantees.calibration import Calibration
from tests.support.planted_shifts import CLASSIFIERS, SHIFTS, verdict_of

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
        ([0.1, 0.1, 0.8], -0.5, 0.85, "mixed"),
        ([0.25, 0.25, 0.5], -5.0, 0.6, "new_content"),
    ],
)
def test_each_kind_is_recognised(shares: list[float], shift: float, confidence: float, kind: DriftKind) -> None:
    """A new class mix, foreign rows, rows that are less or more sure, and a mixture are told apart."""
    rng = np.random.default_rng(41)
    calibration = Calibration(*draw(rng, EVEN, 2_999), rng.uniform(0.8, 1.0, 2_999))
    scores, classes = draw(rng, shares, 600, shift=shift)
    sure = np.clip(confidence + rng.uniform(-0.1, 0.1, 600), 0.0, 1.0)
    window = Window(calibration.p_value(scores), scores, classes, sure)
    alarms = {"scores", "confidence"} | ({"classes"} if shares != EVEN else set())

    found = classify(window, calibration, np.array([1_000, 1_000, 1_000]), alarms=alarms)

    assert found.kind == kind
    assert found.reason
    if kind == "class_mix":
        assert found.classes[0] == 2
        assert found.residuals[0] > 0


def test_twelve_shifts_of_four_kinds_of_classifier_are_named_right() -> None:
    """At least 90% of the planted shifts have the right verdict, all of those that are a pure label shift."""
    wrong = [
        (shift, classifier, found)
        for shift, right in SHIFTS.items()
        for classifier in CLASSIFIERS
        if (found := verdict_of(classifier, shift, seed=7).kind) not in right
    ]

    assert len(wrong) <= 0.1 * len(SHIFTS) * len(CLASSIFIERS), wrong
    assert not [shift for shift, *_ in wrong if SHIFTS[shift] == ("class_mix",)]


def test_traffic_as_before_has_no_verdict() -> None:
    """Without a shift there is no drift, whatever the classifier."""
    assert {verdict_of(classifier, "none", seed=8).kind for classifier in CLASSIFIERS} == {"none"}


def test_rows_are_not_called_less_sure_without_evidence_of_confidence() -> None:
    """Scores alone are an alarm: rows are more unusual, or more usual, than before."""
    rng = np.random.default_rng(45)
    calibration = Calibration(*draw(rng, EVEN, 2_999), rng.uniform(0.8, 1.0, 2_999))
    for shift, kind in ((-0.4, "new_content"), (0.4, "surer")):
        scores, classes = draw(rng, EVEN, 600, shift=shift)
        window = Window(calibration.p_value(scores), scores, classes, rng.uniform(0.79, 1.0, 600))

        assert classify(window, calibration, np.array([1_000] * 3), alarms={"scores"}).kind == kind


def test_without_an_alarm_there_is_no_drift() -> None:
    """No alarm, no kind."""
    window = Window(np.array([0.5]), np.array([0.0]), np.array([0]), np.array([0.9]))

    assert classify(window, Calibration(np.zeros(3)), np.array([5, 5]), alarms=()).kind == "none"


def test_the_test_within_classes_keeps_its_level() -> None:
    """With another class mix and unchanged scores at most 5 % of 200 windows are rejected at 5 %, beyond chance."""
    rng, rejected = np.random.default_rng(42), 0
    for _ in range(200):
        calibration = Calibration(*draw(rng, EVEN, 600))
        scores, classes = draw(rng, [0.1, 0.2, 0.7], 400)
        ranks = within_class_ranks(calibration, scores, np.ones(400), classes, CLASSES)
        rejected += ranks is not None and ranks.p_value <= 0.05

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
            ranks = within_class_ranks(calibration, scores, np.ones(4_000), classes, 5)
            rejected += ranks is not None and ranks.p_value <= 0.05
        assert rejected / 60 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60)


def test_confidence_near_one_is_printed_with_enough_digits() -> None:
    """The reason shows how two values differ that both round to 1.000."""
    rng = np.random.default_rng(44)
    top = np.full(999, 0.99997)
    calibration = Calibration(rng.normal(size=999), np.zeros(999, dtype=np.int16), top)
    window = Window(np.full(100, 0.5), rng.normal(size=100), np.zeros(100, dtype=np.int64), np.full(100, 0.99991))

    found = classify(window, calibration, np.array([99, 1]), alarms={"confidence"})

    assert found.kind == "less_sure"
    assert "is 0.999910, 0.999970 in" in found.reason


def test_a_bundle_without_calibration_classes_has_no_ranks_within_classes() -> None:
    """They need the predicted classes of the calibration rows; the verdict then follows the alarms alone."""
    scores, classes = np.full(80, -3.0), np.zeros(80, dtype=np.int64)
    calibration = Calibration(np.zeros(99))
    window = Window(calibration.p_value(scores), scores, classes, np.ones(80))

    assert within_class_ranks(calibration, scores, np.ones(80), classes, CLASSES) is None
    assert classify(window, calibration, np.array([5, 5]), alarms={"classes"}).kind == "class_mix"
    assert classify(window, calibration, np.array([5, 5]), alarms={"scores"}).kind == "new_content"


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
