"""The probability that a prediction is right, learned from few labelled rows.

    log-odds P(correct) = a + b u + c min(u, m) + Σ_j w_j z_j + o_class,        b, c, w >= 0

u is the log-odds of the largest probability and m its median: a, b and c calibrate max-softmax without changing its
order. z are other scores, standardised and clipped to the range of the training rows; o is an offset of the predicted
class. With the prior b ~ 1 and c, w, o ~ 0 the fit starts from the classifier's own probability, and ridge penalties
keep w and o at zero without evidence.

With a few hundred labels hardly any score beats max-softmax, and many are worse. So the two ridges are chosen by
cross-validated likelihood with a bias: w and o stay exactly zero, which keeps the order of max-softmax, unless a freer
fit is better by more than one standard error of the difference. The weights are not negative, because every score is
higher for more confident rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats
from darksight_core.scores.confidence import margin, msp, negative_entropy
from darksight_core.scores.logistic import LabelledRows, choose_ridges, expit, fit_logistic, folds
from darksight_core.scores.registry import SCORES, map_scores

__all__ = ["DENSITIES", "FEATURES", "MIN_ROWS", "Learned", "densities_of"]

FEATURES = tuple(name for name, score in SCORES.items() if score.is_feature)
"""Scores that may be added to max-softmax."""

DENSITIES = tuple(name for name in FEATURES if SCORES[name].needs == "map")
"""Those of the map, which are added only if they are given."""

MIN_ROWS = 20
"""Fewest labelled rows to learn from."""


@dataclass(frozen=True, slots=True)
class Learned:
    """P(correct) of a row; made by `fit`.

    Parameters
    ----------
    features
        Names of the scores z, some of `FEATURES`.
    calibration
        a, b, c and m, (4,).
    weights
        w, (p,), not negative.
    ranges
        Mean, spread, least and largest value of each score in training, (4, p).
    offsets
        o of each class, (K,).
    ridges
        Chosen precisions of w and o; infinite if they are zero.
    """

    features: tuple[str, ...]
    calibration: Floats
    weights: Floats
    ranges: Floats
    offsets: Floats
    ridges: tuple[float, float] = (math.inf, math.inf)

    def __post_init__(self) -> None:
        count = len(self.features)
        shapes = {"calibration": (4,), "weights": (count,), "ranges": (4, count), "offsets": (len(self.offsets),)}
        for name, shape in shapes.items():
            array = np.array(getattr(self, name), dtype=np.float64)
            if array.shape != shape or not np.isfinite(array).all():
                raise ConfigError(f"{name} of a learned score must be finite with shape {shape}, not {array.shape}")
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if not set(self.features) <= set(FEATURES) or (self.weights < 0).any() or (self.calibration[1:3] < 0).any():
            raise ConfigError(f"a learned score needs weights >= 0 of some of {', '.join(FEATURES)}")
        if (self.ranges[1:2] <= 0).any():
            raise ConfigError("the spread of every feature must be positive")

    @classmethod
    def fit(
        cls,
        log_pi: Floats,
        correct: ArrayLike,
        *,
        seed: int = 0,
        **densities: Floats,
    ) -> Learned:
        """Learn from labelled rows.

        Parameters
        ----------
        log_pi
            Log-probabilities, (n, K) with n >= `MIN_ROWS`. The rows must be a random sample of the traffic: labels of
            rejected rows alone cannot show errors among accepted rows.
        correct
            1 or True where the most probable class is the true one, (n,).
        seed
            Seed of the folds.
        densities
            Some of `DENSITIES`, (n,) each; if given here, they are needed for every row to score.
        """
        right = np.asarray(correct, dtype=np.float64)
        n, classes = np.shape(log_pi)
        if right.shape != (n,) or n < MIN_ROWS or not ((right == 0) | (right == 1)).all():
            raise ConfigError(
                f"learning needs at least {MIN_ROWS} rows and a 0 or 1 for each, not shape {right.shape} for {n} rows"
            )
        given = _given(log_pi, densities)
        raw = _raw(tuple(given), given)
        certainty = msp(log_pi)
        knee = float(np.median(certainty))
        # Quantiles, because a single extreme row would set the range.
        lows, highs = np.quantile(raw, (0.005, 0.995), axis=0) if raw.size else np.empty((2, 0))
        cut = np.clip(raw, lows, highs)
        spreads = cut.std(axis=0)
        ranges = np.stack([cut.mean(axis=0), np.where(spreads > 1e-12, spreads, 1.0), lows, highs])
        design = np.column_stack([_levels(certainty, knee), (cut - ranges[0]) / ranges[1]])
        labelled = LabelledRows(design, np.argmax(log_pi, axis=1), right, classes)
        ridges = choose_ridges(labelled, np.random.default_rng(seed))
        beta, offsets = fit_logistic(labelled, ridges)
        return cls(tuple(given), np.array([*beta[:3], knee]), beta[3:], ranges, offsets, ridges)

    @classmethod
    def cross_fit(
        cls,
        log_pi: Floats,
        correct: ArrayLike,
        *,
        seed: int = 0,
        **densities: Floats,
    ) -> Floats:
        """Log-odds of every row from a fit without it, (n,), for `choose_score`; parameters as in `fit`."""
        right = np.asarray(correct, dtype=np.float64)
        log_odds = np.empty(len(right))
        for fold in folds(right, np.random.default_rng(seed)):
            rest = np.delete(np.arange(len(right)), fold)
            seen, unseen = ({name: values[rows] for name, values in densities.items()} for rows in (rest, fold))
            log_odds[fold] = cls.fit(log_pi[rest], right[rest], seed=seed, **seen).log_odds(log_pi[fold], **unseen)
        return log_odds

    def log_odds(self, log_pi: Floats, **densities: Floats) -> Floats:
        """Log-odds that the prediction of each row (n, K) is right, (n,): does not saturate, so use it for ranking."""
        raw = _raw(self.features, _given(log_pi, densities))
        base, slope, bend, knee = self.calibration
        certainty = msp(log_pi)
        # No matrix product: its rounding depends on the number of rows, and a row may be exactly at a threshold.
        scores: Floats = base + slope * certainty + bend * np.minimum(certainty, knee)
        for feature, weight, (mean, spread, low, high) in zip(raw.T, self.weights, self.ranges.T, strict=True):
            scores += weight * ((np.clip(feature, low, high) - mean) / spread)
        scores += self.offsets[np.argmax(log_pi, axis=1)]
        return scores

    def score(self, log_pi: Floats, **densities: Floats) -> Floats:
        """P(correct) of each row (n, K), (n,), calibrated on the labelled rows."""
        return expit(self.log_odds(log_pi, **densities))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in _ARRAYS}

    def settings(self) -> dict[str, Any]:
        """Everything that is not an array, as JSON values."""
        ridges = [None if math.isinf(ridge) else ridge for ridge in self.ridges]
        return {"features": list(self.features), "ridges": ridges}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Learned:
        """Inverse of `tensors` and `settings`; ConfigError if something is missing or invalid."""
        try:
            weight, offset = (math.inf if ridge is None else float(ridge) for ridge in settings["ridges"])
            arrays = {name: tensors[name] for name in _ARRAYS}
            return cls(features=tuple(settings["features"]), ridges=(weight, offset), **arrays)
        except KeyError as missing:
            raise ConfigError(f"the learned score has no {missing}") from None


_ARRAYS = ("calibration", "weights", "ranges", "offsets")


def densities_of(columns: object) -> dict[str, Floats]:
    """`DENSITIES` of a table of scored rows, such as `ScoredBatch`, by name, (n,) each."""
    return {name: values for name, values in map_scores(columns).items() if name in DENSITIES}


def _given(log_pi: Floats, densities: Mapping[str, Floats]) -> dict[str, Floats]:
    """Features by name, on a scale like that of log-odds."""
    given = {"entropy": -np.log(np.maximum(-negative_entropy(log_pi), 1e-300)), "margin": margin(log_pi)}
    return given | {name: np.asarray(values, dtype=np.float64) for name, values in densities.items()}


def _raw(names: tuple[str, ...], given: Mapping[str, Floats]) -> Floats:
    """Features as columns, (n, p)."""
    missing = [name for name in names if name not in given]
    if missing:
        raise ConfigError(f"the score was learned with {' and '.join(missing)}, which the rows to score do not have")
    return np.column_stack([given[name] for name in names]) if names else np.empty((len(given["entropy"]), 0))


def _levels(certainty: Floats, knee: float) -> Floats:
    """Columns 1, u, min(u, m), (n, 3)."""
    return np.column_stack([np.ones(len(certainty)), certainty, np.minimum(certainty, knee)])
