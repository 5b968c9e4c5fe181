"""Arrays to the browser without a detour through text.

The bytes are the length of a JSON header (4 bytes, little-endian), the header, and the arrays, each at a multiple of 8
bytes. The header has `meta` and, by name, type and place of each array: `static/api.js` makes typed arrays of them that
lie in the same memory. 100,000 points of seven columns are 2.5 MB and no parsing; as JSON they were 9 MB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Columns"]

_ALIGN = 8
_TYPES = frozenset({"float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32"})


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Arrays by name, of any shape, and JSON values that belong to them."""

    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The bytes that are sent."""
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        columns, offset = {}, 0
        for name, array in arrays.items():
            assert array.dtype.name in _TYPES, f"{name}: the browser has no array of {array.dtype.name}"
            columns[name] = {"type": array.dtype.name, "offset": offset, "length": array.size}
            offset += -(-array.nbytes // _ALIGN) * _ALIGN
        header = json.dumps({"meta": self.meta, "columns": columns}, allow_nan=False).encode()
        header += b" " * (-(len(header) + 4) % _ALIGN)
        parts = [len(header).to_bytes(4, "little"), header]
        for array in arrays.values():
            parts += [array.tobytes(), bytes(-array.nbytes % _ALIGN)]
        return b"".join(parts)
