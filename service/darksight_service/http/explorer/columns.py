"""Arrays for the browser as bytes.

The bytes are the length of a JSON header (4 bytes, little-endian), the header, and the arrays, each at a multiple of 8
bytes. The header has `meta` and, by name, type and offset of each array: `static/api.js` makes typed arrays of them in
the memory of the response. 100,000 points of seven columns are 2.5 MB without parsing; as JSON they were 9 MB.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.schema import Decision, Reason, stored_name
from darksight_core.rows.tags import OTHER
from darksight_service.store.points import LISTED_COLUMNS, SCORE_COLUMNS, PointTable, score_values

__all__ = ["LABELS", "MAX_COLUMN_VALUES", "Columns", "point_columns", "point_fields", "tag_column"]

LABELS = {name: column.label for name, column in LISTED_COLUMNS.items() if column.width == 1}
"""Scores that pages list, and their names for people."""

MAX_COLUMN_VALUES = 250
"""Values of a tag that one response distinguishes."""

_ALIGN = 8
_DRAWN = {name: column.stored for name, column in SCORE_COLUMNS.items() if column.browser}
_TYPES = frozenset({"float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32"})


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Arrays by name, of any shape, with JSON values."""

    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The bytes of the response."""
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


def point_columns(points: PointTable) -> dict[str, NDArray[Any]]:
    """The columns of stored points that the map draws."""
    values = score_values(points)
    return {
        "id": points.ids.view(np.uint8).reshape(-1),
        "time": points.received_ms.astype(np.float64),
        "label": points.label.astype(np.int32),
        **{part: values[part].astype(kind) for part, kind in _DRAWN.items()},
    }


_FIELDS = (
    "id", "prediction_id", "version", "is_shadow", "received_ms", "label", "predicted", *LISTED_COLUMNS,
    "prediction_set", "reference", "tags", "trace_id",
)  # fmt: skip


def point_fields(point: Mapping[str, Any]) -> dict[str, Any]:
    """What a page shows of a stored point, one of `PointTable.rows`, without its probabilities."""
    names = {"decision": stored_name(Decision, point["decision"]), "reason": stored_name(Reason, point["reason"])}
    return {name: point[name] for name in _FIELDS} | names


def tag_column(points: PointTable, key: str) -> tuple[NDArray[np.uint16], list[str]]:
    """The values of a tag as numbers, and the texts of the numbers from 2 on, most frequent first.

    0 is a point without the tag, 1 any of the values beyond `MAX_COLUMN_VALUES`.
    """
    values = [dict(tags).get(key) for tags in points.tag_sets]
    counts: Counter[str] = Counter()
    for value, count in zip(values, np.bincount(points.tags, minlength=len(values)).tolist(), strict=True):
        if count and value is not None and value != OTHER:
            counts[value] += count
    texts = sorted(counts, key=lambda value: (-counts[value], value))[:MAX_COLUMN_VALUES]
    numbers = {None: 0} | {value: number for number, value in enumerate(texts, 2)}
    return np.array([numbers.get(value, 1) for value in values], dtype=np.uint16)[points.tags], texts
