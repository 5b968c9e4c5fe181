"""The outlier score: three views of what is unusual about a row, put on one scale and added.

    outlier_score(π) = 2 log r(gen(π)) + log r(-D_u(u - ν_k)) + log r(-D_c(c - μ_k)) - b_k

r(s) is the rank of a score among known rows, so that each term is a p-value in logarithms (Fisher's sum). GEN sees rows
that are less decided than usual. It is blind to the opposite: an over-confident classifier is *surer* of foreign inputs
than of its own. The two distances see those, because they compare what the row says about *every* class with what rows
of the predicted class k usually say,

    c = log π - mean(log π),  log π raised to `FLOOR`      u = c / max(|c|, 1)
    D(d) = Σ_j (d·e_j)² / w_j + |d - Σ_j (d·e_j) e_j|² / s²

with μ_k and ν_k the means of c and u over known rows of class k, and e_j, w_j the first `AXES` principal axes and
variances of their residuals, pooled over classes; the other axes share one variance s² (probabilistic PCA).

A class of one row in 200 is seldom predicted with the confidence of the others. Among all rows its rows are the least
decided, and they would be outliers by GEN alone: 61 of 74 of such a class at α = 0.01. So a class whose known rows
score, on average, more than a standard deviation s below the mean m of all is compared with itself beyond that,
b_k = min(0, m_k - m + s), with m_k shrunk towards m by `PSEUDO_ROWS`. Most data have no such class, and b = 0.

Nothing here is fitted on calibration rows, so the outlier score is fixed and its conformal rank among them is exact. It
needs no labels, no foreign rows, no stored rows and no map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats
from darksight_core.scores.confidence import gen
from darksight_core.scores.ranks import RankTransform

__all__ = [
    "AXES",
    "FLOOR",
    "GAMMA",
    "GEN_WEIGHT",
    "PSEUDO_ROWS",
    "SHORTEST",
    "TOP_CLASSES",
    "ClassGaussians",
    "OutlierScore",
    "draw_known",
]

GAMMA = 0.1
"""γ of GEN."""

TOP_CLASSES = 100
"""Most probable classes that GEN looks at."""

GEN_WEIGHT = 2.0
"""Weight of GEN beside one for each distance."""

FLOOR = -60.0
"""Lowest log-probability told apart from zero."""

SHORTEST = 1.0
"""Length of c, in nats, below which a row is too close to uniform to have a direction."""

AXES = 8
"""Principal axes with a variance of their own; 16 are worse where a class has few rows."""

PSEUDO_ROWS = 3.0
"""Rows of average outlier score that every class has besides its own, when its offset b_k is estimated."""

# Least variance of c, in nats², and of u. A class whose rows are all one-hot has none.
_LEAST_VARIANCES = (1e-2, 1e-5)
# Known rows that the score is fitted to, at most.
_ROWS = 20_000
_CHUNK = 4_096


@dataclass(frozen=True, slots=True, eq=False)
class ClassGaussians:
    """One Gaussian for each class, all of the same covariance; made by `fit`.

    Parameters
    ----------
    means
        Mean of each class, (K, K) float32.
    axes
        Principal axes, (r, K), of length one.
    precisions
        Inverse variance along each axis, then of all other axes, (r + 1,).
    """

    means: NDArray[np.float32]
    axes: Floats
    precisions: Floats

    def __post_init__(self) -> None:
        means = np.array(self.means, dtype=np.float32)
        axes, precisions = np.array(self.axes, dtype=np.float64), np.array(self.precisions, dtype=np.float64)
        classes = len(means)
        if means.shape != (classes, classes) or axes.shape[1:] != (classes,) or precisions.shape != (len(axes) + 1,):
            raise ConfigError(
                f"means {means.shape}, axes {axes.shape} and precisions {precisions.shape} do not make Gaussians"
            )
        if not all(np.isfinite(array).all() for array in (means, axes, precisions)) or (precisions < 0.0).any():
            raise ConfigError("the Gaussians of the outlier score must be finite and their precisions not negative")
        for name, array in (("means", means), ("axes", axes), ("precisions", precisions)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @classmethod
    def fit(cls, rows: Floats, classes: NDArray[np.intp], least: float) -> tuple[ClassGaussians, Floats]:
        """Gaussians of rows (n, K) of known classes (n,), and the distance of each from the rest of its class, (n,).

        Every mean starts from one row that no class has to bring: the average row, turned to the class. So a class
        without rows has a mean, and a class of one row is not certain of it.

        Parameters
        ----------
        rows, classes
            The rows and which of the K classes each belongs to.
        least
            Least variance along any axis.
        """
        n, count = rows.shape
        own = float(rows[np.arange(n), classes].mean())
        prior = np.full((count, count), -own / (count - 1))
        np.fill_diagonal(prior, own)
        sizes = np.bincount(classes, minlength=count)
        sums = np.stack([np.bincount(classes, column, minlength=count) for column in rows.T], axis=1)
        means = ((sums + prior) / (sizes + 1.0)[:, None]).astype(np.float32)
        # How much further a row is from the mean of the others than from a mean that it is part of.
        spread = ((sizes + 1.0) / np.maximum(sizes, 1.0))[classes, None]

        def residuals() -> Iterator[Floats]:
            for start in range(0, n, _CHUNK):
                part = slice(start, start + _CHUNK)
                yield (rows[part] - means[classes[part]]) * spread[part]

        variances, vectors = np.linalg.eigh(sum(part.T @ part for part in residuals()) / n)
        # Rows sum to zero, so one axis has no variance.
        axes = min(AXES, count - 1)
        others = count - 1 - axes
        along = np.maximum(variances[::-1][:axes], least)
        rest = 1.0 / max(float(variances[::-1][axes : count - 1].mean()), least) if others else 0.0
        found = cls(means, vectors[:, ::-1][:, :axes].T, np.append(1.0 / along, rest))
        return found, np.concatenate([found._distances(part) for part in residuals()])

    def distances(self, rows: Floats, classes: NDArray[np.intp]) -> Floats:
        """D of rows (n, K) from the means of their classes (n,), as (n,)."""
        return self._distances(rows - self.means[classes])

    def _distances(self, residuals: Floats) -> Floats:
        along = (residuals @ self.axes.T) ** 2
        rest = np.maximum((residuals**2).sum(axis=1) - along.sum(axis=1), 0.0)
        total: Floats = along @ self.precisions[:-1] + self.precisions[-1] * rest
        return total


@dataclass(frozen=True, slots=True, eq=False)
class OutlierScore:
    """The outlier score of the module; made by `fit`.

    Parameters
    ----------
    log_ratios, directions
        Gaussians of c and of u.
    class_offsets
        b_k, (K,), none above zero.
    gen_rank, log_ratio_rank, direction_rank
        Ranks of GEN and of both distances, negated, among known rows.
    """

    log_ratios: ClassGaussians
    directions: ClassGaussians
    class_offsets: Floats
    gen_rank: RankTransform
    log_ratio_rank: RankTransform
    direction_rank: RankTransform

    def __post_init__(self) -> None:
        offsets = np.array(self.class_offsets, dtype=np.float64)
        classes = len(self.log_ratios.means)
        if len(self.directions.means) != classes or offsets.shape != (classes,):
            raise ConfigError("the parts of the outlier score are for different numbers of classes")
        if not np.isfinite(offsets).all() or (offsets > 0.0).any():
            raise ConfigError("the class offsets of the outlier score must be finite and not positive")
        offsets.flags.writeable = False
        object.__setattr__(self, "class_offsets", offsets)

    @classmethod
    def fit(cls, log_pi: Floats) -> OutlierScore:
        """The score that calls rows usual which are like these.

        Parameters
        ----------
        log_pi
            Log-probabilities of known rows, (n, K) with n >= 2, none of which may calibrate the score later. See
            `draw_known` for how many are enough.
        """
        log_pi = np.asarray(log_pi, dtype=np.float64)
        if log_pi.ndim != 2 or len(log_pi) < 2:
            raise ConfigError(f"the outlier score needs at least two known rows, not an array of {log_pi.shape}")
        classes, gen_scores = log_pi.argmax(axis=1), _gen(log_pi)
        rows = _centred(log_pi)
        log_ratios, from_log_ratios = ClassGaussians.fit(rows, classes, _LEAST_VARIANCES[0])
        directions, from_directions = ClassGaussians.fit(_directions(rows), classes, _LEAST_VARIANCES[1])
        parts = (gen_scores, -from_log_ratios, -from_directions)
        ranks = [RankTransform.fit(scores) for scores in parts]
        log_ranks = np.stack([rank(scores) for rank, scores in zip(ranks, parts, strict=True)])
        known = np.array([GEN_WEIGHT, 1.0, 1.0]) @ log_ranks
        return cls(log_ratios, directions, _class_offsets(known, classes, log_pi.shape[1]), *ranks)

    def score(self, log_pi: Floats) -> Floats:
        """The outlier score of rows (n, K), as (n,); lower is more unusual."""
        log_pi = np.asarray(log_pi, dtype=np.float64)
        scores = np.empty(len(log_pi))
        for start in range(0, len(log_pi), _CHUNK):
            part = log_pi[start : start + _CHUNK]
            classes, rows = part.argmax(axis=1), _centred(part)
            scores[start : start + _CHUNK] = (
                GEN_WEIGHT * self.gen_rank(_gen(part))
                + self.log_ratio_rank(-self.log_ratios.distances(rows, classes))
                + self.direction_rank(-self.directions.distances(_directions(rows), classes))
                - self.class_offsets[classes]
            )
        return scores

    @property
    def n_classes(self) -> int:
        """Number of probabilities in a row."""
        return len(self.log_ratios.means)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        found: dict[str, NDArray[Any]] = {"class_offsets": self.class_offsets}
        for name, rank in self.ranks().items():
            found |= {f"{name}_scores": rank.scores, f"{name}_log_ranks": rank.log_ranks}
        for name, gaussians in (("log_ratio", self.log_ratios), ("direction", self.directions)):
            found |= {f"{name}_{array}": getattr(gaussians, array) for array in ("means", "axes", "precisions")}
        return found

    def settings(self) -> dict[str, Any]:
        """All that is not an array, as JSON knows it."""
        return {f"{name}_slope": rank.slope for name, rank in self.ranks().items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> OutlierScore:
        """Inverse of `tensors` and `settings`; ConfigError if something is missing or does not fit."""
        try:
            log_ratios, directions = (
                ClassGaussians(*(tensors[f"{name}_{array}"] for array in ("means", "axes", "precisions")))
                for name in ("log_ratio", "direction")
            )
            ranks = (
                RankTransform(tensors[f"{name}_scores"], tensors[f"{name}_log_ranks"], float(settings[f"{name}_slope"]))
                for name in ("gen", "log_ratio", "direction")
            )
            return cls(log_ratios, directions, tensors["class_offsets"], *ranks)
        except KeyError as missing:
            raise ConfigError(f"the outlier score lacks {missing}") from None

    def ranks(self) -> dict[str, RankTransform]:
        """The rank transforms by the name of their score."""
        return {"gen": self.gen_rank, "log_ratio": self.log_ratio_rank, "direction": self.direction_rank}


def draw_known(n: int, seed: int) -> NDArray[np.int64]:
    """Places of the rows among n known ones that the score is fitted to, ascending."""
    if n <= _ROWS:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, _ROWS, replace=False))


def _class_offsets(scores: Floats, classes: NDArray[np.intp], count: int) -> Floats:
    """b of `count` classes, from the scores (n,) of known rows of these classes (n,)."""
    deviations = scores - scores.mean()
    sizes = np.bincount(classes, minlength=count) + PSEUDO_ROWS
    below: Floats = np.bincount(classes, deviations, minlength=count) / sizes
    offsets: Floats = np.minimum(below + deviations.std(), 0.0)
    return offsets


def _gen(log_pi: Floats) -> Floats:
    return gen(log_pi, GAMMA, TOP_CLASSES)


def _centred(log_pi: Floats) -> Floats:
    """c of rows (n, K)."""
    rows = np.maximum(log_pi, FLOOR)
    rows -= rows.mean(axis=1, keepdims=True)
    return rows


def _directions(rows: Floats) -> Floats:
    """u of rows (n, K) of log-ratios."""
    lengths = np.sqrt((rows**2).sum(axis=1, keepdims=True))
    directions: Floats = rows / np.maximum(lengths, SHORTEST)
    return directions
