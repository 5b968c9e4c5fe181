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
from darksight_core.rows.schema import Decision, Reason
from darksight_core.rows.tags import COLUMN_PREFIX
from darksight_core.runtime.policy import ScoringPolicy

__all__ = ["Columns", "bundle_columns", "class_labels", "lower_names", "set_labels", "tag_columns"]

Columns: TypeAlias = dict[str, NDArray[Any]]


def bundle_columns(policy: ScoringPolicy, gate: Gate | None, chunk: Predictions) -> Columns:
    """Scores of a chunk; the predicted class by its name, and decision and reason if there is a gate."""
    tags = chunk.tag_dicts() if gate is not None and gate.segments is not None else ()
    scored = policy.score(chunk.probs, logits=chunk.logits, tags=tags)
    columns = scored.file_columns()
    columns["predicted"] = class_labels(policy.scorer.class_names, scored.predicted)
    if gate is not None and gate.sets is not None:
        columns["prediction_set"] = set_labels(policy.scorer.class_names, chunk.probs, scored.set_size)
    if gate is not None:
        columns["decision"] = lower_names(Decision, scored.decision)
        columns["reason"] = lower_names(Reason, scored.reason)
    return columns | tag_columns(chunk)


def tag_columns(chunk: Predictions) -> Columns:
    """The tags of a chunk, a column for each key; empty where a row has none."""
    return {f"{COLUMN_PREFIX}{key}": np.array(values, dtype=np.str_) for key, values in chunk.tags.items()}


def class_labels(names: Sequence[str], predicted: NDArray[np.integer]) -> NDArray[Any]:
    """Classes (n,) by name, or by number if the names are numbers; every row of a file is valid and has a class."""
    return predicted if list(names) == list(map(str, range(len(names)))) else np.array(names)[predicted]


def set_labels(names: Sequence[str], probs: NDArray[np.floating], sizes: NDArray[np.integer]) -> NDArray[np.str_]:
    """Classes of each prediction set by name, as one text with | between them, (n,); by number if a name has a |."""
    labels = [str(k) for k in range(len(names))] if any("|" in name for name in names) else list(names)
    classes, ends = set_classes(probs, sizes).tolist(), np.cumsum(sizes).tolist()
    texts = [
        "|".join(labels[k] for k in classes[end - size : end]) for size, end in zip(sizes.tolist(), ends, strict=True)
    ]
    return np.array(texts, dtype=np.str_)


def lower_names(kind: type[IntEnum], codes: NDArray[np.int8]) -> NDArray[np.str_]:
    """Names of codes, in lower case."""
    names = np.array([""] * (max(kind) + 1), dtype="U16")
    for member in kind:
        names[member] = member.name.lower()
    return names[codes]
