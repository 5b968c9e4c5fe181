"""Times on the wire and in the store: protobuf's Timestamp and Unix milliseconds."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from darksight_service.errors import RequestError

__all__ = ["milliseconds", "timestamp"]

# Years 1970 to 9999, as protobuf's own bounds: later ones would not fit a database's type.
_LATEST = 253_402_300_799


def milliseconds(time: Timestamp, field: str) -> int:
    """Unix milliseconds of a time; RequestError, naming the field, if it is none or before 1970."""
    if not (0 <= time.seconds <= _LATEST and 0 <= time.nanos < 1_000_000_000):
        raise RequestError(f"{field}: is not a time between 1970 and 9999", field=field)
    return time.seconds * 1000 + time.nanos // 1_000_000


def timestamp(ms: int) -> Timestamp:
    """Inverse of `milliseconds`."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
