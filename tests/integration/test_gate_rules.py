"""The SQL dry run of a policy against the list of the gate's rules."""

from __future__ import annotations

from collections import Counter

import numpy as np
from darksight_service.store.store import Store

from darksight_core.gate.gate import Gate
from darksight_core.rows.schema import Reason
from tests.support.gates import GateCase, gate_cases
from tests.support.points import VERSION, make_points

NOW_MS = 1_800_000_000_000
FIELDS = {
    Reason.OUTLIER: "outliers",
    Reason.LOW_CONFIDENCE: "low_confidence",
    Reason.REGION: "regions",
    Reason.INVALID: "invalid",
    Reason.UNSCORED: "unscored",
}


def insert(store: Store, case: GateCase, number: int) -> None:
    """Store the rows of a case in a minute of their own."""
    rows = len(case.valid)
    batch = make_points(
        rows,
        ms=NOW_MS + number * 60_000,
        with_invalid=False,
        p_value=np.where(case.valid, case.p_value, np.nan),
        confidence=np.where(case.valid, case.log_kde, np.nan),
        points=np.where(case.valid[:, None], case.points, np.nan),
        reason=np.where(case.valid, Reason.NONE, Reason.INVALID),
        predicted=case.predicted,
    )
    store.insert([batch])


def test_the_dry_run_accepts_what_ties_with_the_threshold(store: Store) -> None:
    """A column rounds scores to float32, up or down; rows that tie with the threshold are accepted nevertheless."""
    scores = np.repeat(np.log([3.0, 7.0, 11.0]), 20)
    batch = make_points(60, ms=NOW_MS, with_invalid=False, p_value=np.ones(60), confidence=scores, reason=[1] * 60)
    store.insert([batch])

    for threshold, expected in zip(np.log([3.0, 7.0, 11.0]).tolist(), (60, 40, 20), strict=True):
        gate = Gate(reject_score="msp", threshold=threshold)
        _, after = store.evaluate_policy("digits", VERSION, gate, since_ms=NOW_MS, until_ms=NOW_MS + 60_000)

        assert after.accepted == expected


def test_the_dry_run_follows_the_list(store: Store) -> None:
    """For every combination of rules, the dry run counts the reasons and acceptances that the list gives."""
    cases = list(gate_cases(rows=60))
    for number, case in enumerate(cases):
        insert(store, case, number)

    for number, case in enumerate(cases):
        gate, start = case.gate, NOW_MS + number * 60_000
        _, after = store.evaluate_policy("digits", VERSION, gate, since_ms=start, until_ms=start + 60_000)

        expected = Counter(case.reasons)
        assert {reason: getattr(after, name) for reason, name in FIELDS.items()} == {r: expected[r] for r in FIELDS}
        assert after.accepted == sum(case.accepted)
