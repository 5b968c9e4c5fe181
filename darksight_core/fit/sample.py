"""A sample of a store that is too large to fit whole, drawn in one pass and in memory that does not grow with it.

Rows to calibrate and to test are drawn alike from all rows: a p-value is a promise about rows like those. Of the
others, half of the rows to fit are drawn alike too, and half with odds proportional to entropy, because the rows that
shape the map are the few that are not one-hot. Both halves are the rows with the smallest keys, a reservoir that never
holds more than it returns:

    drawn alike     key u                      u uniform on (0, 1)
    by entropy      key -log(v) / H            v uniform on (0, 1)     (Efraimidis and Spirakis, 2006)

Given the keys of all other rows, row i is in a half if its key is below a threshold τ that these set: with probability
(τ - h) / (1 - h) and 1 - exp(-H_i τ), h being the largest key of the rows held out. So it is in the sample with
probability p_i = 1 - (1 - p_alike)(1 - p_entropy), and stands for 1 / p_i rows: sums with these counts are unbiased.
Keys follow from the seed and the number of the row, so the sample does not depend on chunks or processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.fit.distributed.process_group import BLOCK_ROWS, ProcessGroup
from darksight_core.predictions import Predictions, mixed_labels
from darksight_core.predictions.split import Split, make_split
from darksight_core.rows.simplex import Floats, entropy, log_probs

__all__ = ["Sample", "draw_sample"]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Rows drawn from a store.

    Parameters
    ----------
    split
        What each row of the sample is for.
    even
        Those of the rows to fit that were drawn alike.
    counts
        How many rows of the store each of the rows to fit stands for, (m,).
    rows, of, seed
        Rows that were asked for, rows of the store, and the seed.
    """

    split: Split
    even: NDArray[np.int64]
    counts: Floats
    rows: int
    of: int
    seed: int

    def as_dict(self) -> dict[str, object]:
        """Plain values for a manifest."""
        fit = len(self.split.fit)
        return {
            "rows": self.rows, "of": self.of, "seed": self.seed,
            "fit": fit, "drawn_alike": len(self.even), "by_entropy_alone": fit - len(self.even),
        }  # fmt: skip


class _Reservoir:
    """The rows of smallest key seen so far, at most `size`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.keys: Floats = np.empty(0)
        self.rows: list[NDArray[Any]] = []

    def offer(self, keys: Floats, rows: list[NDArray[Any]]) -> None:
        if self.rows:
            worth = np.flatnonzero(keys < self.keys.max()) if len(self.keys) == self.size else np.arange(len(keys))
            keys = np.concatenate([self.keys, keys[worth]])
            rows = [np.concatenate([mine, new[worth]]) for mine, new in zip(self.rows, rows, strict=True)]
        if len(keys) > self.size:
            kept = np.argpartition(keys, self.size - 1)[: self.size]
            keys, rows = keys[kept], [array[kept] for array in rows]
        self.keys, self.rows = keys, rows

    def ordered(self, group: ProcessGroup) -> tuple[Floats, list[NDArray[Any]]]:
        """Keys and rows of all processes, the smallest first."""
        keys, rows = group.gather(self.keys), [group.gather(array) for array in self.rows]
        order = np.argsort(keys, kind="stable")[: self.size]
        return keys[order], [array[order] for array in rows]


def draw_sample(
    chunks: Iterable[tuple[int, Predictions]],
    size: int,
    total: int,
    seed: int,
    shares: tuple[float, float, float],
    *,
    like: Predictions,
    group: ProcessGroup | None = None,
) -> tuple[Predictions, Sample]:
    """Draw a sample, in the order of the store; every process gets all of it.

    Parameters
    ----------
    chunks
        Rows of this process, each chunk with the number of its first row.
    size
        Rows to draw.
    total
        Rows of the store.
    seed
        Same store and seed give the same sample.
    shares
        Share of the drawn rows to fit, calibrate and test.
    like
        No rows, with the classes of the store, and labels if it has any.
    group
        The processes.
    """
    group = group or ProcessGroup()
    if size >= total:
        raise ConfigError(f"a sample of {size:,} of {total:,} rows is all of them; omit --sample")
    plan = make_split(size, seed, shares)
    held, fit = len(plan.calibrate) + len(plan.test), len(plan.fit)
    alike, by_entropy = fit - fit // 2, fit // 2
    # One row more than is kept gives the threshold. Rows held out may be among those of high entropy, too.
    first, second = _Reservoir(held + alike + 1), _Reservoir(held + by_entropy + 1)
    nothing: list[NDArray[Any]] = [
        np.empty(0, np.int64),
        np.empty((0, 2)),
        like.probs,
        *([] if like.labels is None else [like.labels]),
    ]
    for reservoir in (first, second):
        reservoir.offer(np.empty(0), nothing)
    for start, chunk in chunks:
        if (chunk.labels is None) != (like.labels is None):
            raise mixed_labels(like.source)
        uniform = _uniform(seed, start, len(chunk))
        spread = np.maximum(entropy(log_probs(chunk.probs)), 0.0)
        # A row of no entropy has no odds in the second half.
        keys = np.stack([uniform[:, 0], -np.log(uniform[:, 1]) / np.maximum(spread, 1e-300)], axis=1)
        facts = np.stack([keys[:, 0], spread], axis=1)
        numbers = np.arange(start, start + len(chunk))
        rows: list[NDArray[Any]] = [numbers, facts, chunk.probs, *([] if chunk.labels is None else [chunk.labels])]
        first.offer(keys[:, 0], rows)
        second.offer(keys[:, 1], rows)
    return _finish(first, second, held, len(plan.calibrate), alike, by_entropy, like, (size, total, seed), group)


def _uniform(seed: int, start: int, count: int) -> Floats:
    """Two uniform numbers for each row, which depend on its number and the seed alone."""
    found = []
    for block in range(start // BLOCK_ROWS, (start + count - 1) // BLOCK_ROWS + 1):
        low, high = max(start - block * BLOCK_ROWS, 0), min(start + count - block * BLOCK_ROWS, BLOCK_ROWS)
        found.append(np.random.default_rng((seed, block)).random((BLOCK_ROWS, 2))[low:high])
    # Between 0 and 1, without the ends.
    return np.concatenate(found) * (1.0 - 2.0**-53) + 2.0**-54


def _finish(
    first: _Reservoir,
    second: _Reservoir,
    held: int,
    calibrate: int,
    alike: int,
    by_entropy: int,
    like: Predictions,
    told: tuple[int, int, int],
    group: ProcessGroup,
) -> tuple[Predictions, Sample]:
    """Both reservoirs as one sample: keys decide what is for what, thresholds how many rows each stands for."""
    (keys_1, rows_1), (keys_2, rows_2) = first.ordered(group), second.ordered(group)
    free = ~np.isin(rows_2[0], rows_1[0][:held])
    keys_2, rows_2 = keys_2[free][: by_entropy + 1], [array[free][: by_entropy + 1] for array in rows_2]
    last_held = float(keys_1[held - 1]) if held else 0.0
    in_first, in_second = rows_1[0][held : held + alike], rows_2[0][:by_entropy]
    extra = ~np.isin(in_second, in_first)
    fit = [np.concatenate([a[held : held + alike], b[:by_entropy][extra]]) for a, b in zip(rows_1, rows_2, strict=True)]
    facts = np.asarray(fit[1], dtype=np.float64)
    # The threshold that the other rows set: of a row inside, the next key; of a row outside, the last key inside.
    inside_1, inside_2 = np.isin(fit[0], in_first), np.isin(fit[0], in_second)
    limit_1 = np.where(inside_1, keys_1[held + alike], keys_1[held + alike - 1])
    limit_2 = np.where(inside_2, keys_2[-1] if len(keys_2) > by_entropy else math.inf, keys_2[len(in_second) - 1])
    p_1 = (limit_1 - last_held) / (1.0 - last_held)
    p_2 = -np.expm1(-facts[:, 1] * np.minimum(limit_2, 1e300))
    counts = 1.0 / (1.0 - (1.0 - p_1) * (1.0 - p_2))
    arrays = [np.concatenate([a[:held], b]) for a, b in zip(rows_1, fit, strict=True)]
    order = np.argsort(arrays[0], kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    fit_places = place[held:]
    by_place = np.argsort(fit_places)
    split = Split(fit_places[by_place], np.sort(place[:calibrate]), np.sort(place[calibrate:held]))
    predictions = Predictions(
        probs=np.ascontiguousarray(arrays[2][order], dtype=np.float32),
        labels=None if like.labels is None else np.asarray(arrays[3][order], dtype=np.int64),
        ids=None,
        logits=None,
        class_names=like.class_names,
        source=like.source,
    )
    return predictions, Sample(split, np.sort(fit_places[inside_1]), counts[by_place], *told)
