"""What the command line prints."""

from __future__ import annotations

import io
import re

import pytest
from darksight_service.cli.console import print_facts, print_table


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        """It is one."""
        return True


ROWS = [("digits", "active", 4.0), ("letters", "shadow", 12.5)]
HEADER = ("model", "role", "rate")


def test_a_table_is_plain_text_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Elsewhere than on a terminal, columns are aligned with spaces and nothing else is added."""
    print_table(ROWS, HEADER)

    assert capsys.readouterr().out.splitlines() == [
        "model    role       rate",
        "-------  ------  -------",
        "digits   active   4.0000",
        "letters  shadow  12.5000",
    ]


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_table_has_colours_on_a_terminal(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    """States have colours on a terminal, unless NO_COLOR is set; the text is the same."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)

    print_table(ROWS, HEADER)

    assert ("\x1b[32mactive" in terminal.getvalue()) == (not no_color)
    assert "letters" in terminal.getvalue()


def test_facts_are_wrapped_beside_their_names_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text goes on below itself, not below its name."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")

    print_facts("Bundle", [("warning", "one two three four five six seven eight nine ten")])

    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).rstrip().splitlines()
    assert lines[0] == "Bundle"
    assert lines[1].startswith("  warning")
    assert lines[2].startswith(" " * 10)
