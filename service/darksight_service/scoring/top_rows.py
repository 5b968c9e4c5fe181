"""Rows of which only the most probable classes are known, in the request path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from darksight_core.errors import did_you_mean
from darksight_core.rows.partial import TopRows, TopRowsError
from darksight_core.rows.schema import ScoredBatch
from darksight_core.rows.simplex import Floats
from darksight_core.runtime.policy import ScoringPolicy, Tags
from darksight_core.runtime.result_block import ResultBlock
from darksight_core.runtime.scorer import Scorer
from darksight_service.control.registry import ActiveModel
from darksight_service.errors import RequestError

__all__ = ["check_top", "complete_top", "raise_top_error", "score_top"]

# Rows times classes of a call: rows are completed to all classes, which a short message has many of.
_MAX_COMPLETED = 1 << 23


def check_top(active: ActiveModel, top: TopRows, names: Sequence[str]) -> TopRows:
    """The rows with the class numbers of the bundle; RequestError if a name is unknown or there are too many rows.

    Parameters
    ----------
    active
        The model.
    top
        The rows; their values are not checked.
    names
        What the numbers of classes stand for; none if they are those of the bundle.
    """
    classes, numbers = active.bundle.scorer.n_inputs, active.bundle.numbers
    if len(top) * classes > _MAX_COMPLETED:
        most = _MAX_COMPLETED // classes
        raise RequestError(f"top: {len(top):,} rows of {classes:,} classes; send at most {most:,}", field="top")
    if not names:
        return top
    unknown = next((name for name in names if name not in numbers), None)
    if unknown is not None:
        hint = did_you_mean(unknown[:50], active.bundle.class_names)
        raise RequestError(f"top: {unknown[:50]!r} is not a class of model {active.model!r}; {hint}", field="top")
    if (top.classes >= len(names)).any():
        raise RequestError(f"top: a class is {top.classes.max()}; there are {len(names)} class_names", field="top")
    return top.renumbered(np.array([numbers[name] for name in names], dtype=np.int32))


def score_top(policy: ScoringPolicy, top: TopRows, tags: Tags) -> ScoredBatch:
    """Rows scored and decided; those that are not valid get the reason INVALID."""
    valid = top.valid(policy.scorer.n_inputs)
    if valid.all():
        batch = policy.score(top, tags=tags)
    else:
        batch = policy.score(np.full((len(top), policy.scorer.n_inputs), np.nan))
        chosen = np.flatnonzero(valid)
        if len(chosen):
            some = [tags[row] for row in chosen.tolist()] if isinstance(tags, Sequence) and tags else tags
            batch.put(chosen, policy.score(top.take(chosen), tags=some))
    is_partial = valid & (batch.resolution > 0)
    batch.known[:] = np.where(is_partial, np.minimum(top.known.sum(axis=1), batch.resolution), 0)
    batch.other[is_partial] = top.other[is_partial]
    return batch


def raise_top_error(top: TopRows, classes: int) -> NoReturn:
    """Raise an error that describes the first row that is not valid."""
    try:
        top.check(classes)
    except TopRowsError as error:
        text = f"top: {error.message}; set partial_ok to have the other rows scored"
        raise RequestError(text, field="top", row=error.details["row"]) from None
    raise AssertionError("all rows are valid")


def complete_top(scorer: Scorer, top: TopRows, block: ResultBlock) -> Floats:
    """The rows of all classes by which rows were ranked, (n, K); NaN for rows that are not valid."""
    rows, chosen = np.full((len(top), scorer.n_inputs), np.nan), np.flatnonzero(block.column("predicted") >= 0)
    if len(chosen):
        number = int(block.column("resolution")[chosen[0]])
        rows[chosen] = scorer.resolutions.coarsen(top.take(chosen), number)[0]
    return rows
