"""What kind of drift it is, with the reason.

The verdict follows the evidence that has reached its threshold. A change has two parts, each measured in nats per row
(a divergence from the calibration rows):

    between classes   predicted classes have other shares
    within classes    scores or confidence of rows of one predicted class have changed

A part counts if its evidence is an alarm; that within classes also has to be significant, because another class mix by
itself moves scores and confidence. Then, in this order:

none          No alarm.
class_mix     At least seven eighths of the change are between classes.
mixed         At least half of it is, or else
new_content   within classes, and 35% of the rows that changed are among the 2% least usual of their class.
less_sure     The same without such rows, and confidence is lower than on the calibration rows.
surer         The same, but it is higher. This is typical of inputs that the classifier has never seen and does not
              notice.

Where the evidence of neither confidence nor witnesses is an alarm, rows with lower scores are new content and rows with
higher ones surer.

Foreign rows may all be taken for one class. So the part between classes is measured on the rows whose ranks within
their class are not in excess.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.drift.within_class import LEAST_ROWS, Ranks, divergence, within_class_ranks
from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import lower_bound
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats

__all__ = ["ALPHA", "CHANGED", "DriftKind", "Verdict", "Window", "classify", "share_residuals"]

DriftKind: TypeAlias = Literal["none", "class_mix", "new_content", "less_sure", "surer", "mixed"]

ALPHA = 0.01
"""Rows with a p-value at most this are outliers."""

CHANGED = 3.0
"""A class or region whose share has a residual beyond this is named as changed."""

# Least share of the change that is between classes: for a verdict of class mix, and for a mixed one.
_ALL_BETWEEN, _SOME_BETWEEN = 0.875, 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Rows of a window, (m,) each: p-value and value of the outlier score, predicted class, largest probability.

    `resolution` is the number of the resolution of each, None if it is not known.
    """

    p_values: Floats
    scores: Floats
    classes: NDArray[np.integer]
    confidence: Floats
    resolution: NDArray[np.integer] | None = None

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


def classify(
    window: Window,
    calibration: Calibration,
    class_counts: ArrayLike,
    *,
    alarms: Collection[str],
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
    alarms
        Kinds of evidence that have reached their threshold.
    level
        Error of the tests that tell kinds apart.
    """
    if not alarms:
        return Verdict("none", "neither scores nor predicted classes have changed")
    counts = np.asarray(class_counts, dtype=np.float64)
    mix = share_residuals(counts, np.bincount(window.classes, minlength=len(counts)))
    order = np.argsort(-np.abs(mix))[:3]
    changed = tuple(int(k) for k in order if abs(mix[k]) > CHANGED) if "classes" in alarms else ()
    ranks = within_class_ranks(calibration, window.scores, window.confidence, window.classes, len(counts))
    within = None if ranks is None else ranks.p_value
    between = _between(ranks, counts, alarms, level)
    figures = _figures(window, calibration)
    kind: DriftKind
    if between >= _ALL_BETWEEN:
        kind, reason = "class_mix", "predicted classes have other shares, and within each class rows are as before"
        if between < 1.0:
            reason = f"predicted classes have other shares, which is {between:.0%} of the change; {figures}"
    elif between >= _SOME_BETWEEN:
        kind, reason = "mixed", f"predicted classes have other shares, and within classes rows changed too; {figures}"
    else:
        kind, reason = _within_kind(window, ranks, alarms), figures
    return Verdict(kind, reason, changed, tuple(float(mix[k]) for k in changed), within)


def _between(ranks: Ranks | None, counts: Floats, alarms: Collection[str], level: float) -> float:
    """Share of the change that is between classes."""
    if "classes" not in alarms:
        return 0.0
    if ranks is None or ranks.p_value > level or set(alarms) == {"classes"}:
        return 1.0
    usual = ranks.is_usual
    classes = ranks.classes[usual] if usual.sum() >= LEAST_ROWS else ranks.classes
    found = np.bincount(classes, minlength=len(counts)) / len(classes)
    shares = (counts + 0.5) / (counts + 0.5).sum()
    by_chance = 0.5 * (np.count_nonzero(found) - 1) * (1.0 / len(classes) + 1.0 / counts.sum())
    between = max(divergence(found, shares) - by_chance, 0.0)
    return between / (between + ranks.change) if between else 0.0


def _within_kind(window: Window, ranks: Ranks | None, alarms: Collection[str]) -> DriftKind:
    """What changed within classes; without ranks, among all rows."""
    if ranks is None:
        is_new = float(lower_bound(window.outliers, len(window.p_values), 0.01)) > 2.0 * ALPHA
        scores, confidence = window.p_values, None
    else:
        is_new, scores, confidence = ranks.is_new_content, ranks.scores, ranks.confidence
    if is_new:
        return "new_content"
    if confidence is not None and not {"confidence", "witnesses"}.isdisjoint(alarms):
        return "less_sure" if confidence.mean() < 0.5 else "surer"
    return "new_content" if scores.mean() < 0.5 else "surer"


def _figures(window: Window, calibration: Calibration) -> str:
    """Share of outliers, and mean largest probability or p-value."""
    if calibration.top is None:
        found, usual, name = float(window.p_values.mean()), 0.5, "p-value"
    else:
        usual, name = float(calibration.top.mean(dtype=np.float64)), "largest probability"
        found = float(window.confidence.mean())
    # Near one, as many digits as tell the two values apart from it.
    digits = max(3, math.ceil(-math.log10(max(1.0 - max(found, usual), 1e-7))) + 1)
    return (
        f"{window.outlier_share:.1%} of {len(window.p_values)} rows are outliers, {ALPHA:.0%} expected; "
        f"the mean {name} is {found:.{digits}f}, {usual:.{digits}f} in calibration"
    )
