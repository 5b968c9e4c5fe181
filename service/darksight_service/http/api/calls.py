"""A request over HTTP, and the call of a gRPC method that it becomes.

Handlers of gRPC methods take and return bytes. They ask the context of a call for little more than whether its caller
still waits, so an object of this module stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Protocol

from darksight_service.control.tokens import Caller
from darksight_service.http.api.problems import ProblemError
from darksight_service.telemetry.traceparent import HEADER

__all__ = ["READ_HEADERS", "Call", "Callers", "Method", "Reply", "Request"]

READ_HEADERS = (b"authorization", HEADER.encode())
"""Headers that handlers read as metadata of a call."""


class Method(Protocol):
    """A method of the gRPC server: the scope it needs, its handler, the pool of the handler, the model of a request."""

    @property
    def scope(self) -> str: ...  # noqa: D102
    @property
    def handler(self) -> Any: ...  # noqa: D102
    @property
    def pool(self) -> Any: ...  # noqa: D102
    @property
    def read_model(self) -> Callable[[Any], str | None]: ...  # noqa: D102


class Callers(Protocol):
    """Permits calls by their `authorization` header and the scope that they need, and then by their model."""

    def permit(self, header: str | None, scope: str) -> Caller: ...  # noqa: D102
    def check_model(  # noqa: D102
        self, caller: Caller, read_model: Callable[[Any], str | None], request: Any
    ) -> None: ...


class Request(NamedTuple):
    """Path parameters, query, body, the size of the JSON at its start, if tensors follow it, and headers."""

    parameters: Mapping[str, str]
    query: bytes
    body: bytes
    json_size: str | None = None
    headers: Mapping[bytes, str] = MappingProxyType({})


class Reply(NamedTuple):
    """A response."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @classmethod
    def of_json(cls, body: bytes, status: int = 200) -> Reply:
        """A JSON response."""
        return cls(status, [(b"content-type", b"application/json")], body)


class Call:
    """The context that a handler gets.

    Parameters
    ----------
    headers
        Those that handlers read: `authorization`, which names the caller of a change, and `traceparent`.
    check
        Checks a request, if its caller may use some models only.

    Attributes
    ----------
    is_abandoned
        Set when the caller has closed the connection.
    """

    def __init__(self, headers: Mapping[bytes, str], check: Callable[[Method, Any], None] | None = None) -> None:
        self.is_abandoned = False
        self._check = check
        self._metadata = tuple((name.decode(), headers[name]) for name in READ_HEADERS if name in headers)
        self._trailers: Iterable[tuple[str, str | bytes]] = ()

    def run(self, method: Method, message: bytes) -> bytes:
        """The response of a unary method; ProblemError if it fails."""
        read = method.handler.request_deserializer
        request = message if read is None else read(message)
        if self._check is not None:
            self._check(method, request)
        response: bytes = method.handler.unary_unary(request, self)
        return response

    def set_trace(self, header: str) -> None:
        """Make the call part of another trace than that of its request."""
        others = (each for each in self._metadata if each[0] != HEADER)
        self._metadata = (*others, (HEADER, header))

    def is_active(self) -> bool:
        """Whether the caller still waits."""
        return not self.is_abandoned

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """The headers that handlers read."""
        return self._metadata

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Nothing: over HTTP a client certificate opens the connection, and a token permits calls."""
        return {}

    def set_trailing_metadata(self, trailers: Iterable[tuple[str, str | bytes]]) -> None:
        """Keep the details of an error."""
        self._trailers = trailers

    def abort(self, code: Any, details: str) -> NoReturn:
        """End the call with a status."""
        raise ProblemError.from_status(code.name, details, self._trailers)
