"""Input models of the endpoints: the fields that several of them share."""

from __future__ import annotations

import re
import time
from enum import IntEnum
from typing import Annotated, ClassVar, TypeVar

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from darksight_core.rows.tags import REFERENCE, TagSet, find_problem, is_key
from darksight_service.errors import RequestError
from darksight_service.http.inputs import Input

__all__ = [
    "DAY_MS",
    "ClassNumbers",
    "Milliseconds",
    "ModelInput",
    "Name",
    "PointId",
    "SpanInput",
    "TagKey",
    "TagPairs",
    "VersionInput",
    "members",
    "now_ms",
]

DAY_MS = 86_400_000

E = TypeVar("E", bound=IntEnum)

Name = Annotated[str, Field(min_length=1)]
Milliseconds = Annotated[int, Field(ge=0, le=1 << 53)]
# The database stores classes as 32-bit integers.
_ClassNumber = Annotated[int, Field(ge=-1, lt=1 << 31)]
ClassNumbers = Annotated[
    tuple[_ClassNumber, ...], BeforeValidator(lambda given: given.split(",") if isinstance(given, str) else given)
]
"""Numbers of classes, separated by commas."""


def _point_id(text: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise ValueError("must be the id of a point, 32 hexadecimal digits")
    return found


PointId = Annotated[bytes, PlainValidator(_point_id)]


# A value may have a comma, and is followed by one only before the next key.
_NEXT_PAIR = re.compile(r",\s*(?=[a-z][a-z0-9_]*=)")


def _tag_pairs(text: str) -> TagSet:
    pairs = [pair.partition("=") for pair in _NEXT_PAIR.split(text.strip()) if pair]
    tags = {key: value for key, _, value in pairs}
    problem = find_problem(tags)
    if problem or REFERENCE in tags:
        raise ValueError(f"must be KEY=VALUE, KEY=VALUE and so on: {problem or 'reference is not a filter'}")
    return tuple(sorted(tags.items()))


TagPairs = Annotated[TagSet, PlainValidator(_tag_pairs)]
"""Tags as text, such as `camera=7, site=Lyon`."""


def _tag_key(text: str) -> str:
    if text and (not is_key(text) or text == REFERENCE):
        raise ValueError("must be the key of a tag, such as camera")
    return text


TagKey = Annotated[str, PlainValidator(_tag_key)]
"""The key of a tag, such as `camera`; empty for none."""


def members(kind: type[E], text: str) -> tuple[E, ...]:
    """Members of an enumeration from their names in lower case, separated by commas."""
    found = []
    for name in text.split(","):
        if name.upper() not in kind.__members__:
            known = ", ".join(each.lower() for each in kind.__members__)
            raise ValueError(f"must be among {known}, not {name[:40]!r}")
        found.append(kind[name.upper()])
    return tuple(found)


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


class ModelInput(Input):
    """An input about a model."""

    model: Name


class VersionInput(ModelInput):
    """An input about a version of a model; by default the active one."""

    version: str = ""


class SpanInput(VersionInput):
    """An input about the points that a version scored in a span of time, which ends now by default."""

    default_span_ms: ClassVar[int] = DAY_MS

    since_ms: Milliseconds | None = None
    until_ms: Milliseconds = Field(default_factory=lambda: now_ms() + 1, ge=1)

    @property
    def start_ms(self) -> int:
        """Start of the span in Unix milliseconds."""
        return max(0, self.until_ms - self.default_span_ms) if self.since_ms is None else self.since_ms

    @model_validator(mode="after")
    def _check_span(self) -> SpanInput:
        if self.start_ms >= self.until_ms:
            raise RequestError("since_ms: must be before the end of the span", field="since_ms")
        return self
