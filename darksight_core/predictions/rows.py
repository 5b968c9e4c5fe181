"""Checked rows of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.predictions.defects import defect
from darksight_core.rows.frames import FrameError, column_order
from darksight_core.rows.partial import TopRows, complete

__all__ = ["Predictions", "labels_among"]


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Checked predictions of a classifier, made by `read_predictions`, `iter_predictions` or `from_arrays`.

    Parameters
    ----------
    probs
        π, (n, K) float32, C-contiguous; each row is on the simplex.
    labels
        True class of each row, (n,) int64 in 0..K-1, or None.
    ids
        Id of each row, n unique non-empty texts, or None.
    logits
        (n, K) float32 if requested and given, else None.
    class_names
        K unique names; "0".."K-1" if the source has none.
    source
        Name of the source, for messages.
    n_renormalised
        Number of rows of the source whose sum differed from one by more than 1e-6 and was repaired.
    tags
        Values of each key of tags, n texts, empty where a row has none; see `darksight_core.rows.tags`.
    top
        The rows as they came, if only their most probable classes are known; None if all are. `probs` are then
        completed with an even spread of the rest; see `of_top`.
    resolution
        Number of what the rows resolved before sums were repaired; see `darksight_core.rows.resolution`.
    """

    probs: NDArray[np.float32]
    labels: NDArray[np.int64] | None
    ids: tuple[str, ...] | None
    logits: NDArray[np.float32] | None
    class_names: tuple[str, ...]
    source: str
    n_renormalised: int = 0
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    top: TopRows | None = None
    resolution: int = 0

    @classmethod
    def of_top(
        cls,
        top: TopRows,
        class_names: Sequence[str],
        source: str,
        *,
        labels: NDArray[np.int64] | None = None,
        ids: tuple[str, ...] | None = None,
        tags: Mapping[str, tuple[str, ...]] | None = None,
    ) -> Predictions:
        """Predictions of rows whose most probable classes are known; TopRowsError if they cannot be of these classes.

        Parameters
        ----------
        top
            The rows.
        class_names, source, labels, ids, tags
            As above, checked.
        """
        top.check(len(class_names))
        probs = complete(top, np.ones(len(class_names))).astype(np.float32)
        return cls(
            probs, labels, ids, None, tuple(class_names), source, tags=tags or {}, top=top, resolution=top.resolution
        )

    def __len__(self) -> int:
        return int(self.probs.shape[0])

    @property
    def rows(self) -> TopRows | NDArray[np.float32]:
        """The rows to score: as they came."""
        return self.probs if self.top is None else self.top

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return int(self.probs.shape[1])

    def take(self, indices: ArrayLike) -> Predictions:
        """Copies of the rows with these numbers, in this order.

        Parameters
        ----------
        indices
            (m,) integers, or a mask of (n,) booleans.
        """
        given = np.asarray(indices)
        rows = np.arange(len(self))[given if given.size else given.astype(np.int64)]
        return replace(
            self,
            probs=self.probs[rows],
            labels=None if self.labels is None else self.labels[rows],
            ids=None if self.ids is None else tuple(self.ids[row] for row in rows.tolist()),
            logits=None if self.logits is None else self.logits[rows],
            tags={key: tuple(values[row] for row in rows.tolist()) for key, values in self.tags.items()},
            top=None if self.top is None else self.top.take(rows),
        )

    def in_order(self, class_names: Sequence[str]) -> Predictions:
        """The same rows with the classes in this order; PredictionsError if one is missing or unknown.

        Unchanged if the rows or the order have numbers in place of names.
        """
        wanted = tuple(class_names)
        is_named = (names != tuple(map(str, range(len(names)))) for names in (self.class_names, wanted))
        if wanted in ((), self.class_names) or ({*wanted} != {*self.class_names} and not all(is_named)):
            return self
        try:
            order = column_order(self.class_names, wanted)
        except FrameError as error:
            raise defect("predictions_class_names", self.source, error.message.removeprefix("class_names: ")) from None
        return replace(
            self,
            probs=np.ascontiguousarray(self.probs[:, order]),
            labels=None if self.labels is None else np.argsort(order)[self.labels],
            logits=None if self.logits is None else np.ascontiguousarray(self.logits[:, order]),
            class_names=wanted,
            top=None if self.top is None else self.top.renumbered(np.argsort(order)),
        )

    def tag_dicts(self) -> list[dict[str, str]]:
        """The tags of each row by key; empty without tags."""
        if not self.tags:
            return []
        columns = zip(*self.tags.values(), strict=True)
        return [{key: value for key, value in zip(self.tags, values, strict=True) if value} for values in columns]

    def row_hashes(self) -> NDArray[np.bytes_]:
        """BLAKE2b of the bytes of each row of `probs`, (n,) of 16 bytes.

        Equal rows have equal hashes on every machine. Labels and ids are not included. A saturated classifier gives
        many equal rows.
        """
        width = 4 * self.n_classes
        data = np.ascontiguousarray(self.probs, dtype="<f4").data.cast("B")
        starts = range(0, len(self) * width, width)
        digests = b"".join(blake2b(data[start : start + width], digest_size=16).digest() for start in starts)
        return np.frombuffer(digests, dtype="S16")


def labels_among(labels: NDArray[np.int64] | None, columns: Sequence[int] | None) -> NDArray[np.int64] | None:
    """Labels (n,) as indices into `columns`, the classes on a map; unchanged if `columns` is None, which means all.

    None without labels, or if a label is a class that is not on the map.

    >>> labels_among(np.array([3, 1, 3]), (1, 3))
    array([1, 0, 1])
    """
    if labels is None or columns is None:
        return labels
    number = np.full(max(max(columns), labels.max(initial=0)) + 1, -1)
    number[list(columns)] = np.arange(len(columns))
    found: NDArray[np.int64] = number[labels]
    return None if (found < 0).any() else found
