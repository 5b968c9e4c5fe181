"""What the command line shows of a long computation."""

from __future__ import annotations

import io
import time

import pytest
from darksight_service.cli.console import Bars

from darksight_core.progress import Progress


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_the_time_moves_while_a_step_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar without news is drawn again every second, and no more once it is closed."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)

    with Bars() as bars:
        bars(Progress("measure", 1, 6, float("nan")))
        before = terminal.getvalue()
        deadline = time.monotonic() + 10.0
        while terminal.getvalue() == before and time.monotonic() < deadline:
            time.sleep(0.05)
        after = terminal.getvalue()
    closed = terminal.getvalue()
    time.sleep(1.2)

    assert "measuring" in before
    assert len(after) > len(before)
    assert terminal.getvalue() == closed
