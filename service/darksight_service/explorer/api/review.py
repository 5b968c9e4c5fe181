"""Endpoints of the review queue: what to look at, labels, and what they have taught.

Labels take the way of `ReportOutcomes`, through the monitor, but end in the store itself and not in a spool: when the
page hears that a label is recorded, the next page already counts it. While the database is away a label is not taken,
and the page keeps it and tries again. A label that is sent twice is stored once.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from darksight_core.scored import Decision, Reason
from darksight_service.control.registry import ActiveModel
from darksight_service.errors import RequestError
from darksight_service.explorer.analysis.audit import Audit, audit, audited_accuracy
from darksight_service.explorer.analysis.learning import Latest, Lesson, learn
from darksight_service.explorer.analysis.review_queue import Place, Stream, waiting
from darksight_service.explorer.api.gate import AUDIT_ROWS, MOST_LABELS, labelled_rows
from darksight_service.explorer.endpoint import Answer, Call, Endpoint, Sources
from darksight_service.explorer.spans import DAY_MS, plain, read_span
from darksight_service.ingest.records import OutcomeBatch, decode
from darksight_service.scoring.service import ScoringService

if TYPE_CHECKING:
    from darksight_service.store import PointTable, StoredPoint

__all__ = ["DEFAULT_RATE", "endpoints"]

DEFAULT_RATE = 0.05
"""Odds of a point to be audited."""

_SPAN_MS = 30 * DAY_MS
_AT_A_TIME = 1_000
_TOP_CLASSES = 10
_EMPTY = Lesson(0, 0, 1)


class _StoreRecorder:
    """Where the monitor's outcomes go."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def append(self, payload: bytes) -> bool:
        """Store a record; raises if it cannot."""
        batch = decode(payload)
        assert isinstance(batch, OutcomeBatch)
        self._sources.store().insert([batch])
        return True


def endpoints(sources: Sources) -> list[Endpoint]:
    """`/api/review`, `/api/review/lesson` and `/api/labels`."""
    lessons: Latest[Lesson] = Latest()
    monitor = ScoringService(sources.registry, _StoreRecorder(sources))

    def queue(call: Call) -> Answer:
        serving = _serving(sources, call)
        stream = _stream(call)
        rate = _rate(call)
        frame = _frame(sources, call, serving)
        drawn = audit(frame, rate)
        lesson, is_learning = lessons.get(
            (serving.model, serving.version), labelled_rows(sources, call, serving)[0], learn
        )
        found = waiting(frame, drawn, lesson or _EMPTY, stream, limit=call.integer("limit", 20, low=1, high=200))
        ids = frame.take(np.array([place.row for place in found.places], dtype=np.int64)).id_bytes()
        places = {str(uuid.UUID(bytes=each)): place for each, place in zip(ids, found.places, strict=True)}
        points = sources.store().points_by_id(serving.model, serving.version, ids)
        return {
            "class_names": list(serving.bundle.class_names),
            "stream": stream.value,
            "counts": {each.value: count for each, count in found.counts.items()},
            "looked_at": len(frame),
            "most": AUDIT_ROWS,
            "most_labels": MOST_LABELS,
            "oldest_ms": int(frame.received_ms[-1]) if len(frame) else None,
            "items": [_item(point, places[point.id]) for point in points],
            "audit": _audit(frame, drawn),
            "lesson": _lesson(lesson, is_learning),
        }

    def lesson(call: Call) -> Answer:
        serving = _serving(sources, call)
        rows, used = labelled_rows(sources, call, serving)
        found, is_learning = lessons.get((serving.model, serving.version), rows, learn)
        return {"used": used, "lesson": _lesson(found, is_learning)}

    def label(call: Call) -> Answer:
        body = call.body()
        given = body.get("labels")
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise RequestError(
                "labels: must be a list of objects with prediction_id, label, observed_ms", field="labels"
            )
        if len(given) > _AT_A_TIME:
            raise RequestError(f"labels: {len(given):,} at a time are more than {_AT_A_TIME:,}", field="labels")
        recorded = monitor.report(
            str(body.get("model", "")),
            [str(each.get("prediction_id", "")) for each in given],
            [_label(each.get("label"), row) for row, each in enumerate(given)],
            [_moment(each.get("observed_ms", 0), row) for row, each in enumerate(given)],
        )
        return {"recorded": recorded}

    return [
        Endpoint("GET", "/api/review", "read", queue),
        Endpoint("GET", "/api/review/lesson", "read", lesson),
        Endpoint("POST", "/api/labels", "report", label),
    ]


def _serving(sources: Sources, call: Call) -> ActiveModel:
    return sources.registry.get(call.text("model"), call.text("version", ""))


def _stream(call: Call) -> Stream:
    name = call.text("stream", Stream.AUDIT.value)
    try:
        return Stream(name)
    except ValueError:
        names = ", ".join(each.value for each in Stream)
        raise RequestError(f"stream: is one of {names}, not {name[:40]!r}", field="stream") from None


def _rate(call: Call) -> float:
    rate = call.number("rate", DEFAULT_RATE)
    if not 0.0 < rate <= 1.0:
        raise RequestError(f"rate: must be above 0 and up to 1, not {rate}", field="rate")
    return rate


def _frame(sources: Sources, call: Call, serving: ActiveModel) -> PointTable:
    from darksight_service.store import PointFilter

    since, until = read_span(call, default_ms=_SPAN_MS)
    wanted = PointFilter(serving.model, serving.version, since_ms=since, until_ms=until)
    return sources.store().frame(wanted, limit=AUDIT_ROWS)


def _item(point: StoredPoint, place: Place) -> dict[str, Any]:
    order = np.argsort(-point.probs, kind="stable")[:_TOP_CLASSES]
    return plain(  # type: ignore[no-any-return]  # JSON values
        {
            "id": point.id,
            "prediction_id": point.prediction_id,
            "received_ms": point.received_ms,
            "x": point.x,
            "y": point.y,
            "top": point.top,
            "p_value": point.p_value,
            "predicted": point.predicted,
            "decision": Decision(point.decision).name,
            "reason": Reason(point.reason).name,
            "classes": order,
            "probs": point.probs[order],
            "softmax_rank": place.softmax_rank,
            "learned_rank": place.learned_rank,
            "chance": place.chance,
        }
    )


def _audit(frame: PointTable, drawn: Audit) -> dict[str, Any]:
    found = {}
    for name, chosen in (("all", None), ("accepted", frame.is_accepted)):
        figures = audited_accuracy(frame, drawn, chosen)
        powered = figures.powered
        interval = None if powered is None else powered.interval
        found[name] = {**asdict(figures), "powered": None if powered is None else [powered.value, *(interval or ())]}
    return plain({"rate": drawn.rate, "drawn": len(drawn.order), "done": drawn.depth, **found})  # type: ignore[no-any-return]  # JSON values


def _lesson(lesson: Lesson | None, is_learning: bool) -> dict[str, Any]:
    if lesson is None:
        return {"is_learning": is_learning, "labels": None}
    figures = {
        name: None
        if found is None
        else {
            "auroc": found.auroc,
            "augrc": found.augrc,
            "intervals": {key: found.intervals.get(key) for key in ("auroc", "augrc")},
        }
        for name, found in (("learned", lesson.cross_fitted), ("softmax", lesson.softmax))
    }
    return plain(  # type: ignore[no-any-return]  # JSON values
        {
            "is_learning": is_learning,
            "labels": lesson.labels,
            "errors": lesson.errors,
            "needed": lesson.needed,
            "is_shrunk": lesson.is_shrunk,
            "verdict": lesson.verdict,
            "gain": lesson.gain,
            "gain_error": lesson.gain_error,
            **figures,
        }
    )


def _label(value: Any, row: int) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise RequestError(f"labels[{row}].label: must be the number or name of a class", field="labels", row=row)
    return value


def _moment(value: Any, row: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 48:
        raise RequestError(f"labels[{row}].observed_ms: must be Unix milliseconds", field="labels", row=row)
    return value
