"""Clients and frameworks of others, in an environment and processes of their own, against the real service.

The service runs in that environment too: it has protobuf 6, and all other tests have protobuf 7.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from darksight_client import AsyncClient, Client, Decision, InvalidRequest, Reason
from darksight_client.adapters.asgi import GateMiddleware
from darksight_client.adapters.remote import RemoteGate
from darksight_client.adapters.sklearn import AbstainingClassifier
from darksight_client.results.columns import COLUMNS
from darksight_client.stubs.darksight.v1 import monitor_pb2
from darksight_client.stubs.inference import grpc_predict_v2_pb2
from google.protobuf import descriptor_pb2
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from darksight_core.bundle import read_bundle
from darksight_core.errors import ConfigError
from tests.e2e.test_docs import blocks
from tests.integration.test_service import gated_bundle
from tests.support.adapters.environment import NODE_PACKAGES, ROOT, adapters_python, node_modules, pinned
from tests.support.builders import make_probs
from tests.support.servers import Server, running_server
from tests.support.tools import find_tool

CHECKS = ROOT / "tests" / "support" / "adapters"
PAGE = "docs/how-to/frameworks.md"
CLASSES = 10


@pytest.fixture(scope="module")
def python() -> Path:
    """That of the environment with the packages of others."""
    return adapters_python()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of 10 classes whose gate rejects some rows."""
    return gated_bundle(tmp_path_factory.mktemp("bundle") / "model.safetensors", classes=CLASSES, threshold=0.5)


@pytest.fixture(scope="module")
def server(python: Path, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service with one model of 10 classes."""
    folder = tmp_path_factory.mktemp("adapters")
    models, options = {"digits": bundle}, ("--workers", "1", "--api-port", "0")
    with running_server(models, folder / "data", *options, python=python) as server:
        yield server


def check(*command: str | Path, **options: object) -> str:
    """Run a program that must succeed; what it printed."""
    done = subprocess.run(command, capture_output=True, timeout=300, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    printed: bytes = done.stdout
    return printed.decode()


@pytest.fixture(scope="module")
def rows(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with rows, and what Score says about them."""
    probs = make_probs(200, CLASSES, seed=5)
    with Client(server.grpc_target, timeout_seconds=30.0) as client:
        scored = client.score("digits", probs)
    path = tmp_path_factory.mktemp("rows") / "rows.npz"
    np.savez(path, probs=probs, **{name: getattr(scored, name) for name in COLUMNS})
    return path


def test_packages_resolve_together(python: Path) -> None:
    """The environment has the newest tested release of each package, protobuf 6 and this tree as darksight."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    names = [*pinned(), "protobuf", "darksight"]

    versions = json.loads(check(python, "-c", code, *names))

    assert {name: versions[name] for name in pinned()} == pinned()
    assert versions["protobuf"].startswith("6.")


def test_tritons_client_gets_what_ours_gets(server: Server, python: Path, tmp_path: Path) -> None:
    """Live, ready, metadata, config and index; ModelInfer raw and typed equals Score bit for bit; errors have their
    statuses; and all numbers in our proto are those of Triton's.
    """
    probs = make_probs(200, CLASSES, seed=5)
    arrays = {"probs": probs, "logits": np.log(probs + np.float32(1e-9))}
    with Client(server.grpc_target, timeout_seconds=30.0) as client:
        for kind in ("probs", "logits"):
            scored = client.score("digits", arrays[kind], logits=kind == "logits")
            arrays |= {f"{kind}.{name}": getattr(scored, name) for name in COLUMNS}
    np.savez(tmp_path / "rows.npz", version=np.array(scored.version), **arrays)  # type: ignore[arg-type]  # numpy's stub
    file = descriptor_pb2.FileDescriptorProto()
    grpc_predict_v2_pb2.DESCRIPTOR.CopyToProto(file)
    (tmp_path / "proto").write_bytes(file.SerializeToString())

    script = CHECKS / "triton_check.py"
    check(python, script, server.grpc_target, "digits", tmp_path / "rows.npz", tmp_path / "proto")


def test_tritons_http_client_gets_what_ours_gets(server: Server, python: Path, rows: Path) -> None:
    """State and metadata; infer with binary tensors and with JSON equals Score bit for bit; errors have their texts."""
    check(python, CHECKS / "triton_http_check.py", server.api_url.partition("://")[2], "digits", rows)


def test_kserves_clients_get_what_ours_gets(server: Server, python: Path, rows: Path) -> None:
    """State; infer over REST, as JSON and with binary tensors, and over gRPC equals Score bit for bit."""
    check(python, CHECKS / "kserve_check.py", server.api_url, server.grpc_target, "digits", rows)


def test_a_client_for_node_gets_what_ours_gets(server: Server, rows: Path) -> None:
    """Made from protos/ at run time: Score gives the same columns bit for bit, outcomes join, errors have a status."""
    data, modules = np.load(rows), node_modules()

    printed = check(
        *(find_tool("node"), CHECKS / "node_check.js", ROOT / "protos", server.grpc_target, "digits", str(CLASSES)),
        input=data["probs"].tobytes(),
        env={**os.environ, "NODE_PATH": str(modules)},
    )

    found = json.loads(printed)
    columns = found["columns"]
    for name in ("p_value", "log_density", "log_kde", "points"):
        assert np.array(columns[name]).tobytes() == data[name].tobytes(), name
    for name, enum in (("decision", monitor_pb2.Decision), ("reason", monitor_pb2.Reason)):
        assert [enum.Value(value) for value in columns[name]] == data[name].tolist()
    assert (found["batch_bytes"], found["recorded"], found["refused"]) == (16, 3, "INVALID_ARGUMENT")


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_a_table_is_scored_by_the_names_of_its_columns(server: Server, rows: Path, kind: Any) -> None:
    """The result is a table of the same kind, whatever the order of the columns, from both clients."""
    data = np.load(rows)
    names = [f"class {k}" for k in range(CLASSES)]
    table = kind({f"prob_{name}": data["probs"][:, k] for k, name in reversed(list(enumerate(names)))})

    with Client(server.grpc_target, timeout_seconds=30.0) as client:
        found = client.score("digits", table, prediction_ids=[f"{kind.__name__}-{row}" for row in range(200)])

    async def score() -> Any:
        async with AsyncClient(server.grpc_target, timeout_seconds=30.0) as client:
            return await client.score("digits", table)

    for each in (found, asyncio.run(score())):
        assert type(each) is type(table)
        columns = nw.from_native(each, eager_only=True)
        assert columns["p_value"].to_numpy().tobytes() == data["p_value"].tobytes()
        assert columns["accepted"].to_list() == (data["decision"] == Decision.ACCEPT).tolist()
        assert columns["reason"].to_list() == [Reason(number).name.lower() for number in data["reason"]]
    assert nw.from_native(found, eager_only=True)["prediction_id"][0] == f"{kind.__name__}-0"


def test_a_table_of_other_classes_is_refused(server: Server, rows: Path) -> None:
    """By the server, with the class and the field; over HTTP too."""
    probs = np.load(rows)["probs"][:2]
    columns = {f"class {k}": probs[:, k] for k in range(CLASSES)}
    with Client(server.grpc_target, timeout_seconds=30.0) as client:
        with pytest.raises(InvalidRequest, match="'cat' is not a class of the bundle") as raised:
            client.score("digits", pl.DataFrame({("cat" if k == "class 3" else k): v for k, v in columns.items()}))
        with pytest.raises(InvalidRequest, match="class 'class 9' of the bundle is missing"):
            client.score("digits", pl.DataFrame(dict(list(columns.items())[:9])))
    assert raised.value.field == "class_names"

    body = {"rows": probs[:, ::-1].tolist(), "class_names": list(columns)[::-1]}
    response = httpx.post(f"{server.api_url}/v1/models/digits/score", json=body, timeout=60.0)

    assert response.status_code == 200, response.text
    assert response.json()["p_value"] == np.load(rows)["p_value"][:2].tolist()


@pytest.mark.parametrize("name", ["bentoml", "fastapi", "mlflow", "ray", "transformers"])
def test_an_example_of_the_page_decides_as_score_does(
    name: str, server: Server, python: Path, rows: Path, bundle: Path, tmp_path: Path
) -> None:
    """The code of docs/how-to/frameworks.md with the real package."""
    (example,) = (block.text for block in blocks(PAGE) if f"with {name}" in (block.reason or ""))
    (tmp_path / "example.py").write_text(example)
    shutil.copy(bundle, tmp_path)
    variables = {
        "BENTOML_DO_NOT_TRACK": "true",
        "BENTOML_HOME": str(tmp_path),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": f"file://{tmp_path}/runs",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TARGET": server.grpc_target,
    }
    if name == "transformers":
        # Its pipelines need torch, which is in this environment.
        variables["ADAPTERS_SITE"] = next(map(str, python.parents[1].glob("lib/python*/site-packages")))
        python = Path(sys.executable)

    check(
        *(python, CHECKS / "page_check.py", name, tmp_path / "example.py", server.grpc_target, rows),
        cwd=tmp_path,
        env={**os.environ, **variables},
    )


def test_a_transformer_of_kserve_decides_as_score_does(server: Server, python: Path, rows: Path) -> None:
    """The example, before a predictor."""
    example = ROOT / "examples" / "kserve_transformer.py"
    check(python, CHECKS / "kserve_transformer_check.py", example, server.grpc_target, rows)


def test_the_table_of_the_page_has_the_versions_that_are_tested() -> None:
    """Of each package of the environment, of Node and of the environment of the tests."""
    page = (ROOT / PAGE).read_text()
    table = [line for line in page.splitlines() if line.startswith("| ")]

    for name, version in {**pinned(), **NODE_PACKAGES}.items():
        assert any(f"{name} {version}" in line for line in table), f"{name} {version}"
    assert any(f"scikit-learn {metadata.version('scikit-learn').rpartition('.')[0]} " in line for line in table)


def test_a_classifier_of_scikit_learn_abstains(bundle: Path, rows: Path) -> None:
    """Where Score rejects; labels are those of the classifier, of text or of numbers."""
    data, given = np.load(rows), read_bundle(bundle)
    names = np.array(given.class_names)
    inner = Constant(data["probs"], names)

    found = AbstainingClassifier(FrozenEstimator(inner), given, abstention="none").fit(data["probs"], names[:2])

    accepted = data["decision"] == Decision.ACCEPT
    expected = np.where(accepted, names[data["probs"].argmax(axis=1)], "none")
    assert found.predict(data["probs"]).tolist() == expected.tolist()
    assert found.set_params(abstention=-1).predict(data["probs"]).tolist()[0] in (*names, -1)
    np.testing.assert_allclose(found.decide(data["probs"]).p_value, data["p_value"], rtol=1e-9)
    with pytest.raises(ConfigError, match="the classes of the estimator are"):
        AbstainingClassifier(FrozenEstimator(Constant(data["probs"], names[::-1])), bundle).fit(data["probs"], names)


def test_the_classifier_follows_the_rules_of_scikit_learn() -> None:
    """All checks of scikit-learn, without a bundle: a bundle has classes of its own, which the checks do not know."""
    check_estimator(AbstainingClassifier(LogisticRegression()), on_skip=None)


class Constant(ClassifierMixin, BaseEstimator):
    """A classifier that has learned the probabilities of some rows."""

    def __init__(self, probs: Any, classes: Any) -> None:
        self.probs, self.classes = probs, classes
        self.classes_ = classes

    def fit(self, rows: Any, labels: Any) -> Constant:
        """Nothing to learn."""
        return self

    def predict_proba(self, rows: Any) -> Any:
        """Those that were given."""
        return self.probs


def test_curl_gets_what_ours_gets(server: Server, rows: Path) -> None:
    """In the Open Inference Protocol and as JSON of darksight.v1."""
    data = np.load(rows)
    tensor = {"name": "probs", "datatype": "FP32", "shape": [3, CLASSES], "data": data["probs"][:3].tolist()}
    curl = (find_tool("curl"), "--silent", "--show-error", "--fail", "--json", "@-")

    inferred = check(*curl, f"{server.api_url}/v2/models/digits/infer", input=json.dumps({"inputs": [tensor]}).encode())
    scored = check(
        *curl, f"{server.api_url}/v1/models/digits/score", input=json.dumps({"rows": tensor["data"]}).encode()
    )

    outputs = {output["name"]: output["data"] for output in json.loads(inferred)["outputs"]}
    assert outputs["p_value"] == json.loads(scored)["p_value"] == data["p_value"][:3].tolist()


def test_middleware_can_let_rejected_predictions_pass(server: Server, rows: Path) -> None:
    """With the decision in headers; responses without probabilities pass as they are."""
    data = np.load(rows)
    rejected = data["probs"][np.flatnonzero(data["decision"] == Decision.REJECT)[0]].tolist()
    bodies = {
        "/row": {"probabilities": rejected},
        "/other": {"result": 1},
        "/list": [1],
        "/free": {"probabilities": [1]},
    }

    async def answer(request: Request) -> JSONResponse:
        return JSONResponse(bodies[request.url.path])

    async def call() -> list[httpx.Response]:
        gate = RemoteGate(server.grpc_target, "digits", gate_timeout_seconds=60.0)
        app = Starlette(routes=[Route(path, answer) for path in bodies])
        gated = GateMiddleware(app, gate, paths=["/row", "/other", "/list"], reject_status=None)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gated), base_url="http://app") as http:
            found = [await http.get(path) for path in bodies]
        await gate.close()
        return found

    found = asyncio.run(call())

    assert [response.json() for response in found] == list(bodies.values())
    assert [response.status_code for response in found] == [200] * 4
    assert [response.headers.get("darksight-decision") for response in found] == ["reject", None, None, None]


@pytest.mark.parametrize("root", ["", "/api"])
def test_middleware_gates_an_application_below_a_prefix(root: str) -> None:
    """Of a proxy or a mount: the path of a request has the prefix, and the paths that are gated do not."""
    gate = RemoteGate("127.0.0.1:1", "digits", on_failure="reject", gate_timeout_seconds=5.0)

    async def answer(request: Request) -> JSONResponse:
        return JSONResponse({"probabilities": [0.1, 0.9]})

    async def call() -> list[int]:
        gated = GateMiddleware(Starlette(routes=[Route("/predict", answer), Route("/predict2", answer)]), gate)
        transport = httpx.ASGITransport(gated, root_path=root)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as http:
            found = [(await http.get(f"{root}{path}")).status_code for path in ("/predict", "/predict2")]
        await gate.close()
        return found

    assert asyncio.run(call()) == [422, 200]


def test_a_remote_gate_decides_by_on_failure_without_a_service() -> None:
    """With the class of the caller and no p-value."""
    gate = RemoteGate(
        "127.0.0.1:1", "digits", class_names=["cat", "dog"], on_failure="reject", gate_timeout_seconds=5.0
    )

    (decided,) = asyncio.run(gate([0.1, 0.9], tags={"camera": "7"}))

    assert (decided["predicted"], decided["accepted"], decided["reason"]) == ("dog", False, "unscored")
    assert decided["p_value"] is None
