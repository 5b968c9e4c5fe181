"""The gate between JSON and numpy: nothing becomes an array before its types and sizes are known."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from darksight_client.stubs.darksight.v1 import monitor_pb2
from darksight_service.errors import RequestError
from darksight_service.http.api.inference import read_infer
from darksight_service.http.api.payloads import find_rows, read_payload
from darksight_service.http.inputs import MAX_LISTS, read_json
from darksight_service.http.messages import _read_message
from darksight_service.http.problems import problem_response
from darksight_service.http.requests import Request
from darksight_service.http.tensors import read_numbers

LONG = "a" * 1_000_000
BAD = {
    "texts": [LONG] + ["b"] * 400,
    "texts in rows": [[0.5, 0.5], [LONG] + ["b"] * 400],
    "objects": [{"a": 1}] * 100,
    "truth": [True, False],
    "null": [None, 1.0],
    "deeper": [[[0.5, 0.5]]],
    "ragged": [[0.5, 0.5], [0.5]],
    "mixed": [[0.5], 0.5],
    "no list": 0.5,
    "too large": [10**400],
    "empty rows": [[]] * (MAX_LISTS + 1),
}


def infer(tensor: dict[str, Any]) -> None:
    """Read an inference request."""
    body = json.dumps({"inputs": [{"name": "probs", "datatype": "FP32", **tensor}]}).encode()
    read_infer(Request({"model": "digits"}, b"", body))


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_what_is_not_numbers_is_refused_without_an_array(data: Any) -> None:
    """In requests and in events, with less memory than an array of texts would need (400 MB here)."""
    events = {
        "V2": {"outputs": [{"name": "probs", "datatype": "FP32", "shape": [1, 2], "data": data}]},
        "V1": {"predictions": data},
        "Seldon": {"data": {"ndarray": data}},
    }
    tracemalloc.start()
    try:
        with pytest.raises(RequestError) as refused:
            infer({"shape": [1, 2], "data": data})
        for event in events.values():
            with pytest.raises(RequestError):
                find_rows(*read_payload(json.dumps(event).encode(), None), "")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert refused.value.details["field"] == "inputs"
    assert peak < 30e6


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        ({"shape": [1 << 62, 1 << 62]}, "inputs[0].shape[0]: must be less than"),
        ({"shape": [1.5]}, "inputs[0].shape[0]: must be a whole number, not 1.5"),
        ({"shape": [1] * 100}, "inputs[0].shape: must be a list of at most 64 items"),
        ({}, "inputs[0].shape: is missing"),
        ({"shape": [1, 2], "parameters": {"binary_data_size": -1}}, "inputs[0].parameters.binary_data_size: must be"),
        ({"shape": [1, 2], "parameters": {"binary_data_size": 8}}, "inputs: binary_data_size of 'probs' must be"),
        ({"shape": [1, 2], "name": 3}, "inputs[0].name: must be text, not 3"),
    ],
)
def test_a_bad_tensor_is_refused_by_field(tensor: dict[str, Any], problem: str) -> None:
    """The sentence names what is wrong."""
    with pytest.raises(RequestError) as refused:
        infer(tensor)

    assert refused.value.message.startswith(problem)
    assert refused.value.details["field"] == "inputs"


@pytest.mark.parametrize("name", ["inputs", "outputs"])
def test_a_request_has_few_tensors(name: str) -> None:
    """Each of them becomes several objects."""
    with pytest.raises(RequestError, match="must be a list of at most 64 items"):
        read_infer(Request({"model": "digits"}, b"", json.dumps({name: [{}] * 65}).encode()))


@pytest.mark.parametrize(
    "given",
    [
        {"rows": [[]] * 70_000},
        {"rows": {"rows": [{}] * 70_000}},
        {"rows": [[0.5]], "prediction_ids": [""] * 70_000},
        {"rows": [[0.5]], "row_tags": [{}] * 70_000},
        {"rows": [[0.5]], "tags": {str(number): "" for number in range(70_000)}},
        {"tensor": {"shape": [1] * 70_000, "data": ""}},
    ],
    ids=["lists", "objects", "ids", "tags of rows", "tags", "numbers"],
)
def test_a_body_has_few_lists_objects_and_texts(given: dict[str, Any]) -> None:
    """Before protobuf makes messages of them, which takes seconds."""
    with pytest.raises(RequestError, match=r"has 70,000 lists, objects or texts; the limit is 65,536"):
        _read_message(monitor_pb2.ScoreRequest, read_json(json.dumps(given).encode()))


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"rows": [{"values": row} for row in rows]}])
def test_rows_of_a_score_call_become_a_tensor(wrap: Callable[[Any], Any]) -> None:
    """As plain lists, or in protobuf's own mapping; other values are refused by row."""
    message = _read_message(monitor_pb2.ScoreRequest, {"model": "m", "rows": wrap([[0.25, 1], [0.5, 1e300]])})
    with pytest.raises(RequestError, match="row 1 of rows must be a list of numbers") as refused:
        _read_message(monitor_pb2.ScoreRequest, {"rows": wrap([[0.25], ["0.5"]])})

    assert (message.model, list(message.tensor.shape)) == ("m", [2, 2])
    assert np.frombuffer(message.tensor.data, "<f4").tolist() == [0.25, 1.0, 0.5, np.inf]
    assert refused.value.details == {"field": "rows", "row": 1}


def test_numbers_are_read_as_they_are() -> None:
    """Whole numbers and floats, flat or in rows."""
    assert read_numbers("inputs", "probs", [1, 0.25]).tolist() == [1.0, 0.25]
    assert read_numbers("inputs", "probs", [[1, 2], [3, 0.5]]).tolist() == [[1.0, 2.0], [3.0, 0.5]]
    assert read_numbers("inputs", "probs", []).dtype == np.float64


def test_a_request_that_memory_does_not_hold_is_too_large() -> None:
    """Not an error of the server."""
    response, code = problem_response(MemoryError(), "/v2/models/digits/infer")

    assert (response.status_code, code) == (413, "INVALID_ARGUMENT")
