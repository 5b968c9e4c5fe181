"""Rules of the test suite itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SKIPPED = """
import pytest



@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.skipif(True, reason="abacus is not installed; on Debian: apt-get install abacus")
def test_skipped(number):
    ...


def test_passed():
    ...
"""


@pytest.mark.parametrize(("in_ci", "status"), [("false", 0), ("true", 1)], ids=["person", "ci"])
def test_skips_are_listed_by_reason_and_fail_ci(in_ci: str, status: int, tmp_path: Path) -> None:
    """The end of a run has a line for each reason, also with several processes; CI fails then."""
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_some.py").write_text(SKIPPED)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-p", "no:cacheprovider", "--numprocesses", "1"],
        cwd=tmp_path,
        env={**os.environ, "CI": in_ci, "PYTHONPATH": str(TESTS.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )

    assert "2 tests: abacus is not installed; on Debian: apt-get install abacus" in done.stdout.splitlines()
    assert ("CI fails" in done.stdout) == bool(status)
    assert done.returncode == status
