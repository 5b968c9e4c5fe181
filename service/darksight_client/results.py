"""What the service says about predictions: columns for a batch, a record for a row.

Columns are numpy arrays, read-only, in the order of the batch that was sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_client.columns import COLUMNS, Columns

__all__ = [
    "Batch",
    "Decision",
    "Gated",
    "Point",
    "Reason",
    "Scored",
    "joined",
    "read_point",
    "read_scored",
    "read_time",
]


class Decision(IntEnum):
    """Whether the prediction may be acted on."""

    UNSPECIFIED = 0
    ACCEPT = 1
    REJECT = 2

    @classmethod
    def _missing_(cls, value: object) -> Decision:
        return cls.UNSPECIFIED


class Reason(IntEnum):
    """Why; a reason that only a newer server knows is UNSPECIFIED."""

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
    """One call, as the server stored it.

    Parameters
    ----------
    id
        UUIDv7.
    rows
        How many it has.
    """

    id: uuid.UUID
    rows: int


@dataclass(frozen=True, slots=True)
class Gated:
    """What the service says about one prediction.

    Parameters
    ----------
    accepted
        Whether it may be acted on.
    decision, reason
        The same with its reason.
    p_value
        Conformal rank of the outlier score; small is unusual.
    log_density, log_kde
        log P(y; θ) and the log of the density of the reference points.
    point
        Place on the map.
    prediction_id
        By which `report` finds the prediction again.
    version
        Bundle that scored it, its sha256.
    recorded
        Whether the point was on the server's disk before it answered.
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


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """What the service says about n predictions, as columns.

    Parameters
    ----------
    model, version
        The watched classifier, and the bundle that scored all rows, its sha256.
    batches
        Calls that the rows went in; more than one if they were too many for a message.
    decision, reason
        `Decision` and `Reason` of each row, (n,) int8.
    p_value
        Conformal rank of the outlier score, (n,); small is unusual.
    log_density, log_kde
        log P(y; θ) and the log of the density of the reference points, (n,).
    points
        Places on the map, (n, 2).
    recorded
        Whether all points were on the server's disk before it answered.
    names
        The caller's ids of the predictions, n or none.
    """

    model: str
    version: str
    batches: tuple[Batch, ...]
    decision: NDArray[np.int8]
    reason: NDArray[np.int8]
    p_value: NDArray[np.float64]
    log_density: NDArray[np.float64]
    log_kde: NDArray[np.float64]
    points: NDArray[np.float64]
    recorded: bool
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.decision)

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
        )

    def __iter__(self) -> Iterator[Gated]:
        return (self[row] for row in range(len(self)))

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Which rows may be acted on, (n,)."""
        return np.equal(self.decision, np.int8(Decision.ACCEPT))

    @property
    def batch_id(self) -> uuid.UUID:
        """Id of the first call."""
        return self.batches[0].id

    @property
    def prediction_ids(self) -> tuple[str, ...]:
        """The caller's ids, or those that the server gives to rows without: "<batch id>-<row>"."""
        if self.names:
            return self.names
        return tuple(f"{text}-{row}" for text, rows in self._calls() for row in range(rows))

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
    """A stored point, as ListPoints gives it; see monitor.proto."""

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


def read_scored(message: Any, columns: Columns, names: tuple[str, ...]) -> Scored:
    """Result from what `columns` read."""
    if len(message.batch_id) != 16:
        raise ValueError(f"a batch id of {len(message.batch_id)} bytes")
    batch = Batch(uuid.UUID(bytes=message.batch_id), len(columns["decision"]))
    return Scored(message.model, message.version, (batch,), **columns, recorded=message.recorded, names=names)


def joined(parts: Sequence[Scored]) -> Scored:
    """One result from those of the parts of a batch, all of one version."""
    if len(parts) == 1:
        return parts[0]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
    for column in columns.values():
        column.flags.writeable = False
    return Scored(
        parts[0].model,
        parts[0].version,
        tuple(batch for part in parts for batch in part.batches),
        **columns,
        recorded=all(part.recorded for part in parts),
        names=tuple(name for part in parts for name in part.names),
    )


def read_time(message: Any, field: str) -> datetime | None:
    """A Timestamp, or None if it is not set."""
    value: datetime | None = getattr(message, field).ToDatetime(UTC) if message.HasField(field) else None
    return value


def read_point(message: Any) -> Point:
    """A Point from its message."""
    return Point(
        id=message.id,
        prediction_id=message.prediction_id,
        model=message.model,
        version=message.version,
        received_at=message.received_at.ToDatetime(UTC),
        event_time=read_time(message, "event_time"),
        x=message.x,
        y=message.y,
        log_density=message.log_density,
        log_kde=message.log_kde,
        p_value=message.p_value,
        decision=Decision(message.decision),
        reason=Reason(message.reason),
        predicted=message.predicted if message.HasField("predicted") else None,
        top_probability=message.top_probability,
        label=message.label if message.HasField("label") else None,
        probabilities=tuple(message.probabilities),
    )
