"""Errors of the client, and the mapping from gRPC statuses.

    DarkSightClientError
    ├── InvalidRequest       the request is invalid; `row` and `field` say where
    │   └── MessageTooLarge  the request or response exceeds the message limit
    ├── UnknownModel         no such model, version or file
    ├── Conflict             the state of the server does not allow the change
    ├── Unauthenticated      the token is missing, unknown or expired
    ├── PermissionDenied     the token lacks the scope
    ├── Overloaded           the server has too many calls; see `retry_after_seconds`
    ├── DeadlineExceeded     no response in time (also a TimeoutError)
    ├── Unavailable          no server could be reached (also a ConnectionError)
    ├── Cancelled            the call was cancelled
    ├── Unsupported          the server does not implement the method
    └── ServerError          an internal error of the server; `request_id` is in its log

Each error has a stable `code`, the name of the gRPC `status` and a message that says what to do. Errors can be pickled
and copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

__all__ = [
    "Cancelled",
    "Conflict",
    "DarkSightClientError",
    "DeadlineExceeded",
    "InvalidRequest",
    "MessageTooLarge",
    "Overloaded",
    "PermissionDenied",
    "ServerError",
    "Unauthenticated",
    "Unavailable",
    "UnknownModel",
    "Unsupported",
    "error_of_rpc",
    "error_of_status",
    "row_of",
]

_DETAILS_KEY = "grpc-status-details-bin"
_ROW = re.compile(r"\[(\d+)\]")


class DarkSightClientError(Exception):
    """Root of the error tree.

    Parameters
    ----------
    message
        What is wrong and what to do.
    status
        Name of the gRPC status; empty if the error was raised by the client.
    row
        Index of the first invalid row in the caller's batch; None if no row is invalid.
    field
        The invalid field of the request, such as "rows[3].values[2]".
    retry_after_seconds
        When to retry, if the server said so.
    request_id
        Id of the call in the server's log.
    """

    code: ClassVar[str] = "client"
    hint: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        status: str = "",
        row: int | None = None,
        field: str = "",
        retry_after_seconds: float | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.row = row
        self.field = field
        self.retry_after_seconds = retry_after_seconds
        self.request_id = request_id


class InvalidRequest(DarkSightClientError, ValueError):
    """The request is invalid."""

    code = "invalid_request"


class MessageTooLarge(InvalidRequest):
    """The request or response exceeds the message limit."""

    code = "message_too_large"
    hint = "Set max_message_bytes of the client to the limit of the server; batches are then split."


class UnknownModel(DarkSightClientError, LookupError):
    """No such model, version or file."""

    code = "unknown_model"
    hint = "Client.models() lists the models and versions."


class Conflict(DarkSightClientError):
    """The state of the server does not allow the change."""

    code = "conflict"


class Unauthenticated(DarkSightClientError):
    """The token is missing, unknown or expired."""

    code = "unauthenticated"
    hint = "Give the client a valid token or token_file."


class PermissionDenied(DarkSightClientError):
    """The token lacks the scope of this method."""

    code = "permission_denied"
    hint = "Use a token with the required scope: score, report, read or admin."


class Overloaded(DarkSightClientError):
    """The server has too many calls and rejected this one."""

    code = "overloaded"
    hint = "Retry after retry_after_seconds, or send fewer calls at a time."


class DeadlineExceeded(DarkSightClientError, TimeoutError):
    """No response in time."""

    code = "deadline_exceeded"
    hint = "Increase timeout_seconds, or send smaller batches."


class Unavailable(DarkSightClientError, ConnectionError):
    """No server could be reached, after all retries."""

    code = "unavailable"
    hint = "Check the address, and that client and server both use TLS or both do not."


class Cancelled(DarkSightClientError):
    """The call was cancelled."""

    code = "cancelled"


class Unsupported(DarkSightClientError):
    """The server does not implement the method."""

    code = "unsupported"
    hint = "The server is older than this client, or is not a DarkSight server."


class ServerError(DarkSightClientError):
    """An internal error of the server."""

    code = "server_error"
    hint = "See the log of the server."


_BY_STATUS: dict[grpc.StatusCode, type[DarkSightClientError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: UnknownModel,
    grpc.StatusCode.ALREADY_EXISTS: Conflict,
    grpc.StatusCode.ABORTED: Conflict,
    grpc.StatusCode.FAILED_PRECONDITION: Conflict,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNIMPLEMENTED: Unsupported,
}

_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


def error_of_status(number: int, text: str, **facts: Any) -> DarkSightClientError:
    """The error for a google.rpc.Code."""
    status = _BY_NUMBER.get(number, grpc.StatusCode.UNKNOWN)
    kind = _BY_STATUS.get(status, ServerError)
    # gRPC itself rejects a large message, with this text and without details.
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
        kind = MessageTooLarge
    message = text or status.name
    if kind.hint:
        message = f"{message.rstrip('.')}. {kind.hint}"
    return kind(message, status=status.name, **facts)


def error_of_rpc(error: Any) -> DarkSightClientError:
    """The error for a failed call of grpc or grpc.aio."""
    code, text = error.code(), error.details() or ""
    if code is grpc.StatusCode.CANCELLED and text in ("", code.name):
        # A gRPC server that is stopping rejects new calls with this status and no text. They were not processed.
        code, text = grpc.StatusCode.UNAVAILABLE, "the server is stopping"
    elif code is grpc.StatusCode.INTERNAL and text == "Internal error from Core":
        # grpc.aio replaces the status of the server if a request was being sent when the stream ended (grpc/grpc issue
        # 36066). If the status was another error, the next attempt gets it again.
        code, text = grpc.StatusCode.UNAVAILABLE, "the stream ended while a request was sent"
    return error_of_status(code.value[0], text, **_facts(error.trailing_metadata() or ()))


def _facts(metadata: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Row, field, retry delay and request id from the google.rpc.Status in the trailing metadata."""
    facts: dict[str, Any] = {}
    try:
        data = next((value for key, value in metadata if key == _DETAILS_KEY), b"")
        for packed in status_pb2.Status.FromString(data).details:
            bad, delay, info = (
                error_details_pb2.BadRequest(),
                error_details_pb2.RetryInfo(),
                error_details_pb2.RequestInfo(),
            )
            if packed.Unpack(bad) and bad.field_violations:
                facts["field"] = bad.field_violations[0].field
                facts["row"] = row_of(facts["field"])
            elif packed.Unpack(delay):
                facts["retry_after_seconds"] = delay.retry_delay.ToTimedelta().total_seconds()
            elif packed.Unpack(info):
                facts["request_id"] = info.request_id
    except DecodeError:
        pass  # the status is valid without details
    return facts


def row_of(field: str) -> int | None:
    """The row in the name of a field such as "rows[3].values[2]" or "prediction_ids[3]"."""
    match = _ROW.search(field)
    return int(match.group(1)) if match else None
