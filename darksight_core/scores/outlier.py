"""The outlier score: two views of what is unusual about a row, put on one scale and added.

    outlier_score(π) = log r_gen(gen(π)) + log r_soft(soft_knn(π))

where r(s) is the rank of a score among known rows, so that each term is a p-value in logarithms (Fisher's sum). GEN
sees rows that are less decided than usual. It is blind to the opposite: an over-confident classifier is *surer* of
foreign inputs than of its own. `soft_knn` sees those, because it asks how far the row is from known rows once both are
softened,

    soft_knn(π) = -|√σ(log π / T) - √ρ_(k)|,        ρ_(k) the k-th nearest of m stored rows,

with a temperature T so high that the improbable classes count: what a network says about the classes it rules out is
the part of π that foreign inputs disturb most. T is set from the known rows alone, such that their softened entropy is
on average `SOFTNESS` of log K; it follows the scale of the logits.

Nothing here is fitted on calibration rows, so it is a fixed score and its conformal rank among them is exact. It needs
no labels, no foreign rows and no map.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.scores.confidence import gen
from darksight_core.simplex import Floats, entropy, log_softmax

__all__ = ["GAMMA", "SOFTNESS", "TOP_CLASSES", "OutlierScore", "RankTransform", "SoftNeighbours", "draw_known"]

GAMMA = 0.1
"""γ of GEN."""

TOP_CLASSES = 100
"""Most probable classes that GEN looks at."""

SOFTNESS = 0.7
"""Mean entropy of softened known rows, as a share of log K. 0.5 to 0.8 serve alike."""

_KNOTS = 512
_REFERENCES = 1_000
# Fewer rows are stored where they are long: 250 at K = 1000, one megabyte.
_NUMBERS = 250_000
_CHUNK = 4_096


@dataclass(frozen=True, slots=True)
class RankTransform:
    """log of the rank of a score among known scores, strictly increasing everywhere.

    log r(s) = log #{known <= s} / (n + 1) at the knots, linear between them. A rank among n ends at 1 / (n + 1); below
    the lowest known score the line goes on with the slope of the lower tail, so that far outliers keep their order.

    Parameters
    ----------
    scores
        Knots, ascending, (m,).
    log_ranks
        log r at the knots, ascending and negative, (m,).
    slope
        Of log r below the first knot, positive.
    """

    scores: Floats
    log_ranks: Floats
    slope: float

    def __post_init__(self) -> None:
        scores, log_ranks = np.array(self.scores, dtype=np.float64), np.array(self.log_ranks, dtype=np.float64)
        if scores.ndim != 1 or scores.shape != log_ranks.shape or len(scores) == 0:
            raise ConfigError(f"knots of shapes {scores.shape} and {log_ranks.shape} do not make a rank transform")
        rising = (np.diff(scores) > 0).all() and (np.diff(log_ranks) > 0).all()
        if not (rising and np.isfinite(scores).all() and np.isfinite(log_ranks).all() and log_ranks[-1] < 0):
            raise ConfigError("the knots of a rank transform must be finite and ascending, its ranks below one")
        if not (math.isfinite(self.slope) and self.slope > 0.0):
            raise ConfigError(f"the slope of a rank transform must be positive, not {self.slope}")
        scores.flags.writeable = log_ranks.flags.writeable = False
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "log_ranks", log_ranks)

    @classmethod
    def fit(cls, scores: Floats) -> RankTransform:
        """The transform of known scores (n,); at most 512 knots, of which a tail of few scores gets as many as a mass.

        >>> ranks = RankTransform.fit(np.arange(1.0, 100.0))
        >>> np.exp(ranks(np.array([5.0, 50.0, 99.0]))).round(6)
        array([0.05, 0.5 , 0.99])
        """
        known = np.sort(np.asarray(scores, dtype=np.float64))
        if known.ndim != 1 or len(known) == 0 or not np.isfinite(known).all():
            raise ConfigError("a rank transform needs finite scores")
        n = len(known)
        picked = np.unique(np.rint(np.geomspace(1, n, _KNOTS)).astype(np.int64)) - 1
        knots = np.unique(known[picked])
        log_ranks = np.log(np.searchsorted(known, knots, side="right") / (n + 1))
        # A fiftieth of the rows is enough for a slope and still tail.
        far = min(int(np.searchsorted(knots, known[math.ceil(0.02 * n) - 1])), len(knots) - 1)
        far = max(far, min(1, len(knots) - 1))
        slope = (log_ranks[far] - log_ranks[0]) / (knots[far] - knots[0]) if far else 1.0
        return cls(knots, log_ranks, float(slope))

    def __call__(self, scores: Floats) -> Floats:
        """log r of scores (n,), as (n,); negative."""
        first, last = self.scores[0], self.scores[-1]
        log_ranks = np.interp(scores, self.scores, self.log_ranks)
        log_ranks += self.slope * np.minimum(scores - first, 0.0)
        # Above the highest known score log r falls off towards 0, on the scale of the scores themselves.
        beyond = np.maximum(scores - last, 0.0) / ((last - first) or 1.0)
        return np.where(beyond > 0.0, self.log_ranks[-1] / (1.0 + beyond), log_ranks)


@dataclass(frozen=True, slots=True)
class SoftNeighbours:
    """Distance to the k-th nearest of the stored rows after softening; see the module.

    Parameters
    ----------
    references
        √ρ of softened known rows, (m, K) float32.
    temperature
        T.
    neighbours
        k, up to m.
    """

    references: NDArray[np.float32]
    temperature: float
    neighbours: int = 3
    rows: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        references = np.array(self.references, dtype=np.float32)
        if references.ndim != 2 or references.shape[1] < 2 or not np.isfinite(references).all():
            raise ConfigError(f"softened rows must be finite with shape (m, K) and K >= 2, not {references.shape}")
        if not (math.isfinite(self.temperature) and self.temperature > 0.0):
            raise ConfigError(f"temperature must be positive, not {self.temperature}")
        if not 1 <= self.neighbours <= len(references):
            raise ConfigError(f"neighbour {self.neighbours} cannot be found among {len(references)} rows")
        rows = references.astype(np.float64)
        rows /= np.sqrt((rows**2).sum(axis=1, keepdims=True))
        references.flags.writeable = rows.flags.writeable = False
        object.__setattr__(self, "references", references)
        object.__setattr__(self, "rows", rows)

    @classmethod
    def fit(cls, log_pi: Floats, temperature: float) -> SoftNeighbours:
        """Neighbours among these rows (m, K), of which the third of a thousand counts, or the first of a few."""
        soft = np.exp(0.5 * log_softmax(log_pi / temperature)).astype(np.float32)
        return cls(soft, temperature, max(1, round(0.003 * len(soft))))

    @classmethod
    def of_known(cls, log_pi: Floats, stored: int) -> SoftNeighbours:
        """Neighbours among the first `stored` rows of a draw (m, K), all of which set the temperature."""
        return cls.fit(log_pi[:stored], _temperature(log_pi))

    def score(self, log_pi: Floats) -> Floats:
        """Distances of rows (n, K), negated, (n,), between -√2 and 0."""
        log_pi = np.asarray(log_pi, dtype=np.float64)
        square, place = np.empty(len(log_pi)), len(self.rows) - self.neighbours
        for start in range(0, len(log_pi), _CHUNK):
            part = slice(start, start + _CHUNK)
            soft = np.exp(0.5 * log_softmax(log_pi[part] / self.temperature))
            # Rows of length one are in the order of their products, but 2 - 2 a·b has no digits left where it is small.
            found = np.argpartition(soft @ self.rows.T, place, axis=1)[:, place]
            square[part] = ((soft - self.rows[found]) ** 2).sum(axis=1)
        return -np.sqrt(square)


@dataclass(frozen=True, slots=True)
class OutlierScore:
    """The outlier score of the module; made by `fit`.

    Parameters
    ----------
    neighbours
        The stored rows.
    gen_rank, soft_rank
        Ranks of the two scores among known rows that are not stored.
    """

    neighbours: SoftNeighbours
    gen_rank: RankTransform
    soft_rank: RankTransform

    @classmethod
    def fit(cls, log_pi: Floats, seed: int = 0) -> OutlierScore:
        """The score that calls rows usual which are like these.

        At most half of the rows, 1,000 and 250,000 numbers are stored, drawn by seed; the others give the ranks.

        Parameters
        ----------
        log_pi
            Log-probabilities of known rows, (n, K) with n >= 2, none of which may calibrate the score later.
        seed
            Seed of the draw.
        """
        log_pi = np.asarray(log_pi, dtype=np.float64)
        if log_pi.ndim != 2 or len(log_pi) < 2:
            raise ConfigError(f"the outlier score needs at least two known rows, not an array of {log_pi.shape}")
        n, classes = log_pi.shape
        drawn, stored = draw_known(n, classes, seed)
        neighbours = SoftNeighbours.of_known(log_pi[drawn], stored)
        ranked = np.delete(log_pi, drawn[:stored], axis=0)
        return cls.of_scores(neighbours, gen(ranked, GAMMA, TOP_CLASSES), neighbours.score(ranked))

    @classmethod
    def of_scores(cls, neighbours: SoftNeighbours, gen_scores: Floats, soft_scores: Floats) -> OutlierScore:
        """The score of stored rows and of both scores (m,) of the known rows that are not stored, in any order."""
        return cls(neighbours, RankTransform.fit(gen_scores), RankTransform.fit(soft_scores))

    def score(self, log_pi: Floats) -> Floats:
        """Sum of the two log ranks for rows (n, K), as (n,); negative, lower is more unusual."""
        return self.gen_rank(gen(log_pi, GAMMA, TOP_CLASSES)) + self.soft_rank(self.neighbours.score(log_pi))

    @property
    def n_classes(self) -> int:
        """Number of probabilities in a row."""
        return int(self.neighbours.rows.shape[1])

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        return {
            "references": self.neighbours.references,
            "gen_scores": self.gen_rank.scores,
            "gen_log_ranks": self.gen_rank.log_ranks,
            "soft_scores": self.soft_rank.scores,
            "soft_log_ranks": self.soft_rank.log_ranks,
        }

    def settings(self) -> dict[str, Any]:
        """All that is not an array, as JSON knows it."""
        return {
            "temperature": self.neighbours.temperature,
            "neighbours": self.neighbours.neighbours,
            "gen_slope": self.gen_rank.slope,
            "soft_slope": self.soft_rank.slope,
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> OutlierScore:
        """Inverse of `tensors` and `settings`; ConfigError if something is missing or does not fit."""
        try:
            neighbours = SoftNeighbours(
                tensors["references"], float(settings["temperature"]), int(settings["neighbours"])
            )
            gen_rank, soft_rank = (
                RankTransform(tensors[f"{kind}_scores"], tensors[f"{kind}_log_ranks"], float(settings[f"{kind}_slope"]))
                for kind in ("gen", "soft")
            )
        except KeyError as missing:
            raise ConfigError(f"the outlier score lacks {missing}") from None
        return cls(neighbours, gen_rank, soft_rank)


def draw_known(n: int, classes: int, seed: int) -> tuple[NDArray[np.int64], int]:
    """Places of some of n known rows that describe them, at random, and how many of these, from the first, to store."""
    stored = max(1, min(_REFERENCES, _NUMBERS // classes, n // 2))
    return np.random.default_rng(seed).permutation(n)[: max(stored, _CHUNK)], stored


def _temperature(log_pi: Floats) -> float:
    """T at which the mean entropy of softened rows is `SOFTNESS` log K."""
    low, high = math.log(0.05), math.log(1000.0)
    for _ in range(30):
        middle = 0.5 * (low + high)
        soft = float(entropy(log_softmax(log_pi / math.exp(middle))).mean())
        low, high = (middle, high) if soft < SOFTNESS * math.log(log_pi.shape[1]) else (low, middle)
    return math.exp(0.5 * (low + high))
