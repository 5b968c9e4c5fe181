"""Points: scored rows with their ids, names, probabilities and labels, as columns.

The same table comes from spool records, on its way into SQL, and from SQL. Columns of a record are float32 views of its
bytes; those that were read from SQL are float64, and those that a query did not ask for hold no value.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.urn import audit_numbers
from darksight_core.guarantees.prediction_sets import top_classes
from darksight_core.rows.schema import AUDIT_COLUMNS, SCHEMA, Column, Decision, ScoredBatch
from darksight_core.rows.simplex import Floats
from darksight_core.rows.tags import REFERENCE, TagSet
from darksight_service.store.ids import default_prediction_id
from darksight_service.store.texts import Texts

__all__ = [
    "LAST_CLASS",
    "LISTED_COLUMNS",
    "SCORE_COLUMNS",
    "OutcomeBatch",
    "PointFilter",
    "PointTable",
    "TagColumn",
    "is_missing",
    "join_tags",
    "score_columns",
    "score_values",
]

TagColumn: TypeAlias = tuple[tuple[TagSet, ...], NDArray[np.intp]]
"""Different sets of tags, and which of them each row has."""

LAST_CLASS = 0x7FFF
"""SQL has two bytes for the class of a row; this class stands for itself and all above."""

_STORED = tuple(column for column in (*SCHEMA, *AUDIT_COLUMNS) if column.stored)

SCORE_COLUMNS: Mapping[str, Column] = {part: column for column in _STORED for part in column.parts}
"""The SQL columns of a scored row."""

LISTED_COLUMNS: Mapping[str, Column] = {name: column for name, column in SCORE_COLUMNS.items() if column.listed}
"""Those that tables of stored points have as numbers."""


@dataclass(slots=True, eq=False)
class PointTable(ScoredBatch):
    """n points of one model; the other columns are those of `ScoredBatch`.

    Parameters
    ----------
    ids
        (n, 2) big-endian uint64.
    event_ms
        When the prediction was made, in Unix milliseconds, (n,); 0 if not given.
    delay_ms
        How long after the time of its id the point was received, (n,).
    is_shadow
        Whether the version only watched while another one answered, (n,).
    names
        The callers' prediction ids, n.
    probs
        (n, K), NaN in a row whose probabilities are not known; of no classes if none are.
    label
        The right class, (n,); -1 if it is not known.
    model
        Name of the watched classifier.
    versions, bundle
        Bundles that scored the rows, by their sha256, and which of them scored each row, (n,).
    tag_sets, tags
        Different sets of tags, and which of them each row has, (n,).
    references
        Where the inputs of the classifier are, n.
    traces
        Trace ids of the calls, (n, 2) big-endian uint64; 0 for none.
    error_chance, audit_odds
        Probability of being wrong, and of being drawn for the audit, (n,); NaN if the point is not drawn.
    """

    ids: NDArray[np.uint64]
    event_ms: NDArray[np.int64]
    delay_ms: NDArray[np.int64]
    is_shadow: NDArray[np.bool_]
    names: Texts
    probs: NDArray[np.float32]
    label: NDArray[np.int64]
    model: str
    versions: tuple[str, ...]
    bundle: NDArray[np.intp]
    tag_sets: tuple[TagSet, ...]
    tags: NDArray[np.intp]
    references: Texts
    traces: NDArray[np.uint64]
    error_chance: Floats
    audit_odds: Floats

    @classmethod
    def of(cls, ids: NDArray[np.uint64], model: str, versions: tuple[str, ...], **columns: Any) -> Self:
        """A table of the columns given; those left out hold no value."""
        n = len(ids)
        filled: dict[str, Any] = {
            name: np.broadcast_to(value, (n, 2) if name in ("points", "traces") else n)
            for name, value in _MISSING.items()
            if name not in columns
        }
        for name in {"names", "references"} - columns.keys():
            filled[name] = Texts.none(n)
        if "probs" not in columns:
            filled["probs"] = np.empty((n, 0), dtype=np.float32)
        if "tag_sets" not in columns:
            filled["tag_sets"] = ((),)
        return cls(ids=ids, model=model, versions=versions, **filled, **columns)

    @property
    def id_ms(self) -> NDArray[np.int64]:
        """The time in each id, by which points are sorted, counted and deleted, (n,)."""
        return (self.ids[:, 0] >> np.uint64(16)).astype(np.int64)

    @property
    def received_ms(self) -> NDArray[np.int64]:
        """When each point was received, by the clock of the server, (n,)."""
        return self.id_ms + self.delay_ms

    @property
    def is_labelled(self) -> NDArray[np.bool_]:
        """Which points have a label, (n,)."""
        return np.greater_equal(self.label, 0)

    @property
    def errors(self) -> NDArray[np.bool_]:
        """Which points are known to be wrong, (n,)."""
        return self.is_labelled & np.not_equal(self.predicted, self.label)

    def id_bytes(self) -> list[bytes]:
        """The ids, 16 bytes each."""
        return _bytes16(self.ids)

    def trace_bytes(self) -> list[bytes]:
        """The trace ids, 16 bytes each; zeros for none."""
        return _bytes16(self.traces)

    def sample(self) -> PointTable:
        """The rows of a uniform sample: all of them, unless rows like some of them were left out."""
        lowest = float(np.min(self.odds, initial=1.0))
        return self if lowest >= 1.0 else self.take(audit_numbers(self.ids) < lowest)

    def tag_dicts(self) -> list[dict[str, str]]:
        """The tags of each point by key, with its reference."""
        found = [dict(self.tag_sets[number]) for number in self.tags.tolist()]
        for tags, reference in zip(found, self.references.tolist(), strict=True):
            if reference is not None:
                tags[REFERENCE] = reference
        return found

    def prediction_ids(self) -> list[str]:
        """The callers' prediction ids, and the default ones of rows without."""
        names = zip(self.id_bytes(), self.names.tolist(), strict=True)
        return [default_prediction_id(each) if name is None else name for each, name in names]

    def take(self, rows: NDArray[Any] | slice) -> PointTable:
        """The rows with these numbers, or those that a mask selects."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return PointTable(**columns, model=self.model, versions=self.versions, tag_sets=self.tag_sets)

    @classmethod
    def join(cls, batches: Sequence[Self]) -> Self:
        """One table of several of the same model, row after row; probabilities of fewer classes than others are NaN."""
        if not batches:
            return cls.of(np.empty((0, 2), dtype=">u8"), "", ())
        if len(batches) == 1:
            return batches[0]
        versions = tuple(dict.fromkeys(version for batch in batches for version in batch.versions))
        classes = max(batch.probs.shape[1] for batch in batches)
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in batches])
            for name in _COLUMNS
            if name not in ("ids", "names", "probs", "bundle", "tags", "references", "traces")
        }
        tag_sets, tags = join_tags([(part.tag_sets, part.tags) for part in batches])
        numbers = [np.array([versions.index(each) for each in part.versions], dtype=np.intp) for part in batches]
        return cls(
            **columns,
            # numpy would make it the byte order of the machine.
            ids=np.concatenate([part.ids for part in batches], dtype=">u8"),
            model=batches[0].model,
            versions=versions,
            bundle=np.concatenate([number[part.bundle] for number, part in zip(numbers, batches, strict=True)]),
            names=Texts.join([part.names for part in batches]),
            tag_sets=tag_sets,
            tags=tags,
            references=Texts.join([part.references for part in batches]),
            traces=np.concatenate([part.traces for part in batches], dtype=">u8"),
            probs=np.concatenate([_widened(part.probs, classes) for part in batches]),
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each point as Python values by name, scores under their names in SQL; `probs` is an array.

        `prediction_set` is empty if there is no set, or if the stored probabilities do not tell its classes.
        """
        columns: dict[str, Sequence[Any]] = {
            "id": [str(uuid.UUID(bytes=each)) for each in self.id_bytes()],
            "prediction_id": self.prediction_ids(),
            "version": [self.versions[number] for number in self.bundle.tolist()],
            "received_ms": self.received_ms.tolist(),
            "event_ms": self.event_ms.tolist(),
            "is_shadow": self.is_shadow.tolist(),
            **{name: values.tolist() for name, values in score_values(self).items()},
            "decision": self.decision.tolist(),
            "label": self.label.tolist(),
            "tags": self.tag_dicts(),
            "reference": [each or "" for each in self.references.tolist()],
            "trace_id": [each.hex() if any(each) else "" for each in self.trace_bytes()],
            "probs": [row if known else row[:0] for row, known in zip(self.probs, _are_known(self.probs), strict=True)],
        }
        columns["prediction_set"] = [
            top_classes(row, size).tolist() if size else []
            for row, size in zip(columns["probs"], columns["set_size"], strict=True)
        ]
        for values in zip(*columns.values(), strict=True):
            yield {"model": self.model, **dict(zip(columns, values, strict=True))}


_MISSING: dict[str, Any] = {
    column.name: np.array(column.missing, column.dtype) for column in (*SCHEMA, *AUDIT_COLUMNS)
} | {
    "event_ms": np.int64(0),
    "delay_ms": np.int64(0),
    "is_shadow": np.False_,
    "label": np.int64(-1),
    "bundle": np.intp(0),
    "tags": np.intp(0),
    "traces": np.zeros((), dtype=">u8"),
}
_COLUMNS = tuple(each.name for each in fields(PointTable) if each.name not in ("model", "versions", "tag_sets"))


@dataclass(frozen=True, slots=True, eq=False)
class OutcomeBatch:
    """True labels that a caller reported.

    Parameters
    ----------
    model
        Name of the watched classifier.
    received_ms
        When the report was received, in Unix milliseconds.
    prediction_ids
        Predictions that the n labels belong to.
    labels
        True classes, (n,) int32.
    observed_ms
        When each label became known, (n,) int64 Unix milliseconds; 0 if not given.
    """

    model: str
    received_ms: int
    prediction_ids: tuple[str, ...]
    labels: NDArray[np.int32]
    observed_ms: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class PointFilter:
    """Which points to read; an empty tuple allows all.

    Parameters
    ----------
    model
        Name of the watched classifier.
    version
        sha256 of the bundle; None for all versions.
    since_ms, until_ms
        Received at or after, and before, in Unix milliseconds.
    decisions, reasons, predicted
        Numbers of `Decision` and `Reason`, and classes.
    is_shadow
        Points of shadow versions instead of those that were answered.
    tags
        Pairs of key and value, all of which a point must have.
    """

    model: str
    version: str | None = None
    since_ms: int = 0
    until_ms: int = (1 << 48) - 1
    decisions: tuple[int, ...] = ()
    reasons: tuple[int, ...] = ()
    predicted: tuple[int, ...] = ()
    is_shadow: bool = False
    tags: TagSet = ()


def join_tags(parts: Sequence[TagColumn]) -> TagColumn:
    """The tags of several tables, row after row."""
    numbers: dict[TagSet, int] = {}
    found = []
    for sets, index in parts:
        places = np.array([numbers.setdefault(each, len(numbers)) for each in sets], dtype=np.intp)
        found.append(places[index])
    return tuple(numbers), np.concatenate(found)


def score_values(batch: PointTable) -> dict[str, NDArray[Any]]:
    """The values of `SCORE_COLUMNS`, (n,) each; those that are NULL in SQL are their column's `missing`."""
    found = {}
    for column in _STORED:
        values = getattr(batch, column.name).reshape(len(batch), column.width)
        for number, part in enumerate(column.parts):
            found[part] = _to_sql(part, values[:, number], column)
    return found


def score_columns(values: Mapping[str, Sequence[Any]]) -> dict[str, NDArray[Any]]:
    """Inverse of `score_values`: columns of a `ScoredBatch` from SQL values; columns without values are left out."""
    found = {}
    for column in _STORED:
        if column.parts[0] in values:
            parts = [_from_sql(part, values[part], column) for part in column.parts]
            found[column.name] = parts[0] if column.width == 1 else np.stack(parts, axis=1)
    return found


def _to_sql(part: str, values: NDArray[Any], column: Column) -> NDArray[Any]:
    if part == "is_accepted":
        values = np.equal(values, Decision.ACCEPT)
    elif column.stored == "<i4":
        values = np.minimum(values, LAST_CLASS)
    return values


def _from_sql(part: str, values: Sequence[Any], column: Column) -> NDArray[Any]:
    if part == "is_accepted":
        return np.where(np.array(values, dtype=bool), np.int8(Decision.ACCEPT), np.int8(Decision.REJECT))
    if column.nullable and not math.isnan(column.missing):
        values = [column.missing if each is None else each for each in values]
    return np.array(values, dtype=column.dtype)


def is_missing(values: NDArray[Any], column: Column) -> NDArray[np.bool_]:
    """Which values of `score_values` are NULL in SQL, (n,)."""
    found: NDArray[np.bool_] = np.isnan(values) if math.isnan(column.missing) else np.equal(values, column.missing)
    return found


def _bytes16(values: NDArray[np.uint64]) -> list[bytes]:
    found: list[bytes] = np.ascontiguousarray(values, dtype=">u8").view("V16").reshape(-1).tolist()
    return found


def _are_known(probs: NDArray[np.float32]) -> list[bool]:
    known: list[bool] = np.logical_not(np.isnan(probs).all(axis=1)).tolist()
    return known


def _widened(probs: NDArray[np.float32], classes: int) -> NDArray[np.float32]:
    if probs.shape[1] == classes:
        return probs
    return np.full((len(probs), classes), np.nan, dtype=np.float32)
