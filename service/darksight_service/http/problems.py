"""Errors as RFC 9457 problem details, with the statuses, texts and request ids that gRPC gives them.

A problem names the field and the row that are wrong, if there are any. Under `/v2` it has the member `error` as well,
which clients of the Open Inference Protocol read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

from starlette.responses import Response

from darksight_core.errors import DarkSightError
from darksight_service.errors import RequestError, report_error
from darksight_service.telemetry.traceparent import read_trace_id

__all__ = ["HttpError", "problem_response"]

_log = logging.getLogger("darksight.http")


class HttpError(Exception):
    """An error whose HTTP status is not that of its class.

    Parameters
    ----------
    error
        The error.
    status
        HTTP status.
    headers
        Further headers of the response.
    """

    def __init__(
        self, error: DarkSightError, status: HTTPStatus, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.status = status
        self.headers = headers


def problem_response(error: Exception, path: str, traceparent: str = "") -> tuple[Response, str]:
    """The response to a request that failed, and the name of the gRPC status of the error; logs it.

    Parameters
    ----------
    error
        What was raised.
    path
        Path of the request.
    traceparent
        Its header with the trace of the caller.
    """
    status, headers = None, {}
    if isinstance(error, HttpError):
        status, headers, error = error.status, dict(error.headers), error.error
    if isinstance(error, MemoryError):
        status, error = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, RequestError("body: needs more memory than there is")
    trace = read_trace_id(traceparent)
    report = report_error(error, _log, **({"trace_id": trace.hex()} if trace else {}))
    status = status or HTTPStatus(report.http)
    details = error.details if isinstance(error, DarkSightError) and status != 500 else {}
    problem: dict[str, object] = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status,
        "detail": report.message,
        "code": report.code,
        "request_id": report.request_id,
    }
    if details.get("field"):
        problem["field"] = str(details["field"])
    if isinstance(details.get("row"), int):
        problem["row"] = details["row"]
    if path.startswith("/v2"):
        problem["error"] = report.message
    if status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if "retry_seconds" in details:
        problem["retry_seconds"] = float(str(details["retry_seconds"]))
        # The header has whole seconds.
        headers["retry-after"] = "1"
    headers["x-request-id"] = report.request_id
    return Response(json.dumps(problem), status, headers, "application/problem+json"), report.grpc
