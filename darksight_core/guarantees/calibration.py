"""The calibration of a bundle: scores of rows that no other step has seen, and the p-values that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.conformal import p_values
from darksight_core.rows.simplex import Floats

__all__ = ["Calibration"]

# Rows on one plateau have equal scores except for rounding, which differs between numpy, numba and versions of this
# code and must not change their rank. No p-value gets smaller by it, so the false-alarm rate still holds.
_TIE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Outlier scores of calibration rows, among which new scores are ranked.

    p_value = (1 + #{calibration score <= score}) / (n + 1)

    Parameters
    ----------
    scores
        Outlier scores of the n calibration rows, (n,); sorted here.
    predicted
        Predicted class of each of them, (n,) int16, sorted with the scores; None in a bundle that was written before
        they were kept.
    top
        Largest probability of each of them, (n,) float32, likewise.

    Scores that differ by less than 1e-6, absolute or relative, count as equal: `ranked` are the sorted scores, lowered
    by that much, (n,).

    >>> Calibration(np.array([2.0, 1.0])).p_value(np.array([0.0, 2.0]))
    array([0.33333333, 1.        ])
    """

    scores: Floats
    predicted: NDArray[np.int16] | None = None
    top: NDArray[np.floating] | None = None
    ranked: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        scores = np.array(self.scores, dtype=np.float64)
        if scores.ndim != 1 or not np.isfinite(scores).all():
            raise ConfigError("calibration scores must be finite, one for every row")
        order = np.argsort(scores, kind="stable")
        scores = scores[order]
        if self.predicted is not None:
            predicted = np.asarray(self.predicted, dtype=np.int16)
            if predicted.shape != scores.shape or predicted.min(initial=0) < 0:
                raise ConfigError("calibration rows need one predicted class each, not negative")
            object.__setattr__(self, "predicted", predicted[order])
        if self.top is not None:
            top = np.asarray(self.top, dtype=np.float32)
            if top.shape != scores.shape or not ((top >= 0.0) & (top <= 1.0)).all():
                raise ConfigError("calibration rows need one largest probability each, between 0 and 1")
            object.__setattr__(self, "top", top[order])
        ranked = scores - _TIE * np.maximum(np.abs(scores), 1.0)
        for name, array in (("scores", scores), ("ranked", ranked)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        return len(self.scores)

    def p_value(self, scores: Floats) -> Floats:
        """p-values of outlier scores, (n,)."""
        return p_values(scores, self.ranked)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        named = {"scores": self.scores, "predicted": self.predicted, "top": self.top}
        return {name: array for name, array in named.items() if array is not None}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> Calibration:
        """Inverse of `tensors`; ConfigError if something is missing or the scores are not sorted."""
        try:
            scores = tensors["scores"]
            # To sort as many as a file can hold takes longer than a load may.
            if scores.ndim == 1 and (scores[1:] < scores[:-1]).any():
                raise ConfigError("the calibration scores are not sorted")
            return cls(scores, tensors.get("predicted"), tensors.get("top"))
        except KeyError as missing:
            raise ConfigError(f"the calibration has no {missing}") from None
