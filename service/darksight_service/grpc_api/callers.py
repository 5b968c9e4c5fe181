"""Who calls: the token of the call or, without one, the client certificate of the connection.

The token is checked when the headers of a call have arrived. gRPC shows the certificate to the handler only, so a call
without a token is checked there, before its request is read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

import grpc

from darksight_service.control.tokens import TokenFile
from darksight_service.errors import ForbiddenError, UnauthenticatedError
from darksight_service.grpc_api.status import abort, abort_code
from darksight_service.metrics.processes import ProcessCounts

__all__ = ["Callers", "authorization"]

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def authorization(metadata: Any) -> str | None:
    """The `authorization` header of a call."""
    return next((str(value) for name, value in metadata if name == "authorization"), None)


class Callers:
    """Permits calls and names their callers.

    Parameters
    ----------
    tokens
        Tokens and certificate names; None if everybody may call.
    has_certificates
        Whether every connection has a client certificate that was verified.
    counts
        Counters of the process.
    """

    def __init__(self, tokens: TokenFile | None, *, has_certificates: bool, counts: ProcessCounts) -> None:
        self.tokens = tokens
        self.has_certificates = has_certificates and tokens is not None
        self._counts = counts

    def permit(self, header: str | None, scope: str) -> str:
        """Name of the token of a call, empty if none is needed; counts a refusal."""
        return "" if self.tokens is None else self._counted(lambda tokens: tokens.permit(header, scope))

    def name(self, context: grpc.ServicerContext, scope: str) -> str:
        """Name of the caller of a permitted call; empty if everybody may call."""
        header = authorization(context.invocation_metadata())
        if header is None and self.has_certificates:
            return self._permit_certificate(context, scope)
        return self.permit(header, scope)

    def certified(self, handler: Handler, scope: str) -> Handler:
        """The same handler for calls without a token: it checks the client certificate first."""
        kind = "stream_stream" if handler.stream_stream is not None else "unary_unary"
        behaviour = getattr(handler, kind)

        # With the attributes of the behaviour, which pools read.
        @wraps(behaviour)
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                self._permit_certificate(context, scope)
            except (UnauthenticatedError, ForbiddenError) as error:
                self._counts.start_call()
                self._counts.end_call(abort_code(error))
                abort(context, error)
            return behaviour(request, context)

        replaced: Handler = handler._replace(**{kind: call})  # type: ignore[attr-defined]  # a named tuple
        return replaced

    def _permit_certificate(self, context: grpc.ServicerContext, scope: str) -> str:
        names = context.auth_context().get("x509_common_name", ())
        name = bytes(names[0]).decode("utf-8", "replace") if len(names) == 1 else ""

        def permit(tokens: TokenFile) -> str:
            if not name:
                message = "the certificate has no single common name; send a token"
                raise UnauthenticatedError(message, kind="missing")
            return tokens.permit_certificate(name, scope)

        return self._counted(permit)

    def _counted(self, permit: Callable[[TokenFile], str]) -> str:
        assert self.tokens is not None
        try:
            return permit(self.tokens)
        except (UnauthenticatedError, ForbiddenError) as error:
            self._counts.refuse_caller(str(error.details["kind"]))
            raise
