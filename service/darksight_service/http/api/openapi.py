"""The OpenAPI 3.1 document, made from the table of operations and the descriptors of the messages."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pydantic.json_schema import models_json_schema

from darksight_core import __version__
from darksight_service.control.tokens import OPEN
from darksight_service.http.api.events import EVENT_ROUTES
from darksight_service.http.api.inference import InferenceRequest
from darksight_service.operations.inference import INFERENCE
from darksight_service.operations.operation import Operation
from darksight_service.operations.table import OPERATIONS

__all__ = ["openapi_document"]

Schema = dict[str, Any]

_TIME = "google.protobuf.Timestamp"
_STRING: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_TRUTH: Schema = {"type": "boolean"}
# JSON has no NaN and no infinity.
_NUMBER: Schema = {"type": ["number", "string"], "format": "double"}
_SCALARS: dict[int, Schema] = {
    FieldDescriptor.TYPE_BOOL: _TRUTH,
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_DOUBLE: _NUMBER,
    FieldDescriptor.TYPE_FLOAT: {"type": ["number", "string"], "format": "float"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    # protobuf writes whole numbers of 64 bits as text, and reads both.
    FieldDescriptor.TYPE_INT64: {"type": ["string", "integer"], "format": "int64"},
    FieldDescriptor.TYPE_STRING: _STRING,
}
_ROWS: Schema = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
# In a query.
_PAIRS: Schema = {"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}, "examples": [["camera=7"]]}
_OBJECT: Schema = {"type": "object", "additionalProperties": True}
_SCHEMAS: dict[str, Schema] = {
    "Problem": {
        "type": "object",
        "required": ["type", "title", "status", "detail", "code", "request_id"],
        "properties": {
            "type": _STRING,
            "title": _STRING,
            "status": _WHOLE,
            "detail": _STRING,
            "code": _STRING,
            "request_id": _STRING,
            "field": _STRING,
            "row": _WHOLE,
            "retry_seconds": {"type": "number"},
            "error": _STRING,
        },
    },
    "Event": {
        "type": "object",
        "required": ["specversion", "id", "source", "type", "data"],
        "properties": {
            "specversion": {"enum": ["1.0", "0.3"]},
            "id": _STRING,
            "source": _STRING,
            "type": {"type": "string", "pattern": r"\.inference\.(request|response)$"},
            "time": {"type": "string", "format": "date-time"},
            "inferenceservicename": _STRING,
            "namespace": _STRING,
            "modelid": _STRING,
            "requestid": _STRING,
            "data": {"type": ["object", "string"]},
            "data_base64": {"type": "string", "contentEncoding": "base64"},
        },
        "additionalProperties": True,
        "examples": [
            {
                "specversion": "1.0",
                "id": "36f9c4b5-c3bd-4ea3-9f0d-9c0d33b4e0b2",
                "source": "http://localhost:9081/",
                "type": "org.kubeflow.serving.inference.response",
                "inferenceservicename": "digits",
                "data": {"predictions": [[0.7, 0.2, 0.1]]},
            },
        ],
    },
    "InferenceResponse": {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "model_name": _STRING,
            "model_version": _STRING,
            "id": _STRING,
            "parameters": {"type": "object", "properties": {"batch_id": _STRING, "recorded": _TRUTH}},
            "outputs": {"type": "array", "items": {"$ref": "#/components/schemas/JsonTensor"}},
        },
    },
}


def openapi_document() -> dict[str, Any]:
    """The document."""
    schemas = dict(_SCHEMAS)
    _, models = models_json_schema([(InferenceRequest, "validation")], ref_template="#/components/schemas/{model}")
    schemas.update(models["$defs"])
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS.values():
        for route in operation.routes:
            verb, _, path = route.partition(" ")
            is_inference = operation.service == INFERENCE.full_name
            found = (
                _inference_operation(operation, path) if is_inference else _message_operation(operation, route, schemas)
            )
            paths.setdefault(path, {})[verb.lower()] = found
    for route in EVENT_ROUTES:
        paths[route.removeprefix("POST ")] = {"post": _event_operation(route.removeprefix("POST "))}
    return {
        "openapi": "3.1.0",
        "info": {"title": "DarkSight", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "The request failed.",
                    "content": {"application/problem+json": {"schema": _reference("Problem")}},
                }
            },
        },
    }


def _describe(operation: Operation, path: str, tag: str, response: Schema) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tags": [tag],
        "operationId": operation.name + ("OfVersion" if "{version}" in path else ""),
        "summary": operation.summary,
        "parameters": [{"name": name, "in": "path", "required": True, "schema": _STRING} for name in _parameters(path)],
        "responses": {
            "200": {"description": "OK", "content": {"application/json": {"schema": response}}},
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    if operation.scope != OPEN:
        found["description"] = f"Needs a token with the scope `{operation.scope}`, if the server has tokens."
        found["security"] = [{"token": []}, {}]
    return found


def _inference_operation(operation: Operation, path: str) -> dict[str, Any]:
    is_infer = operation.name == "ModelInfer"
    found = _describe(operation, path, "Open Inference Protocol", _reference("InferenceResponse") if is_infer else {})
    if is_infer:
        binary = {"schema": {"type": "string", "format": "binary"}}
        found["requestBody"] = {
            "required": True,
            "content": {
                "application/json": {"schema": _reference("InferenceRequest")},
                "application/octet-stream": binary,
            },
        }
        found["responses"]["200"]["content"]["application/octet-stream"] = binary
    return found


def _event_operation(path: str) -> dict[str, Any]:
    found = _describe(OPERATIONS["Score"], path, "CloudEvents", {})
    found["operationId"] = "SendModelEvent" if _parameters(path) else "SendEvent"
    found["summary"] = "Record the predictions of an inference logger"
    found["requestBody"] = {
        "required": True,
        "content": {
            "application/cloudevents+json": {"schema": _reference("Event")},
            "application/json": {"schema": {}},
        },
    }
    del found["responses"]["200"]
    found["responses"]["202"] = {"description": "The event was accepted; if it has predictions, they are on disk."}
    return found


def _message_operation(operation: Operation, route: str, schemas: dict[str, Schema]) -> dict[str, Any]:
    verb, _, path = route.partition(" ")
    request: Any = operation.request.DESCRIPTOR
    response: Any = operation.response.DESCRIPTOR
    found = _describe(operation, path, "darksight.v1", _message_schema(response, schemas))
    if verb in ("POST", "PUT"):
        found["requestBody"] = {"content": {"application/json": {"schema": _message_schema(request, schemas)}}}
    else:
        found["parameters"] += [
            {"name": field.name, "in": "query", "schema": _PAIRS if _is_map(field) else _field(field, schemas)}
            for field in request.fields
            if field.name not in _parameters(path)
        ]
    return found


def _parameters(path: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", path)


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _message_schema(descriptor: Descriptor, schemas: dict[str, Schema]) -> Schema:
    """A reference to the schema of a message, which is added with those of its fields."""
    if descriptor.full_name not in schemas:
        schemas[descriptor.full_name] = {}
        schemas[descriptor.full_name] = {
            "type": "object",
            "properties": {field.name: _field(field, schemas) for field in descriptor.fields},
            "additionalProperties": False,
        }
    return _reference(descriptor.full_name)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _field(field: FieldDescriptor, schemas: dict[str, Schema]) -> Schema:
    if _is_map(field):
        return {"type": "object", "additionalProperties": _STRING}
    item = _item(field, schemas)
    return {"type": "array", "items": item} if field.is_repeated else item


def _item(field: FieldDescriptor, schemas: dict[str, Schema]) -> Schema:
    if field.enum_type is not None:
        return {"enum": [value.name for value in field.enum_type.values]}
    if field.message_type is None:
        return _SCALARS[field.type]
    if field.message_type.full_name == _TIME:
        return {"type": "string", "format": "date-time"}
    found = _message_schema(field.message_type, schemas)
    if field.message_type.name == "TopRows":
        return {"anyOf": [{"type": "array", "items": _reference("darksight.v1.TopRow")}, found]}
    return {"anyOf": [_ROWS, found]} if field.message_type.name == "Rows" else found
