"""Ranks of scores among known ones, as logarithms: what puts different scores on one scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

__all__ = ["RankTransform"]

_KNOTS = 512
# Known scores this close count as one, by this much of one or of themselves: a rank must not depend on rounding.
_TIE = 1e-6


@dataclass(frozen=True, slots=True)
class RankTransform:
    """log of the rank of a score among known scores.

    log r(s) = log #{known <= s} / (n + 1) at the knots, linear between them. A rank among n ends at 1 / (n + 1); below
    the lowest known score the line goes on with the slope of the lower tail, so that far outliers keep their order.
    Above the highest one it is level: no row is unusual for that.

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
        knots = _strictly_increasing(known[picked])
        ends = knots + _TIE * np.maximum(np.abs(knots), 1.0)
        log_ranks = np.log(np.searchsorted(known, ends, side="right") / (n + 1))
        # A fiftieth of the rows is enough for a slope and still tail.
        far = min(int(np.searchsorted(knots, known[math.ceil(0.02 * n) - 1])), len(knots) - 1)
        far = max(far, min(1, len(knots) - 1))
        slope = (log_ranks[far] - log_ranks[0]) / (knots[far] - knots[0]) if far else 1.0
        return cls(knots, log_ranks, float(slope))

    def __call__(self, scores: Floats) -> Floats:
        """log r of scores (n,), as (n,); negative."""
        log_ranks: Floats = np.interp(scores, self.scores, self.log_ranks)
        log_ranks += self.slope * np.minimum(scores - self.scores[0], 0.0)
        return log_ranks


def _strictly_increasing(ascending: Floats) -> Floats:
    """Those of ascending scores that are further than a tie above the one kept before."""
    kept: list[float] = []
    for score in ascending.tolist():
        if not kept or score > kept[-1] + _TIE * max(abs(kept[-1]), 1.0):
            kept.append(score)
    return np.array(kept)
