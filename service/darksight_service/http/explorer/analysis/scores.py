"""Comparison of confidence scores on labelled points: curves, figures, and the gain over max-softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.evaluation.failure import FailureFigures, failure_figures
from darksight_core.guarantees.risk_curve import RiskCurve, risk_curve
from darksight_core.rows.simplex import Floats, log_probs
from darksight_core.scores.choice import choose_score
from darksight_core.scores.learned import MIN_ROWS, Learned, densities_of
from darksight_core.scores.registry import map_scores, row_scores
from darksight_service.store.points import PointTable

__all__ = ["ScoreCurve", "compare_scores", "known_densities", "stored_scores"]

Bools: TypeAlias = NDArray[np.bool_]

_CURVE_POINTS = 120
_RESAMPLES = 100


@dataclass(frozen=True, slots=True, eq=False)
class ScoreCurve:
    """One score on labelled points.

    Parameters
    ----------
    name
        Name of the score.
    coverage, accuracy
        Share of rows accepted and their accuracy, (m,), by increasing coverage.
    figures
        How well the score finds errors, with intervals.
    gain, gain_error
        AUGRC of max-softmax minus AUGRC of the score, and its standard error; None without errors.
    """

    name: str
    coverage: Floats
    accuracy: Floats
    figures: FailureFigures
    gain: float | None
    gain_error: float | None


def known_densities(table: PointTable) -> dict[str, Floats]:
    """The density columns that are finite in every row, by name."""
    return _complete(densities_of(table))


def stored_scores(table: PointTable, reject_score: str | None = None, *, seed: int = 0) -> dict[str, Floats]:
    """Every score that the stored columns of labelled points allow, by name, (n,) each.

    Probabilities are stored as float16, so scores are those of rounded probabilities. The reject score of the gate is
    the one that was stored, which decided. `refitted` is the learned score, fitted to these labels: each row's value
    comes from a fit on other rows.
    """
    found = _complete(map_scores(table))
    if table.probs.shape[1] >= 2 and np.isfinite(table.probs).all() and len(table):
        log_pi = log_probs(table.probs.astype(np.float64))
        found |= row_scores(log_pi)
        if len(table) >= 2 * MIN_ROWS:
            found["refitted"] = Learned.cross_fit(log_pi, ~table.errors, seed=seed, **known_densities(table))
    elif _is_complete(table.top):
        found["msp"] = table.top
    if reject_score is not None and _is_complete(table.confidence):
        found[reject_score] = table.confidence
    return found


def compare_scores(scores: dict[str, Floats], errors: Bools, *, seed: int = 0) -> list[ScoreCurve]:
    """Scores on the same rows, lowest AUGRC first.

    Parameters
    ----------
    scores
        Scores by name, (n,) each; high is confident.
    errors
        Which predictions are wrong, (n,).
    seed
        Seed of the bootstrap intervals.
    """
    has_errors = bool(errors.any()) and "msp" in scores and len(errors) > 1
    gains = (
        {row.name: (row.gain, row.standard_error) for row in choose_score(scores, errors).rows} if has_errors else {}
    )
    curves = []
    for name, values in scores.items():
        coverage, accuracy = _thin(risk_curve(values, errors))
        figures = failure_figures(values, errors, resamples=_RESAMPLES if has_errors else 0, seed=seed)
        curves.append(ScoreCurve(name, coverage, accuracy, figures, *gains.get(name, (None, None))))
    return sorted(curves, key=lambda curve: curve.figures.augrc)


def _thin(curve: RiskCurve) -> tuple[Floats, Floats]:
    """Coverage and accuracy of at most `_CURVE_POINTS` points of a curve."""
    if len(curve.coverage) <= _CURVE_POINTS:
        return curve.coverage, curve.accuracy
    kept = np.searchsorted(curve.coverage, np.linspace(curve.coverage[0], 1.0, _CURVE_POINTS) - 1e-12)
    kept = np.unique(kept)
    return curve.coverage[kept], curve.accuracy[kept]


def _complete(scores: dict[str, Floats]) -> dict[str, Floats]:
    return {name: values for name, values in scores.items() if _is_complete(values)}


def _is_complete(values: Floats) -> bool:
    return bool(len(values)) and bool(np.isfinite(values).all())
