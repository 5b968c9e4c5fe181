"""Tensors in JSON and as bytes behind it (the binary tensor extension): the one way from a body to numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from darksight_service.errors import RequestError
from darksight_service.http.inputs import MAX_LISTS, Input

__all__ = ["MAX_TENSORS", "SIZE_HEADER", "JsonTensor", "read_numbers", "split_body", "split_tensors"]

MAX_TENSORS = 64
"""Tensors of a request or of an event, and dimensions of a tensor."""

SIZE_HEADER = "inference-header-content-length"
"""The header with the size of the JSON, if bytes of tensors follow it."""

_NUMBERS = frozenset({int, float})


class _TensorParameters(Input):
    binary_data_size: int | None = Field(default=None, ge=0)


class JsonTensor(Input):
    """A tensor; its values are in `data`, or behind the JSON."""

    name: str = ""
    datatype: str = ""
    shape: list[Annotated[int, Field(gt=-(1 << 62), lt=1 << 62)]] = Field(max_length=MAX_TENSORS)
    data: Any = None
    parameters: _TensorParameters = _TensorParameters()


def split_body(body: bytes, json_size: str | None) -> tuple[bytes, bytes]:
    """The JSON of a body and the bytes that follow it, by the header with the size of the JSON."""
    if json_size is None:
        return body, b""
    size = int(json_size) if json_size.isdecimal() and len(json_size) < 20 else -1
    if not 0 <= size <= len(body):
        raise RequestError(
            f"{SIZE_HEADER}: must be the number of bytes of the JSON, at most {len(body):,}", field=SIZE_HEADER
        )
    return body[:size], body[size:]


def split_tensors(field: str, tensors: Sequence[JsonTensor], data: bytes) -> tuple[list[bytes | None], bytes]:
    """The bytes behind the JSON of each tensor, None if it has none there; and what follows the last one."""
    parts: list[bytes | None] = []
    for tensor in tensors:
        size = tensor.parameters.binary_data_size
        if size is not None and size > len(data):
            raise RequestError(
                f"{field}: binary_data_size of {tensor.name[:100]!r} must be at most {len(data):,}, "
                "the bytes that follow",
                field=field,
            )
        parts.append(None if size is None else data[:size])
        data = data[size or 0 :]
    return parts, data


def read_numbers(field: str, name: str, data: Any) -> NDArray[np.float64]:
    """Numbers in JSON, a list or a list of rows; RequestError that names the first row that is something else.

    The types of all values are known before numpy sees them: of texts it would make an array in which each takes as
    much memory as the longest.
    """
    is_table = isinstance(data, list) and bool(data) and isinstance(data[0], list)
    rows = data if is_table else [data]
    if len(rows) > MAX_LISTS:
        raise RequestError(
            f"{field}: {name[:100]} has {len(rows):,} rows; the limit of rows as lists is {MAX_LISTS:,}",
            field=field,
        )
    for row, values in enumerate(rows):
        if not isinstance(values, list) or len(values) != len(rows[0]) or not _NUMBERS.issuperset(map(type, values)):
            raise RequestError(
                f"{field}: {f'row {row} of ' if is_table else ''}{name[:100]} must be a list of numbers, all rows of "
                "the same length",
                field=field,
                **({"row": row} if is_table else {}),
            )
    try:
        return np.array(data, np.float64)
    except OverflowError:
        raise RequestError(f"{field}: {name[:100]} has a number that is too large", field=field) from None
