"""Endpoints of the review page: the queue and the learned score; labels are sent by `ReportOutcomes`."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
from pydantic import Field

from darksight_core.drift.accuracy import Accuracy
from darksight_core.drift.audit import audited_accuracy, group_accuracies
from darksight_core.drift.explanation import describe
from darksight_service.control.registry import ActiveModel
from darksight_service.http.explorer.analysis.background import BackgroundResults
from darksight_service.http.explorer.analysis.learning import LearnedScore, learn
from darksight_service.http.explorer.analysis.review_queue import QueueItem, Stream, review_queue
from darksight_service.http.explorer.analysis.scores import ScoreCurve
from darksight_service.http.explorer.answers import Answer
from darksight_service.http.explorer.api.labelled import (
    MAX_LABELS,
    MAX_POINTS,
    LabelsInput,
    drawn_points,
    labelled_points,
    newest_points,
)
from darksight_service.http.explorer.columns import point_fields
from darksight_service.http.explorer.endpoint import Call, Endpoint, Sources
from darksight_service.scoring.live_drift import live_audit

__all__ = ["endpoints"]

_TOP_CLASSES = 10
_NO_SCORE = LearnedScore(0, 0, 1)


class _QueueInput(LabelsInput):
    stream: Stream = Stream.AUDIT
    limit: int = Field(20, ge=1, le=200)


def endpoints(sources: Sources) -> list[Endpoint[Any]]:
    """`/api/review` and `/api/review/learned-score`."""
    scores = BackgroundResults(learn)

    def queue(call: Call[_QueueInput]) -> Answer:
        given, active = call.input, sources.active_model(call.input)
        newest = newest_points(sources, active, given)
        drawn, _ = drawn_points(sources, active, given)
        score, is_learning = scores.get((active.model, active.version), labelled_points(sources, active, given)[0])
        deployed = sources.registry.state.models[active.model].versions[active.version]
        found = review_queue(newest, drawn, score or _NO_SCORE, given.stream, limit=given.limit)
        ids = found.table.take(np.array([item.row for item in found.items], dtype=np.int64)).id_bytes()
        items = {str(uuid.UUID(bytes=each)): item for each, item in zip(ids, found.items, strict=True)}
        points = sources.store().points_by_id(active.model, active.version, ids)
        return {
            "class_names": active.bundle.class_names,
            "set_coverage": _set_coverage(active),
            "counts": found.counts,
            "points": len(found.table),
            "is_drawn": found.table is not newest,
            "max_points": MAX_POINTS,
            "max_labels": MAX_LABELS,
            "oldest_ms": int(found.table.received_ms.min()) if len(found.table) else None,
            "items": [_item(point, items[point["id"]]) for point in points.rows()],
            "audit": {
                "drawn": len(drawn),
                "labelled": int(drawn.is_labelled.sum()),
                **_accuracies(sources, active, given.start_ms),
            },
            "certificate": live_audit(
                sources.store(), active.bundle.content, deployed, active.model, active.version
            ).as_dict(),
            "learned_score": _learned_score(score, is_learning),
        }

    def learned_score(call: Call[LabelsInput]) -> Answer:
        active = sources.active_model(call.input)
        table, used = labelled_points(sources, active, call.input)
        return {"used": used, "learned_score": _learned_score(*scores.get((active.model, active.version), table))}

    return [
        Endpoint("GET", "/api/review", "read", _QueueInput, queue),
        Endpoint("GET", "/api/review/learned-score", "read", LabelsInput, learned_score),
    ]


def _set_coverage(active: ActiveModel) -> float | None:
    """Certified coverage of the stored prediction sets of a version."""
    gate = active.bundle.content.gate
    return None if gate is None or gate.sets is None else gate.sets.coverage


def _item(point: dict[str, Any], item: QueueItem) -> dict[str, Any]:
    order = np.argsort(-point["probs"], kind="stable")[:_TOP_CLASSES]
    return {
        **point_fields(point),
        "classes": order,
        "probs": point["probs"][order],
        "softmax_rank": item.softmax_rank,
        "learned_rank": item.learned_rank,
        "chance": item.chance,
        "odds": item.odds,
    }


def _accuracies(sources: Sources, active: ActiveModel, start_ms: int) -> dict[str, Any]:
    """Accuracies by the audit: of all rows, of accepted ones, and of these by predicted class and by segment."""
    store, key = sources.store(), (active.model, active.version)
    accepted = store.audited_rows(*key, start_ms=start_ms, with_groups=True)
    all_rows = store.audited_rows(*key, start_ms=start_ms, is_accepted=False).rows
    names = active.bundle.class_names
    classes = group_accuracies(accepted.rows, accepted.classes)
    segments = group_accuracies(accepted.rows, accepted.segments)
    return {
        "all": _accuracy(audited_accuracy(all_rows)),
        "accepted": _accuracy(audited_accuracy(accepted.rows)),
        "classes": [{"name": names[number], **_accuracy(each)} for number, each in sorted(classes.items())],
        "segments": [{"name": describe((name,)), **_accuracy(each)} for name, each in sorted(segments.items())],
    }


def _accuracy(found: Accuracy | None) -> dict[str, Any]:
    low, high = (None, None) if found is None else found.interval or (None, None)
    labels, value = (0, None) if found is None else (found.rows, found.value)
    return {"value": value, "low": low, "high": high, "labels": labels}


def _learned_score(score: LearnedScore | None, is_learning: bool) -> dict[str, Any]:
    if score is None:
        return {"is_learning": is_learning, "labels": None}
    gains = (None, None) if score.learned is None else (score.learned.gain, score.learned.gain_error)
    return {
        "is_learning": is_learning,
        "labels": score.labels,
        "errors": score.errors,
        "labels_needed": score.labels_needed,
        "summary": score.summary,
        "gain": gains[0],
        "gain_error": gains[1],
        "learned": _figures(score.learned),
        "softmax": _figures(score.softmax),
    }


def _figures(curve: ScoreCurve | None) -> dict[str, Any] | None:
    if curve is None:
        return None
    figures = curve.figures
    return {"auroc": figures.auroc, "augrc": figures.augrc, "intervals": figures.intervals}
