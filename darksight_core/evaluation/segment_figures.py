"""Figures of each segment: the rows with one value of a tag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.detector import RowBatch
from darksight_core.drift.explanation import describe
from darksight_core.drift.segment_cells import Segment
from darksight_core.drift.segments import SegmentTest, find_changes
from darksight_core.evaluation.failure import failure_figures
from darksight_core.gate.gate import Gate
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.guarantees.binomial import lower_bound, upper_bound
from darksight_core.rows.json_record import JsonRecord
from darksight_core.rows.simplex import Floats

__all__ = ["SegmentDrift", "SegmentDriftReport", "SegmentFigures", "interval", "measure_segments", "report_segments"]

_LEVEL = 0.05
_ALPHA = 0.01


@dataclass(frozen=True, slots=True)
class SegmentFigures(JsonRecord):
    """Figures of a segment; those of accuracy are None without labels, and intervals hold with 95% for each.

    Parameters
    ----------
    value
        Value of the tag; None for rows without it.
    rows
        Number of rows.
    outliers
        Share of outliers, by the rule of the gate, or p-value <= 0.01 without one.
    accepted
        Share of rows that the gate accepts.
    accuracy, accuracy_low, accuracy_high
        Share of rows that are right (Clopper and Pearson).
    accepted_accuracy, accepted_low, accepted_high
        The same of accepted rows.
    augrc
        Area under the generalised risk-coverage curve of max-softmax.
    """

    value: str | None
    rows: int
    outliers: float
    accepted: float
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    accepted_accuracy: float | None
    accepted_low: float | None
    accepted_high: float | None
    augrc: float | None


def interval(right: int, rows: int, level: float = _LEVEL) -> tuple[float, float]:
    """Two-sided Clopper-Pearson interval of a share."""
    return float(lower_bound(right, rows, level / 2.0)), float(upper_bound(right, rows, level / 2.0))


def measure_segments(rows: ScoredPredictions, gate: Gate | None) -> tuple[SegmentFigures, ...]:
    """Figures of each segment of rows, most rows first, and last of rows without the tag.

    Parameters
    ----------
    rows
        Rows with the value of a tag.
    gate
        Decides which rows are accepted; None accepts all.
    """
    assert rows.segments is not None
    decided = Gate() if gate is None else gate
    accepted = decided.decide(rows.log_pi, rows.scores, logits=rows.logits, segments=rows.segments.tolist()).accepted
    cut = _ALPHA if decided.outlier is None else decided.outlier.p_value
    outliers = rows.scores.p_value <= cut
    confidence = Gate(reject_score="msp").reject_scores(rows.log_pi, rows.scores)
    values, counts = np.unique(rows.segments, return_counts=True)
    order = sorted(range(len(values)), key=lambda k: (values[k] == "", -counts[k]))
    found = []
    for k in order:
        own = rows.segments == values[k]
        errors = None if rows.errors is None else rows.errors[own]
        accuracy = _accuracy_interval(errors)
        kept = _accuracy_interval(None if errors is None else errors[accepted[own]])
        found.append(
            SegmentFigures(
                str(values[k]) or None,
                int(counts[k]),
                float(outliers[own].mean()),
                float(accepted[own].mean()),
                *accuracy,
                *kept,
                None if errors is None else failure_figures(confidence[own], errors, resamples=0).augrc,
            )
        )
    return tuple(found)


def _accuracy_interval(errors: NDArray[np.bool_] | None) -> tuple[float | None, float | None, float | None]:
    if errors is None or not len(errors):
        return None, None, None
    right = len(errors) - int(errors.sum())
    return (right / len(errors), *interval(right, len(errors)))


@dataclass(frozen=True, slots=True)
class SegmentDrift(JsonRecord):
    """Drift of a segment.

    Parameters
    ----------
    key, value
        Its tag.
    rows
        Rows seen.
    outliers
        Share of rows with a p-value up to 0.01.
    log_evidence
        ln E; see `darksight_core.drift.segments`.
    is_changed
        Whether it is unlike its own calibration rows or earlier rows, at the level of false discoveries.
    is_unlike
        Whether a segment that has not changed is always unlike the rest; this is no drift.
    since_row
        Row of the segment, counted from 1, at which its change began; None without one.
    """

    key: str
    value: str
    rows: int
    outliers: float
    log_evidence: float
    is_changed: bool
    is_unlike: bool
    since_row: int | None


@dataclass(frozen=True, slots=True)
class SegmentDriftReport(JsonRecord):
    """Drift of all segments, those that changed first, then by evidence.

    Parameters
    ----------
    segments
        The segments.
    explanation
        Descriptions in words that explain the changes, the one that explains most first.
    level
        Bound on the expected share of false discoveries.
    """

    segments: tuple[SegmentDrift, ...]
    explanation: tuple[str, ...]
    level: float


def report_segments(
    test: SegmentTest, rows: RowBatch, p_values: Floats, tags: Mapping[str, Sequence[str]]
) -> SegmentDriftReport:
    """Drift of the segments of rows in order of arrival.

    Parameters
    ----------
    test
        The test of the bundle.
    rows
        The rows, n of them.
    p_values
        p-values of their outlier scores, (n,).
    tags
        Values of each key, n texts, empty where a row has none.
    """
    columns = {key: np.array(values, dtype=np.str_) for key, values in tags.items()}
    states = {}
    for key, column in columns.items():
        for value in np.unique(column[column != ""]).tolist():
            states[key, value] = [test.update(test.start((key, value)), rows.take(column == value))]
    changes = find_changes(test, states, rows, columns)

    def row(segment: Segment) -> SegmentDrift:
        key, value = segment
        state, is_changed = changes.states[segment], segment in changes.found
        return SegmentDrift(
            key=key,
            value=value,
            rows=state.rows,
            outliers=float((p_values[columns[key] == value] <= _ALPHA).mean()),
            log_evidence=changes.evidence[segment],
            is_changed=is_changed,
            is_unlike=not is_changed and test.is_unlike(state),
            since_row=state.since_row if is_changed else None,
        )

    return SegmentDriftReport(tuple(map(row, changes.evidence)), tuple(map(describe, changes.explanation)), test.level)
