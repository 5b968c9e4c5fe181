"""Scores that say how sure or how usual a prediction is; for all of them higher is surer or more usual.

Two questions are asked of a row π, and no score is best at both:

    is the prediction wrong?    msp, entropy, margin, doctor: how far π is from undecided. Labels can improve on them
                                (`darksight_core.scores.learned`), and `choose_score` says whether they did.
    is the row unusual?         gen, kl_matching, densities on the map, distances to known rows; they need no labels.
                                `darksight_core.scores.outlier` puts the best of them together.

With p₁ >= p₂ >= ... the sorted probabilities of a row:

    msp       log p₁ / (1 - p₁)                 margin   -log(1 - (p₁ - p₂))
    entropy   Σ p log p                         doctor   -(1 - g) / g,  g = Σ p²
    gen       -Σ p^γ (1 - p)^γ over the M largest p

All five are strictly monotone in each other when K = 2. Classifiers give thousands of rows whose p₁ rounds to one, and
which of those is the surest decides what is accepted first. So 1 - p₁ is never computed: it is the sum of the other
probabilities, which keeps its digits, and msp and margin are logarithms that do not saturate. Where only the order
counts they are the same scores as p₁ and p₁ - p₂.

`SCORES` names every score with what it needs; `all_scores` computes those whose needs are met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.simplex import FLOOR, Floats, logsumexp

if TYPE_CHECKING:
    from darksight_core.scores.learned import Learned
    from darksight_core.scores.outlier import OutlierScore

__all__ = [
    "SCORES",
    "ChoiceRow",
    "KlMatching",
    "Score",
    "ScoreChoice",
    "all_scores",
    "choose_score",
    "doctor",
    "energy",
    "entropy",
    "gen",
    "knn",
    "margin",
    "max_logit",
    "msp",
]

_BLOCK = 1 << 20


def msp(log_pi: Floats) -> Floats:
    """Maximum softmax probability as log-odds, log p₁ - log Σ_{k>1} p_k, (n,).

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K) with K >= 2.

    >>> msp(np.log([[0.8, 0.1, 0.1]]))
    array([1.38629436])
    """
    top, others = _apart(log_pi)
    return top - logsumexp(others)


def entropy(log_pi: Floats) -> Floats:
    """Negative entropy Σ p log p in nats, (n,): 0 for a row that is all one class.

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K) with K >= 2.
    """
    top, others = _apart(log_pi)
    odd = np.exp(others)
    total: Floats = np.exp(top) * _log_complement(odd.sum(axis=1), top) + (odd * others).sum(axis=1)
    return total


def margin(log_pi: Floats) -> Floats:
    """Lead of the first class over the second, -log(1 - (p₁ - p₂)) = -log(p₂ + Σ_{k>1} p_k), (n,).

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K) with K >= 2.
    """
    _, others = _apart(log_pi)
    lead: Floats = -np.logaddexp(logsumexp(others), others.max(axis=1))
    return lead


def doctor(log_pi: Floats) -> Floats:
    """Doctor's D_α, -(1 - g) / g with g = Σ p², (n,): the odds that two draws from the row differ, negated.

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K) with K >= 2.
    """
    top, others = _apart(log_pi)
    first, odd = np.exp(top), np.exp(others)
    differ = first * odd.sum(axis=1) + (odd * (1.0 - odd)).sum(axis=1)
    odds: Floats = -differ / (first**2 + (odd**2).sum(axis=1))
    return odds


def gen(log_pi: Floats, gamma: float = 0.1, top_classes: int = 100) -> Floats:
    """Generalised entropy -Σ p^γ (1 - p)^γ over the M most probable classes, (n,).

    A small γ lets the improbable classes speak, which the other scores do not hear: a usual row rules them out clearly.

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K) with K >= 2.
    gamma
        γ, above 0.
    top_classes
        M.
    """
    top, others = _apart(log_pi)
    rest = logsumexp(others)
    if others.shape[1] >= top_classes:
        others = -np.partition(-others, top_classes - 2, axis=1)[:, : top_classes - 1]
    total: Floats = -np.exp(gamma * (others + np.log1p(-np.exp(others)))).sum(axis=1) - np.exp(gamma * (top + rest))
    return total


def max_logit(logits: Floats) -> Floats:
    """Largest logit, (n,), for logits (n, K). Probabilities do not tell it: the softmax takes off a common shift."""
    largest: Floats = np.asarray(logits, dtype=np.float64).max(axis=1)
    return largest


def energy(logits: Floats) -> Floats:
    """Negative free energy log Σ exp(logit), (n,), for logits (n, K); not to be had from probabilities either."""
    return logsumexp(np.asarray(logits, dtype=np.float64))


def knn(points: Floats, references: Floats, neighbours: int = 10) -> Floats:
    """Distance to the tenth nearest reference point on the map, negated, (n,).

    Exact and slow: n times m distances, for reports.

    Parameters
    ----------
    points
        Places on the map, (n, 2).
    references
        Places of known rows, (m, 2). They must not be the same rows: a row is its own nearest neighbour.
    neighbours
        Which neighbour counts, up to m.
    """
    references = np.asarray(references, dtype=np.float64)
    if not 1 <= neighbours <= len(references):
        raise ConfigError(f"neighbour {neighbours} cannot be found among {len(references)} reference points")
    square = np.empty(len(points))
    rows = max(1, _BLOCK // len(references))
    for start in range(0, len(points), rows):
        part = points[start : start + rows]
        gap = (part[:, :1] - references[:, 0]) ** 2 + (part[:, 1:] - references[:, 1]) ** 2
        square[start : start + rows] = np.partition(gap, neighbours - 1, axis=1)[:, neighbours - 1]
    return -np.sqrt(square)


@dataclass(frozen=True, slots=True)
class KlMatching:
    """Divergence from the nearest class template, -min_c KL(π, d_c).

    Parameters
    ----------
    templates
        d_c, the mean of reference rows that are predicted as class c, (K, K).
    """

    templates: Floats

    def __post_init__(self) -> None:
        templates = np.array(self.templates, dtype=np.float64)
        classes = len(templates)
        if templates.shape != (classes, classes) or classes < 2 or not np.isfinite(templates).all():
            raise ConfigError(f"templates must be finite with shape (K, K) and K >= 2, not {templates.shape}")
        templates.flags.writeable = False
        object.__setattr__(self, "templates", templates)

    @classmethod
    def fit(cls, log_pi: Floats) -> KlMatching:
        """Templates of reference rows (n, K); a class that is never predicted is sure of itself."""
        pi, predicted = np.exp(log_pi), log_pi.argmax(axis=1)
        classes = pi.shape[1]
        sums, counts = np.zeros((classes, classes)), np.bincount(predicted, minlength=classes)
        np.add.at(sums, predicted, pi)
        return cls(np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], np.eye(classes)))

    def score(self, log_pi: Floats) -> Floats:
        """-min_c KL(π, d_c) for rows (n, K), as (n,)."""
        pi = np.exp(log_pi)
        cross = pi @ np.log(np.maximum(self.templates, FLOOR)).T
        best: Floats = cross.max(axis=1) - (pi * log_pi).sum(axis=1)
        return best

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        return {"templates": self.templates}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> KlMatching:
        """Inverse of `tensors`; ConfigError if the array is missing or has a wrong shape."""
        if "templates" not in tensors:
            raise ConfigError("the templates of classes are missing")
        return cls(tensors["templates"])


@dataclass(frozen=True, slots=True)
class Score:
    """How a score is made.

    Parameters
    ----------
    of
        Function of the inputs, by name, that returns (n,).
    needs
        Inputs of `all_scores` without which there is no score.
    takes
        Inputs that are handed over as they are, given or not.
    """

    of: Callable[..., Floats]
    needs: tuple[str, ...] = ("log_pi",)
    takes: tuple[str, ...] = ()


def _given(name: str) -> Score:
    return Score(lambda **given: np.asarray(given[name], dtype=np.float64), (name,))


SCORES: dict[str, Score] = {
    "msp": Score(msp),
    "entropy": Score(entropy),
    "margin": Score(margin),
    "doctor": Score(doctor),
    "gen": Score(gen),
    "log_density": _given("log_density"),
    "log_kde": _given("log_kde"),
    "knn": Score(knn, ("points", "references")),
    "kl_matching": Score(lambda log_pi, kl_matching: kl_matching.score(log_pi), ("log_pi", "kl_matching")),
    "max_logit": Score(max_logit, ("logits",)),
    "energy": Score(energy, ("logits",)),
    "soft_knn": Score(lambda log_pi, combined: combined.neighbours.score(log_pi), ("log_pi", "combined")),
    "combined": Score(lambda log_pi, combined: combined.score(log_pi), ("log_pi", "combined")),
    "learned": Score(
        lambda learned, **inputs: learned.log_odds(**inputs), ("log_pi", "learned"), ("log_density", "log_kde")
    ),
}
"""Every score by its public name."""


def all_scores(
    log_pi: Floats,
    *,
    logits: Floats | None = None,
    points: Floats | None = None,
    references: Floats | None = None,
    log_density: Floats | None = None,
    log_kde: Floats | None = None,
    kl_matching: KlMatching | None = None,
    combined: OutlierScore | None = None,
    learned: Learned | None = None,
) -> dict[str, Floats]:
    """Every score of `SCORES` that can be computed from what is given, in that order, each (n,).

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K); see `simplex.log_probs`.
    logits
        Raw logits, (n, K), if the classifier gives them.
    points, references
        Places of the rows on the map, (n, 2), and of known other rows, (m, 2).
    log_density, log_kde
        The densities of the map at the points, (n,).
    kl_matching, combined, learned
        Scores with a memory, which were fitted on other rows.
    """
    inputs = {
        "log_pi": log_pi,
        "logits": logits,
        "points": points,
        "references": references,
        "log_density": log_density,
        "log_kde": log_kde,
        "kl_matching": kl_matching,
        "combined": combined,
        "learned": learned,
    }
    return {
        name: score.of(**{key: inputs[key] for key in score.needs + score.takes})
        for name, score in SCORES.items()
        if all(inputs[key] is not None for key in score.needs)
    }


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """One candidate: its AUGRC, by how much that is below the baseline's, and the standard error of this gain."""

    name: str
    augrc: float
    gain: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class ScoreChoice:
    """Which reject score to use, with the table that it was chosen by, best first."""

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
    """The candidate with the lowest AUGRC, but the baseline unless the gain exceeds its standard error.

        AUGRC = 1/n² Σ_ij e_j [s_j > s_i],   equal scores counting half

    It is a mean over pairs of rows, so a row's part in it gives the standard error of a difference between two scores
    on the same rows in closed form. This is what a paired bootstrap converges to, without its noise: two equal scores
    differ by exactly nothing.

    Parameters
    ----------
    candidates
        Scores by name, (n,) each, the baseline among them. A score that learns from the labels must come from rows that
        it has not seen, as from `Learned.cross_fit`.
    errors
        1 or True where the prediction was wrong, (n,).
    baseline
        The score that is used unless another is better.
    """
    wrong = np.asarray(errors, dtype=np.float64)
    n = len(wrong)
    if baseline not in candidates or n < 2:
        raise ConfigError(f"choosing a score takes the baseline {baseline} and at least two labelled rows")
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
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    errors = np.bincount(place, weights=wrong)
    below = np.cumsum(counts) - 0.5 * counts
    above = errors.sum() - np.cumsum(errors) + 0.5 * errors
    means: Floats = (above[place] + wrong * below[place]) / len(scores)
    return means


def _apart(log_pi: Floats) -> tuple[Floats, Floats]:
    """log p₁, (n,), and the logarithms of the other probabilities in their order, (n, K - 1)."""
    log_pi = np.asarray(log_pi, dtype=np.float64)
    rows, classes = log_pi.shape
    if classes < 2:
        raise ConfigError("a row needs at least two probabilities")
    top = log_pi.argmax(axis=1)
    kept = np.ones((rows, classes), dtype=bool)
    kept[np.arange(rows), top] = False
    return log_pi[np.arange(rows), top], log_pi[kept].reshape(rows, classes - 1)


def _log_complement(odd: Floats, top: Floats) -> Floats:
    """log p₁ from the sum of the other probabilities where that is small, else as it came."""
    return np.where(odd < 0.5, np.log1p(-np.minimum(odd, 0.5)), top)
