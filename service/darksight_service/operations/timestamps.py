"""Conversion between protobuf timestamps and Unix milliseconds."""

from __future__ import annotations

from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from darksight_service.errors import RequestError
from darksight_service.store.ids import LATEST_MS

__all__ = ["milliseconds", "optional_milliseconds", "timestamp"]


def milliseconds(time: Timestamp, field: str) -> int:
    """Unix milliseconds of a timestamp; raises RequestError naming the field if it is out of range."""
    if not (0 <= time.seconds <= LATEST_MS // 1000 and 0 <= time.nanos < 1_000_000_000):
        raise RequestError(f"{field}: must be between 1970 and 9999", field=field)
    return time.seconds * 1000 + time.nanos // 1_000_000


def optional_milliseconds(request: Any, field: str, default: int = 0) -> int:
    """Unix milliseconds of a field of a request; `default` if it is not set."""
    return milliseconds(getattr(request, field), field) if request.HasField(field) else default


def timestamp(ms: int) -> Timestamp:
    """Timestamp of Unix milliseconds."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
