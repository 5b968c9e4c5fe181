from __future__ import annotations

import json
import math
import time
from typing import Any

import numpy as np
import pytest
from darksight_service.errors import RequestError
from darksight_service.http.explorer.answers import to_json
from darksight_service.http.explorer.api import drift, gate, map, models, points, review
from darksight_service.http.explorer.endpoint import Endpoint
from darksight_service.http.explorer.inputs import DAY_MS, ModelInput, SpanInput
from darksight_service.http.inputs import Input, read_body_input


class Sources:
    """Enough of the explorer's sources to declare endpoints."""

    registry = control = None

    def __getattr__(self, name: str) -> Sources:
        return self


MODULES = (models, map, gate, drift, review, points)
ENDPOINTS: dict[str, Endpoint[Any]] = {
    each.path: each
    for module in MODULES
    for each in module.endpoints(type("Fake", (), {"control": Sources(), "registry": Sources()})())  # type: ignore[arg-type]
}


def read(path: str, given: dict[str, Any]) -> Any:
    """Validate an input as the application does."""
    endpoint = ENDPOINTS[path]
    if endpoint.method == "GET":
        return endpoint.read({name: str(value) for name, value in given.items()}, b"")
    return endpoint.read({}, json.dumps(given).encode())


@pytest.mark.parametrize(
    ("path", "given", "message"),
    [
        ("/api/map", {}, "model: is missing"),
        ("/api/map", {"model": ""}, "model: is missing"),
        ("/api/map/points", {"model": "m", "limit": 0}, "limit: must be at least 1, not '0'"),
        ("/api/map/points", {"model": "m", "limit": "ten"}, "limit: must be a whole number, not 'ten'"),
        ("/api/map/points", {"model": "m", "classes": "1,a"}, "classes[1]: must be a whole number, not 'a'"),
        (
            "/api/map/points",
            {"model": "m", "classes": 1 << 31},
            "classes[0]: must be less than 2147483648",
        ),
        ("/api/map/points", {"model": "m", "before": "xy"}, "before: must be the id of a point, 32 hexadecimal digits"),
        ("/api/map/density", {"model": "m", "layer": "x"}, "layer: must be student or kde, not 'x'"),
        ("/api/points", {"model": "m", "decisions": "maybe"}, "decisions: must be among accept, reject, not 'maybe'"),
        ("/api/points", {"model": "m", "since_ms": 5, "until_ms": 5}, "since_ms: must be before the end of the span"),
        ("/api/points", {"model": "m", "since_ms": -1}, "since_ms: must be at least 0, not '-1'"),
        ("/api/gate", {"model": "m", "threshold": "high"}, "threshold: must be a number, not 'high'"),
        ("/api/gate", {"model": "m", "alpha": "nan"}, "alpha: must be a finite number, not 'nan'"),
        ("/api/review", {"model": "m", "limit": 0}, "limit: must be at least 1, not '0'"),
        (
            "/api/review",
            {"model": "m", "stream": "x"},
            "stream: must be outliers, doubtful, audit or certificate",
        ),
        ("/api/gate/policy", {"model": "m", "comment": " "}, "comment: must be non-empty text, not ' '"),
        ("/api/gate/policy", {"model": "m", "comment": "x" * 1001}, "comment: must be text of at most 1000 characters"),
        ("/api/gate/policy", {"model": "m", "comment": "c", "fail_open": 1}, "fail_open: must be true or false, not 1"),
        (
            "/api/gate/policy",
            {"model": "m", "comment": "c", "threshold": True},
            "threshold: must be a number, not 'True'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("/") else "",
)
def test_an_invalid_input_is_refused_by_field(path: str, given: dict[str, Any], message: str):
    """One sentence names the field and what it must be; `field` is the name that the page knows."""
    with pytest.raises(RequestError) as refused:
        read(path, given)

    assert refused.value.message.startswith(message)
    assert refused.value.details["field"] == message.replace("[", ":").partition(":")[0]


@pytest.mark.parametrize("body", [b"[1]", b"{", b'"text"'])
def test_a_body_must_be_a_json_object(body: bytes):
    """Anything else is named as the body."""
    with pytest.raises(RequestError, match=r"^body: must be (a JSON object|an object), not") as refused:
        read_body_input(ModelInput, body)

    assert refused.value.details["field"] == "body"


def test_a_threshold_may_be_minus_infinity():
    """As text, because JSON has no such number."""
    assert read("/api/gate", {"model": "m", "threshold": "-inf"}).threshold == -math.inf
    assert read("/api/gate/policy", {"model": "m", "comment": "c", "threshold": "-inf"}).threshold == -math.inf
    assert read("/api/gate/policy", {"model": "m", "comment": "c", "threshold": 1}).threshold == 1.0


def test_a_span_ends_now_by_default():
    """And starts a week before on the page of points."""
    given = read("/api/points", {"model": "m"})

    assert abs(given.until_ms - time.time() * 1000) < 60_000
    assert given.until_ms - given.start_ms == 7 * DAY_MS
    assert SpanInput(model="m", since_ms=5, until_ms=9).start_ms == 5


def test_every_change_is_a_post_with_an_input_model():
    """Only a POST has a CSRF token, and every endpoint declares its input."""
    assert all(each.scope == "read" for each in ENDPOINTS.values() if each.method == "GET")
    assert all(issubclass(each.input, Input) for each in ENDPOINTS.values())


def test_values_become_json():
    """Arrays are lists, NaN is null, infinity is text, and no number has more digits than were stored."""
    value = {"a": np.array([1.0, math.nan, -math.inf]), "b": (np.int32(3), np.float32(0.1)), "c": np.bool_(True)}

    assert to_json(value) == {"a": [1.0, None, "-inf"], "b": [3, 0.100000001], "c": True}
