"""Scored predictions and stored points, as the service returns them.

Columns are read-only numpy arrays in the order of the batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_client.results.columns import COLUMNS, Columns
from darksight_core.rows.schema import ResponseColumns

__all__ = [
    "Batch",
    "Decision",
    "Gated",
    "Point",
    "Reason",
    "Scored",
    "joined",
    "read_scored",
]


class Decision(IntEnum):
    """Whether a prediction may be acted on."""

    UNSPECIFIED = 0
    ACCEPT = 1
    REJECT = 2

    @classmethod
    def _missing_(cls, value: object) -> Decision:
        return cls.UNSPECIFIED


class Reason(IntEnum):
    """Why a decision was made. A reason that this client does not know is UNSPECIFIED."""

    UNSPECIFIED = 0
    NONE = 1
    OUTLIER = 2
    LOW_CONFIDENCE = 3
    REGION = 4
    INVALID = 5
    UNSCORED = 6

    @classmethod
    def _missing_(cls, value: object) -> Reason:
        return cls.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that were scored and stored by one call.

    Parameters
    ----------
    id
        UUIDv7.
    rows
        Number of rows.
    """

    id: uuid.UUID
    rows: int


@dataclass(frozen=True, slots=True)
class Gated:
    """One scored prediction.

    Parameters
    ----------
    accepted
        Whether it may be acted on.
    decision, reason
        The decision and its reason.
    p_value
        Conformal p-value of the outlier score; small values are unusual.
    log_density, log_kde
        log P(y; θ) and the log of the kernel density estimate.
    point
        Map point.
    prediction_id
        Id of the prediction, for `report`.
    version
        sha256 of the bundle that scored it.
    recorded
        Whether the point was on the server's disk before the response was sent.
    failure
        Code of the error because of which `on_failure` of the client decided; empty if the service decided.
    prediction_set
        Classes among which the true class is with the probability that the bundle certifies, most probable class first;
        empty if it is accepted or the bundle has no sets.
    """

    accepted: bool
    decision: Decision
    reason: Reason
    p_value: float
    log_density: float
    log_kde: float
    point: tuple[float, float]
    prediction_id: str
    version: str
    recorded: bool
    failure: str = ""
    prediction_set: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Scored(ResponseColumns):
    """n scored predictions, as columns.

    Parameters
    ----------
    points
        Map points, (n, 2).
    log_density, log_kde
        log P(y; θ) and the log of the kernel density estimate, (n,).
    p_value
        Conformal p-values of the outlier scores, (n,); small values are unusual.
    decision, reason
        `Decision` and `Reason` of each row, (n,) int8.
    model, version
        Name of the watched classifier, and sha256 of the bundle that scored all rows.
    batches
        The calls that scored the rows; more than one if the rows did not fit in one message.
    recorded
        Whether all points were on the server's disk before the response was sent.
    names
        Prediction ids given by the caller, n or none.
    set_size
        Number of classes in the prediction set of each row, (n,); 0 for a row without one.
    set_classes
        Classes of all sets, one set after the other; `prediction_sets` has them by row.
    """

    model: str
    version: str
    batches: tuple[Batch, ...]
    recorded: bool
    names: tuple[str, ...] = ()
    set_size: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    set_classes: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))

    def __getitem__(self, row: int) -> Gated:
        row = range(len(self))[row]
        x, y = self.points[row].tolist()
        decision = Decision(int(self.decision[row]))
        return Gated(
            accepted=decision is Decision.ACCEPT,
            decision=decision,
            reason=Reason(int(self.reason[row])),
            p_value=float(self.p_value[row]),
            log_density=float(self.log_density[row]),
            log_kde=float(self.log_kde[row]),
            point=(x, y),
            prediction_id=self._name(row),
            version=self.version,
            recorded=self.recorded,
            prediction_set=self._set(row),
        )

    def __iter__(self) -> Iterator[Gated]:
        return (self[row] for row in range(len(self)))

    @property
    def batch_id(self) -> uuid.UUID:
        """Id of the first call."""
        return self.batches[0].id

    @property
    def prediction_ids(self) -> tuple[str, ...]:
        """Ids of the predictions: those given by the caller, or "<batch id>-<row>"."""
        if self.names:
            return self.names
        return tuple(f"{text}-{row}" for text, rows in self._calls() for row in range(rows))

    def table_columns(self) -> dict[str, Any]:
        """The columns of the table that `score` returns for a table."""
        return {
            "prediction_id": list(self.prediction_ids),
            **self.file_columns(),
            "accepted": self.accepted,
            "decision": [Decision(number).name.lower() for number in self.decision.tolist()],
            "reason": [Reason(number).name.lower() for number in self.reason.tolist()],
            "version": [self.version] * len(self),
        }

    @property
    def prediction_sets(self) -> tuple[tuple[int, ...], ...]:
        """Classes in the prediction set of each row, most probable class first; empty for a row without one."""
        if not len(self.set_classes):
            return ((),) * len(self)
        ends = np.cumsum(self.set_size)[:-1]
        return tuple(tuple(part.tolist()) for part in np.split(self.set_classes, ends))

    def _set(self, row: int) -> tuple[int, ...]:
        if not len(self.set_classes) or not self.set_size[row]:
            return ()
        end = int(self.set_size[: row + 1].sum())
        return tuple(self.set_classes[end - int(self.set_size[row]) : end].tolist())

    def _calls(self) -> Iterator[tuple[str, int]]:
        return ((str(batch.id), batch.rows) for batch in self.batches)

    def _name(self, row: int) -> str:
        if self.names:
            return self.names[row]
        for text, rows in self._calls():
            if row < rows:
                return f"{text}-{row}"
            row -= rows
        raise IndexError(row)


@dataclass(frozen=True, slots=True)
class Point:
    """A stored point; the fields are described in monitor.proto."""

    id: str
    prediction_id: str
    model: str
    version: str
    received_at: datetime
    event_time: datetime | None
    x: float
    y: float
    log_density: float
    log_kde: float
    p_value: float
    decision: Decision
    reason: Reason
    predicted: int | None
    top_probability: float
    label: int | None
    probabilities: tuple[float, ...]
    tags: Mapping[str, str] = field(default_factory=dict)
    trace_id: str = ""
    prediction_set: tuple[int, ...] = ()
    odds: float = 1.0
    known: int = 0
    other: float | None = None


def read_scored(message: Any, columns: Columns, names: tuple[str, ...]) -> Scored:
    """A Scored from a ScoreResponse and its columns."""
    if len(message.batch_id) != 16:
        raise ValueError(f"a batch id of {len(message.batch_id)} bytes")
    batch = Batch(uuid.UUID(bytes=message.batch_id), len(columns["decision"]))
    return Scored(
        **columns,
        **_read_sets(message, batch.rows),
        model=message.model,
        version=message.version,
        batches=(batch,),
        recorded=message.recorded,
        names=names,
    )


def _read_sets(message: Any, rows: int) -> Columns:
    """Sizes of the prediction sets, (rows,), and their classes."""
    sizes = np.array(message.set_size, dtype=np.int32) if len(message.set_size) else np.zeros(rows, dtype=np.int32)
    classes = np.array(message.set_classes, dtype=np.int32)
    if len(sizes) != rows or (sizes < 0).any() or sizes.sum() != len(classes):
        raise ValueError(f"{len(classes)} classes in prediction sets of {len(sizes)} sizes for {rows} rows")
    sizes.flags.writeable = classes.flags.writeable = False
    return {"set_size": sizes, "set_classes": classes}


def joined(parts: Sequence[Scored]) -> Scored:
    """One Scored from those of the parts of a batch."""
    if len(parts) == 1:
        return parts[0]
    names = (*COLUMNS, "set_size", "set_classes")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    for column in columns.values():
        column.flags.writeable = False
    return Scored(
        **columns,
        model=parts[0].model,
        version=parts[0].version,
        batches=tuple(batch for part in parts for batch in part.batches),
        recorded=all(part.recorded for part in parts),
        names=tuple(name for part in parts for name in part.names),
    )
