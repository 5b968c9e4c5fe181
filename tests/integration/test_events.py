"""Passive monitoring against a real service: one 202 for the sender, and every prediction once in SQL."""

from __future__ import annotations

import base64
import json
import math
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from darksight_client import Client, DarkSightClientError, InvalidRequest, Point, Reason, UnknownModel
from darksight_service.control.tokens import make_token

from darksight_core.bundle import write_bundle
from darksight_core.rows.tokens import ClassTokens
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle
from tests.support.events.sender import Logger, count_stored
from tests.support.events.wire import RESPONSES, read_wire
from tests.support.servers import Server, running_server, wait_until, waiting

CLASSES = 3
PASSIVE = {
    "iris": {"service": "sklearn-iris", "tags": {"site": "namespace"}},
    "v2": {"service": "iris-v2", "output": "predict_proba"},
    "onnx": {"service": "iris-onnx", "output": "probabilities"},
    "seldon": {"service": "seldon/iris-deployment"},
    "logits": {"logits": True, "output": "scores"},
    "other": {},
    "llm": {},
}
EVENTS = 400
TOKENS = [
    {"token": " Class 0", "logprob": -0.2},
    {"token": "class 2", "logprob": -2.5},
    {"token": "The", "logprob": -4.0},
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of three classes."""
    path = tmp_path_factory.mktemp("bundle") / "iris.safetensors"
    write_bundle(path, make_bundle(classes=CLASSES))
    return path


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A token file, and a token for all scopes."""
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    found, token = make_token("logger", ["score", "read"])
    path.write_text(token.line())
    path.chmod(0o600)
    return path, found


@pytest.fixture(scope="module")
def server(bundle: Path, secret: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of one worker that wants tokens."""
    variables = {"DARKSIGHT_TOKENS_FILE": str(secret[0]), "DARKSIGHT_PASSIVE": json.dumps(PASSIVE)}
    folder = tmp_path_factory.mktemp("passive")
    write_bundle(folder / "llm.safetensors", make_bundle(classes=CLASSES, top_k=(2,)))
    models = {**dict.fromkeys(PASSIVE, bundle), "llm": folder / "llm.safetensors"}
    with running_server(models, folder, "--workers", "1", "--api-port", "0", environment=variables) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: Server, secret: tuple[Path, str]) -> Iterator[httpx.Client]:
    """Connections with the token."""
    headers = {"authorization": f"Bearer {secret[1]}"}
    with httpx.Client(base_url=server.api_url, headers=headers, timeout=60.0) as client:
        yield client


@pytest.fixture(scope="module")
def client(server: Server, secret: tuple[Path, str]) -> Iterator[Client]:
    """The same service over gRPC."""
    with Client(server.grpc_target, token=secret[1], timeout_seconds=60.0) as client:
        yield client


def points_of(client: Client, model: str, prefix: str) -> dict[str, Point]:
    """Stored points whose prediction ids start with this."""
    return {each.prediction_id: each for each in client.points(model) if each.prediction_id.startswith(prefix)}


@pytest.mark.parametrize("kind", RESPONSES)
def test_events_are_scored_as_by_score(http: httpx.Client, client: Client, kind: str) -> None:
    """Each kind, delivered twice: 202 without a body, and in SQL the numbers of Score, once."""
    headers, body = read_wire(kind)
    model = {"kserve_v2_response": "v2", "kserve_v2_binary_response": "onnx"}.get(kind, "iris")
    model = "seldon" if kind.startswith("seldon") else model
    name = f"{kind}-{time.time_ns()}"
    if kind == "structured_response":
        body = json.dumps({**json.loads(body), "id": name}).encode()
    else:
        headers |= {"ce-id": name} | ({"ce-requestid": name} if "ce-requestid" in headers else {})

    replies = [http.post("/v1/events", content=body, headers=headers) for _ in range(2)]
    wait_until(lambda: len(points_of(client, model, name)) == 2, what="the points")
    found = points_of(client, model, name)

    assert [(reply.status_code, reply.content) for reply in replies] == [(202, b""), (202, b"")]
    rows = np.array([[0.012847105, 0.913208485, 0.07394441], [0.027193543, 0.860314727, 0.11249173]], np.float32)
    scored = client.score(model, rows)
    for row in range(2):
        point = found[f"{name}-{row}"]
        assert (point.p_value, point.log_density) == pytest.approx(
            (scored.p_value[row], scored.log_density[row]), rel=1e-6
        )
        assert (point.decision, point.reason) == (scored.decision[row], scored.reason[row])
        assert point.event_time is not None
        assert point.tags == ({"site": "default"} if model == "iris" else {})


def send(door: str, http: httpx.Client, client: Client, model: str, key: str, *, probe: bool = False) -> None:
    """A call with an idempotency key, by one of the ways to the service."""
    rows = make_probs(2, CLASSES, seed=5)
    headers = {"ce-specversion": "1.0", "ce-id": key, "ce-source": "test", "ce-type": "a.inference.response"}
    headers |= {"ce-probe": "true"} if probe else {}
    match door:
        case "grpc":
            client.score(model, rows, batch_id=uuid.uuid5(uuid.NAMESPACE_URL, key), probe=probe)
        case "grpc text":
            client.score(model, rows, batch_id=key, probe=probe)
        case "http":
            body = {"rows": rows.tolist(), "idempotency_key": key, "probe": probe}
            http.post(f"/v1/models/{model}/score", json=body).raise_for_status()
        case "inference protocol":
            tensor = {"name": "probs", "datatype": "FP32", "shape": rows.shape, "data": rows.ravel().tolist()}
            body = {"inputs": [tensor], "parameters": {"idempotency_key": key, "probe": probe}}
            http.post(f"/v2/models/{model}/infer", json=body).raise_for_status()
        case "events":
            body = {"predictions": rows.tolist()}
            http.post(f"/v1/models/{model}/events", json=body, headers=headers).raise_for_status()


@pytest.mark.parametrize("door", ["grpc", "grpc text", "http", "inference protocol", "events"])
def test_a_key_is_stored_once_and_of_no_other_model(
    server: Server, http: httpx.Client, client: Client, door: str
) -> None:
    """What was stored of another model under the same key does not make the call a repetition."""
    key, names = f"{door}-{time.time_ns()}", ("other", "iris")
    wait_until(lambda: not waiting(server.data_dir), what="the points of other tests")
    before = {name: sum(1 for _ in client.points(name)) for name in names}

    for name in (*names, *names):
        send(door, http, client, name, key)
    wait_until(lambda: not waiting(server.data_dir), what="the spools to be empty")

    assert {name: sum(1 for _ in client.points(name)) - before[name] for name in names} == dict.fromkeys(names, 2)
    with pytest.raises(InvalidRequest, match="64 characters"):
        client.score("iris", make_probs(1, CLASSES), batch_id="x" * 65)


@pytest.mark.parametrize("door", ["grpc", "http", "inference protocol", "events"])
def test_a_probe_is_scored_and_leaves_nothing(server: Server, http: httpx.Client, client: Client, door: str) -> None:
    """Neither a stored point nor a count: ten equal rows of a health check are no drift."""
    wait_until(lambda: not waiting(server.data_dir), what="the points of other tests")

    def counts() -> list[str]:
        lines = httpx.get(f"{server.http_url}/metrics").text.splitlines()
        return [line for line in lines if line.startswith(("darksight_decisions_total", "darksight_pvalue_bin_total"))]

    before = sum(1 for _ in client.points("other")), counts()
    for _ in range(10):
        send(door, http, client, "other", f"{door}-{time.time_ns()}", probe=True)

    assert not waiting(server.data_dir)
    assert (sum(1 for _ in client.points("other")), counts()) == before
    assert not client.score("other", make_probs(1, CLASSES), probe=True).recorded


def send_top(
    door: str, http: httpx.Client, client: Client, key: str, positions: list[Any], *, model: str = "llm"
) -> httpx.Response:
    """Rows of the likeliest tokens, by one of the ways to the service; the response has the status of HTTP."""
    rows = ClassTokens([f"class {number}" for number in range(CLASSES)]).rows(positions)
    match door:
        case "grpc" | "stream":
            try:
                found = (
                    client.score(model, rows, batch_id=key)
                    if door == "grpc"
                    else next(iter(client.stream(model, [rows])))
                )
            except DarkSightClientError as error:
                names = {InvalidRequest: 400, UnknownModel: 404}
                return httpx.Response(
                    names[type(error)], json={"detail": str(error), "row": getattr(error, "row", None)}
                )
            return httpx.Response(200, json={"p_value": found.p_value.tolist(), "recorded": found.recorded})
        case "http":
            top = [
                {"class_names": [f"class {number}" for number in classes if number >= 0], "other": other,
                 "log_probabilities": logs[np.isfinite(logs)].tolist()}
                for classes, logs, other in zip(rows.classes, rows.log_probabilities, rows.other, strict=True)
            ]  # fmt: skip
            body = {"top": top, "resolution": f"top{rows.resolution}", "idempotency_key": key}
            return http.post(f"/v1/models/{model}/score", json=body)
        case _:
            headers = {"ce-specversion": "1.0", "ce-id": key, "ce-source": "test", "ce-type": "a.inference.response"}
            content = {"choices": [{"logprobs": {"content": [{"top_logprobs": position} for position in positions]}}]}
            return http.post(f"/v1/models/{model}/events", json=content, headers=headers)


@pytest.mark.parametrize("door", ["grpc", "stream", "http", "events"])
def test_rows_of_the_likeliest_tokens(server: Server, http: httpx.Client, client: Client, door: str) -> None:
    """Scored alike by every way, stored once under a key with what came and what was completed; errors name the row."""
    key = f"{door}-{time.time_ns()}"
    wait_until(lambda: not waiting(server.data_dir), what="the points of other tests")
    before = sum(1 for _ in client.points("llm"))

    replies = [send_top(door, http, client, key, [TOKENS]) for _ in range(2)]
    wait_until(lambda: not waiting(server.data_dir), what="the spools to be empty")
    points = list(client.points("llm"))
    unknown = send_top(door, http, client, key, [TOKENS], model="unknown")
    coarse = send_top(door, http, client, key, [TOKENS], model="iris")
    positive = send_top(
        door, http, client, f"{key}-bad", [[{**TOKENS[0], "logprob": -0.01}, {**TOKENS[1], "logprob": -0.01}]]
    )

    assert {reply.status_code for reply in replies} == {202 if door == "events" else 200}
    # A stream has no key.
    assert len(points) - before == (2 if door == "stream" else 1)
    expected = client.score(
        "llm", ClassTokens([f"class {number}" for number in range(CLASSES)]).rows([TOKENS]), probe=True
    )
    assert points[0].p_value == pytest.approx(expected.p_value[0], rel=1e-6)
    assert (points[0].known, points[0].other) == pytest.approx((2, math.exp(-4.0)), rel=1e-3)
    assert sum(points[0].probabilities) == pytest.approx(1.0, abs=2e-3)
    assert unknown.status_code == 404
    assert coarse.status_code == 400
    assert "top3" in coarse.text
    if door == "events":
        # An answer that is no row of the classes is a point all the same.
        assert positive.status_code == 202
        wait_until(lambda: any(each.reason == Reason.INVALID for each in client.points("llm")), what="the point")
    else:
        assert positive.status_code == 400
        assert "row 0" in positive.text


def test_logits_of_a_plain_body(http: httpx.Client, client: Client) -> None:
    """To the path of a model, by the name of the output."""
    rows, name = make_probs(4, CLASSES, seed=3), f"plain-{time.time_ns()}"
    event = {
        "specversion": "1.0", "id": name, "source": "app", "type": "com.example.inference.response",
        "data": {"scores": np.log(rows).tolist(), "label": 1},
    }  # fmt: skip

    reply = http.post("/v1/models/logits/events", json=event, headers={"content-type": "application/cloudevents+json"})

    assert reply.status_code == 202
    wait_until(lambda: len(points_of(client, "logits", name)) == 4, what="the points")
    scored = client.score("logits", np.log(rows), logits=True)
    found = points_of(client, "logits", name)
    assert [found[f"{name}-{row}"].p_value for row in range(4)] == pytest.approx(scored.p_value.tolist(), rel=1e-6)


def test_requests_are_dropped_and_bad_events_are_problems(http: httpx.Client, server: Server) -> None:
    """All of them counted; the log says what was wrong."""
    before = {result: _counted(server, result) for result in ("request", "refused")}
    headers, body = read_wire("kserve_v1_request")
    assert http.post("/v1/events", content=body, headers=headers).status_code == 202

    headers, _ = read_wire("kserve_v1_response")
    bad = {
        "predictions": b'{"predictions": [[0.5, 0.1, 0.1]]}',
        "outputs": b'{"outputs": []}',
        "body": b"\x00",
    }
    for field, content in bad.items():
        problem = http.post("/v1/events", content=content, headers=headers).json()
        assert (problem["status"], problem["field"]) == (400, field)
    unknown = http.post("/v1/models/unknown/events", content=bad["predictions"], headers=headers)
    assert unknown.status_code == 404

    wait_until(lambda: _counted(server, "refused") == before["refused"] + 4, what="the counters")
    assert _counted(server, "request") == before["request"] + 1
    assert len(server.events("event_refused")) >= 4


def _counted(server: Server, result: str) -> float:
    lines = server.get("/metrics")[1].splitlines()
    prefix = f'darksight_events_total{{result="{result}"}} '
    return next(float(line.removeprefix(prefix)) for line in lines if line.startswith(prefix))


def test_a_logger_without_headers_has_its_token_in_the_url(server: Server, secret: tuple[Path, str]) -> None:
    """As the password; a client makes Basic authentication of it, which other paths do not take."""
    headers, body = read_wire("kserve_v1_request")
    basic = base64.b64encode(f"logger:{secret[1]}".encode()).decode()
    wrong = base64.b64encode(b"logger:ds_wrong").decode()

    def post(path: str, authorization: str) -> int:
        return httpx.post(
            server.api_url + path, content=body, headers={**headers, "authorization": authorization}
        ).status_code

    assert post("/v1/events", f"Basic {basic}") == 202
    assert post("/v1/models/iris/events", f"basic {basic}") == 202
    assert [post("/v1/events", text) for text in (f"Basic {wrong}", "Basic", "Basic !", "")] == [401] * 4
    assert post("/v1/models/iris/score", f"Basic {basic}") == 401


def test_nothing_is_lost_or_doubled_when_processes_are_killed(bundle: Path, tmp_path: Path) -> None:
    """kill -9 of worker and storage worker while events arrive."""
    rows = make_probs(64, CLASSES, seed=4)
    with running_server({"iris": bundle}, tmp_path, "--workers", "2", "--api-port", "0") as server:
        logger = Logger(f"{server.api_url}/v1/events", rows, "iris")
        sending = threading.Thread(target=logger.send, args=(range(EVENTS),))
        sending.start()
        for share, child in ((0.2, "worker-0"), (0.5, "storage"), (0.7, "worker-1")):
            wait_until(lambda share=share: logger.delivered.statuses[202] > share * EVENTS, what="deliveries")
            os.kill(server.children()[child], signal.SIGKILL)
        sending.join()
        wait_until(lambda: not waiting(tmp_path), what="the spools to be empty")

        stored = count_stored(tmp_path / "darksight.db")

    assert stored == {f"event-{number}-0": 1 for number in range(EVENTS)}
    assert logger.delivered.statuses[202] > EVENTS
