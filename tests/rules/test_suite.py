"""Rules of the test suite itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "xdist", "--numprocesses", "1")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
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
        [*PYTEST, "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**ENVIRONMENT, "CI": in_ci},
        capture_output=True,
        text=True,
    )

    assert "2 tests: abacus is not installed; on Debian: apt-get install abacus" in done.stdout.splitlines()
    assert ("CI fails" in done.stdout) == bool(status)
    assert done.returncode == status


def test_files_run_in_the_order_of_their_recorded_seconds(tmp_path: Path) -> None:
    """The longest first; a run records what the next one reads."""
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, seconds in (("short", 0.0), ("long", 0.2)):
        (tmp_path / f"test_{name}.py").write_text(f"import time\ndef test_it():\n    time.sleep({seconds})\n")
    (tmp_path / "test_many.py").write_text("def test_one():\n    ...\ndef test_two():\n    ...\n")

    def order() -> list[str]:
        command = [*PYTEST, "-vv", "--dist", "loadfile", "--no-loadscope-reorder"]
        done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True)
        names = re.findall(r"PASSED.* test_(\w+)\.py", done.stdout)
        return list(dict.fromkeys(names))

    assert order() == ["many", "long", "short"]
    assert order()[0] == "long"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "--numprocesses N --dist loadfile --no-loadscope-reorder"),
        ("--durations=3", "--numprocesses N --dist loadfile --no-loadscope-reorder --durations=3"),
        (
            "--fast -x",
            "--numprocesses N --dist loadfile --no-loadscope-reorder -x tests/unit darksight_core",
        ),
        ("tests/unit/test_some.py::test_it -x", "tests/unit/test_some.py::test_it -x"),
    ],
    ids=["everything", "option", "fast", "path"],
)
def test_only_named_tests_run_in_one_process(arguments: str, expected: str, tmp_path: Path) -> None:
    """What `./dev test` gives to pytest."""
    shutil.copy(TESTS.parent / "dev", tmp_path)
    for file in ("pyproject.toml", "constraints.txt", "service/darksight_some/x", "tests/unit/test_some.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    for program, script in (
        (".venv/bin/python", f'#!/bin/sh\n[ "$1" = -c ] && echo N || echo "$@" >>{tmp_path}/called\n'),
        (".venv/bin/pip", f"#!{tmp_path}/.venv/bin/python\n"),
        ("bin/apt-get", "#!/bin/sh\n"),
    ):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).write_text(script)
        (tmp_path / program).chmod(0o755)

    environment = {**os.environ, "CI": "false", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    subprocess.run([str(tmp_path / "dev"), "test", *arguments.split()], check=True, env=environment)

    *_, last = (tmp_path / "called").read_text().splitlines()
    assert last == f"-m pytest {expected}".strip()
