"""Rows as PostgreSQL's binary COPY reads them, made by numpy.

A row is a count of fields and for each a length and its bytes. Rows whose NULLs are in the same places and whose names
have the same length are equally long, so all of them are one structured array that is filled column by column; a batch
falls into few such groups. The order of rows means nothing to COPY.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_service.store.rows import FLOATS, Rows

__all__ = ["COLUMNS", "HEADER", "TRAILER", "binary_rows"]

COLUMNS = (
    "id", "event_at", *FLOATS, "bundle_id", "predicted", "reason", "is_accepted", "is_shadow", "prediction_id", "probs",
)  # fmt: skip
"""Columns in the order of the table, which is that of every writer here."""

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

_EPOCH_2000_MS = 946_684_800_000
_NO_NAME = -1


def binary_rows(rows: Rows) -> Iterator[NDArray[Any]]:
    """All rows, as arrays of equally long ones."""
    names = [b"" if name is None else name.encode() for name in rows.names]
    sizes = np.fromiter(map(len, names), np.int64, len(names))
    ends = np.cumsum(sizes)
    text = np.frombuffer(b"".join(names), dtype=np.uint8)
    if None in rows.names:
        sizes[[name is None for name in rows.names]] = _NO_NAME
    missing = np.isnan(rows.floats)
    nulls = (missing.T @ (1 << np.arange(len(FLOATS)))).astype(np.int64) if missing.any() else np.int64(0)
    nulls = nulls | (rows.event_ms == 0) << len(FLOATS) | ~rows.has_probs << len(FLOATS) + 1
    keys = nulls << 32 | (sizes + 1)
    kinds = np.unique(keys)
    for kind in kinds.tolist():
        chosen = slice(None) if len(kinds) == 1 else np.flatnonzero(keys == kind)
        size = (kind & 0xFFFF_FFFF) - 1
        column = None
        if size > 0:
            column = text[ends[chosen][:, None] + np.arange(-size, 0)] if len(kinds) > 1 else text.reshape(-1, size)
        yield _group(rows, chosen, kind >> 32, size, column)


def _group(rows: Rows, chosen: Any, nulls: int, size: int, names: NDArray[np.uint8] | None) -> NDArray[Any]:
    """The rows `chosen`, which have these NULLs and names of `size` bytes."""
    values: dict[str, NDArray[Any] | int | None] = {
        "id": rows.ids[chosen].view(np.uint8),
        "event_at": (rows.event_ms[chosen] - _EPOCH_2000_MS) * 1000,
        **{name: rows.floats[number, chosen] for number, name in enumerate(FLOATS)},
        "bundle_id": rows.bundle_id,
        "predicted": rows.predicted[chosen],
        "reason": rows.reason[chosen],
        "is_accepted": rows.is_accepted[chosen],
        "is_shadow": rows.is_shadow[chosen],
        "prediction_id": names,
        "probs": rows.probs[chosen],
    }
    width = rows.probs.shape[1]
    types: dict[str, Any] = {
        "id": ("u1", 16), "event_at": ">i8", **dict.fromkeys(FLOATS, ">f4"), "bundle_id": ">i4", "predicted": ">i2",
        "reason": ">i2", "is_accepted": "u1", "is_shadow": "u1", "prediction_id": ("u1", size), "probs": ("u1", width),
    }  # fmt: skip
    null = {name for bit, name in enumerate((*FLOATS, "event_at", "probs")) if nulls >> bit & 1}
    null |= {"prediction_id"} if size == _NO_NAME else set()
    null |= {"probs"} if width == 0 else set()
    fields: list[Any] = [("fields", ">i2")]
    for name in COLUMNS:
        kind = types[name]
        fields.append((f"{name} bytes", ">i4"))
        if name not in null and kind != ("u1", 0):
            fields.append((name, *kind) if isinstance(kind, tuple) else (name, kind))
    layout = np.dtype(fields)
    present = set(layout.names or ())
    one = np.zeros((), dtype=layout)
    one["fields"] = len(COLUMNS)
    for name in COLUMNS:
        one[f"{name} bytes"] = -1 if name in null else layout[name].itemsize if name in present else 0
    filled = np.empty(len(rows.ids[chosen]), dtype=layout)
    filled[:] = one
    for name, value in values.items():
        if name in present:
            filled[name] = value
    return filled
