"""A request over HTTP, and what a handler knows of the call that it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple

from starlette.requests import cookie_parser
from starlette.types import Receive, Scope

from darksight_service.control.tokens import ANYBODY, Caller
from darksight_service.errors import AbandonedError, RequestError
from darksight_service.http.problems import HttpError
from darksight_service.telemetry.traceparent import HEADER, read_trace_id

__all__ = ["HttpCall", "Request", "read_body"]


class Request(NamedTuple):
    """A request.

    Parameters
    ----------
    parameters
        Those of the path.
    query, body
        As they are.
    headers
        By their names in lower case.
    method, path
        HTTP method, and path.
    """

    parameters: Mapping[str, str]
    query: bytes
    body: bytes
    headers: Mapping[bytes, str] = MappingProxyType({})
    method: str = "GET"
    path: str = "/"

    @classmethod
    def of(cls, scope: Scope) -> Request:
        """The request of an ASGI scope, without its body."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        parameters = scope.get("path_params", {})
        return cls(parameters, scope["query_string"], b"", headers, scope["method"], scope["path"])

    def header(self, name: str) -> str:
        """A header; empty if it is missing."""
        return self.headers.get(name.encode(), "")

    @property
    def json_size(self) -> str | None:
        """Size of the JSON at the start of the body, if bytes of tensors follow it."""
        return self.headers.get(b"inference-header-content-length")

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies."""
        return cookie_parser(self.header("cookie"))

    @property
    def is_same_origin(self) -> bool:
        """Whether it was sent by a page of the host that it is for."""
        return self.header("origin").partition("://")[2] == self.header("host")


class HttpCall:
    """What a handler knows of a call.

    Parameters
    ----------
    caller
        Who calls.
    traceparent
        The header with the trace of the caller.

    Attributes
    ----------
    is_abandoned
        Set when the caller has closed the connection.
    """

    def __init__(self, caller: Caller = ANYBODY, traceparent: str = "") -> None:
        self.caller = caller
        self.traceparent = traceparent
        self.is_abandoned = False

    @classmethod
    def of(cls, caller: Caller, request: Request) -> HttpCall:
        """The call that a request becomes."""
        return cls(caller, request.header(HEADER))

    @property
    def trace(self) -> bytes:
        """Trace id of the call; empty without one."""
        return read_trace_id(self.traceparent)

    def is_active(self) -> bool:
        """Whether the caller still waits."""
        return not self.is_abandoned


async def read_body(receive: Receive, request: Request, limit: int) -> bytes:
    """The body of a request, of at most `limit` bytes."""
    encoding = request.header("content-encoding")
    if encoding not in ("", "identity"):
        error = RequestError(f"content-encoding: {encoding[:20]!r} is not supported", field="content-encoding")
        raise HttpError(error, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    parts: list[bytes] = []
    declared = int(length) if (length := request.header("content-length")).isdecimal() else 0
    received, more = 0, True
    while more and max(declared, received) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise AbandonedError("the caller has closed the connection")
        part = message.get("body", b"")
        parts.append(part)
        received += len(part)
        more = message.get("more_body", False)
    if max(declared, received) > limit:
        error = RequestError(f"body: has more than {limit:,} bytes, which is the limit", field="body")
        raise HttpError(error, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"connection": "close"})
    return parts[0] if len(parts) == 1 else b"".join(parts)
