"""Results of a batch as one block of bytes, in the order in which they are sent and stored.

    response   float64   points | log_density | log_kde | p_value
    stored     float32   points | log_density | log_kde | p_value | outlier_score | confidence | top
               int32     predicted
               int16     set_size
               int8      decision | reason

The columns come from `SCHEMA` in `darksight_core.rows.schema`: first those whose type in a response differs from the
stored one, then the stored ones, widest first, so that every column starts at a multiple of its item size. Each column
has all of its rows, one after the other, as on the wire and in a record.
Whatever sends or stores a batch cuts pieces off and joins them to others. For a single row that takes a tenth of the
time that arrays would.
"""

from __future__ import annotations

from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.schema import SCHEMA, Column, ScoredBatch

__all__ = [
    "KERNEL_COLUMNS",
    "RESPONSE_BYTES",
    "ROW_BYTES",
    "STORED_BYTES",
    "Piece",
    "ResultBlock",
    "byte_range",
    "stored_pieces",
]

KERNEL_COLUMNS = (
    "points", "log_density", "log_kde", "fidelity", "outlier_score", "p_value", "confidence", "top", "predicted",
    "decision", "reason",
)  # fmt: skip
"""The columns that the compiled kernel computes, in its order; others are computed after it."""


class Piece(NamedTuple):
    """A column in a block of n rows: it starts at byte n * `start` and has n * `size` bytes."""

    column: Column
    dtype: np.dtype[Any]
    start: int

    @property
    def size(self) -> int:
        """Bytes of a row."""
        return self.column.width * self.dtype.itemsize

    @property
    def end(self) -> int:
        """Where it ends, in bytes per row."""
        return self.start + self.size


def _pieces(columns: list[tuple[Column, str]], start: int) -> tuple[Piece, ...]:
    pieces = []
    for column, dtype in sorted(columns, key=lambda pair: -np.dtype(pair[1]).itemsize):
        pieces.append(Piece(column, np.dtype(dtype), start))
        start = pieces[-1].end
    return tuple(pieces)


_RESPONSE = _pieces([(each, each.dtype) for each in SCHEMA if each.response and each.dtype != each.stored], 0)

RESPONSE_BYTES = _RESPONSE[-1].end
"""Bytes of a row that are in the response alone, with which a block starts."""

_STORED = _pieces([(each, each.stored) for each in SCHEMA if each.stored], RESPONSE_BYTES)

ROW_BYTES = _STORED[-1].end
"""All bytes of a row."""

STORED_BYTES = ROW_BYTES - RESPONSE_BYTES
"""Bytes of a row that are stored, which follow."""

_PIECES = (*_RESPONSE, *_STORED)
_BY_NAME = {piece.column.name: piece for piece in (*_STORED, *_RESPONSE)}


def stored_pieces() -> tuple[Piece, ...]:
    """The stored columns; a record holds their bytes as they are in a block, from `RESPONSE_BYTES` on."""
    return tuple(piece._replace(start=piece.start - RESPONSE_BYTES) for piece in _STORED)


def byte_range(name: str, rows: int) -> slice:
    """Where a column is in a block of so many rows: as in the response if it is there, else as stored."""
    found = _BY_NAME[name]
    return slice(found.start * rows, found.end * rows)


class ResultBlock:
    """Results of n rows.

    Parameters
    ----------
    data
        The bytes, `ROW_BYTES` for each row.
    rows
        n.
    are_valid
        Whether every row is valid.
    """

    __slots__ = ("are_valid", "data", "rows")

    METRIC_COLUMNS = ("log_density", "p_value", "predicted", "decision", "reason")
    """Columns that the metrics count."""

    def __init__(self, data: bytes, rows: int, are_valid: bool) -> None:
        self.data = data
        self.rows = rows
        self.are_valid = are_valid

    @classmethod
    def of(cls, batch: ScoredBatch) -> ResultBlock:
        """The block of a batch."""
        # A value that is too large for a float32 becomes infinite.
        with np.errstate(over="ignore"):
            data = b"".join(getattr(batch, piece.column.name).astype(piece.dtype).tobytes() for piece in _PIECES)
        return cls(data, len(batch), bool(batch.valid.all()))

    @classmethod
    def of_row(cls, values: tuple[float, ...]) -> ResultBlock | None:
        """The block of one row, without arrays; None if a value is too large.

        `values` are those of `KERNEL_COLUMNS`, then of the other stored columns in the order of `SCHEMA`; values left
        out are missing.
        """
        try:
            return cls(_ROW.pack(*_ORDER(values + _MISSING[len(values) :])), 1, values[_PREDICTED] >= 0)
        except OverflowError:
            return None

    def __len__(self) -> int:
        return self.rows

    def column(self, name: str) -> NDArray[Any]:
        """A column of the same bytes, (n,) or (n, 2), read-only."""
        column, dtype, start = _BY_NAME[name]
        width = column.width
        values: NDArray[Any] = np.frombuffer(self.data, dtype, width * self.rows, start * self.rows)
        return values.reshape(self.rows, width) if width > 1 else values

    def metric_values(self) -> tuple[float, float, int, int, int]:
        """The values of `METRIC_COLUMNS` of the only row."""
        return _METRICS.unpack(self.data)


def _metrics() -> Struct:
    """Reads the `METRIC_COLUMNS` of a block of one row."""
    text, end = "<", 0
    for piece in sorted((_BY_NAME[name] for name in ResultBlock.METRIC_COLUMNS), key=lambda piece: piece.start):
        text += f"{piece.start - end}x{piece.dtype.char}"
        end = piece.end
    return Struct(f"{text}{ROW_BYTES - end}x")


_METRICS = _metrics()

# A block of one row: its values as `of_row` takes them, and where the block has each.
_COLUMNS = {column.name: column for column in SCHEMA}
_FLAT = [
    (name, part)
    for name in (*KERNEL_COLUMNS, *(each.name for each in SCHEMA if each.stored and each.name not in KERNEL_COLUMNS))
    for part in _COLUMNS[name].parts
]
_MISSING = tuple(_COLUMNS[name].missing for name, _ in _FLAT)
_PREDICTED = _FLAT.index(("predicted", "predicted"))
_ORDER = itemgetter(*(_FLAT.index((piece.column.name, part)) for piece in _PIECES for part in piece.column.parts))
_ROW = Struct("<" + "".join(piece.dtype.char * piece.column.width for piece in _PIECES))
