"""Errors of the service, below the tree of `darksight_core.errors`; `STATUSES` gives each its gRPC and HTTP status."""

from __future__ import annotations

import logging
import re
import uuid
from typing import NamedTuple

from darksight_core.errors import BundleError, ConfigError, DarkSightError, PredictionsError

__all__ = [
    "STATUSES",
    "AbandonedError",
    "AuditError",
    "BulkError",
    "ErrorReport",
    "ForbiddenError",
    "MetricFileError",
    "NotFoundError",
    "NotLoadedError",
    "OverloadedError",
    "ProviderError",
    "RecordError",
    "RefusedError",
    "RemoteError",
    "RequestError",
    "SchemaMismatchError",
    "SettingsError",
    "SpoolError",
    "StoreError",
    "StoreUnavailableError",
    "UnauthenticatedError",
    "public_message",
    "report_error",
    "statuses_of",
]


class AbandonedError(DarkSightError):
    """The client cancelled the call, or its deadline passed, before the response was ready."""


class BulkError(DarkSightError):
    """A worker of a bulk scoring run was killed or found a defect; finished parts are kept."""


class ForbiddenError(DarkSightError):
    """The token does not permit this call."""


class MetricFileError(DarkSightError):
    """A metric file is truncated, damaged or of another layout."""


class NotFoundError(DarkSightError, LookupError):
    """There is no such model, version or point."""


class NotLoadedError(DarkSightError):
    """No version of a model is loaded, because its bundle cannot be read; loading is retried."""


class OverloadedError(DarkSightError):
    """Too many concurrent calls; `details` has `retry_seconds`."""


class ProviderError(DarkSightError):
    """The OpenID provider does not answer, or its answer does not follow the protocol."""


class RecordError(DarkSightError, ValueError):
    """A record cannot be encoded, or its bytes cannot be decoded."""


class RefusedError(DarkSightError):
    """The request is valid, but the current state does not allow it."""


class RemoteError(DarkSightError):
    """A service refused a command or did not answer."""


class RequestError(DarkSightError, ValueError):
    """A request is invalid; `details` has `field` and, where one row is wrong, `row`."""


class SettingsError(DarkSightError, ValueError):
    """A setting is unknown or has an invalid value."""


class SpoolError(DarkSightError):
    """Another process owns the spool directory."""


class StoreUnavailableError(DarkSightError):
    """The database is unavailable; nothing was stored, and a retry may succeed."""


class StoreError(DarkSightError):
    """The database refused an operation; a retry does not help."""


class AuditError(StoreError):
    """The audit trail was altered; `details` has the `id` of the first change that does not fit."""


class SchemaMismatchError(StoreError):
    """The database has another schema version than this program; the message names the command to run."""


class UnauthenticatedError(DarkSightError):
    """The call has no token, or an unknown one."""


STATUSES: dict[type[DarkSightError], tuple[str, int]] = {
    AbandonedError: ("DEADLINE_EXCEEDED", 504),
    AuditError: ("FAILED_PRECONDITION", 409),
    BundleError: ("FAILED_PRECONDITION", 409),
    ConfigError: ("INVALID_ARGUMENT", 400),
    ForbiddenError: ("PERMISSION_DENIED", 403),
    NotFoundError: ("NOT_FOUND", 404),
    NotLoadedError: ("UNAVAILABLE", 503),
    OverloadedError: ("RESOURCE_EXHAUSTED", 429),
    ProviderError: ("UNAVAILABLE", 503),
    PredictionsError: ("INVALID_ARGUMENT", 400),
    RefusedError: ("FAILED_PRECONDITION", 409),
    RequestError: ("INVALID_ARGUMENT", 400),
    SchemaMismatchError: ("FAILED_PRECONDITION", 409),
    StoreUnavailableError: ("UNAVAILABLE", 503),
    UnauthenticatedError: ("UNAUTHENTICATED", 401),
}
"""Name of the gRPC status code and HTTP status, by class; a subclass without a line has those of its parent."""

_INTERNAL = ("INTERNAL", 500)
# An absolute path of at least two parts; not a URL, and not the rest of a relative path.
_PATH = re.compile(r"""(?<![\w.:/])(?:/[^\s/:'",;()]+)+/([^\s/:'",;()]+)""")


def statuses_of(error: BaseException) -> tuple[str, int]:
    """gRPC and HTTP status of an error; without a line in `STATUSES` it is internal, and its message stays here."""
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), _INTERNAL)


class ErrorReport(NamedTuple):
    """What a caller learns of an error: statuses, code, message, and the id under which the log has the rest."""

    grpc: str
    http: int
    code: str
    message: str
    request_id: str


def report_error(error: Exception, log: logging.Logger, **facts: str) -> ErrorReport:
    """Log an error with some facts and return what its caller learns.

    It is logged at `debug`, as thousands of calls may fail for one reason. An error that `STATUSES` does not name is
    logged as an error, and the caller gets a fixed text with its id: no stack, SQL or path leaves the process.
    """
    request_id, (grpc, http) = uuid.uuid4().hex, statuses_of(error)
    if http == 500 or not isinstance(error, DarkSightError):
        log.error("call_failed", exc_info=error, extra={"request": request_id, **facts})
        text = f"internal error; see the server log for request {request_id}"
        return ErrorReport(*_INTERNAL, "internal", text, request_id)
    log.debug("call_refused", extra={"request": request_id, **facts, "code": grpc, "error": error.message})
    return ErrorReport(grpc, http, error.code, public_message(error), request_id)


def public_message(error: DarkSightError) -> str:
    """The message of an error for callers: without the place of the database, and paths cut to their last part.

    >>> public_message(StoreError("db.internal:5432/points is not available", place="db.internal:5432/points"))
    'the database is not available'
    >>> public_message(BundleError("/var/lib/darksight/bundles/a.safetensors: is not a bundle"))
    'a.safetensors: is not a bundle'
    """
    place = error.details.get("place")
    return _PATH.sub(r"\1", error.message.replace(str(place), "the database") if place else error.message)
