"""Coverage and size of prediction sets on labelled rows, beside plain top-k."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from darksight_core.gate.certify_sets import in_segments, rejected_rows, worst_class
from darksight_core.gate.gate import Gate
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.guarantees.prediction_sets import class_ranks

__all__ = ["SetCoverage", "set_coverage"]


@dataclass(frozen=True, slots=True)
class SetCoverage:
    """Prediction sets of rejected rows.

    Parameters
    ----------
    promised
        Certified coverage.
    rows
        Rejected rows that have a set.
    coverage, standard_error
        Share of them whose true class is in the set.
    mean_size
        Mean number of classes in a set.
    accuracy
        Share of them whose most probable class is the true one.
    top_k
        Least k for which the k most probable classes of every row cover as much.
    worst_class
        The class that is covered least, with its `coverage` and `rows`; None without a class of 20 rows.
    """

    promised: float
    rows: int
    coverage: float
    standard_error: float
    mean_size: float
    accuracy: float
    top_k: int
    worst_class: dict[str, Any] | None

    @property
    def summary(self) -> str:
        """In words."""
        return (
            f"Prediction sets of {self.rows:,} rejected rows hold the true class in {self.coverage:.2%} (standard "
            f"error {self.standard_error:.2%}; promised {self.promised:.6g}) and have {self.mean_size:.2f} classes on "
            f"average. The most probable class alone is right in {self.accuracy:.2%}; with the same number of classes "
            f"for every row it takes {self.top_k}.{self._worst}"
        )

    @property
    def _worst(self) -> str:
        text = " The worst class, number {class}, is covered in {coverage:.2%} of {rows:,} rows."
        return "" if self.worst_class is None else text.format(**self.worst_class)

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def set_coverage(
    gate: Gate, rows: ScoredPredictions, tags: Mapping[str, Sequence[str]] | None = None
) -> SetCoverage | None:
    """What the sets of a gate hold; None without sets, labels or rejected rows.

    Parameters
    ----------
    gate
        The gate.
    rows
        Rows that it was not calibrated on.
    tags
        Values of the tags of the rows by key; read if the thresholds of the gate differ by segment.
    """
    if gate.sets is None or rows.labels is None:
        return None
    rejected = rejected_rows(gate, in_segments(gate, rows, tags or {}))
    if not len(rejected) or rejected.labels is None:
        return None
    sizes, ranks = gate.sets.sizes(rejected.log_pi), class_ranks(rejected.log_pi, rejected.labels)
    covered, n = int((ranks < sizes).sum()), len(ranks)
    coverage = covered / n
    return SetCoverage(
        promised=gate.sets.coverage,
        rows=n,
        coverage=coverage,
        standard_error=math.sqrt(coverage * (1.0 - coverage) / n),
        mean_size=float(sizes.mean()),
        accuracy=float((ranks == 0).mean()),
        top_k=int(np.sort(ranks)[max(covered - 1, 0)]) + 1,
        worst_class=worst_class(gate.sets, rejected),
    )
