"""Columns of score files."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.gate.gate import Gate
from darksight_core.predictions import Predictions
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.scored import SCHEMA, Decision, Reason, ScoredBatch

__all__ = ["Columns", "bundle_columns", "lower_names", "score_columns"]

Columns: TypeAlias = dict[str, NDArray[Any]]


def bundle_columns(policy: ScoringPolicy, gate: Gate | None, chunk: Predictions) -> Columns:
    """Scores of a chunk, with decision and reason if there is a gate."""
    scored = policy.score(chunk.probs, logits=chunk.logits)
    columns = score_columns(scored)
    if gate is not None:
        columns["decision"] = lower_names(Decision, scored.decision)
        columns["reason"] = lower_names(Reason, scored.reason)
    return columns


def score_columns(scored: ScoredBatch) -> Columns:
    """The columns of the schema that are in score files."""
    found: Columns = {}
    for column in SCHEMA:
        if column.file:
            values = getattr(scored, column.name).reshape(len(scored), column.width)
            found |= dict(zip(column.parts, values.T, strict=True))
    return found


def lower_names(kind: type[IntEnum], codes: NDArray[np.int8]) -> NDArray[np.str_]:
    """Names of codes, in lower case."""
    names = np.array([""] * (max(kind) + 1), dtype="U16")
    for member in kind:
        names[member] = member.name.lower()
    return names[codes]
