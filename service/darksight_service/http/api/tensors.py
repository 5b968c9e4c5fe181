"""Numbers in JSON, and tensors as bytes behind it (the binary tensor extension)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_service.errors import RequestError

__all__ = ["SIZE_HEADER", "read_numbers", "split_body"]

SIZE_HEADER = "inference-header-content-length"
"""The header with the size of the JSON, if bytes of tensors follow it."""


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


def read_numbers(field: str, name: str, data: Any) -> NDArray[Any]:
    """Numbers in JSON, a list or a list of rows; RequestError that names the first row that is something else."""
    try:
        array = np.array(data)
    except (ValueError, OverflowError):
        array = np.array(None)
    if array.dtype.kind not in "iuf" or not array.ndim:
        row = _bad_row(data)
        where = f"row {row} of " if row is not None else ""
        raise RequestError(
            f"{field}: {where}{name[:100]} must be a list of numbers, all rows of the same length",
            field=field,
            **({} if row is None else {"row": row}),
        )
    return array


def _bad_row(data: Any) -> int | None:
    """Number of the first row that is not like row 0, or has something else than numbers."""
    if not isinstance(data, list) or not any(isinstance(row, list) for row in data):
        return None
    size = len(data[0]) if isinstance(data[0], list) else -1
    for number, row in enumerate(data):
        if not isinstance(row, list) or len(row) != size or not all(type(value) in (int, float) for value in row):
            return number
    return None
