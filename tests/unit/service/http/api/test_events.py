"""Events of inference loggers as they are on the wire, without a service."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from darksight_client.stubs.darksight.v1 import monitor_pb2
from darksight_service.control.tokens import ANYBODY
from darksight_service.errors import RequestError
from darksight_service.http.api.events import EventAnswer, read_event
from darksight_service.http.api.payloads import find_rows, read_payload
from darksight_service.http.problems import HttpError
from darksight_service.http.requests import HttpCall, Request
from darksight_service.metrics.catalogue import EVENT_RESULTS
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.settings import PassiveModel

from tests.support.events.wire import RESPONSES, read_wire

ROWS = np.array([[0.012847105, 0.913208485, 0.07394441], [0.027193543, 0.860314727, 0.11249173]], "<f4")
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MODELS = {
    "iris": PassiveModel(service="default/sklearn-iris"),
    "v2": PassiveModel(service="iris-v2", output="predict_proba"),
    "onnx": PassiveModel(service="iris-onnx"),
    "seldon": PassiveModel(service="classifier"),
}


def request_of(kind: str = "kserve_v1_response", body: bytes | None = None, model: str = "", **changed: str) -> Request:
    """An event as the endpoint gets it."""
    headers, found = read_wire(kind, **changed)
    named = {"model": model} if model else {}
    raw = {name.encode(): value for name, value in headers.items()}
    return Request(named, b"", found if body is None else body, raw)


class Score:
    """The operation Score, which keeps its messages."""

    def __init__(self, recorded: bool = True) -> None:
        self.messages: list[monitor_pb2.ScoreRequest] = []
        self.recorded = recorded

    def __call__(self, message: monitor_pb2.ScoreRequest, call: HttpCall) -> monitor_pb2.ScoreResponse:
        """The response to a message."""
        self.messages.append(message)
        return monitor_pb2.ScoreResponse(recorded=self.recorded)


def answer(folder: Path, request: Request, method: Score | None = None) -> monitor_pb2.ScoreRequest:
    """The message that an event becomes; the answer to it is 202 without a body."""
    method = method or Score()
    reply = EventAnswer(method, MODELS, lambda _: (), ProcessCounts(folder, 0))(request, HttpCall())
    assert (reply.status_code, reply.body) == (202, b"")
    (message,) = method.messages
    return message


@pytest.mark.parametrize(
    ("kind", "model", "request_id"),
    [
        ("kserve_v1_response", "iris", "36f9c4b5-c3bd-4ea3-9f0d-9c0d33b4e0b2"),
        ("kserve_v2_response", "v2", "a2f6f0f2-5f2c-4a3e-8f1b-0d9f0e6c2b11"),
        ("kserve_v2_binary_response", "onnx", "0c5b0d61-8d6a-4a4e-b1f5-5f7f6c2f5c10"),
        ("seldon_ndarray_response", "seldon", "33fb419e-8d6b-44e0-a084-8bd4bd4dbf7b"),
        ("seldon_tensor_response", "seldon", "33fb419e-8d6b-44e0-a084-8bd4bd4dbf7b"),
        ("structured_response", "iris", "36f9c4b5-c3bd-4ea3-9f0d-9c0d33b4e0b2"),
    ],
)
def test_every_kind_of_event_gives_its_predictions(tmp_path: Path, kind: str, model: str, request_id: str) -> None:
    """The model by its service, the probabilities by the output, ids by the id of the request, and the time."""
    message = answer(tmp_path, request_of(kind))

    assert message.model == model
    assert tuple(message.tensor.shape) == ROWS.shape
    assert message.tensor.data == ROWS.tobytes()
    assert list(message.prediction_ids) == [f"{request_id}-0", f"{request_id}-1"]
    assert message.event_time.ToJsonString().startswith("2026-11-17T")
    assert message.idempotency_key == read_event(request_of(kind)).key
    assert not message.is_logits


def test_all_kinds_have_a_test() -> None:
    """The files and the parameters above."""
    (mark,) = test_every_kind_of_event_gives_its_predictions.pytestmark  # type: ignore[attr-defined]
    assert sorted(kind for kind, *_ in mark.args[1]) == list(RESPONSES)


def test_a_path_names_the_model(tmp_path: Path) -> None:
    """Whatever the attributes say; the setting of that model applies."""
    assert answer(tmp_path, request_of(model="other")).model == "other"
    binary = request_of("kserve_v2_binary_response", model="v2")
    with pytest.raises(RequestError, match="predict_proba"):
        answer(tmp_path, binary)


def test_without_a_setting_the_service_is_the_model(tmp_path: Path) -> None:
    """A service of another namespace is not the one of the setting."""
    assert answer(tmp_path, request_of(ce_namespace="staging")).model == "sklearn-iris"


def test_a_model_with_a_setting_has_the_service_of_the_setting_alone(tmp_path: Path) -> None:
    """The service of another namespace that happens to have the name of the model is not it."""
    with pytest.raises(RequestError, match="iris") as refused:
        answer(tmp_path, request_of(ce_namespace="staging", ce_inferenceservicename="iris"))

    assert refused.value.details["field"] == "inferenceservicename"


def test_an_event_of_too_many_rows_is_refused(tmp_path: Path) -> None:
    """Before each row gets an id: a million of them would take hundreds of megabytes."""
    many = json.dumps({"data": {"tensor": {"shape": [65_537, 1], "values": [1] * 65_537}}}).encode()

    with pytest.raises(RequestError, match="65,537 rows"):
        answer(tmp_path, request_of(body=many))


def test_a_request_is_accepted_and_dropped(tmp_path: Path) -> None:
    """Even one that nothing could be read from: what is needed is in the response."""
    method, counts = Score(), ProcessCounts(tmp_path, 0)
    handle = EventAnswer(method, MODELS, lambda _: (), counts)
    headers = {"specversion": "1.0", "id": "a", "source": "b", "type": "org.kubeflow.serving.inference.request"}
    structured = request_of("structured_response", json.dumps(headers).encode())

    replies = [handle(request, HttpCall()) for request in (request_of("kserve_v1_request", b"\xff"), structured)]

    assert [reply.status_code for reply in replies] == [202, 202]
    assert method.messages == []
    assert counts.file.array[counts.file.offsets["events"] + EVENT_RESULTS.index("request")] == 2


def test_structured_data_may_be_text_or_base64(tmp_path: Path) -> None:
    """Structured mode has three ways to carry a payload, with tensors as bytes too."""
    _, body = read_wire("structured_response")
    envelope = json.loads(body)
    payload = envelope.pop("data")
    _, binary = read_wire("kserve_v2_binary_response")
    for more in (
        {"data": json.dumps(payload)},
        {"data_base64": base64.b64encode(json.dumps(payload).encode()).decode()},
        {"data_base64": base64.b64encode(binary).decode(), "inferenceservicename": "iris-onnx"},
    ):
        text = json.dumps({**envelope, **more}).encode()
        assert answer(tmp_path, request_of("structured_response", text)).tensor.data == ROWS.tobytes()


@pytest.mark.parametrize(
    ("changed", "body", "field"),
    [
        ({"ce_id": ""}, None, "id"),
        ({"ce_id": "x" * 191}, None, "id"),
        ({"ce_source": ""}, None, "source"),
        ({"ce_specversion": "2.0"}, None, "specversion"),
        ({"ce_type": "com.example.created"}, None, "type"),
        ({"ce_time": "yesterday"}, None, "time"),
        ({"ce_time": "2026-11-17T21:14:03"}, None, "time"),
        ({"ce_inferenceservicename": ""}, None, "inferenceservicename"),
        ({}, b"not JSON", "body"),
        ({}, b"[1]", "body"),
        ({}, b"{}", "data"),
        ({}, b'{"predictions": 1}', "predictions"),
        ({}, b'{"predictions": [1, 1]}', "data"),
        ({}, b'{"predictions": []}', "data"),
        ({}, b'{"predictions": [[0.1, 0.9], [1]]}', "predictions"),
        ({}, b'{"predictions": [{"a": [1.0], "b": [1.0]}]}', "predictions"),
        ({}, b'{"data": {}}', "data"),
        ({}, b'{"data": {"ndarray": [["a"]]}}', "data.ndarray"),
        ({}, b'{"data": {"tensor": {"shape": [3], "values": [1, 2]}}}', "data.tensor"),
        ({}, b'{"outputs": [1]}', "outputs"),
        ({}, b'{"outputs": []}', "outputs"),
        ({}, b'{"outputs": [{"name": "a", "datatype": "FP32", "shape": [2, 2], "data": [1]}]}', "outputs"),
        ({}, b'{"outputs": [{"name": "a", "datatype": "FP32", "shape": [0, 3], "data": []}]}', "outputs"),
        (
            {},
            b'{"outputs": [{"name": "a", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 9}}]}abc',
            "outputs",
        ),
        (
            {},
            b'{"outputs": [{"name": "a", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 3}}]}abc',
            "outputs",
        ),
    ],
)
def test_a_bad_event_names_the_field(tmp_path: Path, changed: dict[str, str], body: bytes | None, field: str) -> None:
    """And is counted."""
    counts = ProcessCounts(tmp_path, 0)
    with pytest.raises(RequestError) as raised:
        EventAnswer(Score(), MODELS, lambda _: (), counts)(request_of(body=body, **changed), HttpCall())

    assert raised.value.details["field"] == field
    assert raised.value.message.startswith((f"{field}: ", f"{field}["))
    assert counts.file.array[counts.file.offsets["events"] + EVENT_RESULTS.index("refused")] == 1


def test_what_is_not_an_event_is_refused() -> None:
    """A body without attributes, and structured events that are not objects."""
    with pytest.raises(RequestError, match=r"^content-type: must be application/cloudevents"):
        read_event(Request({}, b"", b"{}", {b"content-type": "application/json"}))
    for body in (b"[]", b'{"data": {}}'):
        with pytest.raises(RequestError):
            read_event(request_of("structured_response", body))
    envelope = json.loads(read_wire("structured_response")[1])
    for data in (None, 1, [1], "\ud800"):
        with pytest.raises(RequestError, match=r"^data: "):
            read_event(request_of("structured_response", json.dumps({**envelope, "data": data}).encode()))
    with pytest.raises(RequestError, match=r"^data_base64: "):
        read_event(request_of("structured_response", json.dumps({**envelope, "data_base64": "a"}).encode()))


def test_an_event_that_is_not_on_disk_is_to_be_sent_again(tmp_path: Path) -> None:
    """503, which brokers retry; nothing else tells the sender that the spool is full."""
    with pytest.raises(HttpError) as raised:
        answer(tmp_path, request_of(), Score(recorded=False))

    assert (raised.value.status, raised.value.error.details["retry_seconds"]) == (503, 1.0)


def test_deliveries_of_an_event_have_one_key() -> None:
    """Another id, source or time gives another one, of the length that a key may have."""
    changes: tuple[dict[str, str], ...] = (
        {},
        {"ce_id": "b"},
        {"ce_source": "http://b"},
        {"ce_time": "2026-11-17T21:14:04Z"},
    )
    keys = {read_event(request_of(**change)).key for change in changes * 2}

    assert len(keys) == len(changes)
    assert {len(key) for key in keys} == {64}


@pytest.mark.parametrize("output", ["", "probs"])
def test_v1_predictions_may_be_objects(output: str) -> None:
    """TensorFlow Serving gives an object per row if a model has several outputs."""
    rows = [
        {"probs": [0.1, 0.9]} | ({"class": 1} if output else {}),
        {"probs": [0.5, 0.5]} | ({"class": 0} if output else {}),
    ]

    assert find_rows({"predictions": rows}, b"", output).tolist() == np.array([[0.1, 0.9], [0.5, 0.5]], "<f4").tolist()


def test_a_plain_body_has_the_output_by_name() -> None:
    """As a service of one's own answers."""
    assert find_rows({"scores": [[1, 0]], "label": 0}, b"", "scores").tolist() == [[1.0, 0.0]]


def test_the_end_of_the_json_is_found() -> None:
    """With texts in UTF-8, braces in texts, spaces before it, and any bytes behind it; or by the header."""
    text = ' {"name": "größe }", "outputs": []}'.encode()
    for rest in (b"", b"\x00\xff}{", b'"}'):
        assert read_payload(text + rest, None) == (json.loads(text), rest)
        assert read_payload(text + rest, str(len(text))) == (json.loads(text), rest)


def test_tags_come_from_attributes_headers_and_the_response(tmp_path: Path) -> None:
    """KServe sends headers of the request as the attribute metadata; what is missing or no tag is left out."""
    sources = {
        "site": "namespace",
        "tenant": "metadata.X-Tenant",
        "team": "annotations.team",
        "camera": "data.parameters.camera",
        "lens": "data.parameters.deep.lens",
        "none": "data.parameters.none",
        "all": "data.parameters",
        "bad": "metadata.X-Bad",
    }
    body = {"predictions": ROWS.tolist(), "parameters": {"camera": 7, "deep": {"lens": "wide"}}}
    request = request_of(
        body=json.dumps(body).encode(),
        model="iris",
        ce_metadata="%7B%22X-Tenant%22:%5B%22acme%22%5D,%22X-Bad%22:%5B%22a%5Cnb%22%5D%7D",
        ce_annotations="not JSON",
    )
    method = Score()

    EventAnswer(method, {"iris": PassiveModel(tags=sources)}, lambda _: (), ProcessCounts(tmp_path, 0))(
        request, HttpCall()
    )

    (message,) = method.messages
    assert dict(message.tags) == {"site": "default", "tenant": "acme", "camera": "7", "lens": "wide"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"meta": 1},
        {"meta": []},
        {"meta": {"0": {"0": None}}},
        {"meta": [{"0": [1]}]},
        {"meta": [["a\nb"]]},
        {"meta": [["x" * 129]]},
        {"meta": [["\ud800"]]},
        {"meta": [[""]]},
    ],
)
def test_a_value_that_is_not_a_tag_is_left_out(tmp_path: Path, more: dict[str, Any]) -> None:
    """The event is scored without the tag."""
    method, sources = Score(), {"camera": "data.meta.0.0", "site": "namespace"}
    body = json.dumps({"predictions": ROWS.tolist()} | more).encode()

    EventAnswer(method, {"iris": PassiveModel(tags=sources)}, lambda _: (), ProcessCounts(tmp_path, 0))(
        request_of(body=body, model="iris"), HttpCall()
    )

    (message,) = method.messages
    assert dict(message.tags) == {"site": "default"}


@pytest.mark.parametrize(
    "changed",
    [
        {"ce_traceparent": TRACEPARENT},
        {"ce_metadata": "%7B%22Traceparent%22:%5B%22" + TRACEPARENT + "%22%5D%7D"},
        {"ce_traceparent": "nonsense", "traceparent": TRACEPARENT},
    ],
    ids=["attribute", "metadata", "delivery"],
)
def test_the_trace_is_that_of_the_prediction(tmp_path: Path, changed: dict[str, str]) -> None:
    """By the attribute, by the headers of KServe's logger, or by the delivery."""
    request = request_of(**{"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", **changed})
    call = HttpCall.of(ANYBODY, request)

    EventAnswer(Score(), MODELS, lambda _: (), ProcessCounts(tmp_path, 0))(request, call)

    assert call.traceparent == TRACEPARENT
