"""Every attack of docs/security.md on a message or a connection, through every door that it fits: gRPC, HTTP with JSON,
HTTP with binary tensors, events, and the explorer. They share one service, which must answer others meanwhile.
"""

from __future__ import annotations

import gzip
import http.client
import json
import re
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from darksight_client import Client
from darksight_client.stubs.darksight.v1 import admin_pb2, monitor_pb2
from darksight_client.stubs.inference import grpc_predict_v2_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.test_service import K
from tests.support.builders import make_probs
from tests.support.servers import Server

MB = 1 << 20
MANY = 1_390_000  # empty values in four megabytes of JSON
MONITOR, ADMIN, INFER = "/darksight.v1.MonitorService", "/darksight.v1.AdminService", "/inference.GRPCInferenceService"
# HTTP statuses of what gRPC says.
STATUSES = {"INVALID_ARGUMENT": 400, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "RESOURCE_EXHAUSTED": 413}
TEXTS = ["a" * MB, *["b"] * 400]
HUGE = [1 << 40, 1 << 20]
# A process that has just started has less than it will have at rest.
LEAST_REST = 200 * MB


class Doors:
    """The doors of a service, for the holder of each token."""

    def __init__(self, server: Server, tokens: dict[str, str]) -> None:
        self.server, self.tokens = server, tokens
        self.cookie = self.csrf = ""

    def grpc(self, method: str, data: bytes, *more: tuple[str, str], token: str = "gateway", **options: Any) -> int:
        """Call a method with the bytes of a message."""
        unlimited = [("grpc.max_send_message_length", -1)]
        metadata = (("authorization", f"Bearer {self.tokens[token]}"), *more)
        with grpc.insecure_channel(self.server.grpc_target, options=unlimited) as channel:
            try:
                channel.unary_unary(method)(data, timeout=60, metadata=metadata, **options)
            except grpc.RpcError as error:
                return STATUSES[error.code().name]
        return 200

    def api(self, path: str, body: bytes | str, *headers: tuple[str, str], method: str = "POST") -> int:
        """Call a path of the HTTP API."""
        given = (("authorization", f"Bearer {self.tokens['gateway']}"), *headers)
        return send(self.server.api_url, method, path, body, given)[0]

    def event(self, body: bytes | str, *headers: tuple[str, str]) -> int:
        """Send an event of a model."""
        about = {"specversion": "1.0", "id": "7", "source": "s", "type": "org.kubeflow.serving.inference.response"}
        named = {name for name, _ in headers}
        given = ((f"ce-{name}", value) for name, value in about.items() if f"ce-{name}" not in named)
        return self.api("/v1/models/digits/events", body, *given, *headers)

    def page(self, path: str, body: bytes | str, *headers: tuple[str, str], method: str = "POST") -> int:
        """Call a path of the explorer, with a session."""
        origin = ("origin", self.server.explorer_url)
        if not self.csrf:
            login = json.dumps({"token": self.tokens["operator"]})
            found = send(self.server.explorer_url, "POST", "/api/login", login, [origin])
            self.cookie = found[1]["set-cookie"].partition(";")[0]
            session = send(self.server.explorer_url, "GET", "/api/session", "", [("cookie", self.cookie)])
            self.csrf = json.loads(session[2])["csrf"]
        given = (origin, ("cookie", self.cookie), ("x-csrf-token", self.csrf), *headers)
        return send(self.server.explorer_url, method, path, body, given)[0]


def send(url: str, method: str, path: str, body: bytes | str, headers: Any) -> tuple[int, Any, bytes]:
    """Status, headers and body of a response; a body may be left unread by the server."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.putrequest(method, path)
        data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
        for name, value in (*headers, ("content-length", str(len(data)))):
            connection.putheader(name, value)
        connection.endheaders()
        with suppress(OSError):
            connection.send(data)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def field(kind: type, name: str, data: bytes) -> bytes:
    """The bytes of a field that holds bytes, text or a message."""
    length, parts = len(data), bytearray()
    while length > 127:
        parts.append(length & 127 | 128)
        length >>= 7
    return bytes([kind.DESCRIPTOR.fields_by_name[name].number << 3 | 2]) + bytes((*parts, length)) + data


Score, Outcomes, List = monitor_pb2.ScoreRequest, monitor_pb2.ReportOutcomesRequest, monitor_pb2.ListPointsRequest
Infer = grpc_predict_v2_pb2.ModelInferRequest
MODEL = field(Score, "model", b"digits")
TENSOR = field(Score, "tensor", monitor_pb2.Tensor(shape=[1, K], data=bytes(4 * K)).SerializeToString())
ROW = json.dumps([1.0 / K] * K)
SCORE, OUTCOMES, INFERENCE = "/v1/models/digits/score", "/v1/models/digits/outcomes", "/v2/models/digits/infer"
REGION = {"polygon": [{"x": x, "y": y} for x, y in ((0, 0), (1, 0), (1, 1))]}


def tensor(shape: list[int], **rest: Any) -> str:
    """An inference request."""
    return json.dumps({"inputs": [{"name": "probs", "datatype": "FP32", "shape": shape, **rest}]})


def many(before: str, item: str, after: str, count: int = MANY) -> str:
    """A list of equal items within JSON."""
    return f"{before}[{','.join([item] * count)}]{after}"


def binary(doors: Doors, text: str, rest: bytes) -> int:
    """An inference request with bytes behind its JSON."""
    return doors.api(INFERENCE, text.encode() + rest, ("inference-header-content-length", str(len(text))))


Attack = Callable[[Doors], int]
ATTACKS: dict[str, tuple[set[int], dict[str, Attack]]] = {
    "many empty rows": (
        {400},
        {
            "gRPC": lambda doors: doors.grpc(f"{MONITOR}/Score", MODEL + field(Score, "rows", b"\x0a\x00" * MANY)),
            "JSON": lambda doors: doors.api(SCORE, many('{"rows":', "[]", "}")),
            "infer": lambda doors: doors.api(INFERENCE, many('{"inputs":[{"shape":[1],"data":', "[]", "}]}")),
            "event": lambda doors: doors.event(many('{"predictions":', "[]", "}")),
        },
    ),
    "many empty ids": (
        {400},
        {
            "gRPC": lambda doors: doors.grpc(
                f"{MONITOR}/Score", MODEL + TENSOR + field(Score, "prediction_ids", b"") * 2_000_000
            ),
            "JSON": lambda doors: doors.api(SCORE, many(f'{{"rows":[{ROW}],"prediction_ids":', '""', "}")),
        },
    ),
    "many numbers of a shape": (
        {400},
        {
            "gRPC": lambda doors: doors.grpc(
                f"{MONITOR}/Score", MODEL + field(Score, "tensor", b"\x08\x01" * 2_000_000)
            ),
            "JSON": lambda doors: doors.api(SCORE, many('{"tensor":{"shape":', "1", "}}", 2_000_000)),
            "infer": lambda doors: doors.api(INFERENCE, many('{"inputs":[{"shape":', "1", "}]}", 2_000_000)),
            "event": lambda doors: doors.event(many('{"outputs":[{"shape":', "1", "}]}", 2_000_000)),
        },
    ),
    "many empty outcomes": (
        {400, 413},
        {
            "gRPC": lambda doors: doors.grpc(
                f"{MONITOR}/ReportOutcomes", MODEL + field(Outcomes, "outcomes", b"") * 2_000_000
            ),
            "JSON": lambda doors: doors.api(OUTCOMES, many('{"outcomes":', "{}", "}")),
            "explorer": lambda doors: doors.page(OUTCOMES, many('{"outcomes":', "{}", "}", 340_000)),
        },
    ),
    "many filters, outputs or tensors": (
        {400},
        {
            "ListPoints": lambda doors: doors.grpc(
                f"{MONITOR}/ListPoints", MODEL + field(List, "predicted", b"\x01" * 2_000_000), token="reader"
            ),
            "gRPC outputs": lambda doors: doors.grpc(f"{INFER}/ModelInfer", field(Infer, "outputs", b"") * 2_000_000),
            "gRPC contents": lambda doors: doors.grpc(
                f"{INFER}/ModelInfer", field(Infer, "raw_input_contents", b"") * 2_000_000
            ),
            "infer": lambda doors: doors.api(INFERENCE, many('{"outputs":', "{}", "}")),
            "event": lambda doors: doors.event(many('{"outputs":', "{}", "}")),
        },
    ),
    "texts in place of numbers": (
        {400},
        {
            "JSON": lambda doors: doors.api(SCORE, json.dumps({"rows": [TEXTS]})),
            "infer": lambda doors: doors.api(INFERENCE, tensor([1, 401], data=TEXTS)),
            "event": lambda doors: doors.event(json.dumps({"predictions": [TEXTS]})),
        },
    ),
    "a shape that memory does not hold": (
        {400},
        {
            "gRPC": lambda doors: doors.grpc(
                f"{MONITOR}/Score",
                MODEL + field(Score, "tensor", monitor_pb2.Tensor(shape=HUGE, data=b"1234").SerializeToString()),
            ),
            "JSON": lambda doors: doors.api(
                SCORE, json.dumps({"tensor": {"shape": [str(each) for each in HUGE], "data": "MTIzNA=="}})
            ),
            "infer": lambda doors: doors.api(INFERENCE, tensor(HUGE, data=[0.5])),
            "binary": lambda doors: binary(doors, tensor(HUGE, parameters={"binary_data_size": 4}), b"1234"),
            "event": lambda doors: doors.event(
                json.dumps({"outputs": [{"name": "p", "datatype": "FP32", "shape": HUGE, "data": [0.5]}]})
            ),
        },
    ),
    "more bytes of a tensor than there are": (
        {400},
        {"binary": lambda doors: binary(doors, tensor([1, K], parameters={"binary_data_size": 1 << 60}), b"1234")},
    ),
    "lists in lists without end": (
        {400},
        {
            "JSON": lambda doors: doors.api(SCORE, '{"rows":' + "[" * MB),
            "infer": lambda doors: doors.api(INFERENCE, '{"inputs":' + "[" * MB),
            "event": lambda doors: doors.event('{"predictions":' + "[" * MB),
            "explorer": lambda doors: doors.page(OUTCOMES, '{"outcomes":' + "[" * (MB // 2)),
        },
    ),
    "a NUL in a text": (
        {400},
        {
            **{
                f"gRPC {method}": lambda doors, method=method, message=message: doors.grpc(
                    f"{ADMIN}/{method}", message.SerializeToString(), token="operator"
                )
                for method, message in {
                    "SaveRegion": admin_pb2.SaveRegionRequest(model="digits", name="a\0b"),
                    "DeployBundle": admin_pb2.DeployBundleRequest(model="digits", path="a\0b"),
                    "GetModel": admin_pb2.GetModelRequest(model="a\0b"),
                    "ActivateVersion": admin_pb2.ActivateVersionRequest(model="digits", version="\0" * 64),
                }.items()
            },
            "JSON": lambda doors: doors.api(SCORE, f'{{"rows":[{ROW}],"prediction_ids":["a\\u0000"]}}'),
            "event": lambda doors: doors.event(f'{{"predictions":[{ROW}]}}', ("ce-id", "a%00b")),
            "explorer": lambda doors: doors.page("/v1/models/digits/regions", json.dumps({**REGION, "name": "a\0b"})),
        },
    ),
    "half a character": (
        {400},
        {
            "JSON": lambda doors: doors.api(SCORE, f'{{"rows":[{ROW}],"prediction_ids":["\\ud800"]}}'),
            "event": lambda doors: doors.event(
                json.dumps({"specversion": "1.0", "source": "s", "id": "\ud800", "type": "a.inference.response"}),
                ("content-type", "application/cloudevents+json"),
            ),
            "explorer name": lambda doors: doors.page(
                "/v1/models/digits/regions", json.dumps({**REGION, "name": "a\ud800"})
            ),
            "explorer comment": lambda doors: doors.page(
                "/v1/models/digits/regions", json.dumps({**REGION, "name": "short", "comment": "\ud800"})
            ),
        },
    ),
    "a body above the limit": (
        {413},
        {
            "gRPC": lambda doors: doors.grpc(f"{MONITOR}/Score", bytes(5 * MB)),
            "JSON": lambda doors: doors.api(SCORE, bytes(5 * MB)),
            "binary": lambda doors: binary(doors, tensor([1, K]), bytes(5 * MB)),
            "event": lambda doors: doors.event(bytes(5 * MB)),
            "explorer": lambda doors: doors.page(OUTCOMES, bytes(2 * MB)),
        },
    ),
    "a body where there is none": (
        {413},
        {
            "JSON": lambda doors: doors.api("/v2/health/live", bytes(1000), method="GET"),
            "explorer": lambda doors: doors.page("/login", bytes(1000), method="GET"),
            "explorer login": lambda doors: doors.page("/api/login", bytes(100_000)),
        },
    ),
    "a small body that unpacks to a large one": (
        {413, 415},
        {
            "gRPC": lambda doors: doors.grpc(f"{MONITOR}/Score", bytes(60 * MB), compression=grpc.Compression.Gzip),
            "JSON": lambda doors: doors.api(SCORE, gzip.compress(bytes(60 * MB)), ("content-encoding", "gzip")),
            "event": lambda doors: doors.event(gzip.compress(bytes(60 * MB)), ("content-encoding", "gzip")),
            "explorer": lambda doors: doors.page(OUTCOMES, gzip.compress(bytes(60 * MB)), ("content-encoding", "gzip")),
        },
    ),
    "two authorizations": (
        {400, 401},
        {
            "gRPC": lambda doors: doors.grpc(f"{MONITOR}/Score", b"", ("authorization", "Bearer other")),
            "JSON": lambda doors: doors.api(SCORE, "{}", ("authorization", "Bearer other")),
            "event": lambda doors: doors.event("{}", ("authorization", "Bearer other")),
            "explorer": lambda doors: doors.page(
                OUTCOMES, "{}", ("authorization", "Bearer a"), ("authorization", "Bearer b")
            ),
        },
    ),
    "two lengths": (
        {400},
        {
            "JSON": lambda doors: doors.api(SCORE, "0\r\n\r\n", ("transfer-encoding", "chunked")),
            "event": lambda doors: doors.event("0\r\n\r\n", ("transfer-encoding", "chunked")),
            "explorer": lambda doors: doors.page(OUTCOMES, "0\r\n\r\n", ("transfer-encoding", "chunked")),
        },
    ),
}
"""Statuses that an attack may get, and what it is at each door."""


@pytest.fixture(scope="module")
def doors(attacked: Server, tokens: tuple[dict[str, str], str]) -> Doors:
    """The doors of the service."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2000), hard), hard))
    return Doors(attacked, tokens[0])


@pytest.fixture
def bounded(doors: Doors) -> Iterator[None]:
    """No process takes twice its rest meanwhile, and afterwards all doors answer others."""
    processes = {name: Path(f"/proc/{doors.server.children()[name]}") for name in ("worker-0", "explorer")}
    rest = {}
    for name, process in processes.items():
        (process / "clear_refs").write_text("5")
        rest[name] = max(highest_memory(process), LEAST_REST)
    yield
    with Client(doors.server.grpc_target, token=doors.tokens["gateway"], timeout_seconds=60.0) as client:
        assert client.score("digits", make_probs(1, K)).recorded
    assert doors.api(SCORE, f'{{"rows":[{ROW}]}}') == 200
    assert send(doors.server.explorer_url, "GET", "/login", "", [])[0] == 200
    assert {
        name: highest_memory(each) // MB for name, each in processes.items() if highest_memory(each) > 2 * rest[name]
    } == {}


def highest_memory(process: Path) -> int:
    """The most resident bytes since it was reset."""
    lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return 1024 * int(lines["VmHWM"].split()[0])


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("attack", "door"), [(attack, door) for attack, (_, found) in ATTACKS.items() for door in found]
)
def test_a_message_is_refused(doors: Doors, attack: str, door: str) -> None:
    """Before it takes memory or time."""
    expected, found = ATTACKS[attack]

    assert found[door](doors) in expected


def hold(doors: Doors, url: str, data: bytes, count: int) -> ExitStack:
    """Open connections, send the same on each, and read nothing."""
    address, held = urlsplit(url), ExitStack()
    for _ in range(count):
        with suppress(OSError):
            made = held.enter_context(socket.create_connection((address.hostname, address.port), timeout=5))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.sendall(data)
    return held


UNFINISHED = f"content-length: {4 * MB - 1000}\r\n\r\n".encode() + bytes(2 * MB)
HELD: dict[str, tuple[str, Callable[[Doors], bytes], int]] = {
    "requests of which half is sent": ("", lambda doors: b"GET /login HTTP/1.1\r\nhost: local", 300),
    "responses that nobody reads": ("", lambda doors: b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n" * 150, 300),
    "bodies without an end, on an open path": ("", lambda doors: b"POST %s HTTP/1.1\r\nhost: h\r\n" + UNFINISHED, 200),
    "bodies without an end, with a token": (
        "api",
        lambda doors: (
            f"POST {SCORE} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {doors.tokens['gateway']}\r\n".encode()
            + UNFINISHED
        ),
        200,
    ),
}
LARGEST = {"api": b"/openapi.json", "explorer": b"/vendor/plotly.min.js", "health": b"/metrics"}


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("attack", "door"),
    [(attack, door) for attack, (only, *_) in HELD.items() for door in LARGEST if only in ("", door)],
)
def test_connections_keep_nobody_out(doors: Doors, attack: str, door: str) -> None:
    """More of them than a server has; others are answered while they are held."""
    url = {"api": doors.server.api_url, "explorer": doors.server.explorer_url, "health": doors.server.http_url}[door]
    _, make, count = HELD[attack]
    with hold(doors, url, make(doors).replace(b"%s", LARGEST[door]), count):
        statuses = [send(url, "GET", path, "", [])[0] for path in ("/login", "/v2/health/live") * 5]

    assert sorted(set(statuses)) == [200, 404]


@pytest.mark.parametrize("model", ["digits", "none"])
def test_strangers_do_not_learn_which_models_there_are(doors: Doors, model: str) -> None:
    """The same for one that exists and for one that does not."""
    with grpc.insecure_channel(doors.server.grpc_target) as channel:
        asked = health_pb2.HealthCheckRequest(service=model)
        with pytest.raises(grpc.RpcError) as unknown:
            health_pb2_grpc.HealthStub(channel).Check(asked, timeout=60)
        ready = grpc_predict_v2_pb2.ModelReadyRequest(name=model).SerializeToString()
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(f"{INFER}/ModelReady")(ready, timeout=60)

    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert send(doors.server.api_url, "GET", f"/v2/models/{model}/ready", "", [])[0] == 401


def test_the_suite_has_all_doors() -> None:
    """Each attack names the doors that it fits."""
    doors = {re.sub(" .*", "", door) for _, found in ATTACKS.values() for door in found}

    assert doors == {"gRPC", "ListPoints", "JSON", "infer", "binary", "event", "explorer"}
