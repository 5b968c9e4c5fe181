"""The list of scores. Everything that lists, names or computes scores reads it.

A score is a number for each row; a higher one means a more confident or more usual row, for all of them. To add a
score, write its function and its entry in `SCORES`: gates, comparisons, reports, the explorer and the command line then
have it. A gate with a score that has a `kernel` number is decided by the compiled kernel, with others by numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from darksight_core.rows.simplex import Floats
from darksight_core.scores import confidence

__all__ = [
    "KERNEL_NUMBERS",
    "REJECT_SCORES",
    "SCORES",
    "Score",
    "logit_scores",
    "map_scores",
    "row_scores",
    "threshold_text",
]


@dataclass(frozen=True, slots=True)
class Score:
    """One score.

    Parameters
    ----------
    name
        Name in commands, bundles and JSON.
    label
        Name in figures and pages.
    needs
        The input of `function`: log-probabilities (n, K), logits (n, K), or a table with the columns that the map gives
        each row, such as `ScoredBatch`. "fit" is a model fitted to other rows, which has no function here.
    function
        Scores of n rows, (n,).
    rejects
        Whether a gate can compare it with a threshold.
    kernel
        Number in `runtime.compiled.gate`; None if it is not compiled.
    is_feature
        Whether the learned score may use it.
    is_prominent
        Whether the report draws its curve at first.
    is_log_odds
        Whether it is the log-odds of a probability, which people read instead; see `threshold_text`.
    """

    name: str
    label: str
    needs: Literal["probs", "logits", "map", "fit"]
    function: Callable[[Any], Floats] | None = None
    rejects: bool = True
    kernel: int | None = None
    is_feature: bool = False
    is_prominent: bool = False
    is_log_odds: bool = False


def _column(name: str, label: str, *, kernel: int, is_feature: bool = False) -> Score:
    return Score(name, label, "map", attrgetter(name), kernel=kernel, is_feature=is_feature, is_prominent=True)


SCORES = {
    score.name: score
    for score in (
        Score("msp", "max-softmax", "probs", confidence.msp, kernel=1, is_prominent=True, is_log_odds=True),
        Score("entropy", "entropy", "probs", confidence.negative_entropy, is_feature=True, is_prominent=True),
        Score("margin", "margin of the first two", "probs", confidence.margin, is_feature=True),
        Score("doctor", "Doctor", "probs", confidence.doctor),
        Score("gen", "GEN", "probs", confidence.gen, kernel=2),
        _column("log_density", "P(y; θ) (DarkSight)", kernel=3, is_feature=True),
        _column("log_kde", "KDE (DarkSight)", kernel=4, is_feature=True),
        _column("outlier_score", "outlier score", kernel=5),
        Score("learned", "learned", "fit", is_prominent=True, is_log_odds=True),
        Score("max_logit", "max-logit", "logits", confidence.max_logit),
        Score("energy", "energy", "logits", confidence.energy),
        Score("refitted", "learned, refitted to these labels (proposal)", "fit", rejects=False),
        Score("kl_matching", "KL matching", "fit", rejects=False),
    )
}
"""All scores by name."""

REJECT_SCORES = tuple(name for name, score in SCORES.items() if score.rejects)
"""Names of the scores that a gate can compare with a threshold."""

KERNEL_NUMBERS: dict[str | None, int] = {
    None: 0,
    **{name: score.kernel for name, score in SCORES.items() if score.kernel is not None},
}
"""Numbers of the reject scores in the compiled kernel; None is a gate without one."""


def row_scores(log_pi: Floats) -> dict[str, Floats]:
    """Every score of log-probabilities (n, K), by name, (n,) each."""
    return _computed("probs", log_pi)


def logit_scores(logits: Floats) -> dict[str, Floats]:
    """Every score of logits (n, K), by name, (n,) each."""
    return _computed("logits", logits)


def map_scores(columns: object) -> dict[str, Floats]:
    """Every score that a table of scored rows has, by name, (n,) each, as float64."""
    return {name: np.asarray(values, dtype=np.float64) for name, values in _computed("map", columns).items()}


def threshold_text(name: str, threshold: float) -> str:
    """A threshold of a score on the scale that people read: the probability where the score is its log-odds.

    >>> threshold_text("msp", 2.944438979166440), threshold_text("msp", 30.0), threshold_text("entropy", -0.5)
    ('0.95', '1 - 9.36e-14', '-0.5')
    """
    if not SCORES[name].is_log_odds:
        return f"{threshold:.6g}"
    rest = 1.0 / (1.0 + math.exp(min(threshold, 700.0)))
    return f"1 - {rest:.3g}" if rest < 1e-4 else f"{1.0 - rest:.6g}"


def _computed(needs: str, rows: Any) -> dict[str, Floats]:
    return {
        name: score.function(rows)
        for name, score in SCORES.items()
        if score.needs == needs and score.function is not None
    }
