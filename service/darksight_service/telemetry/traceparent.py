"""The W3C header `traceparent`, in which a caller names the trace that its call is part of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["HEADER", "read_trace_id", "trace_of"]

HEADER = "traceparent"
"""Name of the header, and of the metadata of a gRPC call."""

# version | trace id | parent id | flags | what later versions add
_FORMAT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def read_trace_id(header: str) -> bytes:
    """The trace id of a header, 16 bytes; empty if the header is not valid, as the standard asks to ignore it.

    >>> read_trace_id("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").hex()
    '4bf92f3577b34da6a3ce929d0e0e4736'
    """
    found = _FORMAT.fullmatch(header)
    if found is None or (found[1] == "00" and found[3] is not None):
        return b""
    return bytes.fromhex(found[2])


def trace_of(metadata: Iterable[tuple[str, Any]]) -> bytes:
    """The trace id in the metadata of a call; empty without a valid one."""
    for name, value in metadata:
        if name == HEADER:
            return read_trace_id(value) if isinstance(value, str) else b""
    return b""
