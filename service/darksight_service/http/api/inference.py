"""The Open Inference Protocol over HTTP: JSON, and tensors as bytes behind the JSON (the binary tensor extension).

Tensors have the names and types of `operations.inference`. A number that JSON does not have, as in the scores of an
invalid row, is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from darksight_client.stubs.inference import grpc_predict_v2_pb2 as pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from pydantic import ConfigDict, Field
from starlette.responses import Response

from darksight_core.rows.tags import COLUMN_PREFIX
from darksight_service.errors import RequestError
from darksight_service.http.app import Answer
from darksight_service.http.inputs import Input, read_body_input
from darksight_service.http.operations import BoundOperation
from darksight_service.http.requests import HttpCall, Request
from darksight_service.http.tensors import (
    MAX_TENSORS,
    SIZE_HEADER,
    JsonTensor,
    read_numbers,
    split_body,
    split_tensors,
)

__all__ = ["BINARY_EXTENSION", "InferenceRequest", "answer_infer", "answer_state", "read_infer"]

BINARY_EXTENSION = "binary_tensor_data"

_DTYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"), "INT32": np.dtype("<i4")}
_INPUTS = ("FP32", "FP64")


class _OutputParameters(Input):
    binary_data: bool | None = None
    # The handler refuses a request that has one of these.
    classification: Any = None
    shared_memory_region: Any = None


class _Output(Input):
    name: str = ""
    parameters: _OutputParameters = _OutputParameters()


class _Parameters(Input):
    model_config = ConfigDict(extra="allow")

    partial_ok: bool = False
    probe: bool = False
    idempotency_key: str = ""
    binary_data_output: bool = False


class InferenceRequest(Input):
    """The JSON of a request."""

    id: str = ""
    parameters: _Parameters = _Parameters()
    inputs: list[JsonTensor] = Field(default=[], max_length=MAX_TENSORS)
    outputs: list[_Output] = Field(default=[], max_length=MAX_TENSORS)


def answer_infer(run: BoundOperation) -> Answer:
    """Answers `infer`, by the operation ModelInfer."""

    def answer(request: Request, call: HttpCall) -> Response:
        message, is_binary = read_infer(request)
        return _write_infer(run(message, call), is_binary)

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


def read_infer(request: Request) -> tuple[pb2.ModelInferRequest, Callable[[str], bool]]:
    """The message of a request, and which outputs are to be sent as bytes."""
    text, data = split_body(request.body, request.json_size)
    given = read_body_input(InferenceRequest, text)
    message = _set_model(pb2.ModelInferRequest(id=given.id), request)
    for name, value in given.parameters:
        if name in ("partial_ok", "probe"):
            message.parameters[name].bool_param = value
        elif name == "idempotency_key" or name.startswith(COLUMN_PREFIX):
            if not isinstance(value, str):
                raise RequestError(f"{name[:100]}: must be text", field=name[:100])
            message.parameters[name].string_param = value
    for output in given.outputs:
        added = message.outputs.add(name=output.name)
        for name in output.parameters.model_fields_set - {"binary_data"}:
            added.parameters[name].string_param = ""
    parts, rest = split_tensors("inputs", given.inputs, data)
    if rest:
        raise RequestError(f"inputs: {len(rest):,} bytes follow the last tensor", field="inputs")
    for tensor, raw in zip(given.inputs, parts, strict=True):
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        # The handler refuses other types, and says which there are.
        if raw is None and tensor.datatype in _INPUTS:
            raw = _values(tensor)
        if raw is not None:
            message.raw_input_contents.append(raw)
    named = {each.name: each.parameters.binary_data for each in given.outputs}

    def is_binary(name: str) -> bool:
        wanted = named.get(name)
        return given.parameters.binary_data_output if wanted is None else wanted

    return message, is_binary


def _values(tensor: JsonTensor) -> bytes:
    # A value that is too large for a float32 becomes infinite.
    with np.errstate(over="ignore"):
        return read_numbers("inputs", tensor.name, tensor.data).astype(_DTYPES[tensor.datatype]).tobytes()


def _write_infer(response: pb2.ModelInferResponse, is_binary: Callable[[str], bool]) -> Response:
    outputs, parts = [], []
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        output: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if is_binary(tensor.name):
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
