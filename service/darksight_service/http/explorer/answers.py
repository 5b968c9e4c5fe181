"""What an endpoint may return: JSON values, binary columns, or a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from darksight_service.http.explorer.columns import Columns

__all__ = ["Answer", "Download", "FileAnswer", "to_json"]

# Nine digits distinguish any two float32 numbers.
_DIGITS = 9


@dataclass(frozen=True, slots=True, eq=False)
class Download:
    """A file that is sent part by part."""

    name: str
    media_type: str
    parts: Iterator[bytes]


@dataclass(frozen=True, slots=True, eq=False)
class FileAnswer:
    """A file of somebody else, which a page shows and no browser may run."""

    media_type: str
    data: bytes


Answer = Mapping[str, Any] | Columns | Download | FileAnswer
"""A JSON object (see `to_json`), columns of numbers, or a file."""


def to_json(value: Any) -> Any:
    """A value as JSON: arrays and tuples become lists, dataclasses objects, NaN null and infinity a string."""
    if isinstance(value, np.ndarray | np.generic):
        return to_json(value.tolist())
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if isinstance(value, Mapping):
        return {to_json(key): to_json(each) for key, each in value.items()}
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return str(value) if math.isinf(value) else float(f"{value:.{_DIGITS}g}")
    return value
