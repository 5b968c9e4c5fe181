"""Warnings about the rows of a fit.

A fit of degenerate rows succeeds, and its numbers are right, but some of them cannot do what people expect. Each such
case is named when it is found: `darksight fit` prints the warnings, and the bundle keeps them for `bundle show` and for
the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.evaluation.fidelity import Fidelity
from darksight_core.guarantees.calibration import Calibration
from darksight_core.map.verdict import map_verdict

__all__ = ["FEW_CALIBRATION_ROWS", "RowFacts", "fit_warnings"]

FEW_CALIBRATION_ROWS = 100
"""Calibration rows below which a warning is given: with 99 the smallest p-value is 0.01."""

# Share of rows that are hard, or give all classes the same probability, from which that is worth a warning.
_MANY_HARD, _MANY_UNDECIDED = 0.5, 0.1
# Rows for each distinct one from which rows count as duplicated.
_DUPLICATED = 10
# Difference of equal probabilities, by rounding of float32.
_ROUNDING = 1e-6
# Smallest p-value of a known row from which it is worth a warning, if the number of calibration rows is not the cause.
_LARGE_P_VALUE = 0.05
_NAMES = 5


@dataclass(frozen=True, slots=True, eq=False)
class RowFacts:
    """Facts about the n fit rows.

    Parameters
    ----------
    is_hard
        Whether all classes but one have probability zero, (n,).
    is_undecided
        Whether all classes have the same probability, (n,).
    predicted
        Most probable class of each row, (n,).
    distinct
        Number of different rows.
    """

    is_hard: NDArray[np.bool_]
    is_undecided: NDArray[np.bool_]
    predicted: NDArray[np.integer]
    distinct: int

    @classmethod
    def of(
        cls, probs: NDArray[np.floating], distinct: int, gather: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray
    ) -> RowFacts:
        """Facts about rows (n, K), of which `gather` gets those of other processes too."""
        undecided = probs.max(axis=1) - probs.min(axis=1) <= _ROUNDING
        hard = (probs > 0.0).sum(axis=1) == 1
        return cls(gather(hard), gather(undecided), gather(probs.argmax(axis=1)), distinct)


def fit_warnings(
    rows: RowFacts,
    calibration: Calibration,
    served: Fidelity,
    class_names: Sequence[str],
    has_place: NDArray[np.bool_],
) -> tuple[str, ...]:
    """Warnings about a fit, one text each; none if all is well.

    Parameters
    ----------
    rows
        Facts about the fit rows.
    calibration
        Outlier scores of the calibration rows.
    served
        Fidelity of rows as they are served.
    class_names
        Names of the K classes of the rows.
    has_place
        Whether a point of the map is known where it predicts each of its classes, (K,).
    """
    found = [
        *_about_rows(rows),
        *_about_calibration(calibration),
        *_about_classes(rows, class_names),
        *_about_map(served, has_place),
    ]
    return tuple(found)


def _about_rows(rows: RowFacts) -> list[str]:
    n, found = len(rows.predicted), []
    hard, undecided = float(rows.is_hard.mean()), float(rows.is_undecided.mean())
    if rows.distinct == 1:
        found.append(
            f"constant rows: all {n:,} fit rows are equal, so the map is one point and no score can tell rows apart"
        )
    elif rows.distinct * _DUPLICATED <= n:
        found.append(
            f"duplicated rows: the {n:,} fit rows have only {rows.distinct:,} different contents, so points on the map "
            "lie on top of each other and scores take few values"
        )
    if hard >= _MANY_HARD:
        found.append(
            f"hard probabilities: {hard:.0%} of the rows give one class probability 1 and the others 0. p-values "
            "cannot tell such rows of one class apart, and no score can rank them by confidence. Use probabilities "
            "that are not rounded to 0 and 1, such as those of larger leaves or of a calibrated classifier"
        )
    if undecided >= _MANY_UNDECIDED and rows.distinct > 1:
        found.append(f"undecided rows: {undecided:.0%} of the rows give all classes the same probability")
    return found


def _about_calibration(calibration: Calibration) -> list[str]:
    n = len(calibration)
    if n == 0:
        return ["no calibration rows: every p-value is 1, so no row is an outlier"]
    if n < FEW_CALIBRATION_ROWS:
        return [
            f"few calibration rows: with {n} of them no p-value is below {1.0 / (n + 1):.2g}, and a smaller alpha "
            f"flags nothing. Give {FEW_CALIBRATION_ROWS} or more, by more rows or by another --split"
        ]
    smallest = float(calibration.p_value(calibration.scores[:1])[0])
    if smallest <= _LARGE_P_VALUE:
        return []
    return [
        f"tied p-values: {smallest:.0%} of the calibration rows share the lowest outlier score, so rows like these "
        f"never get a p-value below {smallest:.2g}. With a smaller alpha only rows unlike all of them are outliers"
    ]


def _about_classes(rows: RowFacts, class_names: Sequence[str]) -> list[str]:
    absent = np.flatnonzero(np.bincount(rows.predicted, minlength=len(class_names)) == 0)
    if len(absent) == 0:
        return []
    shown = ", ".join(class_names[k] for k in absent[:_NAMES]) + (", ..." if len(absent) > _NAMES else "")
    return [
        f"classes without rows: {len(absent):,} of {len(class_names):,} classes are predicted for no fit row "
        f"({shown}). No fit row determines their place on the map, and new rows of them may be outliers"
    ]


def _about_map(served: Fidelity, has_place: NDArray[np.bool_]) -> list[str]:
    found = []
    verdict = map_verdict(served.total_variation, served.star_agreement, served.on_border)
    if verdict.startswith("poor"):
        zeros = ""
        if served.kl_sym_of_zeros > 0.1 * served.kl_sym:
            zeros = f", {served.kl_sym_of_zeros:.3g} of it from probabilities of zero, which are read as 1e-30"
        found.append(f"poor map: KL_sym {served.kl_sym:.3g}{zeros}. {verdict.capitalize()}")
    if served.acc_teacher < 1.0 and not has_place.all():
        found.append(
            f"classes without a place: no point of the map was found where it predicts {int((~has_place).sum()):,} of "
            f"{len(has_place):,} classes, so it shows another class than the classifier for "
            f"{1.0 - served.acc_teacher:.2%} of the rows"
        )
    return found
