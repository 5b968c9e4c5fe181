"""Results from messages: a dataclass whose fields have the names and types of those of the message.

A field that may be None is None if the message does not have it. Times become datetimes in UTC, and messages become the
dataclass that the type of the field names, or the tuple of their values, such as tuple[float, float] for a corner.
Maps become dictionaries.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

__all__ = ["read"]


def read(kind: Any, value: Any) -> Any:
    """A value of a message as the type of a result.

    Parameters
    ----------
    kind
        The type: a dataclass, tuple, enum, datetime, or a type that messages have. A dataclass has `read_message` if
        the names of its fields are not those of the message.
    value
        The message, or the value of its field.
    """
    if kind is datetime:
        return value.ToDatetime(UTC)
    if get_origin(kind) is tuple:
        first, *rest = get_args(kind)
        if rest == [Ellipsis]:
            return tuple(read(first, each) for each in value)
        return tuple(getattr(value, field.name) for field in value.DESCRIPTOR.fields)
    if get_origin(kind) is Mapping:
        return dict(value)
    if hasattr(kind, "__dataclass_fields__"):
        others: Callable[[Any], dict[str, Any]] = getattr(kind, "read_message", lambda message: {})
        found = others(value)
        return kind(**found, **{name: _field(hint, value, name) for name, hint in _hints(kind) if name not in found})
    return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value


@functools.cache
def _hints(kind: Any) -> list[tuple[str, Any]]:
    return list(get_type_hints(kind).items())


def _field(kind: Any, message: Any, name: str) -> Any:
    if not isinstance(kind, types.UnionType):
        return read(kind, getattr(message, name))
    return read(get_args(kind)[0], getattr(message, name)) if message.HasField(name) else None
