"""Scorer and gate in one call: what runs in the request path.

    probs -> Scorer.score -> Gate.decide        as one pass of the compiled loops

For a single row numpy takes longer to decide than the compiled loops take to score, and nearly all of it for the calls
themselves. The decisions are those of `Gate.decide` on the same scores, without exception: reject scores of the loops
differ from numpy's by rounding alone, so rows within `loops.CLOSE` of the threshold are asked of the gate itself. That
matters because a threshold is the score of some row, and classifiers give thousands of rows that are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.bundle import Bundle
from darksight_core.errors import ConfigError
from darksight_core.gate.gate import LOGIT_SCORES, Decisions, Gate, Reason
from darksight_core.runtime.result_block import ResultBlock
from darksight_core.runtime.scorer import Scorer, ShapeError
from darksight_core.scored import Scores
from darksight_core.scores.learned import FEATURES, Learned
from darksight_core.simplex import FLOOR, Floats, log_probs

if TYPE_CHECKING:
    from darksight_core.runtime.compiled.kernel import Rule

__all__ = ["ScoredBatch", "ScoringPolicy"]

# What the loops say about a row, in their order.
_VERDICTS = (Reason.NONE, Reason.LOW_CONFIDENCE, Reason.UNSCORED, Reason.OUTLIER, Reason.INVALID)

# Sums of terms of one sign, which keep their digits when they are small; the others are logarithms.
_RELATIVE = ("entropy", "doctor", "gen")


# Not frozen: that takes a microsecond more to make, in the request path.
@dataclass(slots=True, eq=False)
class ScoredBatch:
    """Results for n rows, as columns.

    Parameters
    ----------
    scores, decisions
        Of the scorer and of the gate.
    confidence
        The reject score that the gate cuts, (n,); NaN for a bad row, and for all rows if it has no such rule.
    predicted
        The most probable class, (n,), the first of equal ones; -1 for a bad row.
    top
        Its probability, (n,); NaN for a bad row.
    """

    scores: Scores
    decisions: Decisions
    confidence: Floats
    predicted: NDArray[np.int32]
    top: Floats

    def __len__(self) -> int:
        return len(self.predicted)

    @classmethod
    def joined(cls, pieces: Sequence[ScoredBatch]) -> ScoredBatch:
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


class ScoringPolicy:
    """Scores rows and decides on them; never changes after it is made, so any number of threads may share it.

    Parameters
    ----------
    scorer
        The scorer.
    gate
        The policy; by default the one that accepts every row that can be scored.
    """

    def __init__(self, scorer: Scorer, gate: Gate | None = None) -> None:
        self.scorer = scorer
        self.gate = Gate() if gate is None else gate
        learned = self.gate.learned
        if learned is not None and len(learned.offsets) != scorer.n_inputs:
            raise ConfigError(f"a score learned of {len(learned.offsets)} classes for rows of {scorer.n_inputs}")
        self._needs_logits = self.gate.reject_score in LOGIT_SCORES
        self._rule = None if scorer.kernel is None or self._needs_logits else _rule(self.gate)
        self._make_sheet = None
        # The compiled code knows of no regions.
        if scorer.kernel is not None and self._rule is not None and not self.gate.regions:
            self._make_sheet = scorer.kernel.sheets(self._rule)

    @classmethod
    def of(cls, bundle: Bundle, *, compiled: bool | None = None) -> ScoringPolicy:
        """Scorer and gate of a bundle."""
        return cls(Scorer.of(bundle, compiled=compiled), bundle.gate)

    def judge(self, probs: ArrayLike, *, logits: ArrayLike | None = None) -> ScoredBatch:
        """Score rows and decide on them.

        Parameters
        ----------
        probs
            Probabilities, (n, n_inputs), as for `Scorer.score`.
        logits
            (n, n_inputs), needed if the reject score is one of `LOGIT_SCORES`, else not read.
        """
        rows = self.scorer.read(probs)
        if self.scorer.kernel is None or self._rule is None:
            return self._judge_by_parts(rows, logits)
        points, columns, verdicts, predicted, close = self.scorer.kernel.score(rows, self._rule)
        log_density, log_kde, fidelity, combined, p_value, confidence, top = columns
        scores = Scores(points, log_density, log_kde, fidelity, combined, p_value, predicted >= 0)
        if close:
            self._judge_again(rows, scores, confidence, verdicts)
        decision, reason = verdicts
        decisions = Decisions(decision, reason)
        if self.gate.regions:
            self.gate.reject_inside(decisions, points)
        return ScoredBatch(scores, decisions, confidence, predicted, top)

    def sheet(self, values: bytes, rows: int) -> ResultBlock:
        """What `judge` says about rows of float32, one after the other, as a sheet.

        Parameters
        ----------
        values
            Little-endian float32, (rows, n_inputs).
        rows
            How many there are.
        """
        if len(values) != 4 * rows * self.scorer.n_inputs:
            raise ShapeError(f"{len(values)} bytes are not {rows} rows of {self.scorer.n_inputs} float32 values")
        if self._make_sheet is not None:
            found = self._make_sheet(values, rows)
            if found is not None:
                return found
        return ResultBlock.of(self.judge(np.frombuffer(values, "<f4").reshape(rows, self.scorer.n_inputs)))

    def unscored(self, n: int) -> ScoredBatch:
        """What is said about n rows that could not be scored though nothing is known to be wrong with them."""
        nan = np.full(n, np.nan)
        scores = Scores(np.full((n, 2), np.nan), nan, nan, nan, nan, nan, np.ones(n, dtype=np.bool_))
        return ScoredBatch(scores, self.gate.unscored(n), nan, np.full(n, -1, dtype=np.int32), nan)

    def _judge_by_parts(self, rows: Floats, logits: ArrayLike | None) -> ScoredBatch:
        """The same by scorer and gate themselves: without numba, and for scores of logits."""
        scores = self.scorer.score(rows)
        given = None
        if self._needs_logits and logits is not None:
            given = self.scorer.read(logits)
            if len(given) != len(rows):
                raise ShapeError(f"{len(given)} rows of logits for {len(rows)} of probabilities", shape=given.shape)
        confidence, top = np.full((2, len(rows)), np.nan)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            log_pi, lifted = log_probs(rows), np.maximum(rows, FLOOR)
            if self.gate.reject_score is not None:
                np.copyto(confidence, self.gate.reject_scores(log_pi, scores, logits=given), where=scores.valid)
            predicted = np.where(scores.valid, rows.argmax(axis=1), -1).astype(np.int32)
            np.copyto(top, lifted.max(axis=1) / lifted.sum(axis=1), where=scores.valid)
        return ScoredBatch(scores, self.gate.decide(log_pi, scores, logits=given), confidence, predicted, top)

    def _judge_again(self, rows: Floats, scores: Scores, confidence: Floats, verdicts: NDArray[np.int8]) -> None:
        """Let the gate decide on the rows that are close to its threshold."""
        near = np.flatnonzero(np.abs(confidence - self.gate.threshold) <= _closeness(self.gate))
        log_pi = log_probs(rows[near])
        part = Scores(*(getattr(scores, column.name)[near] for column in fields(Scores)))
        confidence[near] = self.gate.reject_scores(log_pi, part)
        decisions = self.gate.decide(log_pi, part)
        verdicts[:, near] = decisions.decision, decisions.reason


def _rule(gate: Gate) -> Rule:
    from darksight_core.runtime.compiled.kernel import Rule

    verdicts = gate.by_reason(np.array(_VERDICTS, dtype=np.int8))
    return Rule.of(
        gate.reject_score,
        gate.threshold,
        closeness=_closeness(gate),
        level=-math.inf if gate.outlier is None else gate.outlier.p_value,
        table=np.stack([verdicts.decision, verdicts.reason]),
        learned=() if gate.learned is None else _learned(gate.learned),
    )


def _closeness(gate: Gate) -> float:
    """How close to the threshold rounding may decide; -1 where it never does."""
    from darksight_core.runtime.compiled.loops import CLOSE, COMPUTED

    if gate.reject_score not in COMPUTED or math.isinf(gate.threshold):
        return -1.0
    return CLOSE * max(0.0 if gate.reject_score in _RELATIVE else 1.0, abs(gate.threshold))


def _learned(learned: Learned) -> Floats:
    """a, b, c, m, then w, mean, spread, least and largest of every one of `FEATURES`, then the offsets."""
    table = np.zeros((5, len(FEATURES)))
    table[2] = 1.0
    used = [FEATURES.index(name) for name in learned.features]
    table[:, used] = np.concatenate([learned.weights[None], learned.ranges])
    return np.concatenate([learned.calibration, table.ravel(), learned.offsets])
