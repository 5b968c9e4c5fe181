"""CloudEvents of inference loggers: the service listens, and the model server waits for nothing.

KServe's logger and Seldon's send the request and the response of a model as two events with one id. The response has
the probabilities, or the likeliest tokens of a language model: it is scored as by `Score`, and the sender gets 202
without a body when the points are on disk. Tags come from the attributes and the data of the response. Requests are
accepted and ignored. An event whose attribute `probe` is true is scored, and neither stored nor counted.

Events are delivered at least once. The idempotency key is made from what is the same in every delivery: source, id,
type and time of the event. So points are stored once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from darksight_client.requests import row_fields
from darksight_client.stubs.darksight.v1 import monitor_pb2
from starlette.responses import Response

from darksight_core.errors import DarkSightError
from darksight_core.rows.tags import find_problem
from darksight_core.rows.tokens import ClassTokens, TokenError, answer_positions
from darksight_service.errors import OverloadedError, RequestError
from darksight_service.http.api.payloads import find_rows, read_payload
from darksight_service.http.inputs import read_json
from darksight_service.http.problems import HttpError
from darksight_service.http.requests import HttpCall, Request
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.operations.timestamps import timestamp
from darksight_service.settings import PassiveModel
from darksight_service.settings.validation import check_text
from darksight_service.store.ids import LATEST_MS
from darksight_service.telemetry.traceparent import HEADER, read_trace_id

__all__ = ["EVENT_ROUTES", "Event", "EventAnswer", "read_event"]

EVENT_ROUTES = ("POST /v1/events", "POST /v1/models/{model}/events")
"""Routes for events, which name their model, and for events of one model."""

_STRUCTURED = "application/cloudevents+json"
_VERSIONS = ("1.0", "0.3")
# `org.kubeflow.serving` of KServe and `io.seldon.serving` of Seldon, before each.
_REQUEST, _RESPONSE = ".inference.request", ".inference.response"
_MAX_SOURCE, _MAX_NAME = 2048, 200
# A prediction id has 200 characters, some of them for the row.
_MAX_ID = 190
# Each row gets a prediction id, which may take more memory than its values.
_MAX_ROWS = 1 << 16
_RETRY_SECONDS = 1.0
_NUMBER = re.compile("[0-9]{1,9}")

_log = logging.getLogger("darksight.events")


@dataclass(frozen=True, slots=True)
class Event:
    """An event.

    Parameters
    ----------
    attributes
        All attributes, by their names in lower case.
    ms
        Its time in Unix milliseconds; None without one.
    payload, rest
        The object in the data of a response, and the bytes of tensors that follow it; empty for a request.
    """

    attributes: Mapping[str, str]
    ms: int | None
    payload: Mapping[str, Any]
    rest: bytes = b""

    @property
    def is_response(self) -> bool:
        """Whether it has what a model answered."""
        return self.attributes["type"].endswith(_RESPONSE)

    @property
    def request_id(self) -> str:
        """The id that request and response have in common, which callers of the model know."""
        return self.attributes.get("requestid") or self.attributes["id"]

    @property
    def key(self) -> str:
        """What every delivery of the event has in common, 64 hexadecimal digits."""
        parts = (*(self.attributes[name] for name in ("source", "id", "type")), str(self.ms))
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


class EventAnswer:
    """Answers a path for events.

    Parameters
    ----------
    score
        Runs the operation Score.
    models
        How events are read, by name of the model.
    class_names
        The classes of a model by its name; none if there is no such model.
    counts
        Counters of the process.
    """

    def __init__(
        self,
        score: Callable[[monitor_pb2.ScoreRequest, HttpCall], monitor_pb2.ScoreResponse],
        models: Mapping[str, PassiveModel],
        class_names: Callable[[str], Sequence[str]],
        counts: ProcessCounts,
    ) -> None:
        self._score = score
        self._models = models
        self._services = {passive.service or model: model for model, passive in models.items()}
        self._class_names = class_names
        self._counts = counts

    def __call__(self, request: Request, call: HttpCall) -> Response:
        """The response to an event. It has no body: Knative takes a body for an event in reply."""
        named = request.parameters.get("model", "")
        try:
            event = read_event(request)
            if event.is_response:
                self._record(event, named or self._model_of(event.attributes), call)
        except (DarkSightError, HttpError) as error:
            self._counts.end_event("refused")
            # Loggers do not log why.
            facts = {"source": request.headers.get(b"ce-source", "")[:100], "error": str(error)}
            if trace := read_trace_id(request.headers.get(HEADER.encode(), "")):
                facts["trace_id"] = trace.hex()
            _log.warning("event_refused", extra=facts)
            raise
        self._counts.end_event("scored" if event.is_response else "request")
        return Response(status_code=202)

    def _record(self, event: Event, model: str, call: HttpCall) -> None:
        """Score a response."""
        check_text("model", model, _MAX_NAME)
        passive = self._models.get(model, PassiveModel())
        fields, rows = self._rows_of(event, model, passive)
        message = monitor_pb2.ScoreRequest(
            model=model,
            **fields,
            prediction_ids=[f"{event.request_id}-{row}" for row in range(rows)],
            idempotency_key=event.key,
            probe=event.attributes.get("probe") == "true",
            tags=_tags_of(event, passive.tags),
            event_time=None if event.ms is None else timestamp(event.ms),
        )
        # The trace of the prediction, rather than that of its delivery.
        trace = event.attributes.get(HEADER) or _text_at(event, f"metadata.{HEADER.capitalize()}")
        if read_trace_id(trace):
            call.traceparent = trace
        if not (self._score(message, call).recorded or message.probe):
            error = OverloadedError("the event is not on disk: the spool is full", retry_seconds=_RETRY_SECONDS)
            raise HttpError(error, HTTPStatus.SERVICE_UNAVAILABLE)

    def _rows_of(self, event: Event, model: str, passive: PassiveModel) -> tuple[dict[str, Any], int]:
        """The fields of the request with the rows of a response, and the number of rows."""
        positions = answer_positions(event.payload)
        if positions:
            try:
                top = ClassTokens(self._class_names(model)).rows(positions[:1])
            except TokenError as error:
                raise RequestError(f"data: {error.message}", field="data") from None
            # An answer that is none of the classes is a point with the reason INVALID.
            fields, rows = row_fields(top, slice(None))
            return {**fields, "partial_ok": True}, rows
        values = find_rows(dict(event.payload), event.rest, passive.output)
        if len(values) > _MAX_ROWS:
            raise RequestError(f"data: has {len(values):,} rows; the limit is {_MAX_ROWS:,}", field="data")
        fields, rows = row_fields(values, slice(None))
        return {**fields, "is_logits": passive.logits}, rows

    def _model_of(self, found: Mapping[str, str]) -> str:
        """The model that the attributes of an event name."""
        names = [name for name in (found.get("inferenceservicename"), found.get("modelid")) if name]
        for name in names:
            for service in (f"{found.get('namespace', '')}/{name}", name):
                if service in self._services:
                    return self._services[service]
        if not names:
            raise RequestError(
                "inferenceservicename: is missing; send the event to /v1/models/MODEL/events, which names the model",
                field="inferenceservicename",
            )
        if names[0] in self._models:
            raise RequestError(
                f"inferenceservicename: the setting passive gives the model {names[0]!r} another service",
                field="inferenceservicename",
            )
        return names[0]


def _tags_of(event: Event, sources: Mapping[str, str]) -> dict[str, str]:
    """The tags of all rows of an event; a value that is missing or cannot be a tag is left out."""
    found = {key: _text_at(event, source) for key, source in sources.items()}
    return {key: text for key, text in found.items() if find_problem({key: text}) is None}


def _text_at(event: Event, source: str) -> str:
    first, _, rest = source.partition(".")
    value: Any = event.attributes.get(first, "")
    if first == "data":
        value = event.payload
        for name in rest.split("."):
            value = _member(value, name)
    elif rest:
        # KServe's logger sends headers and annotations as JSON objects; a header has a list of values.
        try:
            value = json.loads(value).get(rest, "")
        except (ValueError, RecursionError, AttributeError):
            value = ""
        value = value[0] if isinstance(value, list) and value else value
    return str(value) if isinstance(value, str | int | float) else ""


def _member(value: Any, name: str) -> Any:
    """The member of an object by its name, or the value of a list by its number."""
    if isinstance(value, Mapping):
        return value.get(name)
    if isinstance(value, list) and _NUMBER.fullmatch(name) and int(name) < len(value):
        return value[int(name)]
    return None


def read_event(request: Request) -> Event:
    """The event in a call, in structured or binary content mode; RequestError names the attribute that is wrong."""
    kind = request.headers.get(b"content-type", "").partition(";")[0].strip().lower()
    if kind == _STRUCTURED:
        return _read_structured(read_json(request.body))
    attributes = {
        name[3:].decode("latin-1"): unquote(value) for name, value in request.headers.items() if name.startswith(b"ce-")
    }
    if not attributes:
        raise RequestError(
            f"content-type: must be {_STRUCTURED}, or the headers ce-specversion, ce-id, ce-source and ce-type be set",
            field="content-type",
        )
    _check(attributes)
    if not attributes["type"].endswith(_RESPONSE):
        return Event(attributes, _read_time(attributes), {})
    return Event(attributes, _read_time(attributes), *read_payload(request.body, request.json_size))


def _read_structured(given: dict[str, Any]) -> Event:
    attributes = {name: value for name, value in given.items() if isinstance(value, str) and name != "data"}
    _check(attributes)
    if not attributes["type"].endswith(_RESPONSE):
        return Event(attributes, _read_time(attributes), {})
    data = given.get("data")
    if "data_base64" in given:
        try:
            data = base64.b64decode(given["data_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise RequestError("data_base64: is not base64", field="data_base64") from None
    elif isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError:
            raise RequestError("data: is not UTF-8", field="data") from None
    if isinstance(data, bytes):
        return Event(attributes, _read_time(attributes), *read_payload(data, None))
    if not isinstance(data, dict):
        raise RequestError("data: must be a JSON object", field="data")
    return Event(attributes, _read_time(attributes), data)


def _check(attributes: Mapping[str, str]) -> None:
    if attributes.get("specversion") not in _VERSIONS:
        raise RequestError(f"specversion: must be {' or '.join(_VERSIONS)}", field="specversion")
    for name, longest in (("id", _MAX_ID), ("source", _MAX_SOURCE), ("type", _MAX_NAME)):
        if not attributes.get(name):
            raise RequestError(f"{name}: is missing", field=name)
        check_text(name, attributes[name], longest)
    check_text("requestid", attributes.get("requestid", ""), _MAX_ID)
    if not attributes["type"].endswith((_REQUEST, _RESPONSE)):
        raise RequestError(
            f"type: must end with {_REQUEST} or {_RESPONSE}, not {attributes['type'][:100]!r}", field="type"
        )


def _read_time(attributes: Mapping[str, str]) -> int | None:
    text = attributes.get("time")
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise RequestError(f"time: must be a time with its zone (RFC 3339), not {text[:40]!r}", field="time")
    ms = int(moment.timestamp() * 1000.0)
    return ms if 0 < ms <= LATEST_MS else None
