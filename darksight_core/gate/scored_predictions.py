"""Predictions with their scores: what a gate is certified on and scores are compared on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.predictions import Predictions
from darksight_core.rows.schema import ScoredBatch
from darksight_core.rows.simplex import Floats, log_probs

__all__ = ["ScoredPredictions"]


@dataclass(frozen=True, slots=True, eq=False)
class ScoredPredictions:
    """Predictions with the scores that the serving scorer gives them.

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K).
    scores
        Scores of the same n rows.
    errors
        Whether the most probable class is not the label, (n,); None without labels.
    hashes
        Hash of each row, (n,); see `Predictions.row_hashes`.
    labels
        True classes, (n,); None without labels.
    logits
        (n, K); None without logits.
    segments
        Value of a tag, (n,), empty for a row without it; None if rows are not divided.
    other
        Probability of what is no class, (n,); None if rows have none.
    """

    log_pi: Floats
    scores: ScoredBatch
    errors: NDArray[np.bool_] | None
    hashes: NDArray[np.bytes_]
    labels: NDArray[np.int64] | None
    logits: Floats | None
    segments: NDArray[np.str_] | None = None
    other: Floats | None = None

    @classmethod
    def of(
        cls,
        predictions: Predictions,
        scores: ScoredBatch,
        segments: NDArray[np.str_] | None = None,
        *,
        probs: NDArray[np.floating] | None = None,
        other: Floats | None = None,
    ) -> ScoredPredictions:
        """Predictions and their scores, and the value of a tag for each of them.

        Parameters
        ----------
        predictions, scores, segments
            The n rows.
        probs, other
            The rows (n, K) at the resolution at which they were scored; by default as they are.
        """
        probs = predictions.probs if probs is None else probs
        errors = None if predictions.labels is None else probs.argmax(axis=1) != predictions.labels
        logits = None if predictions.logits is None else predictions.logits.astype(np.float64)
        hashes = predictions.row_hashes()
        return cls(log_probs(probs), scores, errors, hashes, predictions.labels, logits, segments, other)

    def __len__(self) -> int:
        return len(self.log_pi)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> ScoredPredictions:
        """The rows with these numbers, or those that a mask selects."""
        return ScoredPredictions(
            self.log_pi[rows],
            self.scores.take(rows),
            None if self.errors is None else self.errors[rows],
            self.hashes[rows],
            None if self.labels is None else self.labels[rows],
            None if self.logits is None else self.logits[rows],
            None if self.segments is None else self.segments[rows],
            None if self.other is None else self.other[rows],
        )

    def fingerprint(self) -> dict[str, Any]:
        """Number and hashes of the rows and labels."""
        labels = None if self.labels is None else np.ascontiguousarray(self.labels, dtype="<i8").tobytes()
        return {
            "n": len(self),
            "sha256": hashlib.sha256(np.ascontiguousarray(self.hashes).tobytes()).hexdigest(),
            "labels_sha256": None if labels is None else hashlib.sha256(labels).hexdigest(),
        }
