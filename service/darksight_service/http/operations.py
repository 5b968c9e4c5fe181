"""An operation as HTTP calls it: messages in, messages out."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from darksight_service.http.requests import HttpCall
from darksight_service.operations.callers import Callers
from darksight_service.operations.operation import Operation, Service

__all__ = ["BoundOperation"]


class BoundOperation:
    """An operation with the service that it works with.

    Parameters
    ----------
    operation
        The operation.
    service
        What its handler works with.
    callers
        Know which models a caller may use.
    """

    def __init__(self, operation: Operation, service: Service, callers: Callers) -> None:
        self.operation = operation
        self._handle = operation.bind(service)
        self._callers = callers

    def __call__(self, request: Message, call: HttpCall) -> Any:
        """The response to a request."""
        operation = self.operation
        operation.check(request)
        if call.caller.models is not None:
            self._callers.check_model(call.caller, operation, request)
        result = self._handle(request, call)
        return result if isinstance(result, Message) else operation.response.FromString(operation.encode(result))
