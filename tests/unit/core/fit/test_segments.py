"""Calibration rows of segments in a fitted bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from darksight_core.bundle import read_bundle
from darksight_core.drift.segments import SegmentTest
from darksight_core.evaluation.drift import baseline_of
from darksight_core.fit.pipeline import fit_bundle
from darksight_core.predictions import from_arrays
from tests.support.builders import make_probs


def test_a_bundle_keeps_the_calibration_rows_of_segments_that_have_enough(tmp_path: Path) -> None:
    """As counts, with which the test of the segment starts; it survives the file. A rare segment has none."""
    camera = np.where(np.arange(1_200) % 10 == 0, "rare", np.where(np.arange(1_200) % 2 == 0, "a", "b"))

    fit_bundle(from_arrays(make_probs(1_200, 3), tags={"camera": camera}), tmp_path / "m.safetensors")

    bundle = read_bundle(tmp_path / "m.safetensors")
    test = SegmentTest(baseline_of(bundle))
    learned = {each: test.start(("camera", each)).scores.learned.sum() for each in ("a", "b", "rare", "new")}
    assert bundle.segments is not None
    assert bundle.segments.counts.shape[0] == 2
    assert min(learned["a"], learned["b"]) >= 100
    assert (learned["rare"], learned["new"]) == (0.0, 0.0)
