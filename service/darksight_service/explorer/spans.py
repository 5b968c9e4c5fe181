"""What several pages ask for: a span of time, the version they are about, and JSON that browsers can read."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from darksight_service.errors import RequestError
from darksight_service.explorer.endpoint import Call

__all__ = ["DAY_MS", "now_ms", "plain", "read_span"]

DAY_MS = 86_400_000

_DIGITS = 9


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def read_span(call: Call, *, default_ms: int = DAY_MS, most_ms: int = 0, prefix: str = "") -> tuple[int, int]:
    """`since_ms` and `until_ms` of a call, the last day by default; no longer than `most_ms`, if that is given."""
    until = call.integer(f"{prefix}until_ms", now_ms() + 1, low=1)
    since = call.integer(f"{prefix}since_ms", max(0, until - default_ms))
    if since >= until:
        raise RequestError(f"{prefix}since_ms: must be before {prefix}until_ms", field=f"{prefix}since_ms")
    if most_ms and until - since > most_ms:
        days = most_ms / DAY_MS
        raise RequestError(f"{prefix}since_ms: a window has up to {days:.3g} days", field=f"{prefix}since_ms")
    return since, until


def plain(value: Any) -> Any:
    """Arrays and numbers of numpy as JSON knows them: infinity is a text, NaN is null."""
    if isinstance(value, np.ndarray):
        return [plain(each) for each in value.tolist()]
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        if math.isnan(value):
            return None
        # Nine digits tell any two stored numbers apart.
        return str(value) if math.isinf(value) else float(f"{value:.{_DIGITS}g}")
    return value
