"""The HTTP API over real sockets: the Open Inference Protocol, darksight.v1 as JSON, tokens, problems and noise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from darksight_client import Client
from darksight_client.results.columns import COLUMNS
from darksight_service.control.tokens import SCOPES, make_token

from darksight_core.bundle import write_bundle
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle
from tests.support.servers import Server, running_server, wait_until

CLASSES = 10
SIZE = "inference-header-content-length"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A token file with a token for each scope and one for all of them, and their secrets."""
    path, found = tmp_path_factory.mktemp("tokens") / "tokens", {}
    with path.open("w") as file:
        for scope in (*SCOPES, "all"):
            found[scope], token = make_token(f"only-{scope}", list(SCOPES) if scope == "all" else [scope])
            file.write(token.line())
    path.chmod(0o600)
    return path, found


@pytest.fixture(scope="module")
def server(secrets: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of one worker that wants tokens, with the HTTP API."""
    folder = tmp_path_factory.mktemp("http")
    write_bundle(folder / "digits.safetensors", make_bundle(classes=CLASSES))
    variables = {"DARKSIGHT_TOKENS_FILE": str(secrets[0])}
    options = ("--workers", "1", "--api-port", "0")
    models = {"digits": folder / "digits.safetensors"}
    with running_server(models, folder / "data", *options, environment=variables) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: Server, secrets: tuple[Path, dict[str, str]]) -> Iterator[httpx.Client]:
    """Connections with a token for everything."""
    headers = {"authorization": f"Bearer {secrets[1]['all']}"}
    with httpx.Client(base_url=server.api_url, headers=headers, timeout=60.0) as client:
        yield client


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """Predictions, float32."""
    return make_probs(300, CLASSES, seed=5)


@pytest.fixture(scope="module")
def scored(server: Server, secrets: tuple[Path, dict[str, str]], rows: np.ndarray) -> dict[str, np.ndarray]:
    """What Score over gRPC says about them."""
    with Client(server.grpc_target, token=secrets[1]["all"], timeout_seconds=60.0) as client:
        found = client.score("digits", rows)
    return {name: getattr(found, name) for name in COLUMNS}


def body_of(rows: np.ndarray, **more: Any) -> dict[str, Any]:
    """An inference request in JSON."""
    tensor = {"name": "probs", "datatype": "FP32", "shape": list(rows.shape), "data": rows.tolist()}
    return {"inputs": [tensor], **more}


def columns_of(response: httpx.Response) -> dict[str, np.ndarray]:
    """The tensors of an inference response, from JSON or from bytes."""
    response.raise_for_status()
    size = int(response.headers.get(SIZE, len(response.content)))
    raw, found = response.content[size:], {}
    for output in json.loads(response.content[:size])["outputs"]:
        dtype = {"FP64": "<f8", "INT32": "<i4"}[output["datatype"]]
        if "data" in output:
            array = np.array(output["data"], dtype=dtype)
        else:
            length = output["parameters"]["binary_data_size"]
            array, raw = np.frombuffer(raw[:length], dtype), raw[length:]
        found[output["name"]] = array.reshape(output["shape"])
    assert not raw
    return found


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert set(found) == set(expected)
    for name, column in expected.items():
        assert found[name].tobytes() == column.astype(found[name].dtype).tobytes(), name
        assert found[name].shape == column.shape, name


def test_infer_in_json_equals_score(http: httpx.Client, rows: np.ndarray, scored: dict[str, np.ndarray]) -> None:
    """Rows as nested and flat lists, one row, few and many, give the columns of Score bit for bit."""
    assert_same(columns_of(http.post("/v2/models/digits/infer", json=body_of(rows))), scored)
    flat = body_of(rows)
    flat["inputs"][0]["data"] = rows.ravel().tolist()
    assert_same(columns_of(http.post("/v2/models/digits/infer", json=flat)), scored)


def test_infer_of_one_row_equals_score(
    http: httpx.Client, server: Server, secrets: tuple[Path, dict[str, str]], rows: np.ndarray
) -> None:
    """As a list and as a list of one row; the response has the id of the request."""
    with Client(server.grpc_target, token=secrets[1]["all"], timeout_seconds=60.0) as client:
        scored = client.score("digits", rows[:1])
    expected = {name: getattr(scored, name) for name in COLUMNS}
    flat = body_of(rows[:1], id="mine")
    flat["inputs"][0] |= {"data": rows[0].tolist(), "shape": [CLASSES]}

    response = http.post("/v2/models/digits/infer", json=flat)

    assert response.json()["id"] == "mine"
    assert_same(columns_of(response), expected)
    assert_same(columns_of(http.post("/v2/models/digits/infer", json=body_of(rows[:1]))), expected)


def test_infer_with_binary_tensors_equals_score(
    http: httpx.Client, rows: np.ndarray, scored: dict[str, np.ndarray]
) -> None:
    """Tensors as bytes, in and out, all or some of them."""
    tensor = {"name": "probs", "datatype": "FP32", "shape": list(rows.shape)}
    tensor["parameters"] = {"binary_data_size": rows.nbytes}  # type: ignore[assignment]
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    response = http.post("/v2/models/digits/infer", content=text + rows.tobytes(), headers={SIZE: str(len(text))})
    assert SIZE in response.headers
    assert_same(columns_of(response), scored)

    outputs = [{"name": "p_value", "parameters": {"binary_data": True}}, {"name": "reason"}]
    some = columns_of(http.post("/v2/models/digits/infer", json=body_of(rows, outputs=outputs)))
    assert_same(some, {name: scored[name] for name in ("p_value", "reason")})


def test_state_of_server_and_models(http: httpx.Client, server: Server) -> None:
    """Metadata, readiness, configuration and index, with and without a version."""
    assert http.get("/v2").json()["extensions"] == ["model_configuration", "binary_tensor_data"]
    assert http.get("/v2/health/live").json() == {"live": True}
    assert http.get("/v2/health/ready").json() == {"ready": True}
    found = http.get("/v2/models/digits").json()
    assert found["inputs"] == [{"name": "probs", "datatype": "FP32", "shape": [-1, CLASSES]}]
    version = f"/v2/models/digits/versions/{found['versions'][0]}"
    assert http.get(version).json() == found
    assert http.get(f"{version}/ready").json() == {"name": "digits", "ready": True}
    assert http.get("/v2/models/unknown/ready").status_code == 503
    assert http.get("/v2/models/digits/config").json()["input"][0]["dims"] == [CLASSES]
    assert http.post("/v2/repository/index").json()[0]["name"] == "digits"
    infer = http.post(f"{version}/infer", json=body_of(make_probs(1, CLASSES)))
    assert infer.json()["model_version"] == found["versions"][0]


def test_messages_as_json(http: httpx.Client, server: Server, rows: np.ndarray, scored: dict[str, np.ndarray]) -> None:
    """Score, outcomes, points, models, policy and regions, as over gRPC; all answers follow the OpenAPI document."""
    import jsonschema

    page = http.get("/openapi.json").json()

    def call(verb: str, path: str, template: str, status: int = 200, **options: Any) -> Any:
        response = http.request(verb, path, **options)
        assert response.status_code == status, response.text
        schema = page["paths"][template][verb.lower()]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(response.json(), {**schema, "components": page["components"]})
        return response.json()

    base, model = "/v1/models/digits", "/v1/models/{model}"
    ids = [f"http-{row}" for row in range(len(rows))]
    body = {"rows": rows.tolist(), "prediction_ids": ids}
    found = call("POST", f"{base}/score", f"{model}/score", json=body)
    for name in ("p_value", "log_density", "log_kde", "points"):
        assert np.array(found[name]).tobytes() == scored[name].tobytes(), name
    outcomes = [{"prediction_id": name, "label": 1} for name in ids[:20]]
    done = call("POST", f"{base}/outcomes", f"{model}/outcomes", json={"outcomes": outcomes})
    assert done["recorded"] == "20"

    def points() -> list[Any]:
        query = {"page_size": 10_000, "is_shadow": "false", "decisions": ["DECISION_ACCEPT", "DECISION_REJECT"]}
        return list(call("GET", f"{base}/points", f"{model}/points", params=query)["points"])

    wait_until(lambda: sum(point.get("label") == 1 for point in points()) >= 20, what="labelled points")
    assert [each["name"] for each in call("GET", "/v1/models", "/v1/models")["models"]] == ["digits"]
    assert call("GET", base, model)["model"]["active_version"] == found["version"]
    policy = {"policy": {"alpha": 0.2}, "author": "claimed", "comment": "looser"}
    assert call("PUT", f"{base}/policy", f"{model}/policy", json=policy)["effective"]["alpha"] == 0.2
    history = call("GET", f"{base}/policy", f"{model}/policy")["history"]
    assert history[0]["author"].startswith("only-all")
    call("PUT", f"{base}/policy", f"{model}/policy", json={"policy": {}})
    corners = [{"x": x, "y": y} for x, y in ((0, 0), (1, 0), (0, 1))]
    region = {"name": "corner", "polygon": corners, "author": "claimed"}
    call("POST", f"{base}/regions", f"{model}/regions", json=region)
    mode = {"mode": "REGION_MODE_ENFORCE"}
    call("PUT", f"{base}/regions/corner/mode", f"{model}/regions/{{name}}/mode", json=mode)
    call("POST", f"{base}/regions/preview", f"{model}/regions/preview", json={"name": "corner"})
    assert len(call("GET", f"{base}/regions", f"{model}/regions")["regions"]) == 1
    call("DELETE", f"{base}/regions/corner", f"{model}/regions/{{name}}")
    assert call("GET", f"{base}/regions", f"{model}/regions")["regions"] == []


@pytest.mark.parametrize(
    ("body", "status", "field", "row"),
    [
        ({"inputs": []}, 400, "inputs", None),
        ({"inputs": [{"name": "images", "datatype": "FP32", "shape": [1], "data": [1.0]}]}, 400, "inputs", None),
        (body_of(np.array([[0.5, 0.5]])), 400, "predictions", None),
        (body_of(np.vstack([make_probs(2, CLASSES), np.full((1, CLASSES), 0.5)])), 400, "predictions", 2),
        (
            {"inputs": [{"name": "probs", "datatype": "FP32", "shape": [2, 2], "data": [[0.5, 0.5], [0.5]]}]},
            400,
            "inputs",
            1,
        ),
        (body_of(make_probs(1, CLASSES), outputs=[{"name": "embedding"}]), 400, "outputs", None),
    ],
)
def test_problems_name_field_and_row(
    http: httpx.Client, body: dict[str, Any], status: int, field: str, row: int | None
) -> None:
    """A problem has status, text, request id, and what is wrong where; `error` is what Triton's clients read."""
    response = http.post("/v2/models/digits/infer", json=body)
    found = response.json()
    assert response.status_code == found["status"] == status
    assert response.headers["content-type"] == "application/problem+json"
    assert (found["field"], found.get("row")) == (field, row)
    assert found["error"] == found["detail"]
    assert found["request_id"] == response.headers["x-request-id"] != ""


def test_problems_of_paths_and_bodies(http: httpx.Client) -> None:
    """Statuses of HTTP, each as a problem."""
    good = body_of(make_probs(1, CLASSES))
    responses = {
        404: http.post("/v2/models/unknown/infer", json=good),
        405: http.delete("/v2/models/digits/infer"),
        413: http.post("/v2/models/digits/infer", content=bytes(5 << 20)),
        415: http.post("/v2/models/digits/infer", json=good, headers={"content-encoding": "gzip"}),
        400: http.post("/v1/models/digits/score", json={"rows": [[0.1] * CLASSES], "nonsense": 1}),
    }
    assert {response.status_code: response.json()["status"] for response in responses.values()} == {
        status: status for status in responses
    }
    assert responses[405].headers["allow"] == "POST"
    assert responses[400].json()["field"] == "nonsense"
    assert http.get("/nowhere").json()["status"] == 404
    ragged = http.post("/v1/models/digits/score", json={"rows": [[0.1] * CLASSES, [0.1]]}).json()
    assert (ragged["status"], ragged["field"], ragged["row"]) == (400, "rows", 1)


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({"top": [{"class_names": ["nope"], "log_probabilities": [-0.1]}]}, "top", "'nope' is not a class"),
        ({"top": [{"classes": [1, 2], "log_probabilities": [-0.1]}]}, "top", "2 classes"),
        ({"top": [{"classes": [-1], "log_probabilities": [-0.1]}]}, "top", "from 0 on"),
        (
            {
                "top": [
                    {"class_names": ["class 1"], "log_probabilities": [-1]},
                    {"classes": [1], "log_probabilities": [-1]},
                ]
            },
            "top",
            "in all rows",
        ),
        ({"top": [{"classes": [1], "log_probabilities": [-0.1]}], "resolution": "half"}, "resolution", "'half'"),
        ({"top": [{"classes": [1], "log_probabilities": [-0.1]}] * 9, "resolution": "full"}, "top", "top1 to top"),
        ({"top": [{"classes": [1], "log_probabilities": [-0.1]}], "is_logits": True}, "is_logits", "does not apply"),
        ({"top": [{"classes": [2], "log_probabilities": [-0.1]}], "class_names": ["class 1"]}, "top", "1 class_names"),
        ({"top": [{"classes": [1], "log_probabilities": [-0.1]}]}, "resolution", "not top1"),
    ],
)
def test_problems_of_rows_of_the_most_probable_classes(
    http: httpx.Client, body: dict[str, Any], field: str, text: str
) -> None:
    """Each says what is wrong; a resolution that the bundle lacks is refused, never scored as something else."""
    found = http.post("/v1/models/digits/score", json=body).json()

    assert (found["status"], found["field"]) == (400, field)
    assert text in found["detail"]


def test_an_invalid_row_has_null_scores(http: httpx.Client) -> None:
    """With partial_ok; JSON has no NaN."""
    rows = make_probs(3, CLASSES)
    rows[1] = 0.5
    response = http.post("/v2/models/digits/infer", json=body_of(rows, parameters={"partial_ok": True}))
    found = {output["name"]: output["data"] for output in response.json()["outputs"]}
    assert found["reason"][1] == 5
    assert found["p_value"][1] is None
    assert None not in (found["p_value"][0], found["p_value"][2])
