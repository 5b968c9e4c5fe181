from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from darksight_service.http.explorer.analysis.promise import measure_promise

from darksight_core.guarantees.binomial import lower_bound, upper_bound


def make_certificate(kind: str, promised: float, *, feasible: bool = True) -> dict[str, Any]:
    """A certificate with one promise about accepted rows."""
    part = {"kind": kind, "promised": promised, "delta": 0.05, "promise": "in words", "feasible": feasible}
    return {"outlier": None, "reject": part}


@pytest.mark.parametrize(
    ("kind", "promised", "verdict"),
    [
        ("accuracy", 0.97, "broken"),
        ("accuracy", 0.91, "open"),
        ("accuracy", 0.85, "kept"),
        ("coverage", 0.9, "broken"),
        ("coverage", 0.75, "kept"),
        ("joint_risk", 0.05, "broken"),
        ("joint_risk", 0.1, "kept"),
    ],
)
def test_a_promise_is_compared_with_what_is_measured(kind: str, promised: float, verdict: str) -> None:
    """800 of 1,000 points are accepted and 72 of these are wrong: 91% accuracy, 80% coverage, 7.2% joint risk."""
    accepted, errors = np.arange(1_000) < 800, np.arange(1_000) % 11 == 0
    errors[:800] = np.arange(800) < 72

    found = measure_promise(make_certificate(kind, promised), accepted, errors)

    assert found is not None
    assert found.measured.share == pytest.approx({"accuracy": 0.91, "coverage": 0.8, "joint_risk": 0.072}[kind])
    assert found.verdict == verdict
    if kind == "accuracy":
        assert found.measured.low == pytest.approx(1.0 - float(upper_bound(72, 800, 0.025)))
        assert found.measured.high == pytest.approx(1.0 - float(lower_bound(72, 800, 0.025)))


def test_no_labels_decide_nothing() -> None:
    """Without labelled points a promise is neither kept nor broken."""
    none = np.empty(0, dtype=bool)

    found = measure_promise(make_certificate("accuracy", 0.97), none, none)

    assert found is not None
    assert (found.verdict, found.measured.share) == ("open", None)


@pytest.mark.parametrize("certificate", [None, {"reject": None}, make_certificate("accuracy", 0.99, feasible=False)])
def test_without_a_promise_there_is_nothing_to_compare(certificate: dict[str, Any] | None) -> None:
    """A bundle without certificate, without such a rule, or with an infeasible one promises nothing."""
    assert measure_promise(certificate, np.ones(3, dtype=bool), np.zeros(3, dtype=bool)) is None
