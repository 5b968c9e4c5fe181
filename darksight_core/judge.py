"""Score rows and decide on them in one go: what the service asks about every prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.gate import Decisions, Gate
from darksight_core.scorer import Scorer, Scores
from darksight_core.simplex import Floats, log_probs

__all__ = ["Judge", "Judged"]


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """All that is known about n rows.

    Parameters
    ----------
    scores, decisions
        Of the scorer and of the gate.
    confidence
        Reject score of the gate, NaN if it has none, (n,).
    predicted
        Class with the highest probability, -1 for a row that is not valid, (n,).
    top
        Its probability, (n,).
    """

    scores: Scores
    decisions: Decisions
    confidence: Floats
    predicted: NDArray[np.int32]
    top: Floats

    @classmethod
    def joined(cls, pieces: Sequence[Judged]) -> Judged:
        """One from several, row after row."""

        def join(parts: Sequence[Any], kind: Any) -> Any:
            return kind(
                **{each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(kind)}
            )

        return cls(
            join([piece.scores for piece in pieces], Scores),
            join([piece.decisions for piece in pieces], Decisions),
            np.concatenate([piece.confidence for piece in pieces]),
            np.concatenate([piece.predicted for piece in pieces]),
            np.concatenate([piece.top for piece in pieces]),
        )


class Judge:
    """A scorer and a gate.

    Parameters
    ----------
    scorer, gate
        Which score and which decide.
    """

    def __init__(self, scorer: Scorer, gate: Gate) -> None:
        self.scorer = scorer
        self.gate = gate

    def judge(self, probs: ArrayLike, *, logits: Floats | None = None) -> Judged:
        """Judge rows.

        Parameters
        ----------
        probs
            Probabilities, (n, K).
        logits
            (n, K), needed if the reject score of the gate is one of `LOGIT_SCORES`.
        """
        rows = np.asarray(probs, dtype=np.float64)
        scores = self.scorer.score(rows)
        usable = np.where(scores.valid[:, None], rows, 1.0 / self.scorer.n_inputs)
        log_pi = log_probs(usable)
        decisions = self.gate.decide(log_pi, scores, logits=logits)
        confidence = np.full(len(rows), np.nan)
        if self.gate.reject_score is not None:
            confidence = self.gate.reject_scores(log_pi, scores, logits=logits)
        predicted = np.where(scores.valid, usable.argmax(axis=1), -1).astype(np.int32)
        return Judged(scores, decisions, confidence, predicted, np.where(scores.valid, usable.max(axis=1), np.nan))

    def unscored(self, n: int) -> Judged:
        """What is said about n rows if scoring failed."""
        nan = np.full(n, np.nan)
        scores = Scores(np.full((n, 2), np.nan), nan, nan, nan, nan, nan, np.ones(n, dtype=np.bool_))
        return Judged(scores, self.gate.unscored(n), nan, np.full(n, -1, dtype=np.int32), nan)
