"""Features of rows for the witnesses of drift: those of fit rows as moments, and those of calibration rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats
from darksight_core.scores.outlier import FLOOR

__all__ = ["RowFeatures"]

Halves = NDArray[np.float16]

_AXES = 24
# Standard deviations beyond which a coordinate is cut.
_CUT = 4.0
# Rows at most that the features are fitted to, numbers in them, and calibration rows that are kept.
_FIT_ROWS, _FIT_NUMBERS, _CALIBRATION_ROWS = 20_000, 4_000_000, 4_000


@dataclass(frozen=True, slots=True, eq=False)
class RowFeatures:
    """What witnesses are learned from and ranked among; made by `fit`.

    Parameters
    ----------
    means
        Mean centred log-probabilities of each predicted class over fit rows, (K, K): those of the outlier score.
    axes
        Principal axes of the centred log-probabilities c, and of c without the mean of its class, (2, r, K) float32.
    inner, outer
        Mean and standard deviation over fit rows of the coordinates, (2, 2r), and of the features, (2, 4r + 4).
    covariance
        C, (4r + 4, 4r + 4) float32.
    calibration
        Features of calibration rows, (n, 4r + 4).
    usual_coarse
        Share of the calibration rows that look rounded, and are left out, (1,).
    """

    means: NDArray[np.float32]
    axes: NDArray[np.float32]
    inner: Floats
    outer: Floats
    covariance: NDArray[np.float32]
    calibration: Halves
    usual_coarse: Floats

    def __post_init__(self) -> None:
        classes, count = len(self.means), self.axes.shape[1] if self.axes.ndim == 3 else 0
        size = 4 * count + 4
        shapes = (self.axes.shape, self.inner.shape, self.outer.shape, self.covariance.shape)
        if shapes != ((2, count, classes), (2, 2 * count), (2, size), (size, size)) or not count:
            raise ConfigError(f"the witnesses of {classes} classes have arrays of other shapes: {shapes}")
        if self.calibration.shape != (len(self.calibration), size) or not len(self.calibration):
            raise ConfigError("the witnesses have no calibration rows, or rows of another size")
        if self.usual_coarse.shape != (1,) or not 0.0 <= float(self.usual_coarse[0]) <= 1.0:
            raise ConfigError("the share of rounded calibration rows must be one number between 0 and 1")

    @classmethod
    def fit(
        cls, log_pi: Floats, held: Floats, means: NDArray[np.float32], seed: int = 0, usual_coarse: float = 0.0
    ) -> RowFeatures:
        """Features of fit rows (n, K) and of calibration rows (m, K), given as log-probabilities.

        Parameters
        ----------
        means
            Mean centred log-probabilities of each predicted class, (K, K).
        seed
            Seed of the draw of rows where there are more than are kept.
        usual_coarse
            Share of the calibration rows that look rounded, and are not among these.
        """
        rng, classes = np.random.default_rng(seed), log_pi.shape[1]
        known = _draw(log_pi, min(_FIT_ROWS, _FIT_NUMBERS // classes), rng)
        count = min(_AXES, classes - 1)
        parts = _centred(known, means)[:2]
        axes = np.stack([np.linalg.eigh(np.cov(part.T))[1][:, ::-1][:, :count].T for part in parts])
        along = np.hstack([part @ each.T for part, each in zip(parts, axes, strict=True)])
        blank = np.stack([np.zeros(4 * count + 4), np.ones(4 * count + 4)])
        found = cls(
            means,
            axes.astype(np.float32),
            _moments(along),
            blank,
            np.eye(4 * count + 4, dtype=np.float32),
            np.zeros((1, 4 * count + 4), dtype=np.float16),
            np.array([usual_coarse]),
        )
        found = replace(found, outer=_moments(found._stack(known)))
        features = found.of(known).astype(np.float64)
        found = replace(found, covariance=(features.T @ features / len(features)).astype(np.float32))
        return replace(found, calibration=found.of(_draw(held, _CALIBRATION_ROWS, rng)))

    def of(self, log_pi: Floats) -> Halves:
        """φ of log-probabilities (m, K), (m, 4r + 4): mean 0 and variance 1 over fit rows.

        They are the coordinates on both sets of axes and their squares, cut at four standard deviations, then
        log |c|, its square, log |c - mean of the class|² and log(1 - 10 log of the largest probability).
        """
        features: Halves = ((self._stack(log_pi) - self.outer[0]) / self.outer[1]).astype(np.float16)
        return features

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """What a bundle keeps; the means are those of its outlier score."""
        names = ("axes", "inner", "outer", "covariance", "calibration", "usual_coarse")
        return {name: getattr(self, name) for name in names}

    def _stack(self, log_pi: Floats) -> Floats:
        c, q, top = _centred(log_pi, self.means)
        along = np.hstack([part @ axes.T for part, axes in zip((c, q), self.axes.astype(np.float64), strict=True)])
        along = np.clip((along - self.inner[0]) / self.inner[1], -_CUT, _CUT)
        length, rest = (np.log(np.linalg.norm(part, axis=1) + 1e-3) for part in (c, q))
        return np.column_stack([along, along**2, length, length**2, 2.0 * rest, np.log1p(-10.0 * top)])


def _centred(log_pi: Floats, means: NDArray[np.float32]) -> tuple[Floats, Floats, Floats]:
    """c, c without the mean of the predicted class, and the largest log-probability, of rows (m, K)."""
    raised = np.maximum(log_pi, FLOOR)
    c = raised - raised.mean(axis=1, keepdims=True)
    top = raised.argmax(axis=1)
    return c, c - means[top], np.minimum(raised[np.arange(len(raised)), top], 0.0)


def _moments(values: Floats) -> Floats:
    """Mean and standard deviation of columns, (2, D)."""
    return np.stack([values.mean(axis=0), np.maximum(values.std(axis=0), 1e-3)])


def _draw(rows: Floats, most: int, rng: np.random.Generator) -> Floats:
    return rows if len(rows) <= most else rows[np.sort(rng.choice(len(rows), most, replace=False))]
