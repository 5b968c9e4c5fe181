"""What kind of drift it is, with the reason.

class_mix     Predicted classes have other shares, and within each class p-values are as before: weighting the
              calibration rows by the new shares explains the whole change.
new_content   More outliers than calibration explains: rows unlike any that were calibrated.
less_sure     Few outliers, but the classifier is less sure than on the reference rows.
surer         The same, but it is surer. This is typical of inputs that it has never seen and does not notice.
none          No alarm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.drift.psi import p_value_counts
from darksight_core.drift.special import chi2_tail
from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import lower_bound
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats

__all__ = ["ALPHA", "CHANGED", "DriftKind", "Verdict", "Window", "classify", "share_residuals", "within_class_test"]

DriftKind: TypeAlias = Literal["none", "class_mix", "new_content", "less_sure", "surer"]

ALPHA = 0.01
"""Rows with a p-value at most this are outliers."""

CHANGED = 3.0
"""A class or region whose share has a residual beyond this is named as changed."""

_BINS = 10
# Fewest calibration rows with which a class is ranked by itself.
_LEAST = 50


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Rows of a window, (m,) each: p-value and value of the outlier score, predicted class, largest probability."""

    p_values: Floats
    scores: Floats
    classes: NDArray[np.integer]
    confidence: Floats

    def __post_init__(self) -> None:
        lengths = {len(each) for each in (self.p_values, self.scores, self.classes, self.confidence)}
        if 0 in lengths or len(lengths) > 1:
            raise ConfigError("a window needs rows, with as many p-values, scores, classes and largest probabilities")

    @property
    def outliers(self) -> int:
        """Number of outliers."""
        return int((self.p_values <= ALPHA).sum())

    @property
    def outlier_share(self) -> float:
        """Share of outliers."""
        return self.outliers / len(self.p_values)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The kind of drift and its reason.

    Parameters
    ----------
    kind
        See the module.
    reason
        One sentence with the figures.
    classes
        Numbers of the classes whose predicted share changed most, with the sign of the change in `residuals`.
    residuals
        Standardised difference of the share of each of `classes`.
    within_class
        P-value of the test that p-values within each class are as before; None if it cannot be tested.
    """

    kind: DriftKind
    reason: str
    classes: tuple[int, ...] = ()
    residuals: tuple[float, ...] = ()
    within_class: float | None = None


def share_residuals(reference: ArrayLike, window: ArrayLike) -> Floats:
    """Standardised difference of the shares of cells in a window, (K,): about N(0, 1) while shares are as before.

    Parameters
    ----------
    reference, window
        Rows of each cell, (K,); both have rows.

    >>> share_residuals([500, 300, 200], [50, 30, 20]).tolist()
    [0.0, 0.0, 0.0]
    """
    table = np.stack([np.asarray(reference, dtype=np.float64), np.asarray(window, dtype=np.float64)])
    rows = table.sum(axis=1)
    if not rows.all():
        raise ConfigError("shares of two samples are compared, and one of them has no rows")
    share = table.sum(axis=0) / rows.sum()
    spread = np.sqrt(rows[1] * (1.0 - rows[1] / rows.sum()) * share * (1.0 - share))
    gap = table[1] - rows[1] * share
    residuals: Floats = np.divide(gap, spread, out=np.zeros_like(gap), where=spread > 0.0)
    return residuals


def within_class_test(calibration: Calibration, window: Window, classes: int) -> float | None:
    """P-value of the hypothesis that scores within each predicted class are as in calibration.

    Each row is ranked among the n_k calibration rows of its class, at (rows below + U (ties + 1)) / (n_k + 1) with U
    uniform; the ranks are uniform if only the class mix changed. The test is Pearson's χ² over ten bins of ranks, with
    the noise of the calibration rows. Classes with fewer than 50 calibration rows are left out. None without classes in
    the calibration, or with fewer than 50 rows.
    """
    if calibration.predicted is None:
        return None
    sizes = np.bincount(calibration.predicted, minlength=classes)
    is_ranked = sizes[window.classes] >= _LEAST
    own, scores = window.classes[is_ranked], window.scores[is_ranked]
    rows = len(own)
    if rows < _LEAST:
        return None
    ranks = 1.0 - np.random.default_rng(0).random(rows)
    for k in np.unique(own):
        known, here = calibration.predicted == k, own == k
        # `ranked` are the scores lowered by the distance within which scores tie.
        lowered = calibration.ranked[known]
        below = np.searchsorted(2.0 * calibration.scores[known] - lowered, scores[here], side="left")
        ties = np.searchsorted(lowered, scores[here], side="right") - below
        ranks[here] = (below + ranks[here] * (ties + 1)) / (sizes[k] + 1)
    counts = p_value_counts(ranks, bins=_BINS)
    share = np.bincount(own, minlength=classes) / rows
    # Variance of a bin's share relative to that of `rows` uniform ranks: calibration rows of a class are shared by all
    # rows of that class.
    inflation = 1.0 + rows * float((share[sizes > 0] ** 2 / sizes[sizes > 0]).sum())
    statistic = float((np.square(counts - rows / _BINS) / (rows / _BINS)).sum()) / inflation
    return chi2_tail(statistic, _BINS - 1)


def classify(
    window: Window,
    calibration: Calibration,
    class_counts: ArrayLike,
    *,
    reference_confidence: float | None,
    is_score_alarm: bool,
    is_class_alarm: bool,
    level: float = 0.01,
) -> Verdict:
    """The kind of drift of a window after an alarm.

    Parameters
    ----------
    window
        Rows since the change.
    calibration
        Calibration of the outlier score.
    class_counts
        Reference rows of each predicted class, (K,).
    reference_confidence
        Mean largest probability of the reference rows; None if it is not known.
    is_score_alarm, is_class_alarm
        Which evidence has reached its threshold.
    level
        Error of the tests that tell kinds apart.
    """
    if not (is_score_alarm or is_class_alarm):
        return Verdict("none", "neither scores nor predicted classes have changed")
    counts = np.asarray(class_counts, dtype=np.float64)
    mix = share_residuals(counts, np.bincount(window.classes, minlength=len(counts)))
    within = within_class_test(calibration, window, len(counts))
    order = np.argsort(-np.abs(mix))[:3]
    changed = tuple(int(k) for k in order if abs(mix[k]) > CHANGED) if is_class_alarm else ()
    residuals = tuple(float(mix[k]) for k in changed)
    if reference_confidence is None:
        found, usual, name = float(window.p_values.mean()), 0.5, "p-value"
    else:
        found, usual, name = float(window.confidence.mean()), reference_confidence, "largest probability"
    # Near one, as many digits as tell the two values apart from it.
    digits = max(3, math.ceil(-math.log10(max(1.0 - max(found, usual), 1e-7))) + 1)
    confidence = f"the mean {name} is {found:.{digits}f}, {usual:.{digits}f} in the reference"
    outliers = f"{window.outlier_share:.1%} of {len(window.p_values)} rows are outliers, {ALPHA:.0%} expected"

    kind: DriftKind
    if is_class_alarm and (not is_score_alarm if within is None else within > level):
        kind, reason = "class_mix", "predicted classes have other shares, and scores within each class are as before"
    elif float(lower_bound(window.outliers, len(window.p_values), level)) > 2.0 * ALPHA:
        kind, reason = "new_content", f"{outliers}; {confidence}"
    elif found < usual:
        kind, reason = "less_sure", f"{confidence}; {outliers}"
    else:
        kind, reason = "surer", f"{confidence}; {outliers}"
    return Verdict(kind, reason, changed, residuals, within)
