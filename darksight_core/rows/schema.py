"""The schema of a scored row, and a batch of scored rows in memory.

A field of `ScoredBatch` declares a column: its type, what it means, and where it is sent, stored and shown. Everything
that writes or reads scored rows (result block, response, client, spool record, SQL table, score file, explorer, docs)
takes its columns from `SCHEMA`. So a new column is one field here and the code that computes it, with a migration if it
is stored and a field of the proto if it is in the response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from math import nan
from typing import Annotated, Any, Self, get_type_hints

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.simplex import Floats

__all__ = ["AUDIT_COLUMNS", "SCHEMA", "Column", "Decision", "Reason", "ResponseColumns", "ScoredBatch", "stored_name"]


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
        Type in memory and in a response, where it is `<f8` or `i1`.
    stored
        Type in a spool record and in SQL; empty if the column is not stored.
    label, description
        Name for people, and one line for documents.
    parts
        Names of its values in SQL, in score files and in the browser, if they are not the name of the column. The
        number of parts is the number of values in a row.
    missing
        The value of a row that has none.
    nullable
        Whether SQL stores the missing value as NULL.
    listed
        Whether tables of stored points have it as a number: the points page, its CSV file, exports. They always have
        decision, reason and class, by name.
    file, browser
        Whether it is in score files, and among the points that the explorer draws on the map.
    name
        Name of the field.
    response
        Whether it is in the response: the fields of `ResponseColumns` are.
    """

    dtype: str
    stored: str
    label: str
    description: str
    parts: tuple[str, ...] = ()
    missing: float = nan
    nullable: bool = True
    listed: bool = False
    file: bool = False
    browser: bool = False
    name: str = ""
    response: bool = False

    @property
    def width(self) -> int:
        """Number of values in a row."""
        return len(self.parts)

    def blank(self, n: int) -> NDArray[Any]:
        """The column of n rows that have no value, (n,) or (n, 2)."""
        shape = n if self.width == 1 else (n, self.width)
        return np.full(shape, self.missing, self.dtype) if self.missing else np.zeros(shape, self.dtype)


# Neither is frozen: that takes a microsecond more to make, in the request path.
@dataclass(slots=True, eq=False)
class ResponseColumns:
    """Columns of n scored rows that a response has; see `ScoredBatch`."""

    points: Annotated[
        Floats,
        Column("<f8", "<f4", "map coordinates", "point on the map", ("x", "y"), listed=True, file=True, browser=True),
    ]
    log_density: Annotated[
        Floats, Column("<f8", "<f4", "log P", "log density of the student at the point", listed=True, file=True)
    ]
    log_kde: Annotated[
        Floats,
        Column("<f8", "<f4", "log KDE", "log density of the reference points at the point", listed=True, file=True),
    ]
    p_value: Annotated[
        Floats,
        Column("<f8", "<f4", "p-value", "conformal rank of the outlier score", listed=True, file=True, browser=True),
    ]
    decision: Annotated[
        NDArray[np.int8],
        Column("i1", "i1", "decision", "accept or reject", ("is_accepted",), missing=0, nullable=False, browser=True),
    ]
    reason: Annotated[
        NDArray[np.int8],
        Column("i1", "i1", "reason", "which rule rejected the row", missing=0, nullable=False, browser=True),
    ]

    def __len__(self) -> int:
        return len(self.decision)

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Which rows may be acted on, (n,)."""
        return np.equal(self.decision, Decision.ACCEPT)

    def file_columns(self, **others: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """The columns of score files and tables that this object has, (n,) each, with `others` that it has not."""
        found: dict[str, NDArray[Any]] = {}
        for column in SCHEMA:
            values = others.get(column.name, getattr(self, column.name, None))
            if column.file and values is not None:
                found |= dict(zip(column.parts, values.reshape(len(self), column.width).T, strict=True))
        return found


@dataclass(slots=True, eq=False)
class ScoredBatch(ResponseColumns):
    """Scores and decisions of n rows, as columns. A value that a row lacks is NaN.

    Parameters
    ----------
    points
        Point on the map, (n, 2).
    log_density
        log P(y; θ), the student's density, (n,).
    log_kde
        log density of the reference points, (n,).
    p_value
        Conformal rank of the outlier score, (n,).
    decision, reason
        `Decision` and `Reason`, (n,) int8; 0 until the gate decides.
    fidelity
        KL_sym between the row and the student's classes at its point, (n,).
    outlier_score
        How usual the row is among known rows, off the map; see `OutlierScore`, (n,).
    confidence
        The reject score that the gate cuts, (n,); NaN until the gate decides, and if it has no such rule.
    top
        The largest probability, (n,).
    predicted
        The most probable class, (n,); ties go to the first class. -1 for a row that is not valid or not scored.
    set_size
        Number of classes in the prediction set, the most probable ones, (n,); 0 for a row without one.
    resolution
        Number of the resolution at which the row was ranked, (n,); see `darksight_core.rows.resolution`.
    known
        Number of classes whose probabilities came with the row, the most probable ones, (n,); 0 if all did.
    other
        Probability of tokens that are no class, (n,); NaN if all probabilities came with the row.
    valid
        Whether the row is a vector of probabilities, (n,).
    odds
        Probability with which the row is stored, (n,): 1 unless the setting keep_accepted leaves some rows out. A row
        that is stored stands for 1 / odds rows.
    """

    fidelity: Annotated[
        Floats, Column("<f8", "", "fidelity", "divergence of the row from the map's classes at its point", file=True)
    ]
    outlier_score: Annotated[
        Floats, Column("<f8", "<f4", "outlier score", "how usual the row is", listed=True, file=True)
    ]
    confidence: Annotated[
        Floats, Column("<f8", "<f4", "reject score", "the score that the gate rejects by", listed=True)
    ]
    top: Annotated[Floats, Column("<f8", "<f4", "p₁", "the largest probability", listed=True, file=True, browser=True)]
    predicted: Annotated[
        NDArray[np.int32],
        Column("<i4", "<i4", "predicted", "most probable class", missing=-1, nullable=False, file=True, browser=True),
    ]
    set_size: Annotated[
        NDArray[np.int32],
        Column("<i4", "<i2", "set size", "classes in the prediction set", missing=0, listed=True, file=True),
    ]
    resolution: Annotated[
        NDArray[np.int16],
        Column("<i2", "<i2", "resolution", "what the row resolves, as it was ranked", missing=0, nullable=False),
    ]
    known: Annotated[
        NDArray[np.int32],
        Column("<i4", "<i2", "known classes", "classes of a row that is known in part", missing=0, listed=True),
    ]
    other: Annotated[Floats, Column("<f8", "<f4", "other", "probability of tokens that are no class", listed=True)]
    valid: Annotated[
        NDArray[np.bool_], Column("?", "", "valid", "whether the row is a vector of probabilities", missing=True)
    ]
    odds: Annotated[
        Floats,
        Column("<f8", "<f4", "odds", "probability with which the row is stored", missing=1.0, listed=True),
    ]

    def take(self, rows: NDArray[Any] | slice) -> ScoredBatch:
        """The rows with these numbers, or those that a mask selects."""
        return ScoredBatch(*(getattr(self, column.name)[rows] for column in SCHEMA))

    def put(self, rows: NDArray[np.integer], others: ScoredBatch) -> None:
        """Replace the rows with these numbers by others."""
        for column in SCHEMA:
            getattr(self, column.name)[rows] = getattr(others, column.name)

    @classmethod
    def join(cls, batches: Sequence[Self]) -> Self:
        """One batch of several, row after row."""
        return cls(*(np.concatenate([getattr(batch, column.name) for batch in batches]) for column in SCHEMA))

    @classmethod
    def unscored(cls, n: int) -> ScoredBatch:
        """n rows of which nothing is known yet: all scores are NaN, no row is decided, and all count as valid."""
        return cls(*(column.blank(n) for column in SCHEMA))


def _schema() -> tuple[Column, ...]:
    declared = get_type_hints(ScoredBatch, include_extras=True)
    sent = {each.name for each in fields(ResponseColumns)}
    return tuple(
        replace(column, name=name, parts=column.parts or (name,), response=name in sent)
        for name, column in ((each.name, declared[each.name].__metadata__[0]) for each in fields(ScoredBatch))
    )


SCHEMA: tuple[Column, ...] = _schema()
"""The columns of a scored row, in the order of the fields of `ScoredBatch`."""

AUDIT_COLUMNS: tuple[Column, ...] = tuple(
    Column("<f8", "<f4", label, description, (name,), name=name)
    for name, label, description in (
        ("error_chance", "P(wrong)", "probability of being wrong, of a row that is drawn for the audit"),
        ("audit_odds", "odds", "probability with which a row that is drawn for the audit was drawn"),
    )
)
"""Columns that a row gets where it is stored, which SQL has beside those of `SCHEMA`."""
