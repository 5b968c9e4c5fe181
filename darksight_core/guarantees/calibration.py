"""The calibration of a bundle: scores of rows that no other step has seen, and the p-values that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.conformal import p_values
from darksight_core.simplex import Floats

__all__ = ["OUTLIER_SCORES", "Calibration"]

OUTLIER_SCORES = ("outlier_score", "log_density", "log_kde")
"""Scores that p-values can be made from, the default first."""

# Rows on one plateau have equal scores except for rounding, which differs between numpy, numba and versions of this
# code and must not change their rank. No p-value gets smaller by it, so the false-alarm rate still holds.
_TIE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Scores of calibration rows, among which new scores are ranked.

    p_value = (1 + #{calibration score <= score}) / (n + 1)

    Parameters
    ----------
    scores
        Scores of the n calibration rows under each name in `OUTLIER_SCORES`, (n,); sorted here.
    outlier_score
        The score that p-values are made from.

    Scores that differ by less than 1e-9, absolute or relative, count as equal: `ranked` are the sorted scores of the
    chosen kind, lowered by that much, (n,).

    >>> scores = np.array([2.0, 1.0])
    >>> Calibration(dict.fromkeys(OUTLIER_SCORES, scores)).p_value(np.array([0.0, 2.0]))
    array([0.33333333, 1.        ])
    """

    scores: dict[str, Floats]
    outlier_score: str = OUTLIER_SCORES[0]
    ranked: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        scores = {name: np.sort(np.array(score, dtype=np.float64)) for name, score in self.scores.items()}
        if set(scores) != set(OUTLIER_SCORES) or self.outlier_score not in OUTLIER_SCORES:
            raise ConfigError(
                f"calibration needs the scores {', '.join(OUTLIER_SCORES)}, and one of them as outlier score"
            )
        shapes = {score.shape for score in scores.values()}
        if len(shapes) != 1 or len(shapes.pop()) != 1 or not all(np.isfinite(score).all() for score in scores.values()):
            raise ConfigError("calibration scores must be finite, with one of each kind for every row")
        for score in scores.values():
            score.flags.writeable = False
        chosen = scores[self.outlier_score]
        ranked = chosen - _TIE * np.maximum(np.abs(chosen), 1.0)
        ranked.flags.writeable = False
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "ranked", ranked)

    def __len__(self) -> int:
        return len(self.scores[self.outlier_score])

    def p_value(self, scores: Floats) -> Floats:
        """p-values of scores of the chosen kind, (n,)."""
        return p_values(scores, self.ranked)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        return dict(self.scores)

    def settings(self) -> dict[str, Any]:
        """Everything that is not an array, as JSON values."""
        return {"outlier_score": self.outlier_score}

    @classmethod
    def empty(cls) -> Calibration:
        """A calibration without rows, for which every p-value is 1."""
        return cls({name: np.empty(0) for name in OUTLIER_SCORES})

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Calibration:
        """Inverse of `tensors` and `settings`; ConfigError if something is missing."""
        try:
            return cls({name: tensors[name] for name in OUTLIER_SCORES}, settings["outlier_score"])
        except KeyError as missing:
            raise ConfigError(f"the calibration has no {missing}") from None
