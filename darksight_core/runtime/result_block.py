"""Results of a batch as one block of bytes, in the order in which they are sent and stored.

    response   float64   points | log_density | log_kde | p_value
    stored     float32   points | log_density | log_kde | outlier_score | p_value | confidence | top
               int32     predicted
               int8      decision | reason
               int16     set_size

The columns come from `SCHEMA` in `darksight_core.rows.schema`: first those whose type in a response differs from the
stored one, then the stored ones. Each column has all of its rows, one after the other, as on the wire and in a record.
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

__all__ = ["RESPONSE_BYTES", "ROW_BYTES", "STORED_BYTES", "Piece", "ResultBlock", "place", "stored_pieces"]


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
    for column, dtype in columns:
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
_PLACES = {piece.column.name: piece for piece in (*_STORED, *_RESPONSE)}


def stored_pieces() -> tuple[Piece, ...]:
    """The stored columns; a record holds their bytes as they are in a block, from `RESPONSE_BYTES` on."""
    return tuple(piece._replace(start=piece.start - RESPONSE_BYTES) for piece in _STORED)


def place(name: str, rows: int) -> slice:
    """The bytes of a column in a block of so many rows: as in the response if it is there, else as stored."""
    found = _PLACES[name]
    return slice(found.start * rows, found.end * rows)


def _counted() -> Struct:
    """Reads the values that are counted of a single row."""
    text, end = "<", 0
    for piece in sorted((_PLACES[name] for name in ResultBlock.COUNTED), key=lambda piece: piece.start):
        text += f"{piece.start - end}x{piece.dtype.char}"
        end = piece.end
    return Struct(f"{text}{ROW_BYTES - end}x")


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

    COUNTED = ("log_density", "p_value", "predicted", "decision", "reason")
    """Columns that are counted."""

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
        """The block of a single row, by its values in the order of `SCHEMA` up to `set_size`; None if one is too large.

        It takes a tenth of the time that arrays would.
        """
        try:
            return cls(_ROW.pack(*_ORDER(values)), 1, values[_PREDICTED] >= 0)
        except OverflowError:
            return None

    def __len__(self) -> int:
        return self.rows

    def column(self, name: str) -> NDArray[Any]:
        """A column of the same bytes, (n,) or (n, 2), read-only."""
        column, dtype, start = _PLACES[name]
        width = column.width
        values: NDArray[Any] = np.frombuffer(self.data, dtype, width * self.rows, start * self.rows)
        return values.reshape(self.rows, width) if width > 1 else values

    def single(self) -> tuple[float, float, int, int, int]:
        """The `COUNTED` values of the only row."""
        return _SINGLE.unpack(self.data)


_SINGLE = _counted()


# Of a block of one row: where its values are among those of the schema, one after the other.
_FLAT = [(column.name, part) for column in SCHEMA for part in column.parts]
_PREDICTED = _FLAT.index(("predicted", "predicted"))
_ORDER = itemgetter(*(_FLAT.index((piece.column.name, part)) for piece in _PIECES for part in piece.column.parts))
_ROW = Struct("<" + "".join(piece.dtype.char * piece.column.width for piece in _PIECES))
