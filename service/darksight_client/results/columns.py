"""Columns of a ScoreResponse as bytes instead of Python lists.

On the wire a packed `repeated double` is a length and little-endian float64 values, and a packed repeated enum with
values below 128 is a length and one byte per value: the same as a `bytes` field of that number. So a *twin* of the
message, made here from its descriptor with the columns declared as `bytes`, reads and writes the same messages, and
numpy sees a column without a Python object for each number: a tenth of the time for 4,096 rows.

    ScoreColumns            twin of ScoreResponse: ScoreColumns(version=…, decision=bytes, …, points=bytes)
    ScoreStreamColumns      twin of ScoreStreamResponse, with a ScoreColumns in it
    read_response           what a serialised ScoreResponse holds: the message and its columns as arrays
    read_stream_response    the same for a ScoreStreamResponse

The format also lets an encoder write a packed field value by value, or in several pieces; protobuf's own encoders do
not. The twin then sees no column, or the last piece only. So readers compare lengths with the number of rows that was
asked for, and if they differ read the same bytes with the ordinary class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from darksight_client.stubs.darksight.v1 import monitor_pb2
from darksight_core.rows.schema import SCHEMA

__all__ = ["COLUMNS", "Columns", "ScoreColumns", "ScoreStreamColumns", "read_response", "read_stream_response"]

Columns: TypeAlias = dict[str, NDArray[Any]]

_FIELDS = monitor_pb2.ScoreResponse.DESCRIPTOR.fields_by_name
COLUMNS: Mapping[str, tuple[np.dtype[Any], int]] = {
    column.name: (np.dtype(column.dtype), column.width)
    for column in sorted(SCHEMA, key=lambda column: _FIELDS[column.name].number if column.response else 0)
    if column.response
}
"""Type of the values of each column, and how many of them make a row, in the order of the fields of the message."""


def _twins() -> tuple[Any, Any]:
    """Classes made from monitor.proto with the columns as bytes, in a pool of their own as the names are the same."""
    file = descriptor_pb2.FileDescriptorProto()
    monitor_pb2.DESCRIPTOR.CopyToProto(file)
    response = next(message for message in file.message_type if message.name == "ScoreResponse")
    for field in response.field:
        if field.name in COLUMNS:
            field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
            field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    names = ("darksight.v1.ScoreResponse", "darksight.v1.ScoreStreamResponse")
    one, many = (message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names)
    return one, many


ScoreColumns, ScoreStreamColumns = _twins()


def read_response(data: bytes, rows: int) -> tuple[Any, Columns]:
    """A ScoreResponse: the message, for its single values, and its columns, read-only, (rows,) and points (rows, 2).

    Parameters
    ----------
    data
        The serialised message.
    rows
        How many were asked for.

    Raises
    ------
    ValueError
        If it is no such message, or has another number of rows.
    """
    twin = _parse(ScoreColumns, data)
    columns = _arrays(twin, rows)
    if columns is None:
        columns = _lists(_parse(monitor_pb2.ScoreResponse, data), rows)
    return twin, columns


def read_stream_response(data: bytes, rows: int) -> tuple[Any, Columns | None]:
    """The same for a ScoreStreamResponse, or its StreamError and None.

    Raises
    ------
    ValueError
        If it is no such message, is empty, or has another number of rows.
    """
    twin = _parse(ScoreStreamColumns, data)
    kind = twin.WhichOneof("result")
    if kind is None:
        raise ValueError("a response with neither a result nor an error")
    if kind == "error":
        return twin.error, None
    columns = _arrays(twin.response, rows)
    if columns is None:
        columns = _lists(_parse(monitor_pb2.ScoreStreamResponse, data).response, rows)
    return twin.response, columns


def _parse(kind: Any, data: bytes) -> Any:
    """A message from its bytes."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise ValueError("bytes that are no response") from None


def _arrays(twin: Any, rows: int) -> Columns | None:
    """Columns of a twin; None if it is not all there."""
    columns: Columns = {}
    for name, (dtype, width) in COLUMNS.items():
        data: bytes = getattr(twin, name)
        # A byte above 127 is part of a longer number.
        if len(data) != rows * width * dtype.itemsize or (dtype.itemsize == 1 and not data.isascii()):
            return None
        columns[name] = np.frombuffer(data, dtype) if width == 1 else np.frombuffer(data, dtype).reshape(rows, width)
    return columns


def _lists(message: Any, rows: int) -> Columns:
    """Columns of an ordinary ScoreResponse."""
    columns: Columns = {}
    for name, (dtype, width) in COLUMNS.items():
        values = getattr(message, name)
        if len(values) != rows * width:
            raise ValueError(f"{len(values)} values of {name} for {rows} rows")
        # A decision or reason that this version does not know may be any number: it becomes "not set".
        if dtype.itemsize == 1:
            values = [value if 0 <= value < 128 else 0 for value in values]
        column = np.array(values, dtype) if width == 1 else np.array(values, dtype).reshape(rows, width)
        column.flags.writeable = False
        columns[name] = column
    return columns
