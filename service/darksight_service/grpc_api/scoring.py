"""MonitorService over gRPC.

Requests arrive as bytes: bytes that are not a message get INVALID_ARGUMENT, where gRPC's own decoding would return
INTERNAL. Columns of a response are cut out of the result block, so that no number becomes an object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import numpy as np
from darksight_client.results.columns import COLUMNS, ScoreColumns, ScoreStreamColumns
from darksight_client.stubs.darksight.v1 import monitor_pb2
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from darksight_core.rows.tags import MAX_TAGS, REFERENCE, TagSet, find_problem
from darksight_core.runtime.result_block import byte_range
from darksight_service.control.accuracy_file import AccuracyFile
from darksight_service.errors import RequestError
from darksight_service.grpc_api.pools import BulkPool
from darksight_service.grpc_api.status import abort_code, status_of
from darksight_service.grpc_api.timestamps import milliseconds, timestamp
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.scoring.service import ScoreReply, ScoringService, Tensor
from darksight_service.scoring.tags import Tags
from darksight_service.settings.validation import check_text
from darksight_service.store.points import LISTED_COLUMNS, PointFilter
from darksight_service.telemetry.traceparent import trace_of
from darksight_service.telemetry.tracing import traced_call

if TYPE_CHECKING:
    # Loaded when a call needs it: SQLAlchemy takes 27 MB of a worker.
    from darksight_service.store.store import Store

__all__ = ["ScoreCall", "Scoring", "parse", "read_values", "write_response"]

M = TypeVar("M", bound=Message)

# Calls that the thread that reads for gRPC may answer by itself.
_SHORT_BYTES, _SHORT_ROWS = 1 << 14, 8
_MAX_CLASSES = 1 << 20
# Rows, tags of rows and outcomes that are messages of their own, in one call: each becomes several objects. A tensor
# may have more.
_MAX_MESSAGES = 1 << 16
_MAX_FILTER = 1_000
# No text of a request, such as the name of a model, is longer.
_MAX_TEXT = 4096
_FOREVER = (1 << 48) - 1


class ScoreCall:
    """The message of a Score call, which is parsed once, by the first that asks for it."""

    __slots__ = ("_data", "_request")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._request: monitor_pb2.ScoreRequest | None = None

    def __len__(self) -> int:
        return len(self._data)

    def request(self) -> monitor_pb2.ScoreRequest:
        """The request; RequestError if the bytes are not one."""
        if self._request is None:
            self._request = _decode(monitor_pb2.ScoreRequest, self._data)
        return self._request


class Scoring:
    """Handlers of MonitorService.

    Parameters
    ----------
    monitor
        Scores and records.
    bulk
        Where large batches are scored.
    store
        Returns the store, which is opened when it is first needed.
    counts
        Counters of the process.
    accuracy
        Accuracy of the models, for the answer to outcomes.
    waits_for_disk
        Whether a reply waits for fsync.
    """

    def __init__(
        self,
        monitor: ScoringService,
        bulk: BulkPool,
        store: Callable[[], Store],
        counts: ProcessCounts,
        accuracy: AccuracyFile,
        *,
        waits_for_disk: bool = False,
    ) -> None:
        self._monitor = monitor
        self._bulk = bulk
        self._store = store
        self._counts = counts
        self._accuracy = accuracy
        self._waits_for_disk = waits_for_disk
        self._traced_reply = traced_call("score", self._reply, _facts)

    def score(self, call: ScoreCall, context: grpc.ServicerContext) -> bytes:
        """Score."""
        return write_response(self._bulk.run(len(call), partial(self._traced_reply, call.request(), context)))

    def is_short(self, call: ScoreCall) -> bool:
        """Whether a Score waits for nothing and takes less than a millisecond: few values, and no version to load."""
        if self._waits_for_disk or len(call) > _SHORT_BYTES:
            return False
        try:
            request = call.request()
        except RequestError:
            return False
        shape = request.tensor.shape
        return not request.version and len(shape) == 2 and 0 < shape[0] < _SHORT_ROWS

    def score_stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """ScoreStream: gRPC reads the next request when this one is done, which limits the rate of the caller."""
        for data in requests:
            try:
                request = _decode(monitor_pb2.ScoreStreamRequest, data).request
                reply = self._bulk.run(len(data), partial(self._traced_reply, request, context))
                response = write_response(reply)
                yield _STREAM_RESPONSE + _varint(len(response)) + response
            except Exception as error:
                yield ScoreStreamColumns(error=_stream_error(error)).SerializeToString()

    def report_outcomes(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """ReportOutcomes."""
        request = parse(monitor_pb2.ReportOutcomesRequest, data)
        outcomes = request.outcomes
        _check_count(outcomes, _MAX_MESSAGES, "outcomes")
        recorded = self._monitor.report(
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
        self._counts.report_outcomes(recorded)
        response = monitor_pb2.ReportOutcomesResponse(recorded=recorded)
        figures = self._accuracy.read().get(request.model)
        if figures is not None:
            response.accuracy.CopyFrom(_accuracy(figures))
        return response.SerializeToString()

    def list_points(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """ListPoints."""
        request = parse(monitor_pb2.ListPointsRequest, data)
        for name in ("decisions", "reasons", "predicted"):
            _check_count(getattr(request, name), _MAX_FILTER, name)
        active = self._monitor.model(request.model)
        version = self._monitor.model(request.model, request.version).version if request.version else None
        wanted = PointFilter(
            active.model,
            version,
            since_ms=milliseconds(request.since, "since") if request.HasField("since") else 0,
            until_ms=milliseconds(request.until, "until") if request.HasField("until") else _FOREVER,
            decisions=tuple(request.decisions),
            reasons=tuple(request.reasons),
            predicted=tuple(request.predicted),
            is_shadow=request.is_shadow,
            tags=_tag_filter(request.tags),
        )
        page = self._store().list_points(wanted, page_size=request.page_size, page_token=request.page_token)
        response = monitor_pb2.ListPointsResponse(
            points=[_point(row) for row in page.points.rows()], next_page_token=page.next_token
        )
        return response.SerializeToString()

    def _reply(self, request: monitor_pb2.ScoreRequest, context: grpc.ServicerContext) -> ScoreReply:
        values = read_values(request)
        ids = request.prediction_ids
        # An empty field is not converted, which would take longer than to look.
        if ids:
            _check_count(ids, values.shape[0], "prediction_ids")
        if request.class_names:
            _check_count(request.class_names, values.shape[1], "class_names")
        return self._monitor.score(
            request.model,
            request.version,
            values,
            logits=request.is_logits,
            prediction_ids=tuple(ids) if ids else (),
            event_ms=milliseconds(request.event_time, "event_time") if request.HasField("event_time") else 0,
            partial_ok=request.partial_ok,
            batch_id=request.batch_id,
            tags=_tags(request, values.shape[0]) if request.tags or request.row_tags else (),
            trace=trace_of(context.invocation_metadata()),
            is_wanted=context.is_active,
            class_names=tuple(request.class_names) if request.class_names else (),
        )


def _facts(reply: ScoreReply) -> dict[str, str | int | bool]:
    """What a span says of a call."""
    return {
        "darksight.model": reply.model,
        "darksight.version": reply.version[:12],
        "darksight.rows": reply.block.rows,
        "darksight.recorded": reply.recorded,
    }


def parse(kind: type[M], data: bytes) -> M:
    """A message from its bytes; RequestError if they are not one, or if one of its texts is too long or has a NUL."""
    message = _decode(kind, data)
    for field, value in message.ListFields():
        if isinstance(value, str):
            check_text(field.name, value, _MAX_TEXT)
    return message


def _decode(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise RequestError(f"the request is not a {kind.DESCRIPTOR.full_name}", field="request") from None


def read_values(request: monitor_pb2.ScoreRequest) -> NDArray[np.float32] | Tensor:
    """The rows of a request, (n, K)."""
    kind = request.WhichOneof("predictions")
    if kind == "tensor":
        return _read_tensor(request.tensor)
    if kind == "rows":
        return _read_rows(request.rows)
    raise RequestError("predictions: the request has neither a tensor nor rows", field="predictions")


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


def _stream_error(error: Exception) -> Any:
    facts = getattr(error, "details", {})
    return {
        "code": abort_code(error),
        "message": status_of(error)[1].message,
        "row": facts.get("row"),
        "field": str(facts.get("field", "")),
    }


def _label(outcome: monitor_pb2.Outcome, row: int) -> int:
    if outcome.WhichOneof("truth") is None:
        raise RequestError(f"outcomes[{row}]: has neither label nor label_name", field="outcomes", row=row)
    return outcome.label


def _accuracy(figures: dict[str, Any]) -> monitor_pb2.AccuracyReport:
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
    *(name for name in LISTED_COLUMNS if name in monitor_pb2.Point.DESCRIPTOR.fields_by_name),
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
        label=row["label"] if row["label"] >= 0 else None,
        probabilities=row["probs"].tolist(),
    )
