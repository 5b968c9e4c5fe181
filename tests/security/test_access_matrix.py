"""Who may call what: every method and path of gRPC, the HTTP API and the explorer, with every scope and model.

The table of operations says what is meant. The tests walk what the server has, so a method or a path that is not in the
table fails.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from darksight_client import Client, PermissionDenied
from darksight_client.stubs.darksight.v1 import admin_pb2, monitor_pb2
from darksight_client.stubs.inference import grpc_predict_v2_pb2
from darksight_service.control.tokens import SCOPES, make_token
from darksight_service.http.api.app import make_api
from darksight_service.http.api.events import EVENT_ROUTES
from darksight_service.http.explorer.app import make_app as make_explorer
from darksight_service.http.explorer.operations import PAGE_OPERATIONS
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.operations.callers import Callers
from darksight_service.operations.operation import Operation, Service
from darksight_service.operations.table import OPERATIONS
from darksight_service.processes.explorer import _sources
from darksight_service.settings import Settings
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from starlette.routing import Route

from tests.integration.test_service import K, gated_bundle
from tests.support.builders import make_probs
from tests.support.servers import Server, running_server, wait_until

OPEN = "open"
MINE, OTHER, UNKNOWN = "digits", "letters", "nothing"
"""The model of the restricted tokens, another one, and one that does not exist."""

STANDARD = {"Check": OPEN, "Watch": OPEN, "ServerReflectionInfo": "read"}
"""The scope that each method of a standard service needs."""

NOT_SERVED = {"/grpc.health.v1.Health/List"}
"""Methods of standard services that the server does not have."""

EVENT = {
    "specversion": "1.0",
    "id": "a",
    "source": "b",
    "type": "org.kubeflow.serving.inference.response",
    "data": {"predictions": make_probs(1, K).tolist()},
}
"""An event with predictions."""

PAGES = {"/", "/openapi.json", "/docs", "/docs/try.js", "/docs/try.css"}
"""Paths of the HTTP API that are open and belong to no method."""

EXPLORER: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("GET", "/api/models"): ("read", {}),
    ("GET", "/api/map"): ("read", {}),
    ("GET", "/api/map/reference"): ("read", {}),
    ("GET", "/api/map/density"): ("read", {}),
    ("GET", "/api/map/points"): ("read", {}),
    ("GET", "/api/map/point"): ("read", {"id": "0" * 32}),
    ("GET", "/api/gate"): ("read", {}),
    ("GET", "/api/gate/certificate"): ("read", {}),
    ("GET", "/api/gate/dry-run"): ("read", {}),
    ("GET", "/api/gate/history"): ("read", {}),
    ("POST", "/api/gate/policy"): ("admin", {"comment": "c", "alpha": 0.05}),
    ("GET", "/api/drift"): ("read", {}),
    ("GET", "/api/drift/segments"): ("read", {}),
    ("GET", "/api/review"): ("read", {}),
    ("GET", "/api/review/learned-score"): ("read", {}),
    ("GET", "/api/points"): ("read", {}),
    ("GET", "/api/points/find"): ("read", {"name": "n"}),
    ("GET", "/api/points.csv"): ("read", {}),
    ("GET", "/api/reference"): ("read", {"id": "0" * 32}),
    ("GET", "/api/reference/about"): ("read", {"id": "0" * 32}),
    **{(verb, path): (each.scope, {}) for each in PAGE_OPERATIONS for verb, path in map(str.split, each.routes)},
}
"""The scope that each path of the explorer is meant to need, and the rest of a valid input; operations have theirs."""

SESSIONS = {
    ("GET", "/api/session"), ("POST", "/api/login"), ("POST", "/api/logout"),
    ("GET", "/oidc/login"), ("GET", "/oidc/callback"),
}  # fmt: skip
EXPLORER_PAGES = {
    "/", "/models/{model}", "/map", "/gate", "/drift", "/review", "/points", "/login", "/vendor/plotly.min.js",
}  # fmt: skip
"""Paths of the explorer that show nothing about a model."""

GUARDS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


@dataclass(frozen=True, slots=True)
class Method:
    """A gRPC method: its full name, its name, its request, and whether requests or responses are streams."""

    path: str
    name: str
    request: Any
    is_stream: bool

    @property
    def scope(self) -> str:
        """The scope that it needs."""
        return OPERATIONS[self.name].scope if self.name in OPERATIONS else STANDARD[self.name]

    @property
    def names_model(self) -> bool:
        """Whether its requests name a model."""
        return self.name in OPERATIONS and not OPERATIONS[self.name].lists_models


def every_method() -> list[Method]:
    """All methods of the services that the server has."""
    files = (monitor_pb2, admin_pb2, grpc_predict_v2_pb2, health_pb2, reflection_pb2)
    return [
        Method(
            f"/{service.full_name}/{method.name}",
            method.name,
            GetMessageClass(method.input_type),
            method.client_streaming or method.server_streaming,
        )
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if f"/{service.full_name}/{method.name}" not in NOT_SERVED
    ]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A token file with a token for each scope, one for all scopes, and one for all scopes of one model."""
    path, found = tmp_path_factory.mktemp("tokens") / "tokens", {}
    with path.open("w") as file:
        for name, scopes, models in (
            *((scope, [scope], None) for scope in SCOPES),
            ("all", list(SCOPES), None),
            ("mine", list(SCOPES), [MINE]),
            ("deployer", ["admin", "read"], [MINE, UNKNOWN]),
        ):
            found[name], token = make_token(f"only-{name}", scopes, models=models)
            file.write(token.line())
    return path, found


@pytest.fixture(scope="module")
def server(secrets: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of two models that wants tokens, with everything that it can serve."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "bundles" / MINE).mkdir(parents=True)
    models = {
        MINE: gated_bundle(folder / "bundles" / MINE / "one.safetensors"),
        OTHER: gated_bundle(folder / "bundles" / "other.safetensors", seed=1),
    }
    variables = {
        "DARKSIGHT_TOKENS_FILE": str(secrets[0]),
        "DARKSIGHT_METRICS_TOKEN": "true",
        "DARKSIGHT_REFLECTION": "true",
        "DARKSIGHT_BUNDLE_DIR": str(folder / "bundles"),
    }
    options = ("--workers", "1", "--api-port", "0", "--explorer-port", "0")
    with running_server(models, folder / "data", *options, environment=variables) as running:
        wait_until(lambda: "explorer" in running.children(), what="the explorer")
        yield running


@pytest.fixture(scope="module")
def channel(server: Server) -> Iterator[grpc.Channel]:
    """A channel without a token."""
    with grpc.insecure_channel(server.grpc_target) as channel:
        yield channel


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """Connections to any address, without a token."""
    with httpx.Client(timeout=60.0) as client:
        yield client


def call(channel: grpc.Channel, method: Method, token: str | None, request: bytes = b"") -> tuple[Any, str]:
    """Status and text of a call."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    try:
        if method.name == "Watch":
            next(channel.unary_stream(method.path)(request, metadata=metadata, timeout=60))
        elif method.is_stream:
            list(channel.stream_stream(method.path)(iter([request]), metadata=metadata, timeout=60))
        else:
            channel.unary_unary(method.path)(request, metadata=metadata, timeout=60)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def about(method: Method, model: str) -> bytes:
    """A request of a method that names a model."""
    if method.name == "ScoreStream":
        return bytes(method.request(request={"model": model}).SerializeToString())
    fields = method.request.DESCRIPTOR.fields_by_name
    name = next(each for each in ("model", "model_name", "name") if each in fields)
    return bytes(method.request(**{name: model}).SerializeToString())


def test_the_server_has_no_service_without_a_row(channel: grpc.Channel, secrets: tuple[Path, dict[str, str]]) -> None:
    """Reflection lists them."""
    call_ = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    request = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    metadata = (("authorization", f"Bearer {secrets[1]['read']}"),)

    (answer,) = call_(iter([request]), metadata=metadata, timeout=60)

    found = reflection_pb2.ServerReflectionResponse.FromString(answer).list_services_response.service
    listed = {each.name.replace("reflection.v1.", "reflection.v1alpha.") for each in found}
    assert listed == {method.path.split("/")[1] for method in every_method()}


@pytest.mark.parametrize("method", every_method(), ids=lambda method: method.path)
def test_every_method_is_closed_to_all_but_its_scope(
    channel: grpc.Channel, secrets: tuple[Path, dict[str, str]], method: Method
) -> None:
    """What answers anything but a refusal got past the guard."""
    needed = method.scope
    if needed == OPEN:
        assert call(channel, method, None)[0] not in GUARDS
        return

    assert call(channel, method, None)[0] is grpc.StatusCode.UNAUTHENTICATED
    assert call(channel, method, "ds_wrong")[0] is grpc.StatusCode.UNAUTHENTICATED
    assert [scope for scope in SCOPES if call(channel, method, secrets[1][scope])[0] not in GUARDS] == [needed]


@pytest.mark.parametrize(
    "method", [each for each in every_method() if each.scope != OPEN], ids=lambda method: method.path
)
def test_every_method_is_closed_to_other_models(
    channel: grpc.Channel, secrets: tuple[Path, dict[str, str]], method: Method
) -> None:
    """The same refusal for a model that exists and for one that does not."""
    token = secrets[1]["mine"]
    if not method.names_model:
        assert call(channel, method, token)[0] not in GUARDS
        return

    own, other, unknown = (call(channel, method, token, about(method, model)) for model in (MINE, OTHER, UNKNOWN))

    assert own[0] not in GUARDS or (method.name == "DeployBundle" and "folder" in own[1])
    assert other[0] is grpc.StatusCode.PERMISSION_DENIED
    assert other[1] == f"'only-mine' may not use the model {OTHER!r}"
    assert unknown == (other[0], other[1].replace(OTHER, UNKNOWN))
    assert call(channel, method, token)[0] is grpc.StatusCode.PERMISSION_DENIED


def every_route(app: Any) -> set[tuple[str, str]]:
    """HTTP methods and paths of an application."""
    return {
        (verb, route.path)
        for route in app.routes
        if isinstance(route, Route)
        for verb in set(route.methods or ()) - {"HEAD"}
    }


def test_what_changes_nothing_needs_read_and_what_changes_a_model_needs_admin() -> None:
    """The table says which scope an operation needs; its name says which one is meant."""
    reads = ("List", "Get", "Preview", "DryRun", "RepositoryIndex")
    admin = {name for name, each in OPERATIONS.items() if each.service == "darksight.v1.AdminService"}
    expected = {name: "read" if name.startswith(reads) else "admin" for name in admin}
    expected |= {"Score": "score", "ScoreStream": "score", "ReportOutcomes": "report", "ListPoints": "read"}
    expected |= {"ModelInfer": "score", "ModelMetadata": "score", "ModelConfig": "score", "ServerMetadata": "score"}
    expected |= {"RepositoryIndex": "read", "ServerLive": OPEN, "ServerReady": OPEN, "ModelReady": "score"}

    assert {name: each.scope for name, each in OPERATIONS.items()} == expected


ROUTES = [
    *((route, each) for each in OPERATIONS.values() for route in each.routes),
    *((route, OPERATIONS["Score"]) for route in EVENT_ROUTES),
]
"""All routes of the HTTP API that belong to an operation."""


def test_the_http_api_has_no_path_without_a_row(tmp_path: Path) -> None:
    """Every path belongs to an operation, or is a page."""
    counts = ProcessCounts(tmp_path, 0)
    service = Service(None, None, None, None, counts)  # type: ignore[arg-type]
    pools = dict.fromkeys(("call", "store", "stream", "open"))
    app = make_api(service, Callers(None, counts=counts), pools, print, 1)  # type: ignore[arg-type]

    expected = {tuple(route.split(" ")) for route, _ in ROUTES}
    assert every_route(app) == expected | {("GET", page) for page in PAGES}


@pytest.mark.parametrize(("route", "operation"), ROUTES, ids=[route for route, _ in ROUTES])
def test_every_path_is_closed_to_all_but_its_scope_and_its_models(
    server: Server, http: httpx.Client, secrets: tuple[Path, dict[str, str]], route: str, operation: Operation
) -> None:
    """As its operation is."""
    verb, path = route.split(" ")

    def ask(token: str | None, model: str = UNKNOWN) -> httpx.Response:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        address = path.format(model=model, version="0" * 64, name="unknown")
        body: dict[str, Any] = {"inputs": []} if operation.name == "ModelInfer" else {}
        if route in EVENT_ROUTES:
            headers["content-type"] = "application/cloudevents+json"
            body = {**EVENT, "inferenceservicename": model}
        content = json.dumps(body) if verb in ("POST", "PUT") else None
        return http.request(verb, server.api_url + address, headers=headers, content=content)

    if operation.scope == OPEN:
        assert ask(None).status_code not in (401, 403)
        return
    assert (ask(None).status_code, ask("ds_wrong").status_code) == (401, 401)
    opened = [scope for scope in SCOPES if ask(secrets[1][scope]).status_code not in (401, 403)]
    assert opened == [operation.scope]
    own, other, unknown = (ask(secrets[1]["mine"], model) for model in (MINE, OTHER, UNKNOWN))
    if operation.lists_models:
        assert own.status_code == 200
        return
    assert own.status_code != 403 or (operation.name == "DeployBundle" and "folder" in own.json()["detail"])
    assert (other.status_code, unknown.status_code) == (403, 403)
    assert other.json()["detail"] == f"'only-mine' may not use the model {OTHER!r}"
    assert unknown.json()["detail"] == other.json()["detail"].replace(OTHER, UNKNOWN)


def test_pages_of_the_http_api_are_open(server: Server, http: httpx.Client) -> None:
    """They show nothing of the service."""
    found = {page: http.get(server.api_url + page, follow_redirects=True).status_code for page in PAGES}

    assert found == dict.fromkeys(PAGES, 200)


def test_the_explorer_has_no_path_without_a_row(tmp_path: Path) -> None:
    """Every endpoint has a scope; every other path is a page or about the session."""
    settings = Settings(
        data_dir=tmp_path,
        tokens_file=tmp_path / "tokens",
        explorer_url="https://here.example",
        oidc_issuer="https://login.example",
        oidc_client_id="explorer",
        oidc_groups={"all": "read"},
    )
    app = make_explorer(_sources(settings, tmp_path / "counts"))

    found = every_route(app)
    assert found == EXPLORER.keys() | SESSIONS | {("GET", page) for page in EXPLORER_PAGES}


@pytest.fixture(scope="module")
def browsers(server: Server, secrets: tuple[Path, dict[str, str]]) -> Iterator[dict[str, httpx.Client]]:
    """Sessions at the explorer by name of the token; only a token with the scope `read` can log in."""
    opened = {}
    for name in ("read", "all", "mine"):
        opened[name] = httpx.Client(base_url=server.explorer_url, headers={"origin": server.explorer_url}, timeout=60.0)
        opened[name].post("/api/login", json={"token": secrets[1][name]}).raise_for_status()
        opened[name].headers["x-csrf-token"] = opened[name].get("/api/session").json()["csrf"]
    yield opened
    for client in opened.values():
        client.close()


def test_the_explorer_is_opened_by_the_scope_read_alone(
    server: Server, http: httpx.Client, secrets: tuple[Path, dict[str, str]]
) -> None:
    """All other tokens are refused at the login."""
    headers = {"origin": server.explorer_url}
    opened = [
        scope
        for scope in SCOPES
        if http.post(f"{server.explorer_url}/api/login", json={"token": secrets[1][scope]}, headers=headers).is_success
    ]
    http.cookies.clear()

    assert opened == ["read"]


@pytest.mark.parametrize(("verb", "path"), EXPLORER)
def test_every_endpoint_of_the_explorer_is_closed_to_all_but_its_scope_and_its_models(
    server: Server, http: httpx.Client, browsers: dict[str, httpx.Client], verb: str, path: str
) -> None:
    """The same refusal for a model that exists and for one that does not."""
    scope, rest = EXPLORER[verb, path]

    def ask(client: httpx.Client, model: str) -> httpx.Response:
        given = {"model": model, **rest}
        address = server.explorer_url + path.format(model=model, name="unknown")
        return client.request(verb, address, **({"json": given} if verb in ("POST", "PUT") else {"params": given}))

    assert ask(http, MINE).status_code == 401
    assert (ask(browsers["read"], UNKNOWN).status_code == 403) == (scope != "read")
    assert ask(browsers["all"], UNKNOWN).status_code not in (401, 403)
    own, other, unknown = (ask(browsers["mine"], model) for model in (MINE, OTHER, UNKNOWN))
    assert own.status_code not in (401, 403)
    if path == "/api/models":
        assert [each["name"] for each in own.json()["models"]] == [MINE]
        return
    assert (other.status_code, unknown.status_code) == (403, 403)
    assert other.json()["detail"] == f"'only-mine' may not use the model {OTHER!r}"
    assert unknown.json()["detail"] == other.json()["detail"].replace(OTHER, UNKNOWN)


def test_lists_show_the_models_of_a_token_alone(server: Server, secrets: tuple[Path, dict[str, str]]) -> None:
    """Over gRPC, over HTTP and in the protocol of Triton."""
    for name, expected in (("mine", [MINE]), ("all", [MINE, OTHER])):
        token = secrets[1][name]
        with (
            Client(server.grpc_target, token=token, timeout_seconds=60.0) as client,
            httpx.Client(base_url=server.api_url, headers={"authorization": f"Bearer {token}"}) as http,
        ):
            assert [model.name for model in client.models()] == expected
            assert [model["name"] for model in http.get("/v1/models").json()["models"]] == expected
            assert sorted(model["name"] for model in http.post("/v2/repository/index").json()) == expected


def test_a_restricted_token_scores_and_streams_its_model_alone(
    server: Server, secrets: tuple[Path, dict[str, str]]
) -> None:
    """A stream ends at the first request for another model."""
    with Client(server.grpc_target, token=secrets[1]["mine"], timeout_seconds=60.0) as client:
        assert client.score(MINE, make_probs(3, K)).recorded
        assert len(list(client.stream(MINE, [make_probs(2, K)] * 2))) == 2
        with pytest.raises(PermissionDenied, match=OTHER):
            client.score(OTHER, make_probs(3, K))
        with pytest.raises(PermissionDenied, match=OTHER):
            list(client.stream(OTHER, [make_probs(2, K)] * 2))


def test_a_restricted_token_deploys_files_of_its_models(server: Server, secrets: tuple[Path, dict[str, str]]) -> None:
    """It does not learn which other files there are, and a model that does not exist yet names no other."""
    with Client(server.grpc_target, token=secrets[1]["deployer"], timeout_seconds=60.0) as client:
        client.deploy(MINE, f"{MINE}/one.safetensors")
        for path in ("other.safetensors", "missing.safetensors", f"{MINE}/../other.safetensors", MINE, f"./{MINE}"):
            with pytest.raises(PermissionDenied, match="folder"):
                client.deploy(MINE, path)
        with pytest.raises(Exception, match="does not exist") as refused:
            client.policy(UNKNOWN)
    assert OTHER not in str(refused.value)


def test_metrics_need_a_token_for_all_models(server: Server, secrets: tuple[Path, dict[str, str]]) -> None:
    """They are of all models."""

    def status(name: str) -> int:
        headers = {"Authorization": f"Bearer {secrets[1][name]}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{server.http_url}/metrics", headers=headers)) as page:
                return int(page.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert (status("metrics"), status("all"), status("mine"), status("read")) == (200, 200, 403, 403)
