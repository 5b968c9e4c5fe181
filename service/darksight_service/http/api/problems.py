"""Errors as RFC 9457 problem details, with the statuses, texts and request ids that gRPC gives them.

A problem names the field and the row that are wrong, if there are any. Under `/v2` it has the member `error` as well,
which clients of the Open Inference Protocol read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2

from darksight_core.errors import DarkSightError
from darksight_service.errors import STATUSES, report_error
from darksight_service.metrics.catalogue import GRPC_CODES

__all__ = ["Problem", "ProblemError", "problem_of"]

_DETAILS = "grpc-status-details-bin"
_HTTP = dict(STATUSES.values())

_log = logging.getLogger("darksight.http")


@dataclass(frozen=True, slots=True)
class Problem:
    """An error response.

    Parameters
    ----------
    status
        HTTP status.
    grpc_code
        Number of the gRPC status code of the same error, which counters use.
    code
        Kind of error, such as `request`.
    detail
        One sentence.
    field, row
        What is wrong in the request.
    request_id
        Under which the log has the error.
    retry_seconds
        When to try again.
    headers
        Further headers of the response.
    """

    status: int
    grpc_code: int
    code: str
    detail: str
    field: str = ""
    row: int | None = None
    request_id: str = ""
    retry_seconds: float | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def response(self, path: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Status, headers and body."""
        found = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "request_id": self.request_id,
        }
        if self.field:
            found["field"] = self.field
        if self.row is not None:
            found["row"] = self.row
        if path.startswith("/v2"):
            found["error"] = self.detail
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"x-request-id", self.request_id.encode()),
            *self.headers,
        ]
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.retry_seconds is not None:
            found["retry_seconds"] = self.retry_seconds
            # The header has whole seconds.
            headers.append((b"retry-after", b"1"))
        return self.status, headers, json.dumps(found).encode()


class ProblemError(Exception):
    """Ends a call with a problem that its handler has logged and counted."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem

    @classmethod
    def from_status(cls, name: str, detail: str, trailers: Iterable[tuple[str, str | bytes]]) -> ProblemError:
        """The error of a gRPC method: name of its status, its message and its trailing metadata."""
        status, grpc_code = _HTTP.get(name, 500), GRPC_CODES.index(name)
        found = next((value for key, value in trailers if key == _DETAILS), b"")
        info, request, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RequestInfo(), None
        for packed in status_pb2.Status.FromString(found if isinstance(found, bytes) else found.encode()).details:
            delay = error_details_pb2.RetryInfo()
            if not packed.Unpack(info) and not packed.Unpack(request) and packed.Unpack(delay):
                retry = _seconds(delay.retry_delay)
        facts = info.metadata
        problem = Problem(
            status,
            grpc_code,
            info.reason.lower() or "internal",
            detail,
            field=facts.get("field", ""),
            row=int(facts["row"]) if "row" in facts else None,
            request_id=request.request_id,
            retry_seconds=retry,
        )
        return cls(problem)


def problem_of(error: Exception, *, status: int = 0, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Problem:
    """The problem of an error that was raised before a handler was called; logs it.

    Parameters
    ----------
    error
        The error.
    status
        HTTP status, if it is not the one of the error's class.
    headers
        Further headers of the response.
    """
    found = report_error(error, _log)
    facts = error.details if isinstance(error, DarkSightError) and found.http != 500 else {}
    row, retry = facts.get("row"), facts.get("retry_seconds")
    return Problem(
        status or found.http,
        GRPC_CODES.index(found.grpc),
        found.code,
        found.message,
        field=str(facts.get("field", "")),
        row=row if isinstance(row, int) else None,
        request_id=found.request_id,
        retry_seconds=float(str(retry)) if retry is not None else None,
        headers=headers,
    )


def _seconds(delay: duration_pb2.Duration) -> float:
    return float(delay.seconds + 1e-9 * delay.nanos)
