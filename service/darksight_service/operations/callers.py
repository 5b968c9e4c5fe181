"""Permits calls by token, client certificate and model; refusals are counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from darksight_service.control.tokens import ANYBODY, Caller, TokenFile
from darksight_service.errors import ForbiddenError, UnauthenticatedError
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.operations.operation import Operation

__all__ = ["Callers"]


class Callers:
    """Permits calls and names their callers.

    Parameters
    ----------
    tokens
        Tokens and certificate names; None if everybody may call.
    has_certificates
        Whether every gRPC connection has a client certificate that was verified.
    counts
        Counters of the process.
    """

    def __init__(self, tokens: TokenFile | None, *, has_certificates: bool = False, counts: ProcessCounts) -> None:
        self.tokens = tokens
        self.has_certificates = has_certificates and tokens is not None
        self._counts = counts

    def permit(self, header: str | None, scope: str) -> Caller:
        """The caller with the token in an `authorization` header."""
        if self.tokens is None:
            return ANYBODY
        with self._counting_refusals():
            return self.tokens.permit(header, scope)

    def permit_certificate(self, name: str, scope: str) -> Caller:
        """The caller with a client certificate of this common name; empty if it has none, or several."""
        assert self.tokens is not None
        with self._counting_refusals():
            if not name:
                message = "the certificate has no single common name; send a token"
                raise UnauthenticatedError(message, kind="missing")
            return self.tokens.permit_certificate(name, scope)

    def check_model(self, caller: Caller, operation: Operation, request: Any) -> None:
        """ForbiddenError if a caller may not use the model of a request."""
        with self._counting_refusals():
            operation.check_model(caller, request)

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except (UnauthenticatedError, ForbiddenError) as error:
            self._counts.refuse_caller(str(error.details["kind"]))
            raise
