"""gRPC statuses of errors, by `darksight_service.errors`; every error has a request id in the details of its status."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from darksight_core.errors import DarkSightError
from darksight_service.errors import OverloadedError, report_error, statuses_of
from darksight_service.telemetry.traceparent import trace_of

__all__ = ["abort", "abort_code", "status_of"]

_DOMAIN = "darksight"
_DETAILS = "grpc-status-details-bin"

_log = logging.getLogger("darksight.rpc")


def abort_code(error: Exception) -> int:
    """Number of the status of an error."""
    number: int = _code(error).value[0]
    return number


def _code(error: Exception) -> grpc.StatusCode:
    return grpc.StatusCode[statuses_of(error)[0]]


def status_of(
    error: Exception, context: grpc.ServicerContext | None = None
) -> tuple[grpc.StatusCode, status_pb2.Status]:
    """The status of an error and its google.rpc.Status with details; logs it, with the trace of its call."""
    trace = b"" if context is None else trace_of(context.invocation_metadata())
    found, code = report_error(error, _log, **({"trace_id": trace.hex()} if trace else {})), _code(error)
    info = error_details_pb2.RequestInfo(request_id=found.request_id)
    details = [] if code is grpc.StatusCode.INTERNAL else _details(error, found.message)
    return code, _status(code, found.message, *details, info)


def abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    """End a call with the status of an error."""
    code, status = status_of(error, context)
    trailers = [(_DETAILS, status.SerializeToString())]
    if isinstance(error, OverloadedError):
        # gRPC's own retries read this key.
        trailers.append(("grpc-retry-pushback-ms", str(int(1000 * _retry_seconds(error))).encode()))
    context.set_trailing_metadata(tuple(trailers))
    context.abort(code, status.message)


def _status(code: grpc.StatusCode, text: str, *details: Any) -> status_pb2.Status:
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    number: int = code.value[0]
    return status_pb2.Status(code=number, message=text, details=packed)


def _details(error: Exception, text: str) -> list[Any]:
    assert isinstance(error, DarkSightError)
    facts = {name: str(value)[:200] for name, value in error.details.items() if name in ("field", "row", "model")}
    found: list[Any] = [error_details_pb2.ErrorInfo(reason=error.code.upper(), domain=_DOMAIN, metadata=facts)]
    if "field" in error.details:
        where = str(error.details["field"])
        if "row" in error.details:
            where += f"[{error.details['row']}]"
        violation = error_details_pb2.BadRequest.FieldViolation(field=where, description=text)
        found.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, OverloadedError):
        seconds = _retry_seconds(error)
        found.append(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=int(seconds * 1e9))))
    return found


def _retry_seconds(error: OverloadedError) -> float:
    return float(str(error.details.get("retry_seconds", 0.05)))
