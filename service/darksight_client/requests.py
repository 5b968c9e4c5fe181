"""Requests from the caller's arrays, ids and times.

Probabilities become float32 tensors, and rows of the most probable classes a message each. Large batches are split into
parts that fit the message limit. The server checks the values and names the invalid row.
"""

from __future__ import annotations

import math
import operator
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
from google.protobuf.timestamp_pb2 import Timestamp
from numpy.typing import ArrayLike, NDArray

from darksight_client.errors import InvalidRequest
from darksight_client.results.columns import COLUMNS
from darksight_client.results.models import policy_message
from darksight_client.results.regions import as_corners
from darksight_client.stubs.darksight.v1 import monitor_pb2
from darksight_core.rows.frames import Frame, FrameError, read_frame
from darksight_core.rows.partial import TopRows
from darksight_core.rows.resolution import name_of

__all__ = [
    "MAX_ROWS",
    "Part",
    "Tags",
    "Time",
    "as_one_row",
    "as_rows",
    "as_table",
    "as_timestamp",
    "make_batch_id",
    "make_request",
    "outcome_requests",
    "row_fields",
    "score_parts",
]

Time: TypeAlias = datetime | float
"""A datetime with a time zone, or seconds since 1970."""

Tags: TypeAlias = Mapping[str, str] | Sequence[Mapping[str, str]]
"""Tags of all rows by key, or those of each row."""

MAX_ROWS = 1 << 20
"""Maximum rows of one call: the batch id leaves 20 bits for the row number."""

# Rows of one call that have tags of their own.
_MAX_TAGGED_ROWS = 1 << 16
# Most rows of a call of which only some classes are known, because the server completes them to all classes, and bytes
# of one beside its classes.
_MAX_TOP_ROWS, _TOP_ROW_BYTES = 1 << 10, 32
# Bytes of a row in the response: its columns, and the size of a prediction set.
_RESPONSE_BYTES = sum(dtype.itemsize * width for dtype, width in COLUMNS.values()) + 3
# Bytes of a request or response that are not rows: names of model and version, ids, lengths.
_OTHER_BYTES = 2048
_OUTCOMES = 10_000


@dataclass(frozen=True, slots=True)
class Part:
    """The request for consecutive rows of a batch.

    Parameters
    ----------
    request
        A ScoreRequest or ScoreStreamRequest.
    start
        Index of its first row in the batch.
    rows
        Number of rows.
    names
        Their prediction ids, or none.
    """

    request: Any
    start: int
    rows: int
    names: tuple[str, ...]


def make_batch_id() -> bytes:
    """A UUIDv7 whose last 20 bits are zero; the server adds the row number."""
    head = time.time_ns() // 1_000_000 << 80 | 7 << 76 | 0b10 << 62
    random = int.from_bytes(os.urandom(7))
    number = head | (random >> 42 & 0xFFF) << 64 | (random & 0x3FF_FFFF_FFFF) << 20
    return number.to_bytes(16)


def as_rows(values: ArrayLike) -> NDArray[np.float32]:
    """Little-endian float32 (n, K) from any array; one row (K,) is a batch of one."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InvalidRequest("the rows have different lengths; give an array (n, K).") from None
    if array.dtype.kind not in "fiu" and array.size:
        raise InvalidRequest(f"the values have type {array.dtype}; give numbers.")
    if array.ndim not in (1, 2):
        raise InvalidRequest(f"the array has shape {array.shape}; give (n, K), or (K,) for one row.")
    if array.ndim == 1:
        array = array.reshape(1, -1) if array.size else array.reshape(0, 0)
    # Values too large for float32 become infinite, which the server rejects by row.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, "<f4")


def as_table(values: Any, *, logits: bool = False) -> Frame | None:
    """The predictions of a table, such as a data frame; None if it is not one."""
    if isinstance(values, Frame):
        return values
    try:
        return read_frame(values, logits=logits)
    except FrameError as error:
        raise InvalidRequest(error.message, field="class_names") from None


def as_one_row(values: ArrayLike) -> NDArray[np.float32]:
    """Little-endian float32 (1, K)."""
    rows = as_rows(values)
    if len(rows) != 1:
        raise InvalidRequest(f"{len(rows)} rows given; give one row (K,).")
    return rows


def as_timestamp(moment: Time | None) -> Timestamp | None:
    """The message for a time."""
    if moment is None:
        return None
    stamp = Timestamp()
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidRequest(f"the time {moment} has no time zone; use datetime.now(UTC), or seconds since 1970.")
        stamp.FromDatetime(moment)
        return stamp
    if not (math.isfinite(moment) and 0 <= moment < 253_402_300_800):
        raise InvalidRequest(f"the time {moment} is not between 1970 and 9999; give seconds since 1970.")
    stamp.FromNanoseconds(int(moment * 1_000_000) * 1000)
    return stamp


def score_parts(
    model: str,
    values: ArrayLike | Frame | TopRows,
    max_message_bytes: int,
    version: str = "",
    logits: bool = False,
    prediction_ids: Sequence[str] | None = None,
    event_time: Time | None = None,
    partial_ok: bool = False,
    batch_id: UUID | str | None = None,
    tags: Tags = (),
    probe: bool = False,
) -> list[Part]:
    """Requests for a batch. Each has its own batch id, and request and response fit the message limit.

    Parameters
    ----------
    model, version, logits, prediction_ids, event_time, partial_ok, batch_id, tags, probe
        See `Client.score`.
    values
        Probabilities or logits, (n, K) or (K,), or a table of them; or rows of the most probable classes.
    max_message_bytes
        Maximum message size.
    """
    table = None if isinstance(values, TopRows) else as_table(values, logits=logits)
    rows: NDArray[np.float32] | TopRows
    if isinstance(values, TopRows):
        rows = values
    else:
        rows = as_rows(values if table is None else table.values)  # type: ignore[arg-type]  # a Frame is a table
    class_names = () if table is None else table.class_names
    names = () if prediction_ids is None else tuple(prediction_ids)
    if prediction_ids is not None and len(names) != len(rows):
        raise InvalidRequest(f"{len(names)} prediction_ids for {len(rows)} rows; give one per row.")
    name_bytes = max((len(name.encode()) + 4 for name in names), default=0)
    common, row_tags, tag_bytes = _tag_messages(tags, len(rows))
    value_bytes, response_bytes, most = _sizes(rows)
    row_bytes = max(value_bytes + name_bytes + tag_bytes, response_bytes)
    other_bytes = _OTHER_BYTES + sum(len(name.encode()) + 4 for name in class_names)
    step = min(max((max_message_bytes - other_bytes) // row_bytes, 1), _MAX_TAGGED_ROWS if row_tags else most)
    if len(rows) > step:
        _check_unique(names)
        if batch_id is not None:
            raise InvalidRequest(f"{len(rows)} rows do not fit one message, so they have no batch_id in common.")
    stamp = as_timestamp(event_time)
    parts = []
    for start in range(0, max(len(rows), 1), step):
        fields, count = row_fields(rows, slice(start, start + step))
        request = monitor_pb2.ScoreRequest(
            model=model,
            version=version,
            **fields,
            is_logits=logits,
            prediction_ids=names[start : start + step],
            event_time=stamp,
            partial_ok=partial_ok,
            batch_id=make_batch_id() if batch_id is None else getattr(batch_id, "bytes", b""),
            idempotency_key=batch_id if isinstance(batch_id, str) else "",
            tags=common,
            row_tags=row_tags[start : start + step],
            class_names=class_names,
            probe=probe,
        )
        parts.append(Part(request, start, count, names[start : start + step]))
    return parts


def _sizes(rows: NDArray[np.float32] | TopRows) -> tuple[int, int, int]:
    """Bytes of a row in the request and in the response, and the largest number of rows of a call."""
    if isinstance(rows, TopRows):
        # A class takes up to 5 bytes and its log-probability 8.
        return 13 * rows.resolution + _TOP_ROW_BYTES, _RESPONSE_BYTES, _MAX_TOP_ROWS
    return rows.shape[1] * 4, _RESPONSE_BYTES + _set_bytes(rows.shape[1]), MAX_ROWS


def row_fields(rows: NDArray[np.float32] | TopRows, part: slice) -> tuple[dict[str, Any], int]:
    """Fields of the request for a part of the rows, and the number of its rows."""
    if not isinstance(rows, TopRows):
        some = rows[part]
        return {"tensor": monitor_pb2.Tensor(shape=some.shape, data=some.tobytes())}, len(some)
    top = rows.take(part)
    # Empty places are not sent; a row that names a class below -1 is refused by the server.
    found = [
        monitor_pb2.TopRow(classes=classes[known], log_probabilities=logs[known], other=other)
        for classes, logs, known, other in zip(
            top.classes, top.log_probabilities, top.classes != -1, top.other, strict=True
        )
    ]
    return {"top": monitor_pb2.TopRows(rows=found), "resolution": name_of(top.resolution)}, len(found)


def _set_bytes(classes: int) -> int:
    """Bytes of the largest prediction set in a response: numbers of 7 bits a byte."""
    return classes * max(1, -(-(classes - 1).bit_length() // 7))


def _tag_messages(tags: Tags, rows: int) -> tuple[Mapping[str, str], list[Any], int]:
    """Tags of all rows, those of each row, and the bytes that the largest of the latter take."""
    try:
        if isinstance(tags, Mapping):
            monitor_pb2.Tags(tags=tags)  # as a check
            return tags, [], 0
        messages = [monitor_pb2.Tags(tags=each) for each in tags]
    except (TypeError, ValueError):
        raise InvalidRequest(
            "the tags are not texts by key; give {'camera': '7'}, or one such mapping per row."
        ) from None
    if messages and len(messages) != rows:
        raise InvalidRequest(f"{len(messages)} mappings of tags for {rows} rows; give one per row, or one for all.")
    return {}, messages, max((each.ByteSize() + 4 for each in messages), default=0)


def _check_unique(names: tuple[str, ...]) -> None:
    """Raise if a name occurs twice; the server can only check it within a part."""
    first = {name: row for row, name in reversed(list(enumerate(names)))}
    for row, name in enumerate(names):
        if first[name] != row:
            field = f"prediction_ids[{row}]"
            text = f"{field} and prediction_ids[{first[name]}] are both {name!r}; ids must be unique."
            raise InvalidRequest(text, row=row, field=field)


def outcome_requests(
    model: str, prediction_ids: Sequence[str], labels: Sequence[Any], observed_at: Time | None
) -> Iterator[Any]:
    """ReportOutcomesRequests of at most 10,000 outcomes each."""
    if len(prediction_ids) != len(labels):
        raise InvalidRequest(f"{len(labels)} labels for {len(prediction_ids)} prediction_ids; give one per id.")
    stamp = as_timestamp(observed_at)
    outcomes = [_outcome(row, str(name), labels[row], stamp) for row, name in enumerate(prediction_ids)]
    for start in range(0, len(outcomes), _OUTCOMES):
        yield monitor_pb2.ReportOutcomesRequest(model=model, outcomes=outcomes[start : start + _OUTCOMES])


def _outcome(row: int, name: str, label: Any, stamp: Timestamp | None) -> Any:
    """One outcome, with the class by name or by number."""
    if isinstance(label, str):
        return monitor_pb2.Outcome(prediction_id=name, label_name=label, observed_at=stamp)
    try:
        return monitor_pb2.Outcome(prediction_id=name, label=operator.index(label), observed_at=stamp)
    except (TypeError, ValueError):
        text = f"labels[{row}] is {label!r}; give the number or the name of a class."
        raise InvalidRequest(text, row=row, field=f"labels[{row}]") from None


def make_request(kind: Any, values: Mapping[str, Any]) -> Any:
    """A request from the arguments of a method.

    Parameters
    ----------
    kind
        Class of the message.
    values
        Values of fields. Times, policies and corners are converted to their messages.
    """
    fields = {}
    for name, value in values.items():
        descriptor = kind.DESCRIPTOR.fields_by_name[name]
        of_message = descriptor.message_type and _CONVERTERS.get(descriptor.message_type.full_name)
        fields[name] = of_message(value) if of_message else value
    return kind(**fields)


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "google.protobuf.Timestamp": as_timestamp,
    "darksight.v1.Policy": policy_message,
    "darksight.v1.Corner": as_corners,
}
