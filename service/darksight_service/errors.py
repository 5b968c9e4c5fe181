"""What the running system refuses or reports, below the core's tree.

    DarkSightError
    ├── RecordError              a spooled record cannot be read
    ├── SettingsError            a setting has a value that cannot work
    ├── RequestError             a request cannot be understood; names field and row
    ├── NotFoundError            no such model or version
    ├── RefusedError             an operation that the present state does not permit
    ├── RemoteError              a service that a command asked refused or did not answer
    ├── BulkError                workers that score a store were ended, or one of them found a defect
    ├── OverloadedError          more calls than the server takes at a time
    ├── UnauthenticatedError     no valid token
    ├── ForbiddenError           a token without the scope that the call needs
    ├── SpoolError               a spool folder belongs to another process
    ├── AbandonedError           the caller went away while it was served
    ├── StoreUnavailableError    the database is away; what could not be stored is tried again
    └── StoreError               the database refused something; trying again does not help
        ├── SchemaMismatchError  its tables are not those of this program
        └── AuditError           the trail of policy changes was altered

Each has the shape that `darksight_core.errors` gives: a stable `code`, a message for people, `details`.
"""

from __future__ import annotations

from darksight_core.errors import DarkSightError

__all__ = [
    "AbandonedError",
    "AuditError",
    "BulkError",
    "ForbiddenError",
    "NotFoundError",
    "OverloadedError",
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
]


class RecordError(DarkSightError, ValueError):
    """A record cannot be encoded, or its bytes are none that `records.encode` writes."""

    code = "record"


class StoreUnavailableError(DarkSightError):
    """The database cannot be reached just now; nothing was stored and the same call may succeed later."""

    code = "store_unavailable"


class SettingsError(DarkSightError, ValueError):
    """A setting is unknown or has a value that cannot work."""

    code = "settings"


class RequestError(DarkSightError, ValueError):
    """A request cannot be understood; `details` has `field` and, where one is to blame, `row`."""

    code = "request"


class NotFoundError(DarkSightError, LookupError):
    """There is no such model, version or point."""

    code = "not_found"


class RefusedError(DarkSightError):
    """The request is understood, but what it asks for is not possible in the present state."""

    code = "refused"


class OverloadedError(DarkSightError):
    """More calls than the server takes at a time; `details` has `retry_seconds`."""

    code = "overloaded"


class UnauthenticatedError(DarkSightError):
    """The call has no token, or one that is not known."""

    code = "unauthenticated"


class ForbiddenError(DarkSightError):
    """The token does not permit this call."""

    code = "forbidden"


class SpoolError(DarkSightError):
    """A spool folder belongs to another process."""

    code = "spool"


class AbandonedError(DarkSightError):
    """The caller went away, or its deadline passed, before the answer was there."""

    code = "abandoned"


class StoreError(DarkSightError):
    """The database refused something; trying again does not help."""

    code = "store"


class SchemaMismatchError(StoreError):
    """The tables of the database are not those of this program; the message has the command to run."""

    code = "schema_mismatch"


class AuditError(StoreError):
    """The trail of policy changes was altered; `details` has the `id` of the first change that does not fit."""

    code = "audit"


class BulkError(DarkSightError):
    """Workers that score a store were ended, or one of them found a defect; finished parts are kept."""

    code = "bulk"


class RemoteError(DarkSightError):
    """A service that a command asked refused, or did not answer."""

    code = "remote"
