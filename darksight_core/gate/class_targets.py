"""Precision and recall of a class, certified: what a team that acts on one rare class asks for.

    precision   share of accepted rows predicted as the class that are right           Learn-then-Test, strict to loose
    recall      share of rows of the class that are predicted as it and accepted       order statistic, loose to strict

Both are about the gate as a whole: outliers are not accepted. Precision is kept by the thresholds that are tested from
the strictest down to t_p, recall by all up to t_r. With both targets every tested threshold from t_p to t_r keeps both,
and t_p, which accepts most rows, is taken; if t_p > t_r, none does. Rows predicted as other classes are not touched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.gate.attainable import attainable_accuracy
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.guarantees.binomial import upper_bound
from darksight_core.guarantees.risk_curve import lowest_accepted
from darksight_core.guarantees.thresholds import Threshold, threshold_by_accuracy, threshold_by_recall
from darksight_core.rows.simplex import Floats

__all__ = ["ClassTarget", "certify_class"]


@dataclass(frozen=True, slots=True)
class ClassTarget:
    """Number and name of a class, and its least precision, recall or both, between 0 and 1."""

    label: int
    name: str
    precision: float | None = None
    recall: float | None = None

    @property
    def promises(self) -> list[str]:
        """The promises in words."""
        words = [
            (self.precision, f"of accepted rows predicted as {self.name} are right"),
            (self.recall, f"of rows of {self.name} are predicted as {self.name} and accepted"),
        ]
        return [f"at least {share:.6g} {text}" for share, text in words if share is not None]


def certify_class(
    target: ClassTarget,
    rows: ScoredPredictions,
    confidence: Floats,
    flagged: NDArray[np.bool_],
    delta: float,
    reference: Floats | None = None,
) -> tuple[float, dict[str, Any]]:
    """The threshold of a class, -inf if infeasible, and its part of the certificate.

    Parameters
    ----------
    target
        What is asked.
    rows, confidence, flagged
        Certifying rows with labels, their reject scores, and which of them are outliers, (n,) each.
    delta
        Probability that a promise fails, of each.
    reference
        As in `threshold_by_accuracy`: reject scores of other rows that are predicted as the class.
    """
    if rows.labels is None:
        raise ConfigError("a target precision or recall needs labels, and these rows have none")
    passed, is_class = (rows.scores.predicted == target.label) & ~flagged, rows.labels == target.label
    if not (passed.any() and is_class.any()):
        raise ConfigError(
            f"no usual row is predicted as {target.name}, or none has that label; nothing can be certified"
        )
    found: dict[str, Threshold] = {}
    if target.precision is not None:
        scores, wrong, least = confidence[passed], ~is_class[passed], target.precision
        precise = threshold_by_accuracy(scores, wrong, least, delta=delta, reference=reference)
        if not precise.feasible:
            precise = replace(precise, attainable=attainable_accuracy(scores, wrong, least, delta, reference))
        found["precision"] = precise
    if target.recall is not None:
        scores = np.where(passed, confidence, -np.inf)[is_class]
        found["recall"] = threshold_by_recall(scores, target.recall, delta=delta)
    values, feasible = [each.value for each in found.values()], all(each.feasible for each in found.values())
    instead = {}
    if feasible and values[0] > values[-1]:
        feasible = False
        # What each threshold leaves of the other share, at least, with the same confidence.
        precise_rows, recalled_rows = (passed & (confidence >= lowest_accepted(value)) for value in values)
        missed = upper_bound((is_class & ~precise_rows).sum(), is_class.sum(), delta)
        wrong_share = upper_bound((~is_class & recalled_rows).sum(), recalled_rows.sum(), delta)
        instead = {"recall_at_precision": 1.0 - float(missed), "precision_at_recall": 1.0 - float(wrong_share)}
    return values[0] if feasible else -math.inf, {
        "class": target.label,
        "name": target.name,
        "promises": target.promises,
        "feasible": feasible,
        "range": [str(value) for value in values] if feasible else None,
        **{name: _facts(each) for name, each in found.items()},
        **instead,
    }


def _facts(threshold: Threshold) -> dict[str, Any]:
    names = ("promised", "n", "feasible", "labels_needed", "attainable")
    return {name: getattr(threshold, name) for name in names}
