"""Errors by their code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from darksight_core.errors import DarkSightError


@contextmanager
def raises_code(code: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[DarkSightError]]:
    """Like `pytest.raises`, for an error with this code."""
    with pytest.raises(DarkSightError, match=match) as caught:
        yield caught
    assert caught.value.code == code
