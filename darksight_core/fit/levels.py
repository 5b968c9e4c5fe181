"""What the fit rows resolve, and the levels of a bundle; see `darksight_core.bundle.levels`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from darksight_core.bundle.levels import Level, Resolutions, Rows, coarser_numbers, completion_weights
from darksight_core.errors import ConfigError
from darksight_core.fit.distributed.process_group import ProcessGroup
from darksight_core.predictions import Predictions
from darksight_core.rows.partial import TopRows, complete
from darksight_core.rows.resolution import FULL, finest, recognise

__all__ = ["fit_levels", "resolve_rows"]


def resolve_rows(
    predictions: Predictions, top_k: Sequence[int], group: ProcessGroup, fit: NDArray[np.int64]
) -> tuple[Resolutions, Predictions]:
    """The resolution of rows, as yet without coarser levels, and the rows at it.

    Parameters
    ----------
    predictions
        The rows of this process.
    top_k
        As for `fit_bundle`.
    group
        The processes.
    fit
        Numbers of the fit rows, by which unknown probabilities are completed.
    """
    classes = predictions.n_classes
    for k in top_k:
        if not 1 <= k < classes:
            raise ConfigError(f"--top-k is {k}; it must be from 1 to {classes - 1}, fewer than the {classes} classes")
    if predictions.top is None:
        # A process without rows knows nothing.
        own = finest(group.gather(np.array([predictions.resolution][: len(predictions)], dtype=np.int64)).tolist())
        if own > 0:
            raise ConfigError("rows of which only the most probable classes are known cannot be sampled; omit --sample")
        resolutions = Resolutions(own)
        probs = resolutions.coarsen(predictions.probs, own)[0]
        return resolutions, predictions if own == FULL else replace(predictions, probs=probs.astype(np.float32))
    if group.size > 1:
        raise ConfigError("rows of which only the most probable classes are known are fitted in one process")
    weights = completion_weights(predictions.top.take(fit), classes)
    probs = complete(predictions.top, np.exp(weights.astype(np.float64)))
    own = predictions.top.resolution
    return Resolutions(own, (), weights), replace(predictions, probs=probs.astype(np.float32))


def fit_levels(
    resolutions: Resolutions, at_own: tuple[Rows, Rows], given: tuple[Rows, Rows], top_k: Sequence[int]
) -> tuple[Level, Resolutions]:
    """The level of the fit rows, and all resolutions of the bundle.

    Parameters
    ----------
    resolutions
        As `resolve_rows` returns them.
    at_own
        Known rows and calibration rows (n, K), at the resolution of the fit rows.
    given
        The same as they came.
    top_k
        As for `fit_bundle`.
    """
    (known, held), (known_top, held_top) = at_own, given
    assert not isinstance(known, TopRows)
    assert not isinstance(held, TopRows)
    known_other, held_other = (each.other if isinstance(each, TopRows) else None for each in (known_top, held_top))
    own = Level.fit(resolutions.own, (known, known_other), (held, held_other))
    numbers = coarser_numbers(resolutions.own, known.shape[1], len(held), top_k)
    if resolutions.log_weights is None and any(number > 0 for number in numbers):
        resolutions = replace(resolutions, log_weights=completion_weights(known, known.shape[1]))
    coarser = tuple(
        Level.fit(number, *(resolutions.coarsen(rows, number) for rows in (known_top, held_top))) for number in numbers
    )
    resolutions = replace(resolutions, coarser=coarser, own_other=own.other_rank)
    if not isinstance(held_top, TopRows) and len(held_top):
        seen = [resolutions.choose(each, resolutions.numbers, is_stated=False) for each in recognise(held_top).tolist()]
        resolutions = replace(resolutions, usual_coarser=float(np.mean(np.array(seen) != resolutions.own)))
    return own, resolutions
