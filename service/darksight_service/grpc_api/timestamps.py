"""Times on the wire and in the store: protobuf's Timestamp and Unix milliseconds."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from darksight_service.errors import RequestError

__all__ = ["LATEST_MS", "milliseconds", "timestamp"]

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, as protobuf's own bound: later times would not fit a database's type."""


def milliseconds(time: Timestamp, field: str) -> int:
    """Unix milliseconds of a time; RequestError, naming the field, if it is none or before 1970."""
    if not (0 <= time.seconds <= LATEST_MS // 1000 and 0 <= time.nanos < 1_000_000_000):
        raise RequestError(f"{field}: is not a time between 1970 and 9999", field=field)
    return time.seconds * 1000 + time.nanos // 1_000_000


def timestamp(ms: int) -> Timestamp:
    """Inverse of `milliseconds`."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
