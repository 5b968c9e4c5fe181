"""Inputs of requests: JSON bodies and queries, checked by pydantic models before anything is made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from darksight_service.errors import RequestError
from darksight_service.settings.validation import check_text, first_problem

__all__ = ["MAX_LISTS", "Input", "check_input", "check_lists", "read_body_input", "read_json", "read_query_input"]

MAX_LISTS = 1 << 16
"""Lists, objects and texts in one list or object of a body: each becomes several objects."""

# Longer than the longest text that is stored, a comment.
_MAX_TEXT = 4096
_LONGEST_TEXT = 300
_NESTED = frozenset({list, dict})
_COUNTED = frozenset({list, dict, str})


class Input(BaseModel):
    """An object of a request: a query, a JSON body, or a part of one. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_texts(self) -> Self:
        for field, value in self:
            if isinstance(value, str):
                check_text(field, value, _MAX_TEXT)
        return self


T = TypeVar("T", bound=Input)


def read_query_input(kind: type[T], query: Mapping[str, str]) -> T:
    """Validate the parameters of a URL; an empty parameter counts as absent."""
    try:
        return kind.model_validate({name: value for name, value in query.items() if value})
    except ValidationError as error:
        raise _refusal(error) from None


def read_body_input(kind: type[T], body: bytes) -> T:
    """Validate a JSON body; strict, so that no value is converted to another type."""
    _check_brackets(body)
    try:
        return kind.model_validate_json(body or b"{}", strict=True)
    except ValidationError as error:
        raise _refusal(error) from None


def check_input(kind: type[T], given: Mapping[str, Any]) -> T:
    """Validate an object that was JSON; strict as well."""
    try:
        return kind.model_validate(given, strict=True)
    except ValidationError as error:
        raise _refusal(error) from None


def read_json(text: bytes) -> dict[str, Any]:
    """A JSON object; RequestError if the text is not one, or if one of its lists has too many lists or objects."""
    _check_brackets(text)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"body: is not JSON: {str(error)[:_LONGEST_TEXT]}", field="body") from None
    if not isinstance(found, dict):
        raise RequestError("body: must be a JSON object", field="body")
    check_lists(found)
    return found


def _check_brackets(text: bytes) -> None:
    """RequestError for many lists and objects, before each of them takes sixty times as much memory as its brackets."""
    count = text.count(b"[") + text.count(b"{")
    if count > 4 * MAX_LISTS:
        raise RequestError(f"body: has {count:,} lists or objects; the limit is {4 * MAX_LISTS:,}", field="body")


def check_lists(given: Mapping[str, Any], *, counts_numbers: bool = False) -> None:
    """RequestError if a list or object of a body has too many members; numbers count where they are not a tensor."""
    for name, value in given.items():
        _check_list(name[:100], value, counts_numbers)


def _check_list(field: str, value: Any, counts_numbers: bool) -> None:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if len(values) > MAX_LISTS:
        count = len(values) if counts_numbers else sum(type(each) in _COUNTED for each in values)
        if count > MAX_LISTS:
            text = f"{field}: has {count:,} lists, objects or texts; the limit is {MAX_LISTS:,}"
            raise RequestError(text, field=field)
    if not _NESTED.isdisjoint(map(type, values)):
        for each in values:
            _check_list(field, each, counts_numbers)


def _refusal(error: ValidationError) -> RequestError:
    path, problem = first_problem(error)
    path = path or "body"
    return RequestError(f"{path}: {problem}", field=re.split(r"[.\[]", path)[0])
