"""The Open Inference Protocol over HTTP: JSON, and tensors as bytes behind the JSON (the binary tensor extension).

Tensors have the names and types of `operations.inference`. A number that JSON does not have, as in the scores of an
invalid row, is null.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import numpy as np
from darksight_client.stubs.inference import grpc_predict_v2_pb2 as pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from starlette.responses import Response

from darksight_core.rows.tags import COLUMN_PREFIX
from darksight_service.errors import RequestError
from darksight_service.http.api.operations import BoundOperation
from darksight_service.http.api.tensors import SIZE_HEADER, read_numbers, split_body
from darksight_service.http.app import Answer
from darksight_service.http.requests import HttpCall, Request, read_json

__all__ = ["BINARY_EXTENSION", "answer_infer", "answer_state"]

BINARY_EXTENSION = "binary_tensor_data"

_DTYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"), "INT32": np.dtype("<i4")}
_INPUTS = ("FP32", "FP64")
# Of outputs; the handler refuses a request that has one.
_UNSUPPORTED = ("classification", "shared_memory_region")
_MAX_ITEMS = 64


class _Wanted(NamedTuple):
    """Which outputs are sent as bytes: those named, or all others."""

    named: dict[str, bool]
    others: bool

    def as_bytes(self, name: str) -> bool:
        return self.named.get(name, self.others)


def answer_infer(run: BoundOperation) -> Answer:
    """Answers `infer`, by the operation ModelInfer."""

    def answer(request: Request, call: HttpCall) -> Response:
        message, wanted = _read_infer(request)
        return _write_infer(run(message, call), wanted)

    return answer


def answer_state(run: BoundOperation) -> Answer:
    """Answers a path without a body."""

    def answer(request: Request, call: HttpCall) -> Response:
        message = run.operation.request()
        response = run(_set_model(message, request) if request.parameters else message, call)
        status, found = _state(run.operation.name, response, request)
        return Response(json.dumps(found), status, media_type="application/json")

    return answer


def _state(name: str, response: Any, request: Request) -> tuple[int, Any]:
    found = _plain(response)
    match name:
        case "ServerLive":
            return 200, {"live": response.live}
        case "ServerReady":
            return (200 if response.ready else 503), {"ready": response.ready}
        case "ModelReady":
            return (200 if response.ready else 503), {"name": request.parameters["model"], "ready": response.ready}
        case "ServerMetadata":
            found["extensions"].append(BINARY_EXTENSION)
        case "ModelConfig":
            return 200, found["config"]
        case "RepositoryIndex":
            return 200, found.get("models", [])
    return 200, found


def _plain(message: Message) -> dict[str, Any]:
    """The fields that are set; unlike protobuf's own mapping with whole numbers as numbers."""
    return {field.name: _plain_value(field, value) for field, value in message.ListFields()}


def _plain_value(field: FieldDescriptor, value: Any) -> Any:
    if field.is_repeated:
        return [_plain_item(field, item) for item in value]
    return _plain_item(field, value)


def _plain_item(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return _plain(value)
    return value if field.enum_type is None else field.enum_type.values_by_number[value].name


def _set_model(message: Any, request: Request) -> Any:
    """A message with the model and version of the path."""
    prefix = "model_" if isinstance(message, pb2.ModelInferRequest) else ""
    for field, name in (("name", "model"), ("version", "version")):
        try:
            setattr(message, prefix + field, request.parameters.get(name, ""))
        except ValueError:
            raise RequestError(f"{name}: is not UTF-8", field=name) from None
    return message


def _read_infer(request: Request) -> tuple[pb2.ModelInferRequest, _Wanted]:
    text, data = split_body(request.body, request.json_size)
    given = read_json(text)
    message = _set_model(pb2.ModelInferRequest(), request)
    parameters = _object(given, "parameters")
    try:
        message.id = _text(given, "id")
        if "partial_ok" in parameters:
            message.parameters["partial_ok"].bool_param = _flag(parameters, "partial_ok")
        for name in parameters:
            if name.startswith(COLUMN_PREFIX):
                message.parameters[name].string_param = _text(parameters, name)
        named = {}
        for output in _objects(given, "outputs"):
            added = message.outputs.add(name=_text(output, "name"))
            options = _object(output, "parameters")
            for name in _UNSUPPORTED:
                if name in options:
                    added.parameters[name].string_param = ""
            if "binary_data" in options:
                named[added.name] = _flag(options, "binary_data")
        for tensor in _objects(given, "inputs"):
            data = _read_tensor(message, tensor, data)
    except UnicodeEncodeError:
        raise RequestError("body: a text is not UTF-8", field="body") from None
    if data:
        raise RequestError(f"inputs: {len(data):,} bytes follow the last tensor", field="inputs")
    return message, _Wanted(named, _flag(parameters, "binary_data_output"))


def _read_tensor(message: pb2.ModelInferRequest, tensor: dict[str, Any], data: bytes) -> bytes:
    """Add an input and its values; returns the bytes behind those of the tensor."""
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and abs(size) < 1 << 62 for size in shape[:_MAX_ITEMS]):
        raise RequestError("inputs: shape must be a list of whole numbers", field="inputs")
    name, datatype = _text(tensor, "name"), _text(tensor, "datatype")
    message.inputs.add(name=name, datatype=datatype, shape=shape[:_MAX_ITEMS])
    size = _object(tensor, "parameters").get("binary_data_size")
    if size is not None:
        if type(size) is not int or not 0 <= size <= len(data):
            raise RequestError(
                f"inputs: binary_data_size of {name[:100]!r} must be at most {len(data):,}, the bytes that follow",
                field="inputs",
            )
        message.raw_input_contents.append(data[:size])
        return data[size:]
    # The handler refuses other types, and says which there are.
    if datatype in _INPUTS:
        message.raw_input_contents.append(_values(name, tensor.get("data"), _DTYPES[datatype]))
    return data


def _values(name: str, data: Any, dtype: np.dtype[Any]) -> bytes:
    """The bytes of values in JSON, a list or a list of rows."""
    # A value that is too large for a float32 becomes infinite.
    with np.errstate(over="ignore"):
        return read_numbers("inputs", name, data).astype(dtype).tobytes()


def _write_infer(response: pb2.ModelInferResponse, wanted: _Wanted) -> Response:
    outputs, parts = [], []
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        output: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if wanted.as_bytes(tensor.name):
            output["parameters"] = {"binary_data_size": len(raw)}
            parts.append(raw)
        else:
            output["data"] = np.frombuffer(raw, _DTYPES[tensor.datatype]).tolist()
        outputs.append(output)
    found: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        found["id"] = response.id
    found["parameters"] = {
        "batch_id": response.parameters["batch_id"].string_param,
        "recorded": response.parameters["recorded"].bool_param,
    }
    found["outputs"] = outputs
    text = _dump(found)
    if not parts:
        return Response(text, media_type="application/json")
    headers = {SIZE_HEADER: str(len(text))}
    return Response(b"".join([text, *parts]), headers=headers, media_type="application/octet-stream")


def _dump(found: dict[str, Any]) -> bytes:
    try:
        return json.dumps(found, allow_nan=False).encode()
    except ValueError:
        # To look at every number first would take longer.
        for output in found["outputs"]:
            if "data" in output:
                output["data"] = [value if math.isfinite(value) else None for value in output["data"]]
        return json.dumps(found, allow_nan=False).encode()


def _object(given: dict[str, Any], name: str) -> dict[str, Any]:
    value = given.get(name, {})
    if not isinstance(value, dict):
        raise RequestError(f"{name}: must be an object", field=name)
    return value


def _objects(given: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values = given.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise RequestError(f"{name}: must be a list of objects", field=name)
    if len(values) > _MAX_ITEMS:
        raise RequestError(f"{name}: there are {len(values):,}; the limit is {_MAX_ITEMS}", field=name)
    return values


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name, "")
    if not isinstance(value, str):
        raise RequestError(f"{name}: must be text", field=name)
    return value


def _flag(given: dict[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"{name}: must be true or false", field=name)
    return value
