"""What the labels say about scores and thresholds: the figures of the gate page, without a wire.

Curves describe the labels at hand. A threshold that was picked by looking at them promises nothing: of all thresholds
it is the luckiest. What can be promised is the one threshold that Learn-then-Test arrives at, and only if the labels
are a fair draw from the traffic (`audit` makes such a draw).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.evaluation.failure import FailureFigures, failure_figures
from darksight_core.guarantees.binomial import lower_bound, upper_bound
from darksight_core.guarantees.risk_curve import RiskCurve, risk_curve
from darksight_core.guarantees.thresholds import Threshold
from darksight_core.guarantees.thresholds import threshold_by_accuracy as certified_threshold
from darksight_core.scores.choice import choose_score
from darksight_core.scores.confidence import row_scores
from darksight_core.scores.learned import MIN_ROWS, Learned
from darksight_core.simplex import Floats, log_probs

if TYPE_CHECKING:
    from darksight_service.store import PointTable

__all__ = [
    "Certificate",
    "ScoreLine",
    "ThresholdSteps",
    "certificate",
    "score_lines",
    "stored_scores",
    "threshold_steps",
]

Bools: TypeAlias = NDArray[np.bool_]

_DELTA = 0.05
_CURVE_POINTS = 120
_RESAMPLES = 100


@dataclass(frozen=True, slots=True, eq=False)
class ScoreLine:
    """One score on the labels.

    Parameters
    ----------
    name
        Of the score.
    coverage, accuracy
        Share of rows kept and accuracy of these, (m,), from few rows to all.
    figures
        How well it finds errors, with intervals.
    gain, gain_error
        By how much its AUGRC is below max-softmax's, and the standard error of that; None without errors.
    """

    name: str
    coverage: Floats
    accuracy: Floats
    figures: FailureFigures
    gain: float | None
    gain_error: float | None


@dataclass(frozen=True, slots=True, eq=False)
class ThresholdSteps:
    """Thresholds of the gate's own score that a slider stops at, from loose to strict; arrays are (m,).

    Parameters
    ----------
    threshold
        Accept iff score > threshold; the first is -inf.
    accepted, wrong
        Labelled rows that pass all rules, and the wrong ones among them.
    low, high
        Exact 95% interval of the accuracy of what is accepted, for one threshold that was fixed beforehand.
    rows
        Labelled rows in all, rejected ones included.
    """

    threshold: Floats
    accepted: NDArray[np.int64]
    wrong: NDArray[np.int64]
    low: Floats
    high: Floats
    rows: int


@dataclass(frozen=True, slots=True)
class Certificate:
    """What Learn-then-Test can promise on these labels.

    Parameters
    ----------
    found
        The threshold, feasible or not; its `coverage` is among rows that pass the other rules.
    coverage
        Share of all labelled rows that all rules accept; 0 if infeasible.
    picked
        The loosest threshold whose measured accuracy meets the target: what must not be trusted. None if there is none.
    """

    found: Threshold
    coverage: float
    picked: float | None


def stored_scores(rows: PointTable, *, seed: int = 0) -> dict[str, Floats]:
    """Every score that what is kept of labelled points allows, by name, (n,) each.

    Rows must be labelled. Probabilities are kept as float16, so scores of rows are those of rounded probabilities.
    `learned` is cross-fitted: each row's value comes from a fit that has not seen it.
    """
    found: dict[str, Floats] = {}
    columns = {name: values for name in ("log_density", "log_kde") if _is_whole(values := getattr(rows, name))}
    if rows.probs.shape[1] >= 2 and np.isfinite(rows.probs).all() and len(rows):
        log_pi = log_probs(rows.probs.astype(np.float64))
        found = row_scores(log_pi) | columns
        if len(rows) >= 2 * MIN_ROWS:
            found["learned"] = Learned.cross_fit(log_pi, ~rows.errors, seed=seed, **columns)
    elif _is_whole(rows.top):
        found = {"msp": rows.top, **columns}
    if _is_whole(rows.outlier_score):
        found["outlier_score"] = rows.outlier_score
    return found


def score_lines(scores: dict[str, Floats], errors: Bools, *, seed: int = 0) -> list[ScoreLine]:
    """All scores beside each other on the same rows, best AUGRC first."""
    lines = []
    has_errors = bool(errors.any()) and "msp" in scores and len(errors) > 1
    gains = {row.name: row for row in choose_score(scores, errors).rows} if has_errors else {}
    for name, values in scores.items():
        coverage, accuracy = _thinned(risk_curve(values, errors))
        figures = failure_figures(values, errors, resamples=_RESAMPLES if has_errors else 0, seed=seed)
        row = gains.get(name)
        lines.append(
            ScoreLine(
                name, coverage, accuracy, figures, None if row is None else row.gain,
                None if row is None else row.standard_error,
            )
        )  # fmt: skip
    return sorted(lines, key=lambda line: line.figures.augrc)


def _thinned(curve: RiskCurve) -> tuple[Floats, Floats]:
    """Coverage and accuracy at so many places as a plot can show."""
    if len(curve.coverage) <= _CURVE_POINTS:
        return curve.coverage, curve.accuracy
    places = np.searchsorted(curve.coverage, np.linspace(curve.coverage[0], 1.0, _CURVE_POINTS) - 1e-12)
    places = np.unique(places)
    return curve.coverage[places], curve.accuracy[places]


def threshold_steps(confidence: Floats, passed: Bools, errors: Bools, *, most: int = 200) -> ThresholdSteps:
    """Where a slider stops.

    Parameters
    ----------
    confidence
        The gate's own score of labelled rows, (n,); rows where it is NaN are never accepted.
    passed
        Which rows the other rules let through: no outliers, and outside of regions, (n,).
    errors
        Which are wrong, (n,).
    most
        Number of stops.
    """
    scored = passed & ~np.isnan(confidence)
    values = np.sort(confidence[scored])
    stops = np.unique(np.quantile(values, np.linspace(0.0, 1.0, most), method="lower")) if len(values) else values
    # The last stop would accept nothing.
    stops = np.concatenate([[-np.inf], stops[:-1]])
    ranked = np.sort(confidence[scored & errors])
    accepted = len(values) - np.searchsorted(values, stops, side="right")
    wrong = len(ranked) - np.searchsorted(ranked, stops, side="right")
    trials = np.maximum(accepted, 1)
    low = np.where(accepted > 0, 1.0 - upper_bound(wrong, trials, _DELTA / 2), 0.0)
    high = np.where(accepted > 0, 1.0 - lower_bound(wrong, trials, _DELTA / 2), 1.0)
    return ThresholdSteps(stops, accepted, wrong, low, high, len(confidence))


def certificate(
    confidence: Floats, passed: Bools, errors: Bools, accuracy: float, *, delta: float = _DELTA
) -> Certificate:
    """The loosest threshold that these labels certify for rows that pass all rules; arguments as `threshold_steps`."""
    scored = passed & ~np.isnan(confidence)
    if not scored.any():
        raise ConfigError("no labelled row passes the other rules with a score; there is nothing to certify on")
    share = float(scored.mean())
    found = certified_threshold(confidence[scored], errors[scored], accuracy, delta=delta)
    if found.labels_needed is not None:
        found = replace(found, labels_needed=math.ceil(found.labels_needed / share))
    curve = risk_curve(confidence[scored], errors[scored])
    good = np.flatnonzero(curve.accuracy >= accuracy)
    picked = float(curve.threshold[good[-1]]) if len(good) else None
    return Certificate(found, found.coverage * share if found.feasible else 0.0, picked)


def _is_whole(values: Floats) -> bool:
    return bool(len(values)) and bool(np.isfinite(values).all())
