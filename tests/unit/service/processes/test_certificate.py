"""What the supervisor says of its certificate."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from darksight_service.processes import supervisor

from tests.unit.service.metrics.test_instance import END_2027, EXPIRES_2027


@pytest.mark.parametrize(
    ("days", "event"), [(30.0, None), (20.5, ("certificate_expires", 20)), (-1.5, ("certificate_expired", -2))]
)
def test_the_end_of_a_certificate_is_logged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    days: float,
    event: tuple[str, int] | None,
) -> None:
    """From three weeks before, with the days that are left, and without TLS never."""
    (tmp_path / "tls.crt").write_text(EXPIRES_2027)
    monkeypatch.setattr(time, "time", lambda: END_2027 - 86_400.0 * days)

    supervisor.warn_of_expiry(tmp_path / "tls.crt")
    supervisor.warn_of_expiry(None)

    assert [(each.getMessage(), vars(each)["days"]) for each in caplog.records] == ([event] if event else [])
