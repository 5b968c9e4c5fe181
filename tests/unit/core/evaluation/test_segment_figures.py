"""Figures of segments, and their drift in a file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from darksight_core.drift.detector import Baseline, RowBatch
from darksight_core.drift.segments import SegmentTest
from darksight_core.evaluation.segment_figures import interval, measure_segments, report_segments
from darksight_core.gate import Gate, ScoredPredictions, SegmentThresholds
from darksight_core.guarantees.calibration import Calibration
from darksight_core.predictions import from_arrays
from darksight_core.rows.schema import ScoredBatch
from tests.support.builders import make_probs


def test_each_segment_has_its_own_figures() -> None:
    """Counts and shares are those of its rows; rows without the tag come last."""
    probs = make_probs(6, 3)
    predicted = probs.argmax(axis=1)
    labels = np.where([False, False, True, False, True, False], (predicted + 1) % 3, predicted)
    scores = replace(
        ScoredBatch.unscored(6), log_kde=np.arange(6.0), p_value=np.array([0.5, 0.001, 0.5, 0.5, 0.5, 0.5])
    )
    known = ScoredPredictions.of(from_arrays(probs, labels=labels), scores, np.array(["a", "a", "a", "b", "b", ""]))
    gate = Gate(reject_score="log_kde", threshold=1.0, segments=SegmentThresholds("camera", {"b": 3.5}))

    a, b, none = measure_segments(known, gate)

    assert (a.value, a.rows, a.outliers, a.accepted) == ("a", 3, 1 / 3, 2 / 3)
    assert (a.accuracy, a.accepted_accuracy) == (2 / 3, 0.5)
    assert (b.value, b.accepted, b.accepted_accuracy) == ("b", 0.5, 0.0)
    assert (none.value, none.rows, none.accuracy) == (None, 1, 1.0)
    assert (none.accuracy_low, none.accuracy_high) == pytest.approx((0.025, 1.0))


def test_without_labels_there_is_no_accuracy() -> None:
    """The rates of outliers and acceptance need none."""
    scores = replace(ScoredBatch.unscored(4), p_value=np.ones(4))
    known = ScoredPredictions.of(from_arrays(make_probs(4, 3)), scores, np.array(["a"] * 4))

    (found,) = measure_segments(known, None)

    assert (found.accuracy, found.accepted_accuracy, found.augrc) == (None, None, None)
    assert found.accepted == 1.0
    assert interval(0, 10)[0] == 0.0


def test_the_segment_that_changed_is_named() -> None:
    """One of twenty cameras turns bad halfway; its city, which has others too, is not named."""
    rng = np.random.default_rng(0)
    calibration = Calibration(rng.normal(size=1_999), top=np.ones(1_999))
    camera = rng.integers(0, 20, 8_000)
    scores = rng.normal(size=8_000)
    scores[(camera == 7) & (np.arange(8_000) > 4_000)] -= 2.0
    tags = {"camera": [str(each) for each in camera], "city": ["Lyon" if each < 10 else "" for each in camera]}

    rows = RowBatch(scores, np.ones(8_000), np.zeros(8_000, dtype=np.int64), rng.random((8_000, 3)))
    report = report_segments(SegmentTest(Baseline(calibration, np.array([5]))), rows, calibration.p_value(scores), tags)

    first = report.segments[0]
    assert report.explanation == ("camera=7",)
    assert (first.key, first.value, first.is_changed, first.is_unlike) == ("camera", "7", True, False)
    assert 150 <= (first.since_row or 0) <= 250
    assert len(report.segments) == 21
    assert sum(each.is_changed for each in report.segments if each.key == "camera") == 1
