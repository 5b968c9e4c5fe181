"""The schema of a scored row, and a batch of scored rows in memory.

A field of `ScoredBatch` declares a column: its type, and where it travels. Everything that writes or reads scored rows
(result block, response, spool record, SQL table, score file, map of the explorer) takes its columns from `SCHEMA`, so a
new column is one field here and one migration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Annotated, Any, Self, get_type_hints

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.simplex import Floats

__all__ = ["SCHEMA", "Column", "Decision", "Reason", "ScoredBatch", "stored_name"]


class Decision(IntEnum):
    """What to do with a row; 0 is "unspecified", before the gate has decided."""

    ACCEPT = 1
    REJECT = 2


class Reason(IntEnum):
    """Why; see `darksight_core.gate.gate`. 0 is "unspecified", before the gate has decided."""

    NONE = 1
    OUTLIER = 2
    LOW_CONFIDENCE = 3
    REGION = 4
    INVALID = 5
    UNSCORED = 6


def stored_name(kind: type[Decision] | type[Reason], number: int) -> str:
    """Name of a stored decision or reason; UNKNOWN for a number that this version does not know.

    >>> stored_name(Reason, 2), stored_name(Reason, 99)
    ('OUTLIER', 'UNKNOWN')
    """
    return next((member.name for member in kind if member == number), "UNKNOWN")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a scored row.

    Parameters
    ----------
    dtype
        Type in memory and in a response.
    stored
        Type in a spool record and in SQL; empty if the column is not stored.
    parts
        Names of its values in SQL and in score files, if they are not the name of the column. The number of parts is
        the number of values in a row.
    response, file, browser
        Whether it is in the response, in score files, and among the points that the explorer draws.
    name
        Name of the field.
    """

    dtype: str
    stored: str = ""
    parts: tuple[str, ...] = ()
    response: bool = False
    file: bool = False
    browser: bool = False
    name: str = ""

    @property
    def width(self) -> int:
        """Number of values in a row."""
        return len(self.parts)


# Not frozen: that takes a microsecond more to make, in the request path.
@dataclass(slots=True, eq=False)
class ScoredBatch:
    """Scores and decisions of n rows, as columns. A value that a row lacks is NaN.

    Parameters
    ----------
    points
        Point on the map, (n, 2).
    log_density
        log P(y; θ), the student's density, (n,).
    log_kde
        log density of the reference points, (n,).
    fidelity
        KL_sym between the row and the student's classes at its point, (n,).
    outlier_score
        How usual the row is among known rows, off the map; see `OutlierScore`, (n,).
    p_value
        Conformal rank of the outlier score, (n,).
    confidence
        The reject score that the gate cuts, (n,); NaN until the gate decides, and if it has no such rule.
    top
        The largest probability, (n,).
    predicted
        The most probable class, (n,), the first of equal ones; -1 for a row that is not valid or not scored.
    decision, reason
        `Decision` and `Reason`, (n,) int8; 0 until the gate decides.
    set_size
        Number of classes in the prediction set, the most probable ones, (n,); 0 for a row without one.
    valid
        Whether the row is a vector of probabilities, (n,).
    """

    points: Annotated[Floats, Column("<f8", "<f4", parts=("x", "y"), response=True, file=True, browser=True)]
    log_density: Annotated[Floats, Column("<f8", "<f4", response=True, file=True)]
    log_kde: Annotated[Floats, Column("<f8", "<f4", response=True, file=True)]
    fidelity: Annotated[Floats, Column("<f8", file=True)]
    outlier_score: Annotated[Floats, Column("<f8", "<f4", file=True)]
    p_value: Annotated[Floats, Column("<f8", "<f4", response=True, file=True, browser=True)]
    confidence: Annotated[Floats, Column("<f8", "<f4")]
    top: Annotated[Floats, Column("<f8", "<f4", file=True, browser=True)]
    predicted: Annotated[NDArray[np.int32], Column("<i4", "<i4", file=True, browser=True)]
    decision: Annotated[NDArray[np.int8], Column("i1", "i1", parts=("is_accepted",), response=True, browser=True)]
    reason: Annotated[NDArray[np.int8], Column("i1", "i1", response=True, browser=True)]
    set_size: Annotated[NDArray[np.int32], Column("<i4", "<i2", file=True)]
    valid: Annotated[NDArray[np.bool_], Column("?")]

    def __len__(self) -> int:
        return len(self.predicted)

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Which rows may be acted on, (n,)."""
        return np.equal(self.decision, Decision.ACCEPT)

    def take(self, rows: NDArray[Any] | slice) -> ScoredBatch:
        """The rows with these numbers, or those that a mask selects."""
        return ScoredBatch(*(getattr(self, column.name)[rows] for column in SCHEMA))

    def file_columns(self) -> dict[str, NDArray[Any]]:
        """The columns of the schema that are in score files and tables, (n,) each."""
        found: dict[str, NDArray[Any]] = {}
        for column in SCHEMA:
            if column.file:
                values = getattr(self, column.name).reshape(len(self), column.width)
                found |= dict(zip(column.parts, values.T, strict=True))
        return found

    @classmethod
    def join(cls, batches: Sequence[Self]) -> Self:
        """One batch of several, row after row."""
        return cls(*(np.concatenate([getattr(batch, column.name) for batch in batches]) for column in SCHEMA))

    @classmethod
    def unscored(cls, n: int) -> ScoredBatch:
        """n rows of which nothing is known yet: all scores are NaN, no row is decided, and all count as valid."""
        batch = cls(*(np.full((n, 2) if column.width > 1 else n, _MISSING[column.dtype]) for column in SCHEMA))
        batch.predicted[:] = -1
        return batch


_MISSING = {"<f8": np.float64("nan"), "<i4": np.int32(0), "i1": np.int8(0), "?": np.True_}


def _schema() -> tuple[Column, ...]:
    declared = get_type_hints(ScoredBatch, include_extras=True)
    columns = [(each.name, declared[each.name].__metadata__[0]) for each in fields(ScoredBatch)]
    return tuple(replace(column, name=name, parts=column.parts or (name,)) for name, column in columns)


SCHEMA: tuple[Column, ...] = _schema()
"""The columns of a scored row, in the order of the fields of `ScoredBatch`."""
