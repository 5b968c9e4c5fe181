"""MonitorService: score, record outcomes, list stored points.

Columns of a response are cut out of the result block, so that no number becomes an object.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sized
from functools import lru_cache
from typing import Any

import numpy as np
from darksight_client.results.columns import COLUMNS, ScoreColumns, ScoreStreamColumns
from darksight_client.stubs.darksight.v1 import monitor_pb2
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.rows.partial import TopRows, TopRowsError
from darksight_core.rows.resolution import MAX_TOP, name_of, number_of
from darksight_core.rows.tags import MAX_TAGS, REFERENCE, TagSet, find_problem
from darksight_core.runtime.result_block import byte_range
from darksight_service.errors import RequestError, report_error
from darksight_service.metrics.catalogue import GRPC_CODES
from darksight_service.operations.operation import Call, Service, operation
from darksight_service.operations.timestamps import milliseconds, optional_milliseconds, timestamp
from darksight_service.scoring.service import ScoreReply, Tensor
from darksight_service.scoring.tags import Tags
from darksight_service.store.points import LISTED_COLUMNS, PointFilter

__all__ = [
    "MONITOR",
    "is_short",
    "list_points",
    "read_values",
    "report_outcomes",
    "score",
    "score_stream",
    "write_response",
]

MONITOR = monitor_pb2.DESCRIPTOR.services_by_name["MonitorService"]

_SHORT_ROWS = 8
_MAX_CLASSES = 1 << 20
# Rows, tags of rows and outcomes that are messages of their own, in one call: each becomes several objects. A tensor
# may have more.
_MAX_MESSAGES = 1 << 16
# Places of all rows of the most probable classes: a short message may ask for many empty ones.
_MAX_TOP_VALUES = 1 << 22
_MAX_FILTER = 1_000
_FOREVER = (1 << 48) - 1

_log = logging.getLogger("darksight.rpc")


def is_short(service: Service, request: monitor_pb2.ScoreRequest) -> bool:
    """Whether a Score waits for nothing and takes less than a millisecond: few rows, and no version to load."""
    shape = request.tensor.shape
    return not service.waits_for_disk and not request.version and len(shape) == 2 and 0 < shape[0] < _SHORT_ROWS


def write_response(reply: ScoreReply) -> bytes:
    """The ScoreResponse to a call: pieces of its result block behind the tags of their fields, in the fields' order."""
    block = reply.block
    data = block.data
    parts = [_served(reply.model, reply.version), _BATCH_ID, reply.batch_id]
    for tag, where in _fields(block.rows):
        parts += (tag, data[where])
    if reply.recorded:
        parts.append(_RECORDED)
    if reply.set_classes is not None:
        for tag, values in ((_SET_SIZE, block.column("set_size")), (_SET_CLASSES, reply.set_classes)):
            packed = b"".join(map(_varint, values.tolist()))
            parts += (tag, _varint(len(packed)), packed)
    return b"".join(parts)


def _write_stream_response(reply: ScoreReply) -> bytes:
    response = write_response(reply)
    return _STREAM_RESPONSE + _varint(len(response)) + response


def _write_stream_error(error: Exception) -> bytes:
    report = report_error(error, _log)
    details = getattr(error, "details", {})
    stream_error = {
        "code": GRPC_CODES.index(report.grpc),
        "message": report.message,
        "row": details.get("row"),
        "field": str(details.get("field", "")),
    }
    data: bytes = ScoreStreamColumns(error=stream_error).SerializeToString()
    return data


def _span_attributes(reply: ScoreReply) -> dict[str, str | int | bool]:
    return {
        "darksight.model": reply.model,
        "darksight.version": reply.version[:12],
        "darksight.rows": reply.block.rows,
        "darksight.recorded": reply.recorded,
    }


@operation(
    MONITOR,
    "score",
    "call",
    "POST /v1/models/{model}/score",
    encode=write_response,
    is_short=is_short,
    is_scoring=True,
    is_checked=False,
    span="score",
    span_attributes=_span_attributes,
)
def score(service: Service, request: monitor_pb2.ScoreRequest, call: Call) -> ScoreReply:
    """Score a batch of predictions."""
    values, class_names = read_values(request)
    ids = request.prediction_ids
    rows = len(values) if isinstance(values, TopRows) else values.shape[0]
    # An empty field is not converted, which would take longer than to look.
    if ids:
        _check_count(ids, rows, "prediction_ids")
    return service.scoring.score(
        request.model,
        request.version,
        values,
        logits=request.is_logits,
        prediction_ids=tuple(ids) if ids else (),
        event_ms=milliseconds(request.event_time, "event_time") if request.HasField("event_time") else 0,
        partial_ok=request.partial_ok,
        batch_id=request.batch_id,
        idempotency_key=request.idempotency_key,
        tags=_tags(request, rows) if request.tags or request.row_tags else (),
        trace=call.trace,
        is_wanted=call.is_active,
        class_names=class_names,
        is_probe=request.probe,
        resolution=request.resolution,
    )


@operation(
    MONITOR,
    "score",
    "stream",
    encode=_write_stream_response,
    encode_error=_write_stream_error,
    is_scoring=True,
    is_checked=False,
    span="score",
    span_attributes=_span_attributes,
)
def score_stream(service: Service, request: monitor_pb2.ScoreStreamRequest, call: Call) -> ScoreReply:
    """Score batches of predictions in order."""
    reply: ScoreReply = score.handle(service, request.request, call)
    return reply


@operation(MONITOR, "report", "call", "POST /v1/models/{model}/outcomes")
def report_outcomes(
    service: Service, request: monitor_pb2.ReportOutcomesRequest, call: Call
) -> monitor_pb2.ReportOutcomesResponse:
    """Record the true classes of predictions."""
    outcomes = request.outcomes
    _check_count(outcomes, _MAX_MESSAGES, "outcomes")
    recorded = service.scoring.report(
        request.model,
        [each.prediction_id for each in outcomes],
        [
            each.label_name if each.WhichOneof("truth") == "label_name" else _label(each, row)
            for row, each in enumerate(outcomes)
        ],
        [
            milliseconds(each.observed_at, f"outcomes[{row}].observed_at") if each.HasField("observed_at") else 0
            for row, each in enumerate(outcomes)
        ],
    )
    service.counts.report_outcomes(recorded)
    figures = service.accuracy.read().get(request.model)
    return monitor_pb2.ReportOutcomesResponse(
        recorded=recorded, accuracy=None if figures is None else _accuracy_report(figures)
    )


@operation(MONITOR, "read", "store", "GET /v1/models/{model}/points")
def list_points(service: Service, request: monitor_pb2.ListPointsRequest, call: Call) -> monitor_pb2.ListPointsResponse:
    """List stored points, newest first."""
    for name in ("decisions", "reasons", "predicted"):
        _check_count(getattr(request, name), _MAX_FILTER, name)
    active = service.scoring.model(request.model)
    version = service.scoring.model(request.model, request.version).version if request.version else None
    wanted = PointFilter(
        active.model,
        version,
        since_ms=optional_milliseconds(request, "since"),
        until_ms=optional_milliseconds(request, "until", _FOREVER),
        decisions=tuple(request.decisions),
        reasons=tuple(request.reasons),
        predicted=tuple(request.predicted),
        is_shadow=request.is_shadow,
        tags=_tag_filter(request.tags),
    )
    page = service.store().list_points(wanted, page_size=request.page_size, page_token=request.page_token)
    return monitor_pb2.ListPointsResponse(
        points=[_point(row) for row in page.points.rows()], next_page_token=page.next_token
    )


def read_values(request: monitor_pb2.ScoreRequest) -> tuple[NDArray[np.float32] | Tensor | TopRows, tuple[str, ...]]:
    """The rows of a request, and the names of their classes if it has them."""
    kind = request.WhichOneof("predictions")
    values: NDArray[np.float32] | Tensor
    if kind == "top":
        return _read_top(request)
    if kind == "tensor":
        values = _read_tensor(request.tensor)
    elif kind == "rows":
        values = _read_rows(request.rows)
    else:
        raise RequestError("predictions: the request has neither a tensor, rows nor top", field="predictions")
    if not request.class_names:
        return values, ()
    _check_count(request.class_names, values.shape[1], "class_names")
    return values, tuple(request.class_names)


def _tags(request: monitor_pb2.ScoreRequest, rows: int) -> Tags:
    """The tags of all rows, or of each row."""
    # Before they are copied to each row.
    _check_count(request.tags, MAX_TAGS, "tags")
    if not request.row_tags:
        return dict(request.tags)
    _check_count(request.row_tags, min(rows, _MAX_MESSAGES), "row_tags")
    for row, each in enumerate(request.row_tags):
        _check_count(each.tags, _MAX_FILTER, f"row_tags[{row}]")
    return [{**request.tags, **each.tags} for each in request.row_tags]


def _tag_filter(tags: Mapping[str, str]) -> TagSet:
    problem = find_problem(tags) or (f"{REFERENCE} is not a filter" if REFERENCE in tags else None)
    if problem:
        raise RequestError(f"tags: {problem}", field="tags")
    return tuple(sorted(tags.items()))


def _check_count(values: Sized, limit: int, field: str) -> None:
    """Refuse a repeated field of too many values, before any of them becomes an object."""
    if len(values) > limit:
        raise RequestError(f"{field}: has {len(values):,} values; the limit is {limit:,}", field=field)


def _read_tensor(tensor: monitor_pb2.Tensor) -> NDArray[np.float32] | Tensor:
    shape, data = tuple(tensor.shape[:3]), tensor.data
    if len(shape) != 2 or shape[0] < 0 or shape[1] < 0:
        raise RequestError(
            f"tensor.shape: must be rows and classes, not {list(tensor.shape[:8])}", field="tensor.shape"
        )
    if shape[0] and not shape[1]:
        raise RequestError("tensor.shape: rows of no classes", field="tensor.shape")
    if len(data) != 4 * shape[0] * shape[1]:
        raise RequestError(
            f"tensor.data: has {len(data):,} bytes, but {shape[0]:,} x {shape[1]:,} float32 values need "
            f"{4 * shape[0] * shape[1]:,}",
            field="tensor.data",
        )
    if shape[0]:
        return Tensor(data, shape)
    # Without rows the number of classes may be anything, also too large for an array.
    return np.empty((0, min(shape[1], _MAX_CLASSES)), dtype=np.float32)


def _read_rows(rows: monitor_pb2.Rows) -> NDArray[np.float32]:
    if not rows.rows:
        return np.empty((0, 0), dtype=np.float32)
    _check_count(rows.rows, _MAX_MESSAGES, "rows")
    classes = len(rows.rows[0].values)
    for number, row in enumerate(rows.rows):
        if len(row.values) != classes:
            raise RequestError(
                f"rows[{number}]: has {len(row.values)} values, but row 0 has {classes}", field="rows", row=number
            )
    return np.array([row.values for row in rows.rows], dtype=np.float32).reshape(len(rows.rows), classes)


def _read_top(request: monitor_pb2.ScoreRequest) -> tuple[TopRows, tuple[str, ...]]:
    """Rows of the most probable classes, and the names that their numbers refer to."""
    rows = request.top.rows
    _check_count(rows, _MAX_MESSAGES, "top")
    _check_count(request.class_names, _MAX_CLASSES, "class_names")
    if request.is_logits:
        raise RequestError("is_logits: does not apply to top, which has log-probabilities", field="is_logits")
    try:
        k = max((1, *(len(row.log_probabilities) for row in rows)))
        k = number_of(request.resolution) if request.resolution else k
    except ConfigError as error:
        raise RequestError(error.message, field="resolution") from None
    if k < 1 or k * len(rows) > _MAX_TOP_VALUES:
        text = f"{len(rows):,} rows of resolution {name_of(k)}; it must be top1 to top{MAX_TOP}, and rows times places"
        raise RequestError(f"top: {text} at most {_MAX_TOP_VALUES:,}", field="top")
    names = {name: number for number, name in enumerate(request.class_names)}
    if len(names) < len(request.class_names):
        raise RequestError("class_names: a name is given twice", field="class_names")
    is_named = not names and any(row.class_names for row in rows)
    classes, logs = np.full((len(rows), k), -1, dtype=np.int32), np.full((len(rows), k), -np.inf)
    for number, row in enumerate(rows):
        values, known = row.log_probabilities, list(row.classes)
        is_mixed = bool(row.classes and (row.class_names or is_named))
        known += [names.setdefault(name, len(names)) for name in row.class_names]
        if len(known) != len(values) or len(values) > k or is_mixed or min(known, default=0) < 0:
            raise RequestError(
                f"top[{number}]: has {len(row.classes)} classes, {len(row.class_names)} class_names and {len(values)} "
                f"log_probabilities; give at most {k} of these, each with a class from 0 on or, in all rows, a name",
                field="top",
                row=number,
            )
        classes[number, : len(values)], logs[number, : len(values)] = known, values
    try:
        return TopRows(classes, logs, np.array([row.other for row in rows], dtype=np.float64)), tuple(names)
    except TopRowsError as error:
        raise RequestError(f"top: {error.message}", field="top") from None


@lru_cache(maxsize=256)
def _served(model: str, version: str) -> bytes:
    """The first fields of a response."""
    fields: bytes = ScoreColumns(model=model, version=version).SerializeToString()
    return fields


@lru_cache(maxsize=256)
def _fields(rows: int) -> tuple[tuple[bytes, slice], ...]:
    """Tag and place of each column in a block; none if there are no rows, as an empty field is not written."""
    if not rows:
        return ()
    found = {name: byte_range(name, rows) for name in COLUMNS}
    return tuple((_tag(name) + _varint(where.stop - where.start), where) for name, where in found.items())


def _tag(field: str, wire_type: int = 2) -> bytes:
    return _varint(ScoreColumns.DESCRIPTOR.fields_by_name[field].number << 3 | wire_type)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes((*parts, value))


_BATCH_ID, _RECORDED = _tag("batch_id") + b"\x10", _tag("recorded", 0) + b"\x01"
_SET_SIZE, _SET_CLASSES = _tag("set_size"), _tag("set_classes")
_STREAM_RESPONSE = _varint(ScoreStreamColumns.DESCRIPTOR.fields_by_name["response"].number << 3 | 2)


def _label(outcome: monitor_pb2.Outcome, row: int) -> int:
    if outcome.WhichOneof("truth") is None:
        raise RequestError(f"outcomes[{row}]: has neither label nor label_name", field="outcomes", row=row)
    return outcome.label


def _accuracy_report(figures: dict[str, Any]) -> monitor_pb2.AccuracyReport:
    """The report of figures as `AccuracyFile` has them; without rows there is no estimate, and it is not withheld."""
    audit, estimate = figures["audit"], figures.get("accuracy", {})
    return monitor_pb2.AccuracyReport(
        version=figures["version"],
        estimate=_range(estimate.get("estimate"), estimate),
        withheld=estimate.get("withheld") or "",
        audited=_range(audit["accuracy"], audit),
        audit_labels=audit["labels"],
        audit_labels_needed=audit["labels_needed"],
        certificate=f"CERTIFICATE_VERDICT_{audit['verdict'].upper()}",
        certificate_log_evidence=audit["log_evidence"],
    )


def _range(value: float | None, ends: dict[str, Any]) -> monitor_pb2.AccuracyRange | None:
    return None if value is None else monitor_pb2.AccuracyRange(value=value, low=ends["low"], high=ends["high"])


_POINT_FIELDS = (
    *("id", "prediction_id", "model", "version", "tags", "trace_id", "prediction_set"),
    *(name for name in LISTED_COLUMNS if name in monitor_pb2.Point.DESCRIPTOR.fields_by_name and name != "other"),
)


def _point(row: dict[str, Any]) -> monitor_pb2.Point:
    return monitor_pb2.Point(
        **{name: row[name] for name in _POINT_FIELDS},
        received_at=timestamp(row["received_ms"]),
        event_time=timestamp(row["event_ms"]) if row["event_ms"] else None,
        decision=row["decision"],
        reason=row["reason"],
        predicted=row["predicted"] if row["predicted"] >= 0 else None,
        top_probability=row["top"],
        other=row["other"] if row["known"] else None,
        label=row["label"] if row["label"] >= 0 else None,
        probabilities=row["probs"].tolist(),
    )
