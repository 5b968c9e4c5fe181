"""Rows that the gate page takes for accepted: those that the gate in force accepts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from darksight_service.http.explorer.api import gate as page

from darksight_core.gate import Gate, SegmentThresholds
from darksight_core.guarantees.conformal import cutoff
from darksight_core.rows.schema import Reason
from tests.support.points import make_points

N = 40


def active(gate: Gate) -> Any:
    """A model with a gate that promises an accuracy."""
    part = {"feasible": True, "kind": "accuracy", "promised": 0.5, "delta": 0.05, "promise": ""}
    bundle = SimpleNamespace(gate=gate, calibration_rows=99, certificate={"reject": part})
    return SimpleNamespace(gate=gate, bundle=bundle)


def test_limits_of_classes_decide_unless_alpha_is_tried() -> None:
    """By the outlier score of the row and the limit of its class, as in the gate."""
    table = make_points(N, with_invalid=False)
    limits = np.linspace(-4.0, 0.0, 10)
    model = active(Gate(outlier=cutoff(99, 0.1), class_limits=limits))

    passed = page._passed(model, None, table)
    tried = page._passed(model, 0.1, table)

    assert 0 < passed.sum() < N
    assert passed.tolist() == (table.outlier_score >= limits[table.predicted]).tolist()
    assert tried.tolist() == (table.p_value > 0.1).tolist()


def test_a_promise_is_measured_on_rows_that_thresholds_of_segments_accepted() -> None:
    """The threshold of other rows would accept all of them."""
    reason = np.where(np.arange(N) % 2, Reason.LOW_CONFIDENCE, Reason.NONE)
    table = make_points(N, with_invalid=False, reason=reason)
    model = active(Gate(reject_score="msp", threshold=-1e6, segments=SegmentThresholds("camera", {"7": 1e6})))

    found = page._promise(model, table)

    assert found is not None
    assert found.measured.rows == N // 2
