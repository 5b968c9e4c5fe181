"""Which of several scores finds wrong predictions best, on labelled rows.

    AUGRC = 1/n² Σ_ij e_j [s_j > s_i],   equal scores counting half

is the area under the generalised risk-coverage curve: the probability that a row is wrong and ranked above another row
(lower is better). It is a mean over pairs of rows, so the contribution of each row gives the standard error of a
difference between two scores in closed form. A paired bootstrap converges to the same value, with noise: here two equal
scores differ by exactly zero. Scores are compared as float32, so that rounding does not order rows that tie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

__all__ = ["ChoiceRow", "ScoreChoice", "choose_score"]


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """One candidate: its AUGRC, how far that is below the baseline's, and the standard error of this gain."""

    name: str
    augrc: float
    gain: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class ScoreChoice:
    """The chosen reject score and the candidates it was chosen from, best first."""

    chosen: str
    baseline: str
    n: int
    errors: int
    rows: tuple[ChoiceRow, ...]

    def as_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        table = {
            row.name: {"augrc": row.augrc, "gain": row.gain, "standard_error": row.standard_error} for row in self.rows
        }
        return {"chosen": self.chosen, "baseline": self.baseline, "n": self.n, "errors": self.errors, "scores": table}


def choose_score(candidates: Mapping[str, Floats], errors: ArrayLike, baseline: str = "msp") -> ScoreChoice:
    """The candidate with the lowest AUGRC, or the baseline unless the gain exceeds its standard error.

    Parameters
    ----------
    candidates
        Scores by name, (n,) each, including the baseline. A score that learns from labels must come from rows that it
        has not seen, as from `Learned.cross_fit`.
    errors
        1 or True where the prediction was wrong, (n,).
    baseline
        The score to use unless another is better.

    >>> errors = [1, 1, 0, 0, 0, 0]
    >>> scores = {"msp": np.array([3.0, 1, 6, 5, 4, 2]), "other": np.array([2.0, 1, 6, 5, 4, 3])}
    >>> [(row.name, round(row.augrc, 3)) for row in choose_score(scores, errors).rows]
    [('other', 0.056), ('msp', 0.083)]
    """
    wrong = np.asarray(errors, dtype=np.float64)
    n = len(wrong)
    if baseline not in candidates or n < 2:
        raise ConfigError(f"choosing a score needs the baseline {baseline} and at least two labelled rows")
    for name, scores in candidates.items():
        if np.shape(scores) != (n,) or not np.isfinite(scores).all():
            raise ConfigError(f"score {name} must have {n} finite values, one for every label")
    parts = {name: _pair_means(np.asarray(scores, dtype=np.float64), wrong) for name, scores in candidates.items()}
    rows = []
    for name, part in parts.items():
        gains = parts[baseline] - part
        error = float(gains.std(ddof=1)) / math.sqrt(n)
        rows.append(ChoiceRow(name, 0.5 * float(part.mean()), 0.5 * float(gains.mean()), error))
    rows.sort(key=lambda row: (row.augrc, row.name != baseline))
    chosen = next((row.name for row in rows if row.gain > row.standard_error), baseline)
    return ScoreChoice(chosen, baseline, n, int(wrong.sum()), tuple(rows))


def _pair_means(scores: Floats, wrong: Floats) -> Floats:
    """Mean over j of the two pairs (i, j) and (j, i) in AUGRC, (n,)."""
    _, group, counts = np.unique(scores.astype(np.float32), return_inverse=True, return_counts=True)
    errors = np.bincount(group, weights=wrong)
    below = np.cumsum(counts) - 0.5 * counts
    above = errors.sum() - np.cumsum(errors) + 0.5 * errors
    means: Floats = (above[group] + wrong * below[group]) / len(scores)
    return means
