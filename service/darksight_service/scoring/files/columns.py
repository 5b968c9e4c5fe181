"""Columns of score files."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.gate.gate import Gate
from darksight_core.guarantees.prediction_sets import set_classes
from darksight_core.predictions import Predictions
from darksight_core.rows.schema import Decision, Reason, ResponseColumns, ScoredBatch
from darksight_core.rows.tags import COLUMN_PREFIX
from darksight_core.runtime.policy import ScoringPolicy

__all__ = ["Columns", "bundle_columns", "score_columns"]

Columns: TypeAlias = dict[str, NDArray[Any]]


def bundle_columns(policy: ScoringPolicy, gate: Gate | None, chunk: Predictions) -> Columns:
    """The columns of a chunk that a bundle scores; without decision and reason if it has no gate."""
    tags = chunk.tag_dicts() if gate is not None and gate.segments is not None else ()
    level = policy.scorer.level_name(chunk)
    scored = policy.score(chunk.rows, logits=chunk.logits, tags=tags, resolution=level)
    return score_columns(scored, chunk, policy.scorer.class_names, is_decided=gate is not None)


def score_columns(
    scored: ResponseColumns, chunk: Predictions, names: Sequence[str], *, is_decided: bool = True
) -> Columns:
    """The columns of a scored chunk, its class, decision and reason by name, and a column for each tag.

    A response does not have `fidelity` and `outlier_score`, so the file of its scores has not either.
    """
    probs, computed = chunk.probs, {}
    if not isinstance(scored, ScoredBatch):
        computed = {"top": probs.max(axis=1), "predicted": probs.argmax(axis=1)}
    columns = scored.file_columns(**computed)
    columns["predicted"] = _class_labels(names, columns["predicted"])
    columns["prediction_set"] = _set_labels(names, probs, columns["set_size"])
    if is_decided:
        columns["decision"] = _lower_names(Decision, scored.decision)
        columns["reason"] = _lower_names(Reason, scored.reason)
    return columns | {f"{COLUMN_PREFIX}{key}": np.array(tags, dtype=np.str_) for key, tags in chunk.tags.items()}


def _class_labels(names: Sequence[str], predicted: NDArray[np.integer]) -> NDArray[Any]:
    """Classes (n,) by name, or by number if the names are numbers; every row of a file is valid and has a class."""
    return predicted if list(names) == list(map(str, range(len(names)))) else np.array(names)[predicted]


def _set_labels(names: Sequence[str], probs: NDArray[np.floating], sizes: NDArray[np.integer]) -> NDArray[np.str_]:
    """Classes of each prediction set by name, as one text with | between them, (n,); by number if a name has a |."""
    if not sizes.any():
        return np.full(len(sizes), "", dtype=np.str_)
    labels = [str(k) for k in range(len(names))] if any("|" in name for name in names) else list(names)
    classes, ends = set_classes(probs, sizes).tolist(), np.cumsum(sizes).tolist()
    texts = [
        "|".join(labels[k] for k in classes[end - size : end]) for size, end in zip(sizes.tolist(), ends, strict=True)
    ]
    return np.array(texts, dtype=np.str_)


def _lower_names(kind: type[IntEnum], codes: NDArray[np.int8]) -> NDArray[np.str_]:
    """Names of codes, in lower case."""
    names = np.array([""] * (max(kind) + 1), dtype="U16")
    for member in kind:
        names[member] = member.name.lower()
    return names[codes]
