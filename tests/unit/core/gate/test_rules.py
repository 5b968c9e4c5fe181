"""The rules of the gate, in numpy and compiled, against the list that states them; for SQL see tests/integration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from darksight_core.gate.gate import RULES
from darksight_core.rows.schema import Decision, Reason, ScoredBatch
from darksight_core.runtime.arrays import rule_of
from tests.support.gates import gate_cases


def test_every_reason_but_none_has_a_rule() -> None:
    """The list names each reason once."""
    assert sorted(RULES) == sorted(set(Reason) - {Reason.NONE})


def test_the_gate_follows_the_list() -> None:
    """For every combination of rules, rows get the first reason that applies, and the decision that belongs to it."""
    seen = set()
    for case in gate_cases():
        rows = len(case.valid)
        columns = {"points": case.points, "log_kde": case.log_kde, "p_value": case.p_value, "valid": case.valid}
        scores = replace(ScoredBatch.unscored(rows), predicted=case.predicted, **columns)

        found = case.gate.decide(np.zeros((rows, 2)), scores)

        assert [Reason(reason) for reason in found.reason] == case.reasons
        assert (found.decision == Decision.ACCEPT).tolist() == case.accepted
        seen |= set(case.reasons)
    assert seen == set(Reason)


def test_the_compiled_gate_follows_the_list() -> None:
    """Without regions, the source of the compiled code gives valid rows the reason and decision of the list."""
    decide = pytest.importorskip("darksight_core.runtime.compiled.gate").decide.py_func
    even = np.full(2, 0.5)
    for case in gate_cases():
        if not case.gate.regions:
            rule = rule_of(case.gate)
            rows = np.flatnonzero(case.valid)

            scores = [(np.nan, np.nan, float(log_kde), np.nan) for log_kde in case.log_kde]
            outcomes = [
                decide(even, np.log(even), case.predicted[row], scores[row], case.p_value[row], rule)[1] for row in rows
            ]
            found = [rule.table[:, outcome] for outcome in outcomes]

            assert [Reason(reason) for _, reason in found] == [case.reasons[row] for row in rows]
            assert [decision == Decision.ACCEPT for decision, _ in found] == [case.accepted[row] for row in rows]
