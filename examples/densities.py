"""Densities that the paper compares with the density of the map.

    MapMixture         Gaussian mixture on the points of the map, number of components by BIC
    RowKde             Gaussian kernels on the rows of probabilities, bandwidth by leave-one-out likelihood
    DirichletMixture   mixture of Dirichlet densities on the simplex, by expectation maximisation

They are densities on different spaces: the plane, the hyperplane Σ p = 1 in R^K, and the simplex in its first K - 1
coordinates. So only the order in which each ranks rows can be compared, not the values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln, polygamma
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats, log_probs, log_softmax, logsumexp

__all__ = ["DirichletMixture", "MapMixture", "RowKde"]

_BLOCK = 1 << 21
# Smaller probabilities are raised to this: with a single zero the Dirichlet density of a row would be zero.
_EDGE = 1e-6
_ALPHA = (1e-2, 1e5)


@dataclass(frozen=True, slots=True)
class MapMixture:
    """Gaussian mixture on the map; made by `fit`."""

    mixture: Any

    @classmethod
    def fit(cls, points: Floats, components: tuple[int, ...] = (1, 2, 3, 5, 10, 20, 40), seed: int = 0) -> MapMixture:
        """The mixture with the lowest BIC.

        Parameters
        ----------
        points
            Points on the map, (n, 2).
        components
            Numbers of components to try, up to n / 10 and up to the number of different points.
        seed
            Seed of the starts.
        """
        most = min(max(1, len(points) // 10), len(np.unique(points, axis=0)))
        tried = [count for count in components if count <= most]
        if not tried:
            raise ConfigError(f"{min(components)} components need more than {len(points)} points")
        # Many rows of a classifier may share one point, whose component would have no width.
        ridge = 1e-6 * float(np.var(points, axis=0).sum()) + 1e-12
        fits = [GaussianMixture(count, random_state=seed, reg_covar=ridge).fit(points) for count in tried]
        return cls(min(fits, key=lambda mixture: float(mixture.bic(points))))

    def log_density(self, points: Floats) -> Floats:
        """Log density at points (m, 2), as (m,)."""
        return np.asarray(self.mixture.score_samples(points), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class RowKde:
    """Kernel density of rows of probabilities; made by `fit`.

    p(π) = 1/n (2πh²)^(-(K - 1) / 2) Σ_j exp(-|π - π_j|² / 2h²)

    Parameters
    ----------
    references
        Known rows, (n, K).
    bandwidth
        h.
    """

    references: Floats
    bandwidth: float

    @classmethod
    def fit(cls, probs: NDArray[np.floating], *, max_rows: int = 10_000, queries: int = 1_000, seed: int = 0) -> RowKde:
        """The density whose bandwidth maximises the leave-one-out likelihood.

        Rows that coincide are left out together; otherwise the likelihood would grow without bound as h falls.

        Parameters
        ----------
        probs
            Known rows, (n, K) with n >= 2.
        max_rows, queries
            Number of rows to keep, and of rows on which the likelihood is measured.
        seed
            Seed of the draws.
        """
        if np.ndim(probs) != 2 or len(probs) < 2:
            raise ConfigError("a density of rows needs at least two rows")
        rng = np.random.default_rng(seed)
        rows = np.asarray(probs, dtype=np.float64)[rng.permutation(len(probs))[:max_rows]]
        squares = _squares(rows[:queries], rows)
        # (1e-4)², far below any difference that matters between two rows.
        squares[squares < 1e-8] = np.inf
        squares = squares[np.isfinite(squares).any(axis=1)]
        if len(squares) == 0:
            return cls(rows, 1e-3)
        dimension = int(rows.shape[1]) - 1

        def likelihood(bandwidth: float) -> float:
            # Without the most isolated hundredth: a single isolated row would determine the bandwidth.
            values: Floats = np.sort(logsumexp(squares / (-2.0 * bandwidth**2)))[len(squares) // 100 :]
            return float(values.mean()) - dimension * math.log(bandwidth)

        candidates = np.geomspace(1e-4, 1.0, 41)
        return cls(rows, float(candidates[int(np.argmax([likelihood(h) for h in candidates]))]))

    def log_density(self, probs: NDArray[np.floating]) -> Floats:
        """Log density of rows (m, K), as (m,)."""
        rows = np.asarray(probs, dtype=np.float64)
        total = np.empty(len(rows))
        step = max(1, _BLOCK // len(self.references))
        for start in range(0, len(rows), step):
            squares = _squares(rows[start : start + step], self.references)
            total[start : start + step] = logsumexp(squares / (-2.0 * self.bandwidth**2))
        dimension = int(rows.shape[1]) - 1
        return total - math.log(len(self.references)) - 0.5 * dimension * math.log(2.0 * math.pi * self.bandwidth**2)


def _squares(rows: Floats, references: Floats) -> Floats:
    """Squared distances, (m, n)."""
    lengths = (rows**2).sum(axis=1)[:, None] + (references**2).sum(axis=1)
    squares: Floats = np.maximum(lengths - 2.0 * rows @ references.T, 0.0)
    return squares


@dataclass(frozen=True, slots=True)
class DirichletMixture:
    """Mixture of Dirichlet densities; made by `fit`.

    p(π) = Σ_c w_c Γ(Σ_k α_ck) / Π_k Γ(α_ck) Π_k π_k^(α_ck - 1)

    Probabilities are raised to at least 1e-6, so that one-hot rows have a density.

    Parameters
    ----------
    log_weights
        log w, (C,).
    alphas
        α, (C, K), positive.
    """

    log_weights: Floats
    alphas: Floats

    @classmethod
    def fit(
        cls, probs: NDArray[np.floating], components: int | None = None, *, iterations: int = 100, seed: int = 0
    ) -> DirichletMixture:
        """Expectation maximisation from a k-means start.

        Parameters
        ----------
        probs
            Known rows, (n, K).
        components
            C; by default the number of classes.
        iterations
            Most iterations; it stops when the mean log-likelihood gains less than 1e-5.
        seed
            Seed of the start.
        """
        logs = _inner(probs)
        count = logs.shape[1] if components is None else components
        if not 1 <= count <= len(logs):
            raise ConfigError(f"{count} components cannot be fitted to {len(logs)} rows")
        # With fewer different rows than components the others start empty.
        clusters = min(count, len(np.unique(logs, axis=0)))
        labels = KMeans(clusters, n_init=3, random_state=seed).fit_predict(np.exp(logs))
        shares = np.eye(count)[labels]
        alphas, before = np.ones((count, logs.shape[1])), -math.inf
        for _ in range(iterations):
            # The weight of one row, spread over all rows, keeps an empty component alive.
            mass = shares.sum(axis=0) + 1.0
            alphas = _raise_likelihood(alphas, (shares.T @ logs + logs.mean(axis=0)) / mass[:, None])
            mixture = cls(np.log(mass / mass.sum()), alphas)
            joint = mixture._log_joint(logs)
            shares = np.exp(log_softmax(joint))
            now = float(logsumexp(joint).mean())
            if abs(now - before) < 1e-5:
                break
            before = now
        return mixture

    def log_density(self, probs: NDArray[np.floating]) -> Floats:
        """Log density of rows (m, K), as (m,)."""
        return logsumexp(self._log_joint(_inner(probs)))

    def _log_joint(self, logs: Floats) -> Floats:
        norm = gammaln(self.alphas.sum(axis=1)) - gammaln(self.alphas).sum(axis=1)
        joint: Floats = self.log_weights + norm + logs @ (self.alphas - 1.0).T
        return joint


def _inner(probs: NDArray[np.floating]) -> Floats:
    """log π with probabilities raised to `_EDGE`, (n, K)."""
    return log_probs(np.maximum(np.asarray(probs, dtype=np.float64), _EDGE))


def _raise_likelihood(alphas: Floats, mean_logs: Floats) -> Floats:
    """α, (C, K), after Newton steps towards the maximum likelihood for mean log π, (C, K).

    The Hessian is a diagonal plus a constant, which Minka's formula inverts in linear time. A step that would make an α
    negative is taken in log α instead.
    """
    for _ in range(10):
        total = alphas.sum(axis=1, keepdims=True)
        slope = digamma(total) - digamma(alphas) + mean_logs
        diagonal, constant = -polygamma(1, alphas), polygamma(1, total)
        shift = (slope / diagonal).sum(axis=1, keepdims=True)
        shift /= 1.0 / constant + (1.0 / diagonal).sum(axis=1, keepdims=True)
        step = (shift - slope) / diagonal
        inside = (alphas + step > 0.1 * alphas).all(axis=1, keepdims=True) & (step < 10.0 * alphas).all(
            axis=1, keepdims=True
        )
        moved = np.where(inside, alphas + step, alphas * np.exp(np.clip(step / alphas, -0.7, 0.7)))
        alphas = np.clip(moved, *_ALPHA)
    return alphas
