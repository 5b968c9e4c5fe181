"""How often predictions were right, of points that have a label.

Labels arrive late and for a part of the traffic only. Where that part is not a random sample (complaints, for example,
or reviewed cases), these figures describe it and not the traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darksight_core.guarantees.binomial import lower_bound, upper_bound
from darksight_core.rows.json_record import JsonRecord

__all__ = ["Share"]

_DELTA = 0.05


@dataclass(frozen=True, slots=True)
class Share(JsonRecord):
    """Correct predictions among `rows`, with the exact 95% interval of their share; None for no rows."""

    rows: int
    right: int
    share: float | None
    low: float
    high: float

    @classmethod
    def of(cls, right: NDArray[np.bool_]) -> Share:
        """From whether each row was right, (n,)."""
        rows, hits = len(right), int(right.sum())
        wrong = rows - hits
        low = 1.0 - float(upper_bound(wrong, rows, _DELTA / 2)) if rows else 0.0
        high = 1.0 - float(lower_bound(wrong, rows, _DELTA / 2)) if rows else 1.0
        return cls(rows, hits, hits / rows if rows else None, low, high)
