"""The examples run, and what they print is what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.commands import QUICK_FIT

ROOT = Path(__file__).parents[2]


def run_example(name: str, *arguments: object) -> str:
    """What an example prints."""
    command = [sys.executable, str(ROOT / "examples" / name), *(str(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=QUICK_FIT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_digits_from_end_to_end(tmp_path: Path) -> None:
    """A map, a gate, an explanation that sums to what it explains, and two pictures."""
    said = run_example("digits_end_to_end.py", "--out", tmp_path, "--epochs", 25)

    assert re.search(r"accuracy on 1197 digits that it was not trained on: 9\d", said)
    assert re.search(r"\d% of 297 new digits accepted", said)
    assert "changed by at most 0.10" in said
    for name in ("map.png", "why.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_monitoring_of_a_scikit_learn_classifier(tmp_path: Path) -> None:
    """Clean traffic passes and noisy traffic is drift, by the service's own metrics."""
    said = run_example("monitor_sklearn.py", "--out", tmp_path, "--calls", 150)

    assert re.search(r"^digits: evidence .*: no drift$", said, re.M)
    assert re.search(r"^digits-noisy: evidence .*: drift$", said, re.M)
    assert re.search(r"^digits: \w*(?i:accept)\w* \w+ \d+$", said, re.M)
