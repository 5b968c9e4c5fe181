"""Of processes that start together one compiles, and the others read what it kept."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from darksight_core.runtime.compiled.lock import one_compiles
from darksight_core.runtime.compiled.loops import COMPILED, score_rows
from darksight_core.runtime.scorer import Scorer
from tests.support.bundles import make_bundle

LONG = 60.0

LOOP = """
import numba

@numba.njit(cache=True)
def loop(n):
    total = 0.0
    for i in range(n):
        total += i ** 0.5
    return total
"""

START = """
import json, sys
import loop
from darksight_core.runtime.compiled.lock import one_compiles

print("here", flush=True)
sys.stdin.readline()
with one_compiles(loop.loop.stats.cache_path):
    loop.loop(10)
stats = loop.loop.stats
print(json.dumps([sum(stats.cache_misses.values()), sum(stats.cache_hits.values())]))
"""


def test_those_who_waited_run_together(tmp_path: Path) -> None:
    """Nobody enters while the first is in; then two that meet inside show that they need not take turns."""
    first, meeting = threading.Event(), threading.Barrier(2)
    entered = []

    def enter() -> None:
        with one_compiles(tmp_path):
            entered.append(first.is_set())
            meeting.wait(LONG)

    others = [threading.Thread(target=enter) for _ in range(2)]
    with one_compiles(tmp_path):
        for other in others:
            other.start()
        others[0].join(1.0)
        first.set()
    for other in others:
        other.join(LONG)

    assert entered == [True, True]
    assert not meeting.broken


def test_patience_ends(tmp_path: Path) -> None:
    """Whoever has waited long enough goes on, though the other still works."""
    with one_compiles(tmp_path), one_compiles(tmp_path, patience=0.1):
        pass


@pytest.mark.parametrize("folder", [None, "", "missing/folder"], ids=["no cache", "empty", "unwritable"])
def test_nobody_waits_where_nothing_is_kept(
    folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a place for the lock two can be inside at once."""
    monkeypatch.chdir(tmp_path)

    with one_compiles(folder), one_compiles(folder, patience=LONG):
        pass

    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not COMPILED, reason="numba is not installed")
def test_of_two_processes_one_compiles(tmp_path: Path) -> None:
    """Both begin at the same time on an empty cache, and numba itself says who compiled and who read."""
    (tmp_path / "loop.py").write_text(LOOP, encoding="utf-8")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", START], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"

    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    found = sorted(json.loads(process.communicate(timeout=LONG)[0]) for process in both)

    assert found == [[0, 1], [1, 0]]


@pytest.mark.skipif(not COMPILED, reason="numba is not installed")
def test_a_scorer_waits_for_who_compiles() -> None:
    """While another process holds the lock of the cache no scorer is made, and then it is."""
    dispatcher: Any = score_rows
    bundle, made = make_bundle(), threading.Event()
    # From now on another one takes milliseconds.
    Scorer.of(bundle)

    def make() -> None:
        Scorer.of(bundle)
        made.set()

    # Not by `one_compiles`: whoever meets another that starts just then shares the lock.
    with open(Path(dispatcher.stats.cache_path) / "darksight.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        maker = threading.Thread(target=make)
        maker.start()
        was_early = made.wait(0.5)
    maker.join(LONG)

    assert not was_early
    assert made.is_set()
