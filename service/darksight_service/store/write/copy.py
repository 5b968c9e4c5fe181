"""Rows in the format of PostgreSQL's binary COPY, made by numpy.

A row is a count of fields and for each a length and its bytes. Rows with the same NULLs, and with names, references and
tags of the same lengths, are equally long, so all of them are one structured array that is filled column by column; a
batch falls into few such groups. The order of rows does not matter to COPY.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Boolean, Integer, SmallInteger
from sqlalchemy.types import REAL

from darksight_service.store.points import SCORE_COLUMNS, PointTable, is_missing
from darksight_service.store.tables import Moment, PointId, point
from darksight_service.store.texts import Texts

__all__ = ["HEADER", "TRAILER", "binary_rows"]

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

_EPOCH_2000_MS = 946_684_800_000
_TYPES: Mapping[type, Any] = {
    PointId: ("u1", 16), Moment: ">i8", REAL: ">f4", Integer: ">i4", SmallInteger: ">i2", Boolean: "u1",
}  # fmt: skip
_TEXTS = ("prediction_id", "reference", "tags")
_COLUMNS = {column.name: _TYPES.get(type(column.type)) for column in point.columns}


def binary_rows(
    points: PointTable, values: Mapping[str, Any], probs: NDArray[np.uint8], tags: Texts
) -> Iterator[NDArray[Any]]:
    """All rows, as arrays of equally long ones.

    Parameters
    ----------
    points
        The points, for their ids and names.
    values
        All other columns of `point` but `probs`: an array (n,) or one value for all rows. What is NULL is 0 in
        `event_at` and `delay_ms`, and in score columns what the schema says.
    probs
        Probabilities as they are kept, (n, bytes), of no bytes if none are.
    tags
        The column `tags`, n.
    """
    columns = {**values, "id": _as_bytes(points.ids), "trace_id": _as_bytes(points.traces), "probs": probs}
    texts = {"prediction_id": points.names, "reference": points.references, "tags": tags}
    missing: dict[str, Any] = {
        name: is_missing(values[name], each) for name, each in SCORE_COLUMNS.items() if each.nullable
    }
    missing["event_at"], missing["delay_ms"] = np.equal(points.event_ms, 0), np.equal(points.delay_ms, 0)
    missing["probs"] = ~np.isfinite(points.probs).all(axis=1)
    missing["trace_id"] = ~np.not_equal(points.traces, 0).any(axis=1)
    columns["event_at"] = (values["event_at"] - _EPOCH_2000_MS) * 1000
    nulls = np.zeros(len(points), dtype=np.int64)
    for bit, each in enumerate(missing.values()):
        nulls |= each.astype(np.int64) << bit
    kinds, kind_of = _kinds(nulls, *(text.sizes for text in texts.values()))
    for kind, first in enumerate(kinds.tolist()):
        chosen = slice(None) if len(kinds) == 1 else np.flatnonzero(kind_of == kind)
        null = {name for name, each in missing.items() if each[first]}
        null |= {"probs"} if probs.shape[1] == 0 else set()
        lengths = {"probs": probs.shape[1]}
        for name, text in texts.items():
            size = int(text.sizes[first])
            lengths[name] = max(size, 0)
            if size < 0:
                null.add(name)
            elif size > 0:
                within = text.ends[chosen][:, None] + np.arange(-size, 0) if len(kinds) > 1 else None
                columns[name] = text.data.reshape(-1, size) if within is None else text.data[within]
        yield _group(columns, chosen, len(points.ids[chosen]), null, lengths)


def _as_bytes(values: NDArray[np.uint64]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values, dtype=">u8").view(np.uint8).reshape(-1, 16)


def _kinds(*columns: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First row of each different combination of numbers, and which combination each row has."""
    number = np.zeros(len(columns[0]), dtype=np.intp)
    for column in columns:
        if len(column) and (column != column[0]).any():
            _, found = np.unique(column, return_inverse=True)
            # Numbered anew, so that they stay small.
            number = np.unique(number * (found.max() + 1) + found, return_inverse=True)[1]
    return np.unique(number, return_index=True)[1], number


def _group(
    columns: Mapping[str, Any], chosen: Any, rows: int, null: set[str], lengths: Mapping[str, int]
) -> NDArray[Any]:
    """The chosen rows, which have the same NULLs and texts of the same lengths."""
    fields: list[Any] = [("fields", ">i2")]
    for name, kind in _COLUMNS.items():
        kind = kind or ("u1", lengths[name])
        fields.append((f"{name} bytes", ">i4"))
        if name not in null and kind != ("u1", 0):
            fields.append((name, *kind) if isinstance(kind, tuple) else (name, kind))
    layout = np.dtype(fields)
    present = set(layout.names or ())
    one = np.zeros((), dtype=layout)
    one["fields"] = len(_COLUMNS)
    for name in _COLUMNS:
        one[f"{name} bytes"] = -1 if name in null else layout[name].itemsize if name in present else 0
    filled = np.empty(rows, dtype=layout)
    filled[:] = one
    for name in present & _COLUMNS.keys():
        value = columns[name]
        # Texts were chosen already.
        filled[name] = value[chosen] if isinstance(value, np.ndarray) and name not in _TEXTS else value
    return filled
