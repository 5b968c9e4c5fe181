"""Random cases for the rules of the gate, with the expected reasons, for every implementation of them.

Numbers are multiples of 1/16, so that float32 columns hold them exactly and many rows lie exactly at a threshold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darksight_core.gate.gate import RULES, Gate, accepted_reasons
from darksight_core.guarantees.conformal import Cutoff
from darksight_core.map.regions import Region
from darksight_core.rows.schema import Reason
from darksight_core.rows.simplex import Floats

__all__ = ["GateCase", "gate_cases"]

_SQUARE = Region("square", ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)))


@dataclass(frozen=True, slots=True, eq=False)
class GateCase:
    """A gate on the reject score log_kde, rows as columns (n,), and what the rules say about each row.

    A missing p-value or reject score is NaN. `points` are (n, 2); half of them are inside the only region. There are
    two predicted classes.
    """

    gate: Gate
    valid: NDArray[np.bool_]
    p_value: Floats
    log_kde: Floats
    points: Floats
    predicted: NDArray[np.int32]

    @property
    def reasons(self) -> list[Reason]:
        """Expected reason of each row."""
        return [self._reason(row) for row in range(len(self.valid))]

    @property
    def accepted(self) -> list[bool]:
        """Expected decision of each row."""
        return [reason in accepted_reasons(self.gate.fail_open) for reason in self.reasons]

    def _reason(self, row: int) -> Reason:
        gate, p_value, confidence = self.gate, self.p_value[row], self.log_kde[row]
        has_threshold, threshold = gate.reject_score is not None, gate.threshold
        if gate.class_thresholds is not None:
            threshold = float(gate.class_thresholds[self.predicted[row]])
        applies = {
            Reason.INVALID: not self.valid[row],
            Reason.OUTLIER: gate.outlier is not None and p_value <= gate.outlier.p_value,
            Reason.UNSCORED: bool(np.isnan(p_value) or (has_threshold and np.isnan(confidence))),
            Reason.LOW_CONFIDENCE: has_threshold and confidence < threshold,
            Reason.REGION: bool(gate.regions) and bool((np.abs(self.points[row]) < 0.5).all()),
        }
        first = next((rule for rule in RULES if applies[rule]), Reason.NONE)
        if first is Reason.UNSCORED and gate.fail_open and applies[Reason.REGION]:
            return Reason.REGION
        return first


def gate_cases(*, rows: int = 200, seed: int = 0) -> Iterator[GateCase]:
    """One case for every combination of rules, each with its own rows."""
    rng = np.random.default_rng(seed)

    def sixteenths() -> Floats:
        values = rng.integers(1, 17, size=rows) / 16.0
        return np.where(rng.random(rows) < 0.1, np.nan, values)

    for outlier in (None, Cutoff(2, 15, 0.125, None, 7)):
        for score, threshold, by_class in (
            (None, -np.inf, None),
            ("log_kde", -np.inf, None),
            ("log_kde", 0.25, None),
            ("log_kde", 0.25, np.array([0.75, -np.inf])),
        ):
            for regions in ((), (_SQUARE,)):
                for fail_open in (False, True):
                    rules = {"fail_open": fail_open, "regions": regions, "class_thresholds": by_class}
                    gate = Gate(outlier, score, threshold, **rules)
                    valid = rng.random(rows) < 0.9
                    points = rng.choice([0.25, 0.75], p=[0.7, 0.3], size=(rows, 2))
                    predicted = rng.integers(0, 2, rows).astype(np.int32)
                    yield GateCase(gate, valid, sixteenths(), sixteenths(), points, predicted)
