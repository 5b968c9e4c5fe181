"""Cells of outlier score, confidence and predicted class, and how the calibration rows of each segment fall into them.

A segment is the rows with one value of one tag. Segments often differ from each other without any drift, so each is
compared with its own calibration rows where it has enough of them. A bundle keeps these as counts: of a segment neither
rows nor its name, only a hash of the name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.urn import Ints, ScoreCells, log_odds
from darksight_core.errors import ConfigError
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats
from darksight_core.rows.tags import MAX_TAGS, REFERENCE

__all__ = ["LEAST_ROWS", "MAX_SEGMENTS", "Segment", "SegmentCells", "SegmentCounts", "segment_hash", "tag_hashes"]

Segment: TypeAlias = tuple[str, str]
"""Key and value of a tag."""

MAX_SEGMENTS = 400
"""Most segments that one family of tests has, and whose counts a bundle keeps."""

LEAST_ROWS = 100
"""Fewest calibration rows with which a segment is compared."""

# Most cells of predicted classes: rarer classes share the last one.
_CLASSES = 40


@dataclass(frozen=True, slots=True, eq=False)
class SegmentCells:
    """Cells of rows: of the outlier score, of confidence, and of the predicted class.

    Parameters
    ----------
    calibration
        All calibration rows, which cut the cells of the two scores.
    class_counts
        Reference rows of each predicted class, (K,).

    `usual` are the shares of the calibration or reference rows in the cells of each, (B,).
    """

    calibration: Calibration
    class_counts: Ints
    usual: tuple[Floats, ...] = field(init=False)
    _scores: ScoreCells = field(init=False)
    _confidence: ScoreCells = field(init=False)
    _classes: Ints = field(init=False)

    def __post_init__(self) -> None:
        if self.calibration.top is None:
            raise ConfigError("the bundle has no largest probabilities of its calibration rows; fit it again")
        cells = ScoreCells(self.calibration), ScoreCells(Calibration(log_odds(self.calibration.top)))
        frequent = np.sort(np.argsort(-self.class_counts, kind="stable")[:_CLASSES])
        classes = np.full(len(self.class_counts), len(frequent) - 1)
        classes[frequent] = np.arange(len(frequent))
        counts = (cells[0].gaps, cells[1].gaps, np.bincount(classes, self.class_counts))
        usual = tuple(each / max(each.sum(), 1) for each in counts)
        for name, value in zip(("usual", "_scores", "_confidence", "_classes"), (usual, *cells, classes), strict=True):
            object.__setattr__(self, name, value)

    def cells(self, scores: Floats, top: Floats, classes: NDArray[np.integer], uniforms: Floats) -> Ints:
        """Cells of rows, (m, 3).

        Rows of classes that the bundle does not have are in the last cell.

        Parameters
        ----------
        scores, top, classes, uniforms
            As in `RowBatch`.
        """
        is_known = (classes >= 0) & (classes < len(self._classes))
        found = (
            self._scores.cells(scores, uniforms[:, 0]),
            self._confidence.cells(log_odds(top), uniforms[:, 1]),
            self._classes[np.where(is_known, classes, -1)],
        )
        return np.stack(found, axis=1)

    def count(self, cells: Ints) -> tuple[Ints, ...]:
        """Rows in each cell of each of the three, (B,)."""
        return tuple(np.bincount(each, minlength=len(usual)) for each, usual in zip(cells.T, self.usual, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class SegmentCounts:
    """Calibration rows of segments in each cell.

    Parameters
    ----------
    hashes
        Hash of each segment, (S,) uint64.
    counts
        Rows in the cells of score, confidence and class, one after the other, (S, B) int32.
    """

    hashes: NDArray[np.uint64]
    counts: NDArray[np.int32]

    def __post_init__(self) -> None:
        rows, cells = self.counts.shape if self.counts.ndim == 2 else (-1, 0)
        if self.hashes.shape != (rows,) or not 1 <= rows <= MAX_SEGMENTS or not 1 <= cells <= 3 * _CLASSES:
            raise ConfigError(f"counts of 1 to {MAX_SEGMENTS} segments need as many hashes")
        if self.hashes.dtype != np.uint64 or self.counts.dtype != np.int32 or self.counts.min() < 0:
            raise ConfigError("hashes of segments must be uint64, their counts int32 and not negative")

    @classmethod
    def of(cls, cells: SegmentCells, places: Ints, hashes: NDArray[np.uint64]) -> SegmentCounts | None:
        """Counts of the segments with enough calibration rows, those with the most first; None if there is none.

        Parameters
        ----------
        cells
            Cells of the calibration.
        places
            Cells of the calibration rows, (n, 3).
        hashes
            Hashes of the tags of each, (n, tags); see `tag_hashes`.
        """
        found, sizes = np.unique(hashes[hashes != 0], return_counts=True)
        kept = found[np.argsort(-sizes, kind="stable")][: min(int((sizes >= LEAST_ROWS).sum()), MAX_SEGMENTS)]
        if not len(kept):
            return None
        counts = [np.concatenate(cells.count(places[(hashes == each).any(axis=1)])) for each in kept]
        return cls(kept, np.stack(counts).astype(np.int32))

    def counts_of(self, segment: Segment, cells: SegmentCells) -> tuple[Ints, ...] | None:
        """Calibration rows of a segment in each cell of the three; None if it has too few."""
        sizes = [len(each) for each in cells.usual]
        if self.counts.shape[1] != sum(sizes):
            raise ConfigError("the counts of segments have other cells than the calibration; fit the bundle again")
        at = np.flatnonzero(self.hashes == segment_hash(*segment))
        return tuple(np.split(self.counts[at[0]].astype(np.int64), np.cumsum(sizes)[:-1])) if len(at) else None

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        return {"hashes": self.hashes, "counts": self.counts}


def segment_hash(key: str, value: str) -> np.uint64:
    """Hash of a segment, never zero."""
    digest = blake2b(f"{key}={value}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little") or 1)


def tag_hashes(tags: Mapping[str, Sequence[str]], rows: Ints) -> NDArray[np.uint64]:
    """Hashes of the tags of some rows, zero where a row has no tag, (m, `MAX_TAGS`)."""
    hashes = np.zeros((len(rows), MAX_TAGS), dtype=np.uint64)
    keys = [key for key in tags if key != REFERENCE][:MAX_TAGS]
    for column, key in enumerate(keys):
        known: dict[str, np.uint64] = {"": np.uint64(0)}
        for row, number in enumerate(rows.tolist()):
            value = tags[key][number]
            if value not in known:
                known[value] = segment_hash(key, value)
            hashes[row, column] = known[value]
    return hashes
