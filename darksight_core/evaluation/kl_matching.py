"""KL matching (Hendrycks et al. 2022): how far a row is from the nearest mean row of a class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import FLOOR, Floats

__all__ = ["KlMatching"]


@dataclass(frozen=True, slots=True)
class KlMatching:
    """Divergence from the nearest class template, -min_c KL(π, d_c).

    Parameters
    ----------
    templates
        d_c, the mean of reference rows that are predicted as class c, (K, K).
    """

    templates: Floats

    def __post_init__(self) -> None:
        templates = np.array(self.templates, dtype=np.float64)
        classes = len(templates)
        if templates.shape != (classes, classes) or classes < 2 or not np.isfinite(templates).all():
            raise ConfigError(f"templates must be finite with shape (K, K) and K >= 2, not {templates.shape}")
        templates.flags.writeable = False
        object.__setattr__(self, "templates", templates)

    @classmethod
    def fit(cls, log_pi: Floats) -> KlMatching:
        """Templates of reference rows (n, K); the template of a class that is never predicted is one-hot."""
        pi, predicted = np.exp(log_pi), log_pi.argmax(axis=1)
        classes = pi.shape[1]
        sums, counts = np.zeros((classes, classes)), np.bincount(predicted, minlength=classes)
        np.add.at(sums, predicted, pi)
        return cls(np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], np.eye(classes)))

    def score(self, log_pi: Floats) -> Floats:
        """-min_c KL(π, d_c) for rows (n, K), as (n,)."""
        pi = np.exp(log_pi)
        cross = pi @ np.log(np.maximum(self.templates, FLOOR)).T
        best: Floats = cross.max(axis=1) - (pi * log_pi).sum(axis=1)
        return best
