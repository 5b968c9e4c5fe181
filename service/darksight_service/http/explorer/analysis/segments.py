"""The segments of the drift page: counts of the last minutes, and figures of the newest rows and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from darksight_core.bundle import Bundle
from darksight_core.drift.explanation import describe
from darksight_core.drift.segment_cells import Segment
from darksight_core.evaluation.segment_figures import interval
from darksight_service.scoring.live_segments import LiveSegments, tag_columns
from darksight_service.store.points import PointTable
from darksight_service.store.rollups import TagCounts

__all__ = ["SHOWN", "SegmentRow", "minutes_of", "segment_rows", "worth_a_look"]

SHOWN = 60
"""Segments that the page shows, changed ones first."""

_DAY_MINUTES = 1_440
# Counts per minute that a page reads at most.
_COUNTS = 60_000
_CLASSES = 3
_LEAST_ROWS = 50
_LOOK = 5


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment on the page.

    Parameters
    ----------
    key, value
        Its tag.
    points, outliers, accepted
        Points of the last minutes, and the shares of outliers and of accepted ones; None without points.
    tested
        Rows that the evidence is about.
    log_evidence
        ln of its evidence.
    is_changed
        Whether it is unlike its own calibration rows or earlier rows.
    is_unlike
        Whether a segment that has not changed is always unlike the rest.
    since_rows
        Rows since the estimated change; None without one.
    classes
        The most frequent predicted classes of its newest rows, with their shares.
    estimate, estimate_low, estimate_high
        Accuracy without labels of its newest rows; None if it is withheld.
    labels
        Labels of accepted rows.
    accuracy, accuracy_low, accuracy_high
        Share of them that are right, with its 95% interval; None without labels.
    """

    key: str
    value: str
    points: int
    outliers: float | None
    accepted: float | None
    tested: int
    log_evidence: float
    is_changed: bool
    is_unlike: bool
    since_rows: int | None
    classes: tuple[tuple[str, float], ...]
    estimate: float | None
    estimate_low: float | None
    estimate_high: float | None
    labels: int
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None


def minutes_of(segments: int) -> int:
    """Minutes whose counts are read for so many segments: a day, or less of many."""
    return max(1, min(_DAY_MINUTES, _COUNTS // max(segments, 1)))


def segment_rows(
    live: LiveSegments, bundle: Bundle, counts: Mapping[Segment, TagCounts], labelled: PointTable
) -> list[SegmentRow]:
    """The segments that the page shows, changed ones first, then by evidence.

    Parameters
    ----------
    live
        Evidence and newest rows.
    bundle
        The bundle.
    counts
        Counts of the last minutes.
    labelled
        The newest points with labels.
    """
    changes, newest = live.changes, live.points
    columns = tag_columns(newest)
    accepted = labelled.take(labelled.accepted)
    label_columns = tag_columns(accepted)
    rows = []
    for segment in list(changes.evidence)[:SHOWN]:
        key, value = segment
        state, counted = changes.states[segment], counts.get(segment, TagCounts(0, 0, 0))
        own = newest.take(columns[key] == value) if key in columns else newest.take(slice(0, 0))
        known = accepted.take(label_columns[key] == value) if key in label_columns else accepted.take(slice(0, 0))
        right = len(known) - int(known.errors.sum())
        low, high = interval(right, len(known)) if len(known) else (None, None)
        is_changed = segment in changes.found
        rows.append(
            SegmentRow(
                key,
                value,
                counted.points,
                counted.outliers / counted.points if counted.points else None,
                counted.accepted / counted.points if counted.points else None,
                state.rows,
                changes.evidence[segment],
                is_changed,
                not is_changed and live.test.is_unlike(state),
                state.rows - state.since_row + 1 if is_changed else None,
                _classes(bundle, own),
                *_estimate(bundle, own),
                len(known),
                right / len(known) if len(known) else None,
                low,
                high,
            )
        )
    return rows


def worth_a_look(live: LiveSegments, read: Callable[[list[bytes]], PointTable]) -> list[dict[str, Any]]:
    """The most unusual of the newest rows of each explanation; `read` gives points with their names, by their ids."""
    columns, found = tag_columns(live.points), []
    for description in live.changes.explanation:
        inside = np.all([columns[key] == value for key, value in description], axis=0)
        points = live.points.take(inside)
        points = read(points.take(np.argsort(points.p_value, kind="stable")[:_LOOK]).id_bytes())
        points = points.take(np.argsort(points.p_value, kind="stable"))
        found.append(
            {
                "text": describe(description),
                "tags": dict(description),
                "points": [
                    {"prediction_id": name, "p_value": p_value, "received_ms": ms}
                    for name, p_value, ms in zip(
                        points.prediction_ids(), points.p_value.tolist(), points.received_ms.tolist(), strict=True
                    )
                ],
            }
        )
    return found


def _classes(bundle: Bundle, points: PointTable) -> tuple[tuple[str, float], ...]:
    if not len(points):
        return ()
    numbers = points.predicted[(points.predicted >= 0) & (points.predicted < len(bundle.class_names))]
    shares = np.bincount(numbers, minlength=len(bundle.class_names)) / max(len(numbers), 1)
    order = np.argsort(-shares, kind="stable")[:_CLASSES]
    return tuple((bundle.class_names[k], float(shares[k])) for k in order.tolist() if shares[k] > 0.0)


def _estimate(bundle: Bundle, points: PointTable) -> tuple[float | None, float | None, float | None]:
    """Accuracy without labels, and its interval."""
    model, classes = bundle.accuracy_model, bundle.embedder.n_inputs
    if model is None or points.probs.shape[1] != classes:
        return None, None, None
    probs = points.probs[np.isfinite(points.probs).all(axis=1)].astype(np.float64)
    if len(probs) < _LEAST_ROWS:
        return None, None, None
    probs /= np.maximum(probs.sum(axis=1, keepdims=True), 1e-300)
    found = model.estimate(probs, outlier_share=float((points.p_value <= 0.01).mean()))
    return (found.value, *(found.interval or (None, None)))
