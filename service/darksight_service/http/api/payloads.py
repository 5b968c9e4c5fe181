"""The probabilities in the response of a model server, as inference loggers record it.

    V2       {"outputs": [{"name": "probs", "datatype": "FP32", "shape": [2, 3], "data": [...]}, ...]}
             or with the bytes of tensors behind the JSON (the binary tensor extension)
    V1       {"predictions": [[0.1, 0.9], ...]} or {"predictions": [{"probs": [0.1, 0.9], ...}, ...]}
    Seldon   {"data": {"ndarray": [[0.1, 0.9], ...]}} or {"data": {"tensor": {"shape": [1, 2], "values": [...]}}}
    plain    {"probs": [[0.1, 0.9], ...]}, if the name of the output is set

KServe's logger does not record the header with the size of the JSON, and gives the response the content type of the
request. So the end of the JSON is where it ends, whatever the headers say.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from darksight_service.errors import RequestError
from darksight_service.http.inputs import Input, check_input, read_json
from darksight_service.http.tensors import MAX_TENSORS, JsonTensor, read_numbers, split_body, split_tensors

__all__ = ["find_rows", "read_payload"]

_DTYPES: dict[str, np.dtype[Any]] = {"FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")}


def read_payload(body: bytes, json_size: str | None) -> tuple[dict[str, Any], bytes]:
    """The JSON object of a response, and the bytes of tensors that follow it."""
    if json_size is not None:
        text, rest = split_body(body, json_size)
        return read_json(text), rest
    try:
        return read_json(body), b""
    except RequestError:
        end = _end_of_json(body)
        if end is None:
            raise
        return read_json(body[:end]), body[end:]


def _end_of_json(body: bytes) -> int | None:
    # Bytes above 127 are inside of texts only, so that any encoding with one character per byte finds the end.
    text = body.decode("latin-1")
    try:
        return json.JSONDecoder().raw_decode(text, len(text) - len(text.lstrip(" \t\r\n")))[1]
    except (ValueError, RecursionError):
        return None


def find_rows(payload: dict[str, Any], rest: bytes, output: str) -> NDArray[np.float32]:
    """The rows of probabilities or logits, (n, K); RequestError if there are none.

    Parameters
    ----------
    payload, rest
        What `read_payload` returns.
    output
        Name of the output; empty if the response has only one that fits.
    """
    if isinstance(payload.get("outputs"), list):
        found = _of_outputs(payload, rest, output)
    elif "predictions" in payload:
        found = _of_predictions(payload["predictions"], output)
    elif isinstance(payload.get("data"), dict):
        found = _of_seldon(payload["data"])
    elif output and output in payload:
        found = read_numbers(output, output, payload[output])
    else:
        named = f", {output!r}" if output else ""
        raise RequestError(f"data: has none of outputs (V2), predictions (V1), data (Seldon){named}", field="data")
    if found.ndim != 2:
        shape = "x".join(map(str, found.shape))
        raise RequestError(f"data: must have rows of probabilities, not an array of shape {shape}", field="data")
    # A value that is too large for a float32 becomes infinite.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(found, "<f4")


class _Outputs(Input):
    outputs: list[JsonTensor] = Field(max_length=MAX_TENSORS)


def _of_outputs(payload: dict[str, Any], rest: bytes, output: str) -> NDArray[Any]:
    outputs = check_input(_Outputs, payload).outputs
    parts, _ = split_tensors("outputs", outputs, rest)
    fitting = [
        (each, raw)
        for each, raw in zip(outputs, parts, strict=True)
        if (each.name == output if output else each.datatype in _DTYPES and _is_table(each.shape))
    ]
    if len(fitting) != 1:
        wanted = f"one with the name {output!r}" if output else "one of floats with rows and classes"
        names = ", ".join(each.name[:100] for each in outputs) or "none"
        raise RequestError(
            f"outputs: must have {wanted}, and has {names}; the setting passive names the output", field="outputs"
        )
    return _values(*fitting[0])


def _is_table(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) in (1, 2) and all(type(size) is int and size >= 0 for size in shape)


def _values(tensor: JsonTensor, raw: bytes | None) -> NDArray[Any]:
    name, dtype = tensor.name[:100], _DTYPES.get(tensor.datatype)
    if dtype is None:
        raise RequestError(
            f"outputs: {name} must be {', '.join(_DTYPES)}, not {tensor.datatype[:20]!r}", field="outputs"
        )
    if not _is_table(tensor.shape):
        raise RequestError(f"outputs: {name} must have a shape [n, K] or [K]", field="outputs")
    if raw is None:
        values = read_numbers("outputs", name, tensor.data)
    elif len(raw) % dtype.itemsize:
        raise RequestError(f"outputs: {name} has {len(raw):,} bytes, not a multiple of a value", field="outputs")
    else:
        values = np.frombuffer(raw, dtype)
    return _reshaped("outputs", name, values, tensor.shape)


def _reshaped(field: str, name: str, values: NDArray[Any], shape: list[int]) -> NDArray[Any]:
    if values.size != math.prod(shape) or not values.size:
        raise RequestError(f"{field}: {name} has {values.size:,} values, not those of its shape {shape}", field=field)
    return values.reshape(shape if len(shape) == 2 else [1, *shape])


def _of_predictions(predictions: Any, output: str) -> NDArray[Any]:
    if not isinstance(predictions, list):
        raise RequestError("predictions: must be a list", field="predictions")
    if not predictions or not isinstance(predictions[0], dict):
        return read_numbers("predictions", "predictions", predictions)
    rows = []
    for row, each in enumerate(predictions):
        name = output or (next(iter(each)) if isinstance(each, dict) and len(each) == 1 else "")
        if not isinstance(each, dict) or name not in each:
            text = f"an output {output!r}" if output else "a single output; the setting passive names one of several"
            raise RequestError(f"predictions: row {row} must have {text}", field="predictions", row=row)
        rows.append(each[name])
    return read_numbers("predictions", output or "predictions", rows)


def _of_seldon(data: dict[str, Any]) -> NDArray[Any]:
    if "ndarray" in data:
        return read_numbers("data.ndarray", "ndarray", data["ndarray"])
    tensor = data.get("tensor")
    if not isinstance(tensor, dict):
        raise RequestError("data: has neither ndarray nor tensor", field="data")
    if not _is_table(tensor.get("shape")):
        raise RequestError("data.tensor: must have a shape [n, K] or [K]", field="data.tensor")
    values = read_numbers("data.tensor", "values", tensor.get("values")).ravel()
    return _reshaped("data.tensor", "values", values, tensor["shape"])
