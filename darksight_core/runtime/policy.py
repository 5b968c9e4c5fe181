"""Scorer and gate in one call: what runs in the request path.

    probs -> Scorer.score -> Gate.decide        as one pass of the compiled kernel, once it is loaded

The decisions are those of `Gate.decide`. Scores of the compiled code differ from numpy's by rounding, and a threshold
is the score of some row, of which classifiers give thousands that are equal. Both accept these rows, because scores
that close to the threshold equal it; see `Gate.lowest_accepted`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.bundle import Bundle
from darksight_core.errors import ConfigError
from darksight_core.gate.gate import SET_REASONS, Gate, has_set
from darksight_core.rows.partial import TopRows
from darksight_core.rows.resolution import FULL, name_of
from darksight_core.rows.schema import Reason, ScoredBatch
from darksight_core.rows.simplex import Floats, log_probs
from darksight_core.runtime.arrays import rule_of
from darksight_core.runtime.result_block import ResultBlock
from darksight_core.runtime.scorer import Scorer, ShapeError
from darksight_core.scores.registry import KERNEL_NUMBERS

__all__ = ["ScoringPolicy", "Tags"]

Tags: TypeAlias = Mapping[str, str] | Sequence[Mapping[str, str]]
"""Tags of all rows, or of each row."""


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
        limits = self.gate.class_limits
        for by_class in (limits, self.gate.class_thresholds):
            if by_class is not None and len(by_class) != scorer.n_inputs:
                raise ConfigError(f"thresholds of {len(by_class)} classes for rows of {scorer.n_inputs}")
        gates = {number: self.gate.at_level(number) for number in scorer.levels}
        self._gates = {number: gate for number, gate in gates.items() if gate is not None}
        if not self._gates:
            known = ", ".join(map(name_of, self.gate.certified_levels))
            raise ConfigError(f"the gate is for rows of resolution {known}; the bundle for {scorer.resolutions.names}")
        self._rules = {
            number: rule_of(gate) for number, gate in self._gates.items() if gate.reject_score in KERNEL_NUMBERS
        }
        # Whether the compiled rule is the whole of the gate, for full rows without a segment.
        self._is_plain = FULL in self._rules and not self.gate.regions and limits is None

    @classmethod
    def of(cls, bundle: Bundle, *, compiled: bool | None = None) -> ScoringPolicy:
        """Scorer and gate of a bundle."""
        return cls(Scorer.of(bundle, compiled=compiled), bundle.gate)

    def score(
        self,
        probs: ArrayLike | TopRows,
        *,
        logits: ArrayLike | None = None,
        tags: Tags = (),
        resolution: str | None = None,
    ) -> ScoredBatch:
        """Score rows and decide on them.

        Parameters
        ----------
        probs
            Probabilities, (n, n_inputs), or `TopRows`, as for `Scorer.score`.
        logits
            (n, n_inputs), read if the gate `needs_logits`.
        tags
            Tags of the rows; read if the gate has thresholds of segments.
        resolution
            What the rows resolve, as for `Scorer.score`; by default it is recognised. ConfigError if the gate was not
            certified for such rows.
        """
        rows = self.scorer.read(probs)
        table = self.gate.segments if tags else None
        segments = None if table is None else table.values(tags, len(rows))
        given = None
        if logits is not None and self.gate.needs_logits:
            given = self.scorer.read(logits)
            if len(given) != len(rows):
                raise ShapeError(f"{len(given)} rows of logits for {len(rows)} rows of probabilities")

        def score_level(
            number: int, part: Floats, other: Floats | None, which: NDArray[np.intp] | slice
        ) -> ScoredBatch:
            some = None if segments is None else np.asarray(segments, dtype=object)[which].tolist()
            return self._score_level(number, part, other, None if given is None else given[which], some)

        return self.scorer.by_level(rows, resolution, self._gates, score_level)

    def _score_level(
        self,
        number: int,
        rows: Floats,
        other: Floats | None,
        logits: Floats | None,
        segments: Sequence[str] | None,
    ) -> ScoredBatch:
        """Rows (n, K) at a level, scored and decided there."""
        kernel, gate = self.scorer.kernel, self._gates[number]
        if kernel is None or number not in self._rules or other is not None:
            batch = self.scorer.score_level(number, rows, other)
            with np.errstate(all="ignore"):
                log_pi = log_probs(rows)
            return gate.decide(log_pi, batch, logits=logits, segments=segments, other=other)
        batch = self.scorer.run(kernel, rows, self._rules[number], number)
        if segments is not None:
            gate.decide_by_segment(batch, segments)
        gate.reject_by_class(batch)
        gate.reject_inside(batch)
        if gate.sets is not None:
            chosen = np.flatnonzero(has_set(batch))
            if len(chosen):
                batch.set_size[chosen] = gate.sets.sizes(log_probs(rows[chosen]))
        return batch

    def score_block(self, values: bytes, rows: int, tags: Tags = (), resolution: str | None = None) -> ResultBlock:
        """The results of `score` on rows of float32, one after the other, as a block.

        Parameters
        ----------
        values
            Little-endian float32, (rows, n_inputs).
        rows
            Number of rows.
        tags, resolution
            As in `score`.
        """
        if len(values) != 4 * rows * self.scorer.n_inputs:
            raise ShapeError(f"{len(values)} bytes are not {rows} rows of {self.scorer.n_inputs} float32 values")
        probs, kernel = np.frombuffer(values, "<f4").reshape(rows, self.scorer.n_inputs), self.scorer.kernel
        is_plain = self._is_plain and resolution is None and (self.gate.segments is None or not tags)
        if rows == 1 and kernel is not None and is_plain:
            # Most calls have one row, and then arrays take longer than the row.
            row, rule = probs.astype(np.float64), self._rules[FULL]
            results, predicted, outcomes = self.scorer.run_raw(kernel, row, rule, FULL)
            *numbers, looks_rounded = results[:, 0].tolist()
            decision, reason = outcomes[:, 0].tolist()
            size = 0
            if self.gate.sets is not None and reason in SET_REASONS:
                size = int(self.gate.sets.sizes(log_probs(probs))[0])
            found = ResultBlock.of_row((*numbers, predicted.item(), decision, reason, size))
            if found is not None and not looks_rounded:
                return found
        return ResultBlock.of(self.score(probs, tags=tags, resolution=resolution))

    def unscored(self, n: int) -> ScoredBatch:
        """The decisions on n rows that could not be scored though they may be valid."""
        batch = ScoredBatch.unscored(n)
        batch.reason[:] = Reason.UNSCORED
        batch.decision[:] = self.gate.decisions(batch.reason)
        return batch
