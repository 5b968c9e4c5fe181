"""What settings and requests may contain: texts, host names, and the first problem of pydantic as a sentence."""

from __future__ import annotations

import ipaddress
import re
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from darksight_core.errors import DarkSightError
from darksight_service.errors import RequestError

__all__ = ["check_text", "first_problem", "is_local_host", "parse_origin"]

# Databases and UTF-8 cannot hold these. JSON can carry them, as escapes.
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")

_PORT = re.compile(r":[0-9]+$")
_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9]([a-z0-9.-]*[a-z0-9])?)(:[0-9]{1,5})?")

_LONGEST_VALUE = 40

# By error type of pydantic; a type that is not here, such as `int_parsing`, is looked up by its first word.
_EXPECTED = {
    "bool": "true or false",
    "dict": "an object",
    "finite": "a finite number",
    "float": "a number",
    "int": "a whole number",
    "json": "a JSON object",
    "list": "a list",
    "model": "an object",
    "path": "a path",
    "string": "text",
    "tuple": "a list",
    "enum": "{expected}",
    "literal_error": "{expected}",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "non-empty text",
    "string_too_long": "text of at most {max_length} characters",
    "too_short": "a list of at least {min_length} items",
    "too_long": "a list of at most {max_length} items",
}


def check_text(field: str, text: str, longest: int) -> None:
    """RequestError for a text of a request that is too long, or that has a NUL or a surrogate."""
    if len(text) > longest or _NOT_TEXT.search(text):
        raise RequestError(f"{field}: must have at most {longest:,} characters, and no NUL or surrogate", field=field)


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Path of the field, such as `labels[2].label`, and what is wrong with it.

    A DarkSightError that one of our validators raised is raised again as it is.
    """
    found = error.errors(include_url=False)[0]
    context: dict[str, Any] = found.get("ctx", {})
    raised = context.get("error")
    if isinstance(raised, DarkSightError):
        raise raised from None
    return _path(found["loc"]), _sentence(found["type"], context, found["input"])


def is_local_host(host: str) -> bool:
    """Whether a `Host` header has an address or a name without a dot, which nobody else can point to this machine."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return bool(name) and "." not in name
    return True


def parse_origin(text: str) -> str:
    """An origin such as `https://images.example.com`; ValueError if a text is not one.

    >>> parse_origin("https://images.example.com/")
    'https://images.example.com'
    """
    origin = text.strip().removesuffix("/")
    if not _ORIGIN.fullmatch(origin):
        raise ValueError(f"must be origins such as https://images.example.com, in lower case, not {text[:60]!r}")
    if int(origin.rpartition(":")[2] if _PORT.search(origin) else 1) not in range(1, 65536):
        raise ValueError(f"must be origins with a port from 1 to 65535, not {text[:60]!r}")
    return origin


def _path(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _sentence(kind: str, context: dict[str, Any], value: object) -> str:
    if kind == "missing":
        return "is missing"
    if kind == "value_error":
        return str(context["error"])
    expected = _EXPECTED.get(kind) or _EXPECTED.get(kind.partition("_")[0], "valid")
    words = {name: str(each).replace("'", "") for name, each in context.items()}
    shown = repr(value)
    if len(shown) > _LONGEST_VALUE:
        shown = f"{shown[:_LONGEST_VALUE]}…"
    return f"must be {expected.format(**words)}, not {shown}"
