from __future__ import annotations

import numpy as np
import pytest
from darksight_service.store.points import PointTable
from darksight_service.store.read.live_accuracy import COVERAGES, Share, live_accuracy

from darksight_core.evaluation.failure import failure_figures
from tests.support.point_tables import make_table


def points(n: int, *, seed: int = 0, confidence: float | None = None) -> PointTable:
    """Points whose confidence is the chance of being right; with `confidence` all the same."""
    rng = np.random.default_rng(seed)
    sure = rng.uniform(size=n)
    right = rng.uniform(size=n) < sure
    return make_table(
        n,
        confidence=sure if confidence is None else np.full(n, confidence),
        p_value=rng.uniform(size=n),
        top=sure,
        decision=np.where(sure > 0.5, 1, 2),
        predicted=np.zeros(n, dtype=np.int64),
        label=np.where(right, 0, 1),
    )


def test_accepted_and_rejected_make_up_everything():
    """Counts add up, and the figures are those of the core on the same rows."""
    given = points(500)

    found = live_accuracy(given)

    assert found.accepted.rows + found.rejected.rows == found.everything.rows == 500
    assert found.accepted.right + found.rejected.right == found.everything.right == int((~given.errors).sum())
    assert found.scores["confidence"] == failure_figures(given.confidence, given.errors)
    assert found.accepted.share is not None
    assert found.accepted.low < found.accepted.share < found.accepted.high


def test_a_curve_tells_the_accuracy_of_the_rows_kept():
    """At each coverage the surest rows, counted by hand."""
    given = points(1000, seed=1)
    order = np.argsort(-given.confidence)

    curve = live_accuracy(given).curves["confidence"]

    for share, accuracy in zip(COVERAGES, curve, strict=True):
        assert accuracy == pytest.approx((~given.errors)[order[: round(share * 1000)]].mean())


def test_a_gate_without_a_reject_score_has_no_figures_of_one():
    """NaN is not a score."""
    assert set(live_accuracy(points(50, confidence=float("nan"))).scores) == {"top", "p_value"}


def test_no_outcome_is_no_accuracy():
    """Nothing is known, and nothing is claimed."""
    found = live_accuracy(points(0))

    assert (found.everything.rows, found.everything.share, found.scores) == (0, None, {})
    assert Share.of(np.ones(0, dtype=np.bool_)).high == 1.0
