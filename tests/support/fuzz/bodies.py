"""Random and altered requests to the HTTP API."""

from __future__ import annotations

import copy
import http.client
import json
import random
from collections import Counter
from typing import Any
from urllib.parse import quote_from_bytes, urlencode

import numpy as np
from darksight_service.operations.table import OPERATIONS
from google.protobuf import json_format
from numpy.typing import NDArray

from tests.support.fuzz.calls import admin_seeds

__all__ = ["Bodies", "send_noise"]

# Share of requests of operators, which take longer.
_ADMIN = 0.3
_SIZE = "inference-header-content-length"
_TIME = "2026-01-01T00:00:00Z"
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "a",
    "NaN", "\ud800", "\0", "x" * 5000, [], [[]], [[[[]]]], [None], ["a"], {}, {"a": {}}, [0.5] * 3, [[0.5], [0.5, 0.5]],
)  # fmt: skip

_EVENT = {
    "specversion": "1.0",
    "id": "a",
    "source": "b",
    "type": "org.kubeflow.serving.inference.response",
    "time": _TIME,
}


class Bodies:
    """Requests that are good, nearly good, or noise.

    Parameters
    ----------
    rows
        Predictions of the model.
    seed
        Which requests.
    model
        Name of the model.
    version, bundle
        A version of the model and a file of the bundle directory, for the paths that operators call; without them
        there are requests of the other paths alone.
    """

    def __init__(
        self, rows: NDArray[np.float32], seed: int, model: str = "digits", *, version: str = "", bundle: str = ""
    ) -> None:
        self._random = random.Random(seed)
        shape, values = list(rows.shape), rows.tolist()
        tensor = {"name": "probs", "datatype": "FP32", "shape": shape, "data": values}
        infer = {"id": "a", "inputs": [tensor], "outputs": [{"name": "p_value", "parameters": {"binary_data": True}}]}
        binary = {**tensor, "parameters": {"binary_data_size": rows.nbytes}}
        del binary["data"]
        tokens = [{"token": "class 1", "logprob": -0.1}, {"token": "a", "logprob": -3}]
        corners = [{"x": 0, "y": 0}, {"x": 1, "y": 0}, {"x": 0, "y": 1}]
        base, infer_path = f"/v1/models/{model}", f"/v2/models/{model}/infer"
        self._seeds: list[tuple[str, str, dict[str, Any], bytes]] = [
            ("POST", infer_path, infer, b""),
            ("POST", infer_path, {"inputs": [tensor], "parameters": {"partial_ok": True}}, b""),
            ("POST", infer_path, {"inputs": [binary]}, rows.tobytes()),
            ("POST", f"{base}/score", {"rows": values, "partial_ok": True, "prediction_ids": ["a", "b"]}, b""),
            ("POST", f"{base}/score", {"top": [{"classes": [1, 0], "log_probabilities": [-0.1, -3]}]}, b""),
            ("POST", f"{base}/events", {"choices": [{"logprobs": {"content": [{"top_logprobs": tokens}]}}]}, b""),
            ("POST", f"{base}/score", {"tensor": {"shape": shape, "data": "AAAA"}, "event_time": _TIME}, b""),
            ("POST", f"{base}/outcomes", {"outcomes": [{"prediction_id": "a", "label": 1, "observed_at": _TIME}]}, b""),
            ("POST", f"{base}/policy/dry-run", {"policy": {"alpha": 0.1}, "since": _TIME}, b""),
            ("POST", f"{base}/regions/preview", {"polygon": corners, "examples": 3}, b""),
            ("POST", f"{base}/shadow", {"version": "0" * 64}, b""),
            ("POST", "/v1/events", {**_EVENT, "inferenceservicename": model, "data": {"predictions": values}}, b""),
            ("POST", f"{base}/events", {**_EVENT, "data": {"outputs": [tensor]}}, b""),
            ("POST", f"{base}/events", {"outputs": [{**tensor, "name": "label"}, binary]}, rows.tobytes()),
            ("POST", f"{base}/events", {"data": {"ndarray": values}}, b""),
        ]  # fmt: skip
        self._admin = _admin_requests(model, version, bundle) if version else []

    def make(self) -> tuple[str, str, bytes, dict[str, str]]:
        """HTTP method, path, body and headers."""
        rng = self._random
        verb, path, given, raw = rng.choice(self._admin if self._admin and rng.random() < _ADMIN else self._seeds)
        body = copy.deepcopy(given)
        kind = rng.randrange(8)
        if 2 <= kind <= 5:
            for _ in range(rng.choice([1, 1, 2, 5])):
                self._alter(body)
        text = json.dumps(body).encode()
        if kind == 6:
            text = self._flip(text)
        if kind == 7:
            text = rng.choice([rng.randbytes(rng.randrange(200)), text[: rng.randrange(len(text))], b"[" * 9000])
        if verb in ("GET", "DELETE"):
            return verb, f"{path}?{self._query(body) if kind < 6 else quote_from_bytes(text)[:4000]}", b"", {}
        headers = {_SIZE: str(rng.choice([len(text)] * 8 + [0, -1, 10**30, "x", ""]))} if raw else {}
        if path.endswith("/events"):
            is_structured = "specversion" in given
            headers |= {"content-type": "application/cloudevents+json"} if is_structured else self._attributes()
        return verb, path, text + raw[: rng.choice([len(raw)] * 4 + [3])], headers

    def _attributes(self) -> dict[str, str]:
        """The headers of an event, one of them perhaps altered."""
        rng, found = self._random, {f"ce-{name}": value for name, value in _EVENT.items()}
        if rng.random() < 0.3:
            found[rng.choice([*found, "ce-requestid"])] = rng.choice(["", "%", "%00", "%ED%A0%80", "\xff", "x" * 3000])
        return found

    def _query(self, body: dict[str, Any]) -> str:
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in body.items()}
        return urlencode(texts, errors="replace")[:4000]

    def _alter(self, body: Any) -> None:
        """Replace, remove or add something at some depth."""
        rng, place = self._random, body
        while True:
            keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                return
            key = rng.choice(keys)
            if isinstance(place[key], dict | list) and rng.random() < 0.7:
                place = place[key]
                continue
            match rng.randrange(4):
                case 0:
                    del place[key]
                case 1 if isinstance(place, dict):
                    place[rng.choice(["x", "", "rows", "model", "parameters"])] = copy.deepcopy(rng.choice(_VALUES))
                case _:
                    place[key] = copy.deepcopy(rng.choice(_VALUES))
            return

    def _flip(self, text: bytes) -> bytes:
        data = bytearray(text)
        for _ in range(self._random.randrange(1, 6)):
            data[self._random.randrange(len(data))] = self._random.randrange(256)
        return bytes(data)


def _admin_requests(model: str, version: str, bundle: str) -> list[tuple[str, str, dict[str, Any], bytes]]:
    """A good request for every path of `darksight.v1` but those of scoring."""
    good, found = admin_seeds(model, version, bundle), []
    for operation in OPERATIONS.values():
        if operation.method in good:
            message = operation.request.FromString(good[operation.method][0])
            given = json_format.MessageToDict(message, preserving_proto_field_name=True)
            for verb, path in (route.split(" ") for route in operation.routes):
                found.append((verb, path.format(model=model, name="corner"), given, b""))
    return found


def send_noise(url: str, token: str, bodies: Bodies, count: int) -> Counter[int]:
    """Statuses of so many requests to a server."""
    connection = http.client.HTTPConnection(url.partition("://")[2], timeout=60)
    statuses: Counter[int] = Counter()
    for _ in range(count):
        verb, path, content, headers = bodies.make()
        connection.request(verb, path, content, {**headers, "Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        response.read()
        statuses[response.status] += 1
    connection.close()
    return statuses
