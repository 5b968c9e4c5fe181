"""Who calls: the token of the call or, without one, the client certificate of the connection.

The token is checked when the headers of a call have arrived. gRPC shows the certificate to the handler only, so a call
without a token is checked there, before its request is read. A caller who may use some models only gets a handler that
reads the model of each request first; all others pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import grpc

from darksight_service.control.tokens import ANYBODY, Caller, TokenFile
from darksight_service.errors import ForbiddenError, RequestError, UnauthenticatedError
from darksight_service.grpc_api.status import abort, abort_code
from darksight_service.metrics.processes import ProcessCounts

__all__ = ["Callers", "ModelReader", "authorization"]

T = TypeVar("T")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
ModelReader: TypeAlias = Callable[[Any], str | None]
"""Reads the model of a request; None for a request that is about no model, or that lists those of its caller."""


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

    def permit(self, header: str | None, scope: str) -> Caller:
        """The caller with the token of a call; counts a refusal."""
        tokens = self.tokens
        return ANYBODY if tokens is None else self._counted(lambda: tokens.permit(header, scope))

    def caller(self, context: grpc.ServicerContext, scope: str) -> Caller:
        """The caller of a permitted call."""
        if self.tokens is None:
            return ANYBODY
        header = authorization(context.invocation_metadata())
        if header is None and self.has_certificates:
            return self._permit_certificate(context, scope)
        return self.permit(header, scope)

    def check_model(self, caller: Caller, read_model: ModelReader, request: Any) -> None:
        """ForbiddenError if a caller may not use the model of a request; counts it."""
        model = read_model(request)
        if model is not None:
            self._counted(lambda: caller.check_model(model))

    def restricted(self, handler: Handler, caller: Caller, read_model: ModelReader) -> Handler:
        """The same handler for a caller who may use some models only: it checks the model of every request."""
        return self._preceded(handler, lambda request, _: self._checked(handler, caller, read_model, request))

    def certified(self, handler: Handler, scope: str, read_model: ModelReader) -> Handler:
        """The same handler for calls without a token: it checks the client certificate first."""

        def check(request: Any, context: grpc.ServicerContext) -> Any:
            caller = self._permit_certificate(context, scope)
            return request if caller.models is None else self._checked(handler, caller, read_model, request)

        return self._preceded(handler, check)

    def _preceded(self, handler: Handler, check: Callable[[Any, grpc.ServicerContext], Any]) -> Handler:
        """The same handler after a check, which returns the request or the requests."""
        kind = "stream_stream" if handler.stream_stream is not None else "unary_unary"
        behaviour = getattr(handler, kind)

        # With the attributes of the behaviour, which pools read.
        @wraps(behaviour)
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                checked = check(request, context)
            except (UnauthenticatedError, ForbiddenError, RequestError) as error:
                self._counts.start_call()
                self._counts.end_call(abort_code(error))
                abort(context, error)
            return behaviour(checked, context)

        replaced: Handler = handler._replace(**{kind: call})  # type: ignore[attr-defined]  # a named tuple
        return replaced

    def _checked(self, handler: Handler, caller: Caller, read_model: ModelReader, request: Any) -> Any:
        """The request, or the requests of a stream, which ends at one for a model that its caller may not use."""
        if handler.stream_stream is None:
            self.check_model(caller, read_model, request)
            return request

        def checked() -> Iterator[Any]:
            for each in request:
                self.check_model(caller, read_model, each)
                yield each

        return checked()

    def _permit_certificate(self, context: grpc.ServicerContext, scope: str) -> Caller:
        names = context.auth_context().get("x509_common_name", ())
        name = bytes(names[0]).decode("utf-8", "replace") if len(names) == 1 else ""

        def permit() -> Caller:
            assert self.tokens is not None
            if not name:
                message = "the certificate has no single common name; send a token"
                raise UnauthenticatedError(message, kind="missing")
            return self.tokens.permit_certificate(name, scope)

        return self._counted(permit)

    def _counted(self, permit: Callable[[], T]) -> T:
        try:
            return permit()
        except (UnauthenticatedError, ForbiddenError) as error:
            self._counts.refuse_caller(str(error.details["kind"]))
            raise
