from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
import pytest
from darksight_client.results.columns import (
    COLUMNS,
    ScoreColumns,
    ScoreStreamColumns,
    read_response,
    read_stream_response,
)
from darksight_client.stubs.darksight.v1 import monitor_pb2
from hypothesis import given
from hypothesis import strategies as st

# Any bit pattern is a number here, NaN and infinities too: the columns must arrive bit for bit.
doubles = st.binary(min_size=8, max_size=8).map(lambda data: struct.unpack("<d", data)[0])


@st.composite
def responses(draw: st.DrawFn) -> monitor_pb2.ScoreResponse:
    """An answer with any values in its columns."""
    rows = draw(st.integers(0, 20))
    column = st.lists(doubles, min_size=rows, max_size=rows)
    return monitor_pb2.ScoreResponse(
        model=draw(st.text(max_size=5)),
        version=draw(st.text(max_size=5)),
        batch_id=draw(st.binary(min_size=16, max_size=16)),
        decision=draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)),
        reason=draw(st.lists(st.integers(0, 6), min_size=rows, max_size=rows)),
        p_value=draw(column),
        log_density=draw(column),
        log_kde=draw(column),
        points=draw(st.lists(doubles, min_size=2 * rows, max_size=2 * rows)),
        recorded=draw(st.booleans()),
    )


def as_bytes(message: Any) -> dict[str, bytes]:
    """The columns of an ordinary message."""
    return {name: np.array(getattr(message, name), dtype).tobytes() for name, (dtype, _) in COLUMNS.items()}


def varint(number: int) -> bytes:
    """A number on the wire."""
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number: int, data: bytes) -> bytes:
    """A field with a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def scattered(message: monitor_pb2.ScoreResponse, pieces: list[int], *, is_packed: bool) -> bytes:
    """The same message as an encoder may write it too: columns in pieces, or value by value."""
    out = field(1, message.model.encode()) + field(2, message.version.encode()) + field(3, message.batch_id)
    for name, (dtype, _) in COLUMNS.items():
        number = message.DESCRIPTOR.fields_by_name[name].number
        data = np.array(getattr(message, name), dtype).tobytes()
        size = dtype.itemsize
        if is_packed:
            bounds = sorted({0, len(data), *(min(piece * size, len(data)) for piece in pieces)})
            out += b"".join(field(number, data[a:b]) for a, b in itertools.pairwise(bounds))
        else:
            head = varint(number << 3 | (1 if size == 8 else 0))
            out += b"".join(head + data[at : at + size] for at in range(0, len(data), size))
    return out + (b"\x50\x01" if message.recorded else b"")


@given(responses())
def test_the_twin_writes_what_the_ordinary_class_writes(message: monitor_pb2.ScoreResponse) -> None:
    """Columns as bytes give the same message, byte for byte."""
    twin = ScoreColumns(
        model=message.model,
        version=message.version,
        batch_id=message.batch_id,
        recorded=message.recorded,
        **as_bytes(message),
    )

    assert twin.SerializeToString() == message.SerializeToString()


@given(responses())
def test_the_twin_reads_what_the_ordinary_class_writes(message: monitor_pb2.ScoreResponse) -> None:
    """Columns come out bit for bit, with their types and shapes."""
    rows = len(message.decision)

    twin, columns = read_response(message.SerializeToString(), rows)

    assert (twin.model, twin.version, twin.batch_id) == (message.model, message.version, message.batch_id)
    assert twin.recorded == message.recorded
    assert {name: column.tobytes() for name, column in columns.items()} == as_bytes(message)
    assert {name: column.dtype for name, column in columns.items()} == {
        name: kind for name, (kind, _) in COLUMNS.items()
    }
    assert columns["points"].shape == (rows, 2)


@given(responses(), st.lists(st.integers(0, 20), max_size=3), st.booleans())
def test_messages_of_other_encoders_are_read_the_same(
    message: monitor_pb2.ScoreResponse, pieces: list[int], is_packed: bool
) -> None:
    """A packed field in pieces or value by value is legal: no row gets lost."""
    data = scattered(message, pieces, is_packed=is_packed)
    assert monitor_pb2.ScoreResponse.FromString(data).SerializeToString() == message.SerializeToString()
    rows = len(message.decision)

    _, columns = read_response(data, rows)
    _, in_stream = read_stream_response(field(1, data), rows)

    assert {name: column.tobytes() for name, column in columns.items()} == as_bytes(message)
    assert in_stream is not None
    assert {name: column.tobytes() for name, column in in_stream.items()} == as_bytes(message)


@given(responses())
def test_stream_responses_have_the_same_columns(message: monitor_pb2.ScoreResponse) -> None:
    """The twin of a ScoreStreamResponse holds the twin of a ScoreResponse."""
    data = monitor_pb2.ScoreStreamResponse(response=message).SerializeToString()

    twin, columns = read_stream_response(data, len(message.decision))

    assert columns is not None
    assert twin.batch_id == message.batch_id
    assert {name: column.tobytes() for name, column in columns.items()} == as_bytes(message)
    assert ScoreStreamColumns.FromString(data).SerializeToString() == data


def test_stream_errors_have_no_columns() -> None:
    """An error comes as it is."""
    error = monitor_pb2.StreamError(code=3, message="bad", row=2, field="rows")

    message, columns = read_stream_response(monitor_pb2.ScoreStreamResponse(error=error).SerializeToString(), 1)

    assert columns is None
    assert (message.code, message.message, message.row, message.field) == (3, "bad", 2, "rows")


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_another_number_of_rows_is_refused(rows: int) -> None:
    """A response for 2 rows is no answer to 0, 1 or 3."""
    message = monitor_pb2.ScoreResponse(decision=[1, 1], reason=[1, 1], p_value=[0.5, 0.5])

    with pytest.raises(ValueError, match="for"):
        read_response(message.SerializeToString(), rows)


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab"], ids=["garbage", "cut off"])
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    """Neither reader lets protobuf's own error through."""
    with pytest.raises(ValueError, match="no response"):
        read_response(data, 1)
    with pytest.raises(ValueError, match="no response"):
        read_stream_response(data, 1)


def test_an_empty_stream_response_is_refused() -> None:
    """It says nothing about its request."""
    with pytest.raises(ValueError, match="neither"):
        read_stream_response(b"", 1)


def test_a_reason_of_a_newer_server_becomes_unspecified() -> None:
    """Numbers above 127 take two bytes, so that the twin cannot read them; the row must not shift."""
    message = monitor_pb2.ScoreResponse(
        decision=[1, 2], reason=[300, 2], p_value=[0.1, 0.2], log_density=[0, 0], log_kde=[0, 0], points=[0] * 4
    )

    _, columns = read_response(message.SerializeToString(), 2)

    assert columns["reason"].tolist() == [0, 2]


def test_columns_are_read_only() -> None:
    """Results are shared between threads."""
    message = monitor_pb2.ScoreResponse(
        decision=[1], reason=[1], p_value=[0.1], log_density=[0], log_kde=[0], points=[0, 0]
    )
    for data in (message.SerializeToString(), scattered(message, [], is_packed=False)):
        _, columns = read_response(data, 1)

        assert not any(column.flags.writeable for column in columns.values())
