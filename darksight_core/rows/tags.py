"""Tags of predictions: what keys and values may be.

A tag says where a prediction comes from, such as `camera: "7"`. Keys and values come from the
caller and are not trusted: only their length and their characters are checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

__all__ = [
    "COLUMN_PREFIX",
    "MAX_KEY",
    "MAX_TAGS",
    "MAX_VALUE",
    "OTHER",
    "REFERENCE",
    "TagSet",
    "find_problem",
    "is_key",
]

TagSet: TypeAlias = tuple[tuple[str, str], ...]
"""The tags of a row without its reference: pairs of key and value, sorted by key."""

MAX_TAGS = 8
"""Tags of a row."""

REFERENCE = "reference"
"""The key whose value is an URL or a relative path of the input of the classifier."""

OTHER = "_other"
"""The value that stands for all values of a key beyond its limit."""

COLUMN_PREFIX = "tag_"
"""In tables, a column of this name and a key holds the values of the key."""

MAX_KEY, MAX_VALUE = 32, 128
"""Longest key and value of a tag; a reference may be longer."""

_KEY = re.compile(rf"[a-z][a-z0-9_]{{0,{MAX_KEY - 1}}}")
_KEY_RULE = f"a key has 1 to {MAX_KEY} characters, a-z, 0-9 and _, and starts with a letter"
_MAX_REFERENCE = 512
# Line separators would break lines of logs and tables as control characters do; UTF-8 has no surrogates.
_REFUSED = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def find_problem(tags: Mapping[str, str]) -> str | None:
    """What is wrong with the tags of a row; None if they are valid.

    >>> find_problem({"camera": "7"})
    >>> find_problem({"Camera": "7"})
    "'Camera' is not a key; a key has 1 to 32 characters, a-z, 0-9 and _, and starts with a letter"
    """
    if len(tags) > MAX_TAGS:
        return f"has {len(tags)} tags; the limit is {MAX_TAGS}"
    for key, value in tags.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            return f"{str(key)[:40]!r} is not a key; {_KEY_RULE}"
        longest = _MAX_REFERENCE if key == REFERENCE else MAX_VALUE
        if not isinstance(value, str):
            return f"the value of {key} is {type(value).__name__}; it must be text"
        if not 1 <= len(value) <= longest:
            return f"the value of {key} has {len(value):,} characters; it must have 1 to {longest}"
        if _REFUSED.search(value):
            return f"the value of {key} has a control character, a line separator or a surrogate"
    return None


def is_key(text: str) -> bool:
    """Whether a text can be the key of a tag."""
    return _KEY.fullmatch(text) is not None
