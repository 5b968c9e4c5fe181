"""What `darksight serve` says at its start."""

from __future__ import annotations

import pytest
from darksight_service.cli.serve import storage_cost
from darksight_service.settings import Settings
from darksight_service.store.store import Usage


@pytest.mark.parametrize(
    ("settings", "usage", "expected"),
    [
        (
            {},
            Usage(0, 0.0, 0.0),
            "storing 1,000 rows/s takes 17.3 GB a day; all rows are stored; points are never deleted",
        ),
        (
            {"keep_accepted": 0.02, "retention_days": 30},
            Usage(10**9, 250.0, 1.2e9),
            "storing 250 rows/s, as during the last day, takes 1.2 GB a day; keep_accepted is 0.02; "
            "retention_days is 30",
        ),
    ],
)
def test_the_cost_of_a_day_is_said(settings: dict[str, float], usage: Usage, expected: str) -> None:
    """At the measured rate, and before at a stated one; with what bounds it."""
    assert storage_cost(Settings(**settings), usage) == expected  # type: ignore[arg-type]  # by name
