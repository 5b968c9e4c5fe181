"""What every test may rely on."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Of the folders here; all others come after them.
_LONGEST_FIRST = ("e2e", "integration")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, lest one of them is left to a single core at the end; then by their number of tests.

    Within a file the order stays as it is.
    """
    tests = Counter(item.path for item in items)

    def rank(item: pytest.Item) -> tuple[int, int, Path]:
        folder = item.path.parent.name
        place = _LONGEST_FIRST.index(folder) if folder in _LONGEST_FIRST else len(_LONGEST_FIRST)
        return place, -tests[item.path], item.path

    items.sort(key=rank)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the person who runs the tests do not reach them."""
    for name in list(os.environ):
        if name.startswith("DARKSIGHT_"):
            monkeypatch.delenv(name)
