"""What can go wrong in a call, as one tree, and how a gRPC status becomes a member of it.

    DarkSightClientError
    ├── InvalidRequest       the request cannot be answered as it stands; `row` and `field` say where
    │   └── MessageTooLarge  it has more bytes than the server or the client allows
    ├── UnknownModel         no such model, version or file
    ├── Conflict             the server's state does not allow it: nothing to roll back to, a defective bundle, …
    ├── Unauthenticated      no token, or one that the server does not know
    ├── PermissionDenied     a token without the scope
    ├── Overloaded           the server has too much to do; `retry_after_seconds`
    ├── DeadlineExceeded     no answer in time (also a TimeoutError)
    ├── Unavailable          no server could be reached (also a ConnectionError)
    ├── Cancelled            the caller or the server gave up the call
    ├── Unsupported          the server is older than this call
    └── ServerError          a fault of the server's; `request_id` finds it in its log

Each has a `code` that programs may rely on, the name of the gRPC `status`, and a message that says what to do. They can
be pickled and copied, as calls are often made in other processes.
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
    """Root of the tree; raised as a subclass.

    Parameters
    ----------
    message
        For people.
    status
        Name of the gRPC status; empty if the client itself refused.
    row
        First row to blame, counted in the batch as the caller gave it; None if no row is.
    field
        What to blame in the request, such as "rows[3].values[2]".
    retry_after_seconds
        When the server expects to have time again; None if it did not say.
    request_id
        Under which the server logged the call.
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
    """The request cannot be answered as it stands."""

    code = "invalid_request"


class MessageTooLarge(InvalidRequest):
    """The request or its answer has more bytes than allowed."""

    code = "message_too_large"
    hint = "Give the client the server's limit as max_message_bytes: it then sends a batch in parts."


class UnknownModel(DarkSightClientError, LookupError):
    """No such model, version or file."""

    code = "unknown_model"
    hint = "Client.models() lists what the server has."


class Conflict(DarkSightClientError):
    """The state of the server does not allow it."""

    code = "conflict"


class Unauthenticated(DarkSightClientError):
    """No token, or one that the server does not know."""

    code = "unauthenticated"
    hint = "Give the client a valid token or token_file."


class PermissionDenied(DarkSightClientError):
    """The token has no scope for this call."""

    code = "permission_denied"
    hint = "Use a token with the scope that the call needs: score, report, read or admin."


class Overloaded(DarkSightClientError):
    """The server has too much to do; it did not begin with the call."""

    code = "overloaded"
    hint = "Send less at a time, or later; retry_after_seconds says when, if the server did."


class DeadlineExceeded(DarkSightClientError, TimeoutError):
    """No answer in time."""

    code = "deadline_exceeded"
    hint = "Allow more timeout_seconds, or send smaller batches."


class Unavailable(DarkSightClientError, ConnectionError):
    """No server could be reached, after all retries."""

    code = "unavailable"
    hint = "Is the server running at that address, and do both sides agree on TLS?"


class Cancelled(DarkSightClientError):
    """The caller or the server gave up the call."""

    code = "cancelled"


class Unsupported(DarkSightClientError):
    """The server does not know the call."""

    code = "unsupported"
    hint = "The server is older than this client, or another program."


class ServerError(DarkSightClientError):
    """A fault of the server's."""

    code = "server_error"
    hint = "The log of the server says more."


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
    """Member of the tree for a google.rpc.Code."""
    status = _BY_NUMBER.get(number, grpc.StatusCode.UNKNOWN)
    kind = _BY_STATUS.get(status, ServerError)
    # gRPC itself refuses a big message, with this text and without details.
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
        kind = MessageTooLarge
    message = text or status.name
    if kind.hint:
        message = f"{message.rstrip('.')}. {kind.hint}"
    return kind(message, status=status.name, **facts)


def error_of_rpc(error: Any) -> DarkSightClientError:
    """Member of the tree for a failed call, of grpc or grpc.aio, with what the error details say."""
    code, text = error.code(), error.details() or ""
    if code is grpc.StatusCode.CANCELLED and text in ("", code.name):
        # What gRPC's server answers, without a text, to calls that arrive while it stops: nobody looked at them.
        code, text = grpc.StatusCode.UNAVAILABLE, "the server is stopping"
    elif code is grpc.StatusCode.INTERNAL and text == "Internal error from Core":
        # What grpc.aio puts in place of the server's status if it was just sending when a stream ended (grpc/grpc
        # issue 36066). The status is lost; if it was not the end of the server, the next attempt will meet it again.
        code, text = grpc.StatusCode.UNAVAILABLE, "the stream ended while a request was sent"
    return error_of_status(code.value[0], text, **_facts(error.trailing_metadata() or ()))


def _facts(metadata: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Row, field, delay and id from the google.rpc.Status that travels with an error."""
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
        pass  # Details are an extra: without them the status still says what happened.
    return facts


def row_of(field: str) -> int | None:
    """Row that a field such as "rows[3].values[2]" or "prediction_ids[3]" is in."""
    match = _ROW.search(field)
    return int(match.group(1)) if match else None
