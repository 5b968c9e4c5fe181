"""The student: a naive-Bayes classifier over the plane with one Student-t density per class.

    P(y | k) = t_ν(y; μ_k, s_k² I) = 1 / (2π s_k²) · (1 + |y - μ_k|² / (ν s_k²))^(-(ν + 2) / 2)
    P(k)     = softmax(log_prior)_k
    P(k | y) ∝ P(y | k) P(k),        P(y; θ) = Σ_k P(y | k) P(k)

It sees only the point y on the map. A fit makes `log_posterior` match the watched classifier; `log_density` is the
confidence log P(y; θ), which has polynomial tails and is therefore finite at any distance. `darksight_core.fit` has the
same formulas in torch; a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats, log_probs, log_softmax, logsumexp

__all__ = ["SoftmaxStudent", "Student", "centred_logits", "default_scale"]

_CHUNK_ROWS = 1 << 14
# Points times classes in memory at a time: a picture asks for the density of 48,400 points.
_BLOCK_VALUES = 1 << 20


def default_scale(n_classes: int) -> float:
    """The fixed scale of the paper: covariance √(log K) I, so s = (log K)^(1/4)."""
    return math.pow(math.log(n_classes), 0.25)


@dataclass(frozen=True, slots=True)
class Student:
    """The student's parameters θ.

    Parameters
    ----------
    means
        Class centres μ, (K, 2).
    scales
        Scale s of each class, (K,).
    log_prior
        Log prior of each class, (K,); normalised here.
    dof
        Degrees of freedom ν > 0.
    """

    means: Floats
    scales: Floats
    log_prior: Floats
    dof: float = 2.0

    def __post_init__(self) -> None:
        means = np.array(self.means, dtype=np.float64)
        scales = np.array(self.scales, dtype=np.float64)
        log_prior = np.array(self.log_prior, dtype=np.float64)
        classes = means.shape[0] if means.ndim == 2 else 0
        if means.shape != (classes, 2) or classes < 2:
            raise ConfigError(f"means must have shape (K, 2) with K >= 2, not {means.shape}")
        if scales.shape != (classes,) or log_prior.shape != (classes,):
            raise ConfigError(
                f"scales and log_prior must have shape ({classes},), not {scales.shape} and {log_prior.shape}"
            )
        if not (np.isfinite(means).all() and np.isfinite(log_prior).all() and np.isfinite(scales).all()):
            raise ConfigError("means, scales and log_prior must be finite")
        if not (scales > 0).all() or not self.dof > 0:
            raise ConfigError("scales and dof must be positive")
        object.__setattr__(self, "means", means)
        object.__setattr__(self, "scales", scales)
        # Normalising twice may change the last bit, and a stored student must be read back unchanged.
        if abs(float(logsumexp(log_prior))) > 1e-12:
            log_prior = log_softmax(log_prior)
        object.__setattr__(self, "log_prior", log_prior)
        for array in (self.means, self.scales, self.log_prior):
            array.flags.writeable = False

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name; `dof` as an array of one value."""
        return {"means": self.means, "scales": self.scales, "log_prior": self.log_prior, "dof": np.array([self.dof])}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> Student:
        """Inverse of `tensors`."""
        return cls(tensors["means"], tensors["scales"], tensors["log_prior"], float(tensors["dof"][0]))

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return int(self.means.shape[0])

    def log_joint(self, points: Floats) -> Floats:
        """log P(y, k) for points (n, 2), as (n, K)."""
        power = 0.5 * (self.dof + 2.0)
        spread = self.dof * self.scales**2
        offset = self.log_prior - np.log(2.0 * np.pi * self.scales**2)
        # In place, one coordinate at a time: an array (n, K, 2) of a thousand classes would be the largest in memory.
        joint: Floats = points[:, :1] - self.means[:, 0]
        joint *= joint
        other = points[:, 1:] - self.means[:, 1]
        other *= other
        joint += other
        joint /= spread
        np.log1p(joint, out=joint)
        joint *= -power
        joint += offset
        return joint

    def log_posterior(self, points: Floats) -> Floats:
        """log P(k | y) for points (n, 2), as (n, K)."""
        joint = self.log_joint(points)
        joint -= logsumexp(joint)[:, None]
        return joint

    def log_density(self, points: Floats) -> Floats:
        """log P(y; θ) for points (n, 2), as (n,)."""
        density = np.empty(len(points))
        step = max(_BLOCK_VALUES // self.n_classes, 1)
        for start in range(0, len(points), step):
            density[start : start + step] = logsumexp(self.log_joint(points[start : start + step]))
        return density


@dataclass(frozen=True, slots=True)
class SoftmaxStudent:
    """The softmax student of the paper's appendix A, P(k | y) = softmax(y W + offset)_k.

    It gives a map in closed form but no density P(y; θ).

    Parameters
    ----------
    weights
        W, (2, K).
    offset
        Mean of the centred log-probabilities, (K,).
    """

    weights: Floats
    offset: Floats

    def __post_init__(self) -> None:
        weights = np.array(self.weights, dtype=np.float64)
        offset = np.array(self.offset, dtype=np.float64)
        classes = weights.shape[1] if weights.ndim == 2 else 0
        if weights.shape != (2, classes) or classes < 2:
            raise ConfigError(f"weights must have shape (2, K) with K >= 2, not {weights.shape}")
        if offset.shape != (classes,):
            raise ConfigError(f"offset must have shape ({classes},), not {offset.shape}")
        if not (np.isfinite(weights).all() and np.isfinite(offset).all()):
            raise ConfigError("weights and offset must be finite")
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "offset", offset)
        for array in (self.weights, self.offset):
            array.flags.writeable = False

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return int(self.weights.shape[1])

    def log_posterior(self, points: Floats) -> Floats:
        """log P(k | y) for points (n, 2), as (n, K)."""
        return log_softmax(points @ self.weights + self.offset)

    def place(self, probs: NDArray[np.floating], temperature: float = 1.0) -> Floats:
        """Points (n, 2) whose logits are nearest to those of the rows: Y = (L - offset) Wᵀ (W Wᵀ)⁻¹.

        An axis without weights gets coordinate 0.

        Parameters
        ----------
        probs
            Class probabilities, (n, K).
        temperature
            The T of the fit.
        """
        offset = self.offset - self.offset.mean()
        inverse = np.linalg.pinv(self.weights - self.weights.mean(axis=1, keepdims=True), rcond=1e-10)
        points = np.empty((len(probs), 2))
        for start in range(0, len(probs), _CHUNK_ROWS):
            part = slice(start, start + _CHUNK_ROWS)
            points[part] = (centred_logits(probs[part], temperature) - offset) @ inverse
        return points


def centred_logits(probs: NDArray[np.floating], temperature: float) -> Floats:
    """log π / T minus the mean of each row, to which a softmax is invariant, (n, K)."""
    logits = log_probs(probs) / temperature
    logits -= logits.mean(axis=1, keepdims=True)
    return logits
