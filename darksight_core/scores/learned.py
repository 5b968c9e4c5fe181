"""How likely a prediction is right, learned from few labelled rows.

    log-odds P(correct) = a + b u + c min(u, m) + Σ_j w_j z_j + o_class,        b, c, w >= 0

u is the log-odds of the largest probability and m its median: a, b and c calibrate max-softmax without touching its
order. z are the other scores, each to its own scale and cut at the range seen in training; o is an offset of the
predicted class. With the prior b ~ 1, c, w, o ~ 0 the fit starts from the classifier's own probability, and a ridge
holds w and o at zero until labels speak against it.

With a few hundred labels hardly anything beats max-softmax, and much does worse. So the two ridges are chosen by
cross-validated likelihood with a bias: w and o stay at exactly zero, that is at the order of max-softmax, unless a
freer fit is better by more than one standard error of the difference. The scores can only add confidence, never take
it away (w >= 0), because each of them is higher for surer rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.scores.confidence import margin, msp, negative_entropy
from darksight_core.simplex import Floats

__all__ = ["FEATURES", "MIN_ROWS", "Learned"]

Ints: TypeAlias = NDArray[np.int64]

FEATURES = ("entropy", "margin", "log_density", "log_kde")
"""Scores that may add to max-softmax; the densities only where they are given."""

MIN_ROWS = 20
"""Labelled rows below which nothing is learned."""

_FOLDS = 5
_CV_ROWS = 20_000
_NONE = math.inf
# Precision of the weights on scores of unit spread, and of the class offsets; infinite means that there are none.
_RIDGES = tuple((weight, offset) for weight in (_NONE, 100.0, 10.0) for offset in (_NONE, 30.0, 3.0))
# Of a, b and c: what they are before any label, how firmly, and the least they may be. b keeps the order.
_MEANS = (0.0, 1.0, 0.0)
_PRECISIONS = (0.25, 4.0, 4.0)
_LEAST = (-math.inf, 0.01, 0.0)


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
        Precisions that were chosen for w and o, infinite where they are held at zero.
    """

    features: tuple[str, ...]
    calibration: Floats
    weights: Floats
    ranges: Floats
    offsets: Floats
    ridges: tuple[float, float] = (_NONE, _NONE)

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
            raise ConfigError(f"a learned score adds weights that are not negative to some of {', '.join(FEATURES)}")
        if (self.ranges[1:2] <= 0).any():
            raise ConfigError("the spread of every feature must be positive")

    @classmethod
    def fit(
        cls,
        log_pi: Floats,
        correct: ArrayLike,
        *,
        log_density: Floats | None = None,
        log_kde: Floats | None = None,
        seed: int = 0,
    ) -> Learned:
        """Learn from labelled rows.

        Parameters
        ----------
        log_pi
            Log-probabilities, (n, K), n at least `MIN_ROWS`. The rows must be a fair draw from the traffic: labels of
            rejected rows alone can never show an error among the accepted ones.
        correct
            1 or True where the most probable class is the true one, (n,).
        log_density, log_kde
            Densities of the map, (n,); once learned from, they are needed for every row.
        seed
            Seed of the folds.
        """
        right = np.asarray(correct, dtype=np.float64)
        n, classes = np.shape(log_pi)
        if right.shape != (n,) or n < MIN_ROWS or not ((right == 0) | (right == 1)).all():
            raise ConfigError(f"learning takes at least {MIN_ROWS} rows with a 0 or 1 each, not {right.shape} for {n}")
        given = _given(log_pi, log_density, log_kde)
        raw = _raw(tuple(given), given)
        certainty = msp(log_pi)
        knee = float(np.median(certainty))
        # A lone row far out would set the range for all.
        lows, highs = np.quantile(raw, (0.005, 0.995), axis=0) if raw.size else np.empty((2, 0))
        cut = np.clip(raw, lows, highs)
        spreads = cut.std(axis=0)
        ranges = np.stack([cut.mean(axis=0), np.where(spreads > 1e-12, spreads, 1.0), lows, highs])
        design = np.column_stack([_levels(certainty, knee), (cut - ranges[0]) / ranges[1]])
        labelled = _Labelled(design, np.argmax(log_pi, axis=1), right, classes)
        ridges = _choose_ridges(labelled, np.random.default_rng(seed))
        beta, offsets = _solve(labelled, ridges)
        return cls(tuple(given), np.array([*beta[:3], knee]), beta[3:], ranges, offsets, ridges)

    @classmethod
    def cross_fit(
        cls,
        log_pi: Floats,
        correct: ArrayLike,
        *,
        log_density: Floats | None = None,
        log_kde: Floats | None = None,
        seed: int = 0,
    ) -> Floats:
        """Log-odds of every row by a fit that has not seen it, (n,): what `choose_score` compares; see `fit`."""
        right = np.asarray(correct, dtype=np.float64)
        log_odds = np.empty(len(right))
        densities = {"log_density": log_density, "log_kde": log_kde}
        for fold in _folds(right, np.random.default_rng(seed)):
            rest = np.delete(np.arange(len(right)), fold)
            seen, unseen = (
                {name: None if values is None else values[rows] for name, values in densities.items()}
                for rows in (rest, fold)
            )
            log_odds[fold] = cls.fit(log_pi[rest], right[rest], seed=seed, **seen).log_odds(log_pi[fold], **unseen)
        return log_odds

    def log_odds(self, log_pi: Floats, *, log_density: Floats | None = None, log_kde: Floats | None = None) -> Floats:
        """Log-odds that the prediction of each row (n, K) is right, (n,): the score to rank by, it never saturates."""
        raw = _raw(self.features, _given(log_pi, log_density, log_kde))
        base, slope, bend, knee = self.calibration
        certainty = msp(log_pi)
        # No matrix products: their rounding depends on the number of rows, and a row may be right at a threshold.
        scores: Floats = base + slope * certainty + bend * np.minimum(certainty, knee)
        for feature, weight, (mean, spread, low, high) in zip(raw.T, self.weights, self.ranges.T, strict=True):
            scores += weight * ((np.clip(feature, low, high) - mean) / spread)
        scores += self.offsets[np.argmax(log_pi, axis=1)]
        return scores

    def score(self, log_pi: Floats, *, log_density: Floats | None = None, log_kde: Floats | None = None) -> Floats:
        """P(correct) of each row (n, K), (n,): calibrated on traffic like the labelled rows."""
        return _expit(self.log_odds(log_pi, log_density=log_density, log_kde=log_kde))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in _ARRAYS}

    def settings(self) -> dict[str, Any]:
        """All that is not an array, as JSON knows it."""
        ridges = [None if math.isinf(ridge) else ridge for ridge in self.ridges]
        return {"features": list(self.features), "ridges": ridges}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Learned:
        """Inverse of `tensors` and `settings`; ConfigError if something is missing or does not fit."""
        try:
            weight, offset = (_NONE if ridge is None else float(ridge) for ridge in settings["ridges"])
            arrays = {name: tensors[name] for name in _ARRAYS}
            return cls(features=tuple(settings["features"]), ridges=(weight, offset), **arrays)
        except KeyError as missing:
            raise ConfigError(f"the learned score lacks {missing}") from None


_ARRAYS = ("calibration", "weights", "ranges", "offsets")


class _Labelled(NamedTuple):
    """Rows to learn from: columns 1, u, min(u, m), z (n, 3 + p), predicted classes and labels (n,)."""

    design: Floats
    predicted: Ints
    correct: Floats
    classes: int

    def take(self, rows: Ints) -> _Labelled:
        return _Labelled(self.design[rows], self.predicted[rows], self.correct[rows], self.classes)


def _given(log_pi: Floats, log_density: Floats | None, log_kde: Floats | None) -> dict[str, Floats]:
    """Features by name, in the order of `FEATURES`, each on a scale like that of log-odds."""
    given = {"entropy": -np.log(np.maximum(-negative_entropy(log_pi), 1e-300)), "margin": margin(log_pi)}
    for name, density in (("log_density", log_density), ("log_kde", log_kde)):
        if density is not None:
            given[name] = np.asarray(density, dtype=np.float64)
    return given


def _raw(names: tuple[str, ...], given: Mapping[str, Floats]) -> Floats:
    """Features as columns, (n, p)."""
    missing = [name for name in names if name not in given]
    if missing:
        raise ConfigError(f"the score was learned with {' and '.join(missing)}, which the rows to score lack")
    return np.column_stack([given[name] for name in names]) if names else np.empty((len(given["entropy"]), 0))


def _levels(certainty: Floats, knee: float) -> Floats:
    """Columns 1, u, min(u, m), (n, 3)."""
    return np.column_stack([np.ones(len(certainty)), certainty, np.minimum(certainty, knee)])


def _folds(correct: Floats, rng: np.random.Generator) -> Iterator[Ints]:
    """Sets of rows, each with its share of the errors."""
    order = rng.permutation(len(correct))
    order = order[np.argsort(correct[order], kind="stable")]
    for fold in range(_FOLDS):
        yield order[fold::_FOLDS]


def _choose_ridges(labelled: _Labelled, rng: np.random.Generator) -> tuple[float, float]:
    """The ridges with the highest cross-validated likelihood, or the firmest if that gains within its noise.

    So too if some fold would have no error, or nothing else: such labels say nothing about the order of rows.
    """
    rows = rng.permutation(len(labelled.correct))[:_CV_ROWS]
    labelled = labelled.take(rows)
    right = int(labelled.correct.sum())
    if min(right, len(rows) - right) < _FOLDS:
        return _RIDGES[0]
    losses = np.empty((len(_RIDGES), len(rows)))
    for fold in _folds(labelled.correct, rng):
        seen, unseen = labelled.take(np.delete(np.arange(len(rows)), fold)), labelled.take(fold)
        for losses_of, ridges in zip(losses, _RIDGES, strict=True):
            beta, offsets = _solve(seen, ridges)
            losses_of[fold] = _losses(unseen.design @ beta + offsets[unseen.predicted], unseen.correct)
    best = int(losses.mean(axis=1).argmin())
    gains = losses[0] - losses[best]
    noise = float(gains.std(ddof=1)) / math.sqrt(len(rows))
    return _RIDGES[best] if float(gains.mean()) > noise else _RIDGES[0]


def _solve(labelled: _Labelled, ridges: tuple[float, float]) -> tuple[Floats, Floats]:
    """β = (a, b, c, w), (3 + p,), and o, (K,), of highest posterior density.

    Projected Newton steps. The offsets are eliminated from each: their block of the Hessian is diagonal, so that a
    thousand classes cost no more than ten.
    """
    weight_ridge, offset_ridge = ridges
    total = labelled.design.shape[1]
    columns = 3 if math.isinf(weight_ridge) else total
    design = labelled.design[:, :columns]
    predicted, correct, classes = labelled[1:]
    mean, least = (np.array([*first, *[0.0] * (columns - 3)]) for first in (_MEANS, _LEAST))
    precision = np.array([*_PRECISIONS, *[weight_ridge] * (columns - 3)])
    has_offsets = math.isfinite(offset_ridge)

    def objective(beta: Floats, offsets: Floats) -> float:
        prior = (precision * (beta - mean) ** 2).sum() + (offset_ridge * offsets @ offsets if has_offsets else 0.0)
        return float(_losses(design @ beta + offsets[predicted], correct).sum() + 0.5 * prior)

    def sums(values: Floats) -> Floats:
        return np.asarray(np.bincount(predicted, values, classes), dtype=np.float64)

    beta, offsets = mean.copy(), np.zeros(classes)
    value = objective(beta, offsets)
    for _ in range(50):
        chance = _expit(design @ beta + offsets[predicted])
        excess, curvature = chance - correct, chance * (1.0 - chance)
        bent = design * curvature[:, None]
        slope: Floats = design.T @ excess + precision * (beta - mean)
        hessian: Floats = bent.T @ design + np.diag(precision)
        pull: Floats = np.zeros(classes)
        own: Floats = np.ones(classes)
        cross: Floats = np.zeros((columns, classes))
        if has_offsets:
            pull = sums(excess) + offset_ridge * offsets
            own = sums(curvature) + offset_ridge
            cross = np.stack([sums(column) for column in bent.T])
            slope -= cross @ (pull / own)
            hessian -= (cross / own) @ cross.T
        free = (beta > least) | (slope < 0.0)
        step = np.zeros(columns)
        step[free] = -np.linalg.solve(hessian[np.ix_(free, free)], slope[free])
        offset_step = -(pull + step @ cross) / own
        length, before = 1.0, value
        while length > 1e-4:
            trial = np.maximum(beta + length * step, least), offsets + length * offset_step
            there = objective(*trial)
            if there < value:
                (beta, offsets), value = trial, there
                break
            length *= 0.5
        if before - value < 1e-8 * (1.0 + value):
            break
    return np.concatenate([beta, np.zeros(total - columns)]), offsets


def _losses(log_odds: Floats, correct: Floats) -> Floats:
    """Negative log-likelihood of each row, (n,)."""
    losses: Floats = np.logaddexp(0.0, log_odds) - correct * log_odds
    return losses


def _expit(log_odds: Floats) -> Floats:
    chance: Floats = 0.5 * (1.0 + np.tanh(0.5 * log_odds))
    return chance
