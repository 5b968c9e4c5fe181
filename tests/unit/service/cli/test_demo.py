"""The parts of the demo that need no process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from darksight_service.cli.demo import serving
from darksight_service.cli.demo.digits import KINDS, alter, draw_letters
from darksight_service.cli.demo.serving import command_line, send_traffic


@pytest.mark.parametrize("kind", KINDS)
def test_traffic_is_images_and_the_same_every_time(kind: str) -> None:
    """Each kind gives images of 64 pixels in [0, 1], as many as there are digits, and repeats itself."""
    digits = np.random.default_rng(0).random((7, 64))
    shown = alter(digits, kind)

    assert shown.shape == digits.shape
    assert 0.0 <= shown.min() <= shown.max() <= 1.0
    np.testing.assert_array_equal(shown, alter(digits, kind))
    assert (kind == "clean") == np.array_equal(shown, digits)


def test_letters_are_counted_like_digits() -> None:
    """Pixels are sixteenths, with ink in the top and bottom row and a margin left and right."""
    letters = draw_letters(50)
    rows = letters.reshape(-1, 8, 8)

    np.testing.assert_array_equal(16.0 * letters, np.rint(16.0 * letters))
    assert (rows[:, :, [0, 7]] == 0.0).all()
    assert (rows[:, 0].sum(axis=1) > 0.0).mean() > 0.9
    assert len(np.unique(letters, axis=0)) > 45


def test_commands_can_be_pasted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a checkout they start with ./dev run, from any directory; elsewhere with a program that exists."""
    monkeypatch.setattr(serving.sys, "prefix", str(serving._ROOT / ".venv"))
    monkeypatch.chdir(serving._ROOT)
    assert command_line("serve", "--data-dir", "a b") == "./dev run serve --data-dir 'a b'"
    monkeypatch.chdir(serving._ROOT / "docs")
    assert command_line("fit") == "../dev run fit"

    monkeypatch.setattr(serving.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(serving.sys, "executable", str(tmp_path / "python"))
    assert command_line("fit") == f"{tmp_path / 'python'} -m darksight_service.cli fit"
    monkeypatch.setattr(serving.shutil, "which", lambda name: str(tmp_path / name))
    assert command_line("fit") == "darksight fit"


class Calls:
    """A client and a service in one that stops the traffic, as Ctrl-C does, after some calls."""

    process = None

    def __init__(self, calls: int) -> None:
        self.left, self.rows = calls, []

    def client(self) -> Calls:
        """Itself."""
        return self

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *_: object) -> None: ...

    def gate(self, model: str, row: np.ndarray) -> None:
        """Remember a row."""
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        self.rows.append(float(row[0]))


def test_traffic_drifts_now_and_then_until_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean most of the time, then a minute of one of the other kinds in turn."""
    monkeypatch.setattr(serving.time, "sleep", lambda seconds: None)
    calls = Calls(2 * 480)
    traffic = {kind: np.full((3, 2), value, dtype=np.float32) for value, kind in enumerate(("clean", "noisy", "torn"))}

    send_traffic(calls, "digits", traffic)  # type: ignore[arg-type]  # all that is used of a service

    assert calls.rows == [0.0] * 360 + [1.0] * 120 + [0.0] * 360 + [2.0] * 120
