"""Run by test_adapters.py: runs an example of docs/how-to/frameworks.md and uses what it defines.

    python page_check.py NAME CODE TARGET ROWS.npz

CODE is the file with the example. ROWS.npz holds probabilities and what Score said about them. Exit status 0 if the
decisions of the framework are those of Score.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ACCEPT, REJECT = 1, 2


def classify(features: Any) -> Any:
    """A model whose inputs are its outputs."""
    return features


def check_fastapi(names: dict[str, Any], data: Any) -> None:
    """Middleware and handler let one row pass and refuse another; errors and other paths pass."""
    from starlette.testclient import TestClient

    good, bad = one_row(data, ACCEPT), one_row(data, REJECT)
    with TestClient(names["app"]) as http:
        passed = http.post("/predict", json=good)
        assert (passed.status_code, passed.json()) == (200, {"probabilities": good}), passed.text
        assert passed.headers["darksight-decision"] == "accept"
        assert len(passed.headers["darksight-prediction-id"]) > 30
        refused = http.post("/predict", json=bad)
        assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json")
        assert refused.json()["reason"] == refused.headers["darksight-reason"] != "none"
        assert int(refused.headers["content-length"]) == len(refused.content)
        wrong = http.post("/predict", json="text")
        assert (wrong.status_code, "darksight-decision" in wrong.headers) == (422, False)
        assert "darksight-decision" not in http.get("/docs").headers
        assert http.post("/decide", json=good).json()["prediction_id"]
        assert http.post("/decide", json=bad).status_code == 422


def check_bentoml(names: dict[str, Any], data: Any) -> None:
    """The service of BentoML, called over its own HTTP interface."""
    from starlette.testclient import TestClient

    with TestClient(names["Digits"].to_asgi()) as http:
        response = http.post("/predict", json={"features": data["probs"][:8].tolist()})
    assert response.status_code == 200, response.text
    check_decided(response.json(), data)


def check_ray(names: dict[str, Any], data: Any) -> None:
    """The deployment in Ray's local mode, or on a cluster of this machine if `ADAPTERS_RAY_CLUSTER` is set."""
    import ray
    from ray import cloudpickle, serve

    rows = data["probs"][:8].tolist()
    if "ADAPTERS_RAY_CLUSTER" in os.environ:
        import httpx

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(names["app"])
        check_decided(httpx.post(f"http://127.0.0.1:{port}/", json=rows, timeout=60.0).json(), data)
        serve.shutdown()
        return

    class Request:
        async def json(self) -> Any:
            return rows

    handle = serve.run(names["app"], _local_testing_mode=True)
    check_decided(handle.remote(Request()).result(), data)
    gate = names["RemoteGate"](os.environ["TARGET"], "digits", gate_timeout_seconds=60.0)
    asyncio.run(use_twice(gate, cloudpickle.loads(cloudpickle.dumps(gate)), data))


async def use_twice(gate: Any, copy: Any, data: Any) -> None:
    """A copy of a gate that is connected has a connection of its own."""
    for each in (gate, copy):
        check_decided(await each(data["probs"][:8]), data)
        await each.close()


def check_mlflow(names: dict[str, Any], data: Any) -> None:
    """The model says what Score says, of arrays and of named columns, and as the classifier of another; the run has the
    bundle.
    """
    import mlflow
    import pandas as pd

    found = names["decisions"]
    assert found.columns.tolist() == ["predicted", "accepted", "reason", "p_value"]
    assert found.accepted.tolist() == (data["decision"] == ACCEPT).tolist()
    np.testing.assert_allclose(found.p_value, data["p_value"], rtol=1e-9)
    columns = {f"prob_class {k}": data["probs"][:, k] for k in reversed(range(data["probs"].shape[1]))}
    again = names["gated"].predict(pd.DataFrame(columns, index=np.arange(len(data["probs"])) + 7))
    assert again.predicted.tolist() == found.predicted.tolist()
    assert again.index[0] == 7
    run = mlflow.last_active_run()
    assert len(run.data.tags["darksight.version"]) == 64
    files = mlflow.MlflowClient().list_artifacts(run.info.run_id, "darksight")
    assert [file.path for file in files] == ["darksight/model.safetensors"]

    class Same(mlflow.pyfunc.PythonModel):
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            return np.asarray(model_input)

    with mlflow.start_run():
        inner = mlflow.pyfunc.log_model(name="same", python_model=Same(), pip_requirements=["numpy"])
        outer = names["log_model"]("model.safetensors", classifier=inner.model_uri)
    chained = mlflow.pyfunc.load_model(outer.model_uri).predict(data["probs"])
    assert chained.accepted.tolist() == found.accepted.tolist()


def check_transformers(names: dict[str, Any], data: Any) -> None:
    """Each input is scored with the probabilities of its classes."""
    from darksight_client.adapters.transformers import PipelineOutputError

    outputs = names["outputs"]
    classes = sorted(each["label"] for each in outputs[0])
    probs = names["pipeline_probs"](outputs, classes)
    assert len(names["scored"]) == len(probs) == 2
    for row, output in zip(probs, outputs, strict=True):
        assert output[0]["label"] == classes[int(row.argmax())]
        np.testing.assert_allclose(row.sum(), 1.0, atol=1e-5)
    assert names["pipeline_probs"](outputs[0], classes).tolist() == probs[:1].tolist()
    for wrong in ([outputs[0][:2]], [[*outputs[0], {"label": "cat", "score": 0.0}]]):
        refused = None
        try:
            names["pipeline_probs"](wrong, classes)
        except PipelineOutputError as error:
            refused = error
        assert refused is not None


def tiny_classifier() -> dict[str, Any]:
    """A text classifier of Hugging Face with ten classes and random weights, made here."""
    # torch is not in this environment, but in the one of the tests, from which this program runs.
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    torch.manual_seed(0)
    words = {word: number for number, word in enumerate(("[PAD]", "[UNK]", "a", "good", "bad", "film"))}
    tokens = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    config = BertConfig(
        vocab_size=6, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=10
    )
    config.id2label = {number: f"class {number}" for number in range(10)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, unk_token="[UNK]", pad_token="[PAD]")
    return {"model": BertForSequenceClassification(config).eval(), "tokenizer": tokenizer}


def one_row(data: Any, decision: int) -> list[float]:
    """The first row with a decision."""
    row: list[float] = data["probs"][np.flatnonzero(data["decision"] == decision)[0]].tolist()
    return row


def check_decided(found: list[dict[str, Any]], data: Any) -> None:
    """The first eight rows as `RemoteGate` returns them."""
    assert [each["accepted"] for each in found] == (data["decision"][:8] == ACCEPT).tolist()
    assert [each["predicted"] for each in found] == data["probs"][:8].argmax(axis=1).tolist()
    np.testing.assert_allclose([each["p_value"] for each in found], data["p_value"][:8], rtol=1e-9)
    assert len({each["prediction_id"] for each in found}) == 8


CHECKS: dict[str, Callable[[dict[str, Any], Any], None]] = {
    "bentoml": check_bentoml,
    "fastapi": check_fastapi,
    "mlflow": check_mlflow,
    "ray": check_ray,
    "transformers": check_transformers,
}


def main() -> None:
    """One check."""
    name, code, target, rows = sys.argv[1:]
    sys.path.extend(filter(None, [os.environ.get("ADAPTERS_SITE")]))
    data = np.load(rows)
    text = Path(code).read_text()
    # The default deadlines are for production, not for a machine that runs other tests as well.
    slow = ", timeout_seconds=60.0, gate_timeout_seconds=60.0"
    text = text.replace('Client("localhost:8081"', f'Client("{target}"{slow}')
    text = text.replace('RemoteGate("localhost:8081", "digits"', f'RemoteGate("{target}", "digits"{slow}')
    assert "localhost:8081" not in text
    names: dict[str, Any] = {"__name__": "__main__", "classify": classify, "probs": data["probs"]}
    if name == "transformers":
        names |= tiny_classifier()
    exec(compile(text, code, "exec"), names)
    CHECKS[name](names, data)


if __name__ == "__main__":
    main()
