"""What an endpoint of the explorer is given and what it may answer; hides HTTP from the modules of the pages."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from darksight_service.control.changes import Control
from darksight_service.control.registry import Registry
from darksight_service.errors import RequestError
from darksight_service.explorer.columns import Columns
from darksight_service.settings import Settings

if TYPE_CHECKING:
    from darksight_service.store import Store

__all__ = ["Answer", "Call", "Download", "Endpoint", "Sources"]

# What an integer of the database holds.
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Download:
    """A file that is sent part by part while it is made."""

    name: str
    media_type: str
    parts: Iterator[bytes]


Answer = Mapping[str, Any] | list[Any] | Columns | Download
"""JSON values, columns of numbers, or a file."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where everything that is shown comes from.

    Parameters
    ----------
    settings
        Of the service.
    registry
        Models and versions; looks for changes before every request.
    control
        What operators change.
    store
        Gives the store.
    """

    settings: Settings
    registry: Registry
    control: Control
    store: Callable[[], Store]


@dataclass(frozen=True, slots=True)
class Call:
    """One request, after it was permitted; a parameter that cannot be understood is a RequestError that names it.

    Parameters
    ----------
    query
        Parameters of the address.
    data
        Body of a POST.
    author
        Name of the caller's token, empty where none is needed.
    """

    query: Mapping[str, str]
    data: bytes = b""
    author: str = ""

    def text(self, name: str, default: str | None = None) -> str:
        """A parameter; without a default it must be there."""
        value = self.query.get(name, default)
        if not value and default is None:
            raise RequestError(f"{name}: is missing", field=name)
        return value or ""

    def integer(self, name: str, default: int, *, low: int = 0, high: int = (1 << 53)) -> int:
        """A whole number between `low` and `high`."""
        text = self.query.get(name, "")
        try:
            value = int(text) if text else default
        except ValueError:
            raise RequestError(f"{name}: must be a whole number, not {text[:40]!r}", field=name) from None
        if not low <= value <= high:
            raise RequestError(f"{name}: must be between {low} and {high}, not {value}", field=name)
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Whole numbers with commas between; none if the parameter is not there."""
        text = self.query.get(name, "")
        try:
            found = tuple(int(part) for part in text.split(",")) if text else ()
        except ValueError:
            raise RequestError(f"{name}: must be numbers with commas, not {text[:40]!r}", field=name) from None
        if any(abs(each) > _LARGEST for each in found):
            raise RequestError(f"{name}: has a number beyond {_LARGEST:,}", field=name)
        return found

    def number(self, name: str, default: float) -> float:
        """A finite number."""
        text = self.query.get(name, "")
        try:
            value = float(text) if text else default
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise RequestError(f"{name}: must be a number, not {text[:40]!r}", field=name)
        return value

    def body(self) -> dict[str, Any]:
        """The JSON object that was posted."""
        try:
            found = json.loads(self.data or b"{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RequestError("the body must be a JSON object", field="body")
        return found


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path of the API.

    Parameters
    ----------
    method
        `GET`, which changes nothing, or `POST`.
    path
        Under `/api/`.
    scope
        That the caller's token needs: `read`, `report` or `admin`.
    answer
        Answers; runs in a thread of its own.
    """

    method: str
    path: str
    scope: str
    answer: Callable[[Call], Answer]
