"""Who calls: the token of the call or, without one, the client certificate of the connection.

The token is checked when the headers of a call have arrived. gRPC shows the certificate to the handler only, so a call
without a token is checked there, before its request is parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from darksight_service.control.tokens import Caller
from darksight_service.operations.callers import Callers
from darksight_service.telemetry.traceparent import HEADER, trace_of

__all__ = ["GrpcCall", "find_header"]


def find_header(metadata: Any, name: str) -> str | None:
    """A header of a call; empty if there are several, of which a proxy may have read another one."""
    found = [str(value) for key, value in metadata if key == name]
    return found[0] if len(found) == 1 else "" if found else None


class GrpcCall:
    """What a handler knows of a call, read from the context of gRPC when it is asked for."""

    __slots__ = ("_callers", "_context", "_scope", "is_active")

    def __init__(self, context: grpc.ServicerContext, callers: Callers, scope: str) -> None:
        self._context = context
        self._callers = callers
        self._scope = scope
        self.is_active: Callable[[], bool] = context.is_active

    @property
    def caller(self) -> Caller:
        """Who calls."""
        header = find_header(self._context.invocation_metadata(), "authorization")
        if header is not None or not self._callers.has_certificates:
            return self._callers.permit(header, self._scope)
        names = self._context.auth_context().get("x509_common_name", ())
        name = bytes(names[0]).decode("utf-8", "replace") if len(names) == 1 else ""
        return self._callers.permit_certificate(name, self._scope)

    @property
    def trace(self) -> bytes:
        """Trace id of the call; empty without one."""
        return trace_of(self._context.invocation_metadata())

    @property
    def traceparent(self) -> str:
        """The header with the trace and the span of the caller; empty without one."""
        return find_header(self._context.invocation_metadata(), HEADER) or ""
