"""The time from which the audit of a certificate counts rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from darksight_service.control.state import Deployment, PolicyOverride
from darksight_service.scoring.live_drift import live_audit
from darksight_service.store.read.audited_rows import AuditedGroups

from darksight_core.drift.audit import AuditedRows

BUNDLE: Any = SimpleNamespace(
    manifest={"certificate": {"reject": {"kind": "accuracy", "feasible": True, "promised": 0.9}}}
)
NOTHING = AuditedRows(0, np.zeros(1, np.int64), np.zeros(1), *(np.zeros(0, np.int64) for _ in range(6)))  # type: ignore[arg-type]  # no rows


@pytest.mark.parametrize(
    ("times", "start_ms"),
    [((9_000_000, 0, 0), 9_000_000), ((1, 9_000_000, 2), 9_000_000), ((1, 2, 9_000_000), 9_060_000)],
    ids=["deployed", "reset", "gate_changed"],
)
def test_rows_of_an_earlier_gate_are_not_charged_to_the_certificate(times, start_ms):
    """It counts from a minute after the last change of the gate, when all replicas have applied it."""
    asked = []

    def audited_rows(model: str, version: str, *, start_ms: int) -> AuditedGroups:
        asked.append(start_ms)
        return AuditedGroups(NOTHING, {}, {})

    deployed_ms, evidence_ms, gate_ms = times
    deployed = Deployment("a", deployed_ms, PolicyOverride(), {}, evidence_ms, gate_ms=gate_ms)
    report = live_audit(SimpleNamespace(audited_rows=audited_rows), BUNDLE, deployed, "m", "v")  # type: ignore[arg-type]  # a stub

    assert (asked, report.promised) == ([start_ms], 0.9)
