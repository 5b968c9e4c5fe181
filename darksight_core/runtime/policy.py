"""Scorer and gate in one call: what runs in the request path.

    probs -> Scorer.score -> Gate.decide        as one pass of the compiled loops

For a single row numpy takes longer to decide than the compiled loops take to score, and nearly all of it for the calls
themselves. The decisions are those of `Gate.decide` on the same scores, without exception: reject scores of the loops
differ from numpy's by rounding alone, so rows within `loops.CLOSE` of the threshold are asked of the gate itself. That
matters because a threshold is the score of some row, and classifiers give thousands of rows that are equal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.bundle import Bundle
from darksight_core.errors import ConfigError
from darksight_core.gate.gate import LOGIT_SCORES, Gate
from darksight_core.runtime.result_block import ResultBlock
from darksight_core.runtime.scorer import Scorer, ShapeError
from darksight_core.scored import Reason, ScoredBatch
from darksight_core.scores.learned import FEATURES, Learned
from darksight_core.simplex import Floats, log_probs

if TYPE_CHECKING:
    from darksight_core.runtime.compiled.kernel import Rule

__all__ = ["ScoringPolicy"]

# The outcomes that the compiled code knows, in its order.
_REASONS = (Reason.NONE, Reason.LOW_CONFIDENCE, Reason.UNSCORED, Reason.OUTLIER, Reason.INVALID)

# Sums of terms of one sign, which keep their digits when they are small; the others are logarithms.
_RELATIVE = ("entropy", "doctor", "gen")


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
        self._make_block = None
        # The compiled code knows of no regions.
        if scorer.kernel is not None and self._rule is not None and not self.gate.regions:
            self._make_block = scorer.kernel.blocks(self._rule)

    @classmethod
    def of(cls, bundle: Bundle, *, compiled: bool | None = None) -> ScoringPolicy:
        """Scorer and gate of a bundle."""
        return cls(Scorer.of(bundle, compiled=compiled), bundle.gate)

    def score(self, probs: ArrayLike, *, logits: ArrayLike | None = None) -> ScoredBatch:
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
            return self._score_by_parts(rows, logits)
        batch, close = self.scorer.kernel.score(rows, self._rule)
        if close:
            self._decide_close(rows, batch)
        self.gate.reject_inside(batch)
        return batch

    def score_block(self, values: bytes, rows: int) -> ResultBlock:
        """The results of `score` on rows of float32, one after the other, as a block.

        Parameters
        ----------
        values
            Little-endian float32, (rows, n_inputs).
        rows
            Number of rows.
        """
        if len(values) != 4 * rows * self.scorer.n_inputs:
            raise ShapeError(f"{len(values)} bytes are not {rows} rows of {self.scorer.n_inputs} float32 values")
        if self._make_block is not None:
            found = self._make_block(values, rows)
            if found is not None:
                return found
        return ResultBlock.of(self.score(np.frombuffer(values, "<f4").reshape(rows, self.scorer.n_inputs)))

    def unscored(self, n: int) -> ScoredBatch:
        """The decisions on n rows that could not be scored though they may be valid."""
        batch = ScoredBatch.unscored(n)
        batch.reason[:] = Reason.UNSCORED
        batch.decision[:] = self.gate.decisions(batch.reason)
        return batch

    def _score_by_parts(self, rows: Floats, logits: ArrayLike | None) -> ScoredBatch:
        """The same by scorer and gate themselves: without numba, and for scores of logits."""
        given = None
        if self._needs_logits and logits is not None:
            given = self.scorer.read(logits)
            if len(given) != len(rows):
                raise ShapeError(f"{len(given)} rows of logits for {len(rows)} of probabilities", shape=given.shape)
        batch = self.scorer.score(rows)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            return self.gate.decide(log_probs(rows), batch, logits=given)

    def _decide_close(self, rows: Floats, batch: ScoredBatch) -> None:
        """Let the gate decide on the rows that are close to its threshold."""
        near = np.flatnonzero(np.abs(batch.confidence - self.gate.threshold) <= _closeness(self.gate))
        decided = self.gate.decide(log_probs(rows[near]), batch.take(near))
        for name in ("confidence", "decision", "reason"):
            getattr(batch, name)[near] = getattr(decided, name)


def _rule(gate: Gate) -> Rule:
    from darksight_core.runtime.compiled.kernel import Rule

    reasons = np.array(_REASONS, dtype=np.int8)
    return Rule.of(
        gate.reject_score,
        gate.threshold,
        closeness=_closeness(gate),
        level=-math.inf if gate.outlier is None else gate.outlier.p_value,
        table=np.stack([gate.decisions(reasons), reasons]),
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
