"""`darksight.v1` as JSON, in protobuf's own mapping with the names of the proto files.

The rows of a score call may also be a plain list of lists of numbers, and its `top` a list of objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import numpy as np
from darksight_client.stubs.darksight.v1 import monitor_pb2
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from numpy.typing import NDArray
from starlette.responses import Response

from darksight_service.errors import RequestError
from darksight_service.http.inputs import check_lists, read_json
from darksight_service.http.operations import BoundOperation
from darksight_service.http.requests import HttpCall, Request
from darksight_service.http.tensors import read_numbers

__all__ = ["MessageAnswer"]

_MAX_PARAMETERS = 1000
_LONGEST_TEXT = 300


class MessageAnswer:
    """Answers a route of an operation of `darksight.v1`.

    Parameters
    ----------
    route
        HTTP method and path.
    run
        Runs the operation.
    """

    def __init__(self, route: str, run: BoundOperation) -> None:
        self._has_body = route.startswith(("POST ", "PUT "))
        self._run = run
        self._request: Any = run.operation.request

    def __call__(self, request: Request, call: HttpCall) -> Response:
        """The response to a request."""
        if self._has_body:
            given = read_json(request.body or b"{}")
        else:
            given = _read_query(self._request.DESCRIPTOR.fields_by_name, request.query)
        message = _read_message(self._request, {**given, **_check_parameters(request.parameters, given)})
        found = json_format.MessageToDict(
            self._run(message, call), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return Response(json.dumps(found), media_type="application/json")


def _check_parameters(parameters: Mapping[str, str], given: Mapping[str, Any]) -> Mapping[str, str]:
    """The parameters of a path; a body may repeat them, but not contradict them."""
    for name, value in parameters.items():
        if given.get(name, value) != value:
            raise RequestError(f"{name}: the path says {value[:100]!r}, and the request something else", field=name)
    return parameters


def _read_message(kind: type[Message], given: dict[str, Any]) -> Message:
    rows = _take_rows(given) if kind is monitor_pb2.ScoreRequest else None
    if kind is monitor_pb2.ScoreRequest and isinstance(given.get("top"), list):
        given["top"] = {"rows": given["top"]}
    check_lists(given, counts_numbers=True)
    try:
        message = json_format.ParseDict(given, kind())
        if rows is not None:
            assert isinstance(message, monitor_pb2.ScoreRequest)
            message.tensor.shape[:], message.tensor.data = rows.shape, rows.tobytes()
        return message
    except (RecursionError, UnicodeEncodeError) as error:
        raise RequestError(f"body: {type(error).__name__}", field="body") from None
    except Exception as error:
        # protobuf raises errors of many kinds for values that do not fit a field.
        text = str(error).partition("\n")[0][:_LONGEST_TEXT]
        field = next((name[:100] for name, value in given.items() if not _fits(kind, name, value)), "body")
        raise RequestError(f"{field}: {text}", field=field) from None


def _take_rows(given: dict[str, Any]) -> NDArray[np.float32] | None:
    """The rows of a score call, which become a tensor: a message for each of them takes a hundred times as long."""
    rows = given.get("rows")
    if isinstance(rows, dict) and isinstance(rows.get("rows"), list):
        rows = [each.get("values", []) if isinstance(each, dict) else each for each in rows["rows"]]
    if "tensor" in given or not isinstance(rows, list) or not rows:
        return None
    found = read_numbers("rows", "rows", rows)
    if found.ndim != 2:
        raise RequestError("rows: must be lists of numbers", field="rows")
    del given["rows"]
    # A value that is too large for a float32 becomes infinite.
    with np.errstate(over="ignore"):
        return found.astype("<f4")


def _fits(kind: type[Message], name: str, value: Any) -> bool:
    try:
        json_format.ParseDict({name: value}, kind())
    except Exception:
        return False
    return True


def _read_query(fields: Mapping[str, FieldDescriptor], query: bytes) -> dict[str, Any]:
    try:
        given = parse_qs(query.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
    except ValueError:
        raise RequestError(f"query: must be ASCII with at most {_MAX_PARAMETERS:,} parameters", field="query") from None
    return {name: _read_parameter(fields.get(name), name, texts) for name, texts in given.items()}


def _read_parameter(field: FieldDescriptor | None, name: str, texts: list[str]) -> Any:
    if field is None:
        raise RequestError(f"{name[:100]}: there is no such parameter", field=name[:100])
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(_read_pair(name, text) for text in texts)
    values = [_read_bool(name, text) if field.type == FieldDescriptor.TYPE_BOOL else text for text in texts]
    if field.is_repeated:
        return values
    if len(values) > 1:
        raise RequestError(f"{name}: is given {len(values)} times", field=name)
    return values[0]


def _read_pair(name: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise RequestError(f"{name}: must be KEY=VALUE, not {text[:40]!r}", field=name)
    return key, value


def _read_bool(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise RequestError(f"{name}: must be true or false, not {text[:40]!r}", field=name)
    return text == "true"
