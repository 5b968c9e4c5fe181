"""Results of a batch as one block of bytes, in the order in which they are answered and stored.

    float64   p_value | log_density | log_kde | points
    float32   points | log_density | log_kde | combined | p_value | confidence | top
    int32     predicted
    int8      decision | reason

Each column has all of its rows, one after the other, as on the wire and in a record: what answers or stores a batch
cuts a piece off and joins it to others. For a single row that takes a tenth of the time that arrays would.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.simplex import Floats

if TYPE_CHECKING:
    from darksight_core.runtime.policy import ScoredBatch

__all__ = ["ANSWERED", "ROW_BYTES", "STORED", "ResultBlock"]

ANSWERED = 40
"""Bytes of a row in float64, with which a sheet starts."""

STORED = 36
"""Bytes of a row in float32 and int32, which follow."""

ROW_BYTES = ANSWERED + STORED + 2
"""All bytes of a row."""

_ONE = Struct("<2d24x32xi2b")

Column = Callable[["ResultBlock"], NDArray[Any]]


def _column(dtype: str, start: int, doc: str, width: int = 1) -> Any:
    """A column that starts at so many bytes for each row; read-only."""

    def read(self: ResultBlock) -> NDArray[Any]:
        column = np.frombuffer(self.data, dtype, width * self.rows, start * self.rows)
        return column.reshape(self.rows, width) if width > 1 else column

    return property(read, doc=doc)


class ResultBlock:
    """Results for n rows.

    Parameters
    ----------
    data
        The bytes, `ROW_BYTES` for each row.
    rows
        n.
    are_valid
        Whether no row is a bad one.
    """

    __slots__ = ("are_valid", "data", "rows")

    def __init__(self, data: bytes, rows: int, are_valid: bool) -> None:
        self.data = data
        self.rows = rows
        self.are_valid = are_valid

    @classmethod
    def of(cls, judged: ScoredBatch) -> ResultBlock:
        """The sheet of results that are arrays."""
        scores, decisions = judged.scores, judged.decisions
        kept = (scores.log_density, scores.log_kde, scores.combined, scores.p_value, judged.confidence, judged.top)
        # What is too large for a float32 becomes infinite, which says the same.
        with np.errstate(over="ignore"):
            singles = np.concatenate((scores.points.ravel(), *kept), dtype="<f4", casting="same_kind")
        doubles = (scores.p_value, scores.log_density, scores.log_kde, scores.points)
        words = (judged.predicted, decisions.decision, decisions.reason)
        data = b"".join(column.tobytes() for column in (*doubles, singles, *words))
        return cls(data, len(judged), bool(scores.valid.all()))

    def __len__(self) -> int:
        return self.rows

    p_value: Floats = _column("<f8", 0, "As in `Scores`, (n,), and so the next three.")
    log_density: Floats = _column("<f8", 8, "(n,).")
    log_kde: Floats = _column("<f8", 16, "(n,).")
    points: Floats = _column("<f8", 24, "(n, 2).", 2)
    predicted: NDArray[np.int32] = _column("<i4", 72, "As in `ScoredBatch`, (n,).")
    decision: NDArray[np.int8] = _column("i1", 76, "As in `Decisions`, (n,), and so the next.")
    reason: NDArray[np.int8] = _column("i1", 77, "(n,).")

    def one(self) -> tuple[float, float, int, int, int]:
        """p-value, log density, predicted class, decision and reason of the only row."""
        return _ONE.unpack(self.data)
