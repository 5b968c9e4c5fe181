"""The rules for rows, and the checks that enforce them.

`check` turns `RawRows` into `Predictions`, and `gather` joins all chunks of a source; only one chunk is held in memory
beside the result.

A row of probabilities becomes float32. Entries down to `-CLIP` count as rounding and become zero; a sum that differs
from one by at most `SUM_LIMIT` is repaired by division (and counted if the difference is above `SUM_EXACT`); entries
below the smallest normal float32 become zero. The sum of rows of few decimals may be off by half a step for each class.
Anything else is an error. Logits are kept as float32, and π = softmax(logits) is computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.predictions.defects import defect
from darksight_core.predictions.labels import check_ids, check_labels, check_tags
from darksight_core.predictions.raw_rows import RawRows, RowProgress
from darksight_core.predictions.rows import Predictions
from darksight_core.predictions.tokens import check_tokens
from darksight_core.rows.partial import TopRows
from darksight_core.rows.resolution import FULL, finest, resolution_of, sum_limits
from darksight_core.rows.simplex import log_softmax

__all__ = ["CLIP", "SUM_EXACT", "SUM_LIMIT", "check", "check_logits", "gather"]

CLIP = 1e-6
"""Largest size of a negative probability that counts as rounding."""

SUM_LIMIT = 1e-3
"""Largest |Σ_k π_k - 1| that is repaired."""

SUM_EXACT = 1e-6
"""Largest |Σ_k π_k - 1| that is left unchanged."""

Floats32: TypeAlias = NDArray[np.float32]

_TINY = np.finfo(np.float32).tiny
_BLOCK_VALUES = 1 << 18
_REGRESSION = "Values of a regression are not supported."
# Rows that must be off, and the range of their sums, to be taken for multi-label ones: a typing error is neither.
# Fewer rows may look like something else by chance.
_LEAST_OFF, _SUM_RANGE = 5, 0.05


def _softmax(logits: Floats32) -> Floats32:
    probs = np.empty_like(logits)
    step = max(1, _BLOCK_VALUES // logits.shape[1])
    for start in range(0, len(logits), step):
        block = slice(start, start + step)
        probs[block] = np.exp(log_softmax(logits[block].astype(np.float64)))
    return probs


def _repair(raw: RawRows, probs: Floats32, resolution: int) -> int:
    """Project rows of a resolution onto the simplex in place; returns the number of rows that were rescaled."""
    layout = raw.layout
    bad = probs < -CLIP
    if bad.any():
        row, column = divmod(int(bad.argmax()), probs.shape[1])
        text = f"probability is {raw.values[row, column]:g}; probabilities must be >= 0. "
        text += f"{layout.logits_hint} {_REGRESSION}"
        raise defect("predictions_negative", text=text, column=layout.columns[column], **raw.location(row))
    np.maximum(probs, 0.0, out=probs)
    sums = probs.sum(axis=1, dtype=np.float64)
    gaps = np.abs(sums - 1.0)
    limit = float(sum_limits(np.array([resolution]), probs.shape[1])[0])
    if (gaps > limit).any():
        row = int((gaps > limit).argmax())
        text = f"probabilities sum to {sums[row]:.6g}; the sum must be 1 within {limit:g}. "
        if _is_multi_label(probs, sums, gaps):
            text += "The rows look like separate probabilities of several labels. Multi-label predictions are not "
            text += "supported: every row must be one distribution over the classes."
            raise defect("predictions_not_supported", text=text, **raw.location(row))
        extra = _extra_column(probs, sums)
        if extra is not None:
            text += "Without this column every row sums to 1, so it is not a class: remove or rename it."
            raise defect("predictions_row_sum", text=text, column=layout.columns[extra], **raw.location(row))
        text += f"Write more decimals or normalise the rows. {layout.logits_hint}"
        text += f" {_REGRESSION}" if probs.max() > 1.0 + CLIP else ""
        raise defect("predictions_row_sum", text=text, **raw.location(row))
    off = gaps > SUM_EXACT
    probs[off] = probs[off] / sums[off, None]
    return int(off.sum())


def _is_multi_label(probs: Floats32, sums: NDArray[np.float64], gaps: NDArray[np.float64]) -> bool:
    """Whether most rows are probabilities whose sums differ, some of them above one: independent sigmoids."""
    off = gaps > SUM_LIMIT
    most = off.sum() >= _LEAST_OFF and off.mean() > 0.5
    return bool(most and probs.max() <= 1.0 + CLIP and sums.max() > 1.0 + SUM_LIMIT and np.ptp(sums) > _SUM_RANGE)


def _extra_column(probs: Floats32, sums: NDArray[np.float64]) -> int | None:
    """A column, such as `prob_sum`, without which every row sums to one; None if there is none."""
    rests = np.abs(sums[:, None] - probs - 1.0).max(axis=0)
    return int(rests.argmin()) if len(sums) >= _LEAST_OFF and rests.min() <= SUM_LIMIT else None


def check_logits(raw: RawRows) -> None:
    """Refuse logits that are probabilities: rows without negative values that all sum to one."""
    values = raw.values
    if not raw.layout.is_logits or len(values) < _LEAST_OFF or values.dtype.kind not in "biuf" or values.min() < -CLIP:
        return
    if np.abs(values.sum(axis=1, dtype=np.float64) - 1.0).max() <= SUM_LIMIT:
        text = "every row of the logits is non-negative and sums to 1, so these are probabilities. Name them "
        text += 'probs or prob_<class>; if they are logits, pass kind="logits" (--logits on the command line).'
        raise defect("predictions_logits_sum", raw.layout.source, text)


def check(raw: RawRows, *, keep_logits: bool, seen: dict[str, None]) -> Predictions:
    """Checked copy of raw rows.

    Parameters
    ----------
    raw
        The rows, not changed.
    keep_logits
        Whether to keep the logits, if the values are logits.
    seen
        Ids of the rows just before these, in order; ids of these rows are added.
    """
    layout = raw.layout
    if layout.has_tokens:
        return check_tokens(raw, seen)
    if raw.values.dtype.kind not in "biuf":
        text = f"values have dtype {raw.values.dtype}; predictions must be real numbers."
        raise defect("predictions_not_numeric", layout.source, text)
    # A float64 that is too large for float32 becomes inf; the message below still has its value.
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.array(raw.values, dtype=np.float32, order="C")
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = divmod(int(bad.argmax()), values.shape[1])
        text = f"value is {raw.values[row, column]:g}; predictions must be finite float32 numbers."
        text += " Write a large negative number such as -10000 for minus infinity." if layout.is_logits else ""
        raise defect("predictions_not_finite", text=text, column=layout.columns[column], **raw.location(row))
    probs = _softmax(values) if layout.is_logits else values
    resolution = FULL if layout.is_logits else resolution_of(values)
    n_renormalised = 0 if layout.is_logits else _repair(raw, probs, resolution)
    probs[probs < _TINY] = 0.0
    return Predictions(
        probs=probs,
        labels=check_labels(raw),
        ids=check_ids(raw, seen),
        logits=values if keep_logits and layout.is_logits else None,
        class_names=layout.class_names,
        source=layout.source,
        n_renormalised=n_renormalised,
        tags=check_tags(raw),
        resolution=resolution,
    )


class _Growing:
    """An array that grows by `realloc`, without a second copy in memory."""

    def __init__(self, like: NDArray[Any]) -> None:
        self._array = np.empty_like(like)
        self._used = 0

    def append(self, rows: NDArray[Any]) -> None:
        used = self._used + len(rows)
        if used > len(self._array):
            self._array.resize((max(used, len(self._array) * 9 // 8), *rows.shape[1:]), refcheck=False)
        self._array[self._used : used] = rows
        self._used = used

    def finish(self) -> NDArray[Any]:
        self._array.resize((self._used, *self._array.shape[1:]), refcheck=False)
        return self._array


def gather(chunks: Iterable[RawRows], *, keep_logits: bool, progress: RowProgress | None) -> Predictions:
    """Check and join the chunks of a source, at least one."""
    seen: dict[str, None] = {}
    parts: dict[str, _Growing] = {}
    tags: dict[str, list[str]] = {}
    top: list[TopRows] = []
    n_rows = n_renormalised = 0
    resolutions: list[int] = []
    for raw in chunks:
        rows = check(raw, keep_logits=keep_logits, seen=seen)
        for name, array in (("probs", rows.probs), ("labels", rows.labels), ("logits", rows.logits)):
            if array is not None:
                if name not in parts:
                    parts[name] = _Growing(array)
                parts[name].append(array)
        for key, values in rows.tags.items():
            tags.setdefault(key, []).extend(values)
        top += [] if rows.top is None else [rows.top]
        resolutions += [rows.resolution] if len(rows) else []
        n_rows += len(rows)
        n_renormalised += rows.n_renormalised
        if progress is not None:
            progress(n_rows, raw.layout.n_rows)
    joined = {name: part.finish() for name, part in parts.items()}
    return Predictions(
        probs=joined["probs"],
        labels=joined.get("labels"),
        ids=None if rows.ids is None else tuple(seen),
        logits=joined.get("logits"),
        class_names=rows.class_names,
        source=rows.source,
        n_renormalised=n_renormalised,
        tags={key: tuple(values) for key, values in tags.items()},
        top=TopRows.join(top) if top else None,
        resolution=finest(resolutions),
    )
