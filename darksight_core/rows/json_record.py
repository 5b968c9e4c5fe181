"""Dataclasses that can be written as JSON."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass

__all__ = ["JsonRecord"]


class JsonRecord:
    """Base of dataclasses with `as_dict`."""

    __slots__ = ()

    def as_dict(self) -> dict[str, object]:
        """The fields as JSON types: records become dictionaries, tuples lists, infinities strings for `float`."""
        assert is_dataclass(self)
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


def _plain(value: object) -> object:
    if isinstance(value, JsonRecord):
        return value.as_dict()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value
