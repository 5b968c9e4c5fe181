"""Scored rows as the columns that people get."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.gate.gate import Decision, Gate, Reason
from darksight_core.predictions import Predictions
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.scored import Scores

__all__ = ["Columns", "bundle_columns", "lower_names"]

Columns: TypeAlias = dict[str, NDArray[Any]]


def bundle_columns(judge: ScoringPolicy, gate: Gate | None, chunk: Predictions) -> Columns:
    """Scores of a chunk, with decision and reason if there is a gate."""
    judged = judge.judge(chunk.probs, logits=chunk.logits)
    columns = _columns(judged.scores)
    if gate is not None:
        columns["decision"] = lower_names(Decision, judged.decisions.decision)
        columns["reason"] = lower_names(Reason, judged.decisions.reason)
    return columns


def _columns(scores: Scores) -> Columns:
    x, y = scores.points.T
    return {
        "x": x,
        "y": y,
        "log_density": scores.log_density,
        "log_kde": scores.log_kde,
        "combined": scores.combined,
        "fidelity": scores.fidelity,
        "p_value": scores.p_value,
    }


def lower_names(kind: type[IntEnum], codes: NDArray[np.int8]) -> NDArray[np.str_]:
    """Names of codes, in lower case."""
    names = np.array([""] * (max(kind) + 1), dtype="U16")
    for member in kind:
        names[member] = member.name.lower()
    return names[codes]
