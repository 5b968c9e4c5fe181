"""Of processes that start together one compiles, and the others read what it kept."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from darksight_core.runtime import compilation
from darksight_core.runtime.compilation import KERNEL, Kernel
from darksight_core.runtime.cpus import use_named_cpu

pytestmark = pytest.mark.skipif(not KERNEL.is_available, reason="needs numba")

# Enough of the kernel to be compiled in a moment.
SMALL = """
import json, sys
from darksight_core.runtime import arrays, compilation
from darksight_core.runtime.compiled import kernel

def small(probs, mapped, results, predicted, outcomes, model, rule):
    return len(probs)

kernel.score_rows = kernel.numba.njit(small)
"""


def small_kernel(tmp_path: Path) -> Any:
    """A folder with a module `small` that makes the kernel small, and the environment to use it in."""
    (tmp_path / "small.py").write_text(SMALL)
    root = Path(__file__).parents[4]
    path = os.pathsep.join([str(tmp_path), str(root)])
    return os.environ | {"PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}


PROGRAM = """
import json, small
from darksight_core.runtime import compilation

print("here", flush=True)
input()
compilation.main()
stats = small.kernel.score_rows.stats
print(json.dumps([sum(stats.cache_misses.values()), sum(stats.cache_hits.values())]))
"""


def run(program: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A Python process that speaks through pipes."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", program], env=environment, text=True, **pipes)


def test_one_of_several_processes_compiles(tmp_path: Path) -> None:
    """Three processes that meet an empty cache compile once in all."""
    environment = small_kernel(tmp_path)
    processes = [run(PROGRAM, environment) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"

    ends = [process.communicate("\n", timeout=120) for process in processes]

    assert [process.returncode for process in processes] == [0, 0, 0], ends
    assert sum(json.loads(out)[0] for out, _ in ends) == 1


def test_cache_that_is_read_only_is_read(tmp_path: Path) -> None:
    """Machine code in a folder that cannot be written to is loaded; without any it is compiled and kept nowhere."""
    environment = small_kernel(tmp_path)
    program = """
import small
from darksight_core.runtime.kernel_cache import KernelCache
cache = KernelCache(small.arrays.blank_arguments())
print(cache.is_filled, callable(cache.load()), *small.kernel.score_rows.stats.cache_hits.values())
"""

    def once() -> list[str]:
        process = run(program, environment)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        return out.split()

    assert once() == ["False", "True"]
    folder = tmp_path / "cache" / "darksight"
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert once() == ["True", "True", "1"]
    finally:
        folder.chmod(stat.S_IRWXU)


def test_machine_code_of_other_sources_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is that of all sources that the kernel is compiled from."""
    from darksight_core.runtime import kernel_cache

    before = kernel_cache._digest()
    monkeypatch.setattr(kernel_cache, "_SOURCES", ("map", "runtime", "scores"))

    assert kernel_cache._digest() != before


def test_long_compilation_is_announced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before another process compiles, and when the kernel is loaded, the hook is called."""
    events: list[str] = []
    kernel = Kernel()
    kernel.on_event = events.append

    class Cold:
        """A cache that is empty."""

        is_filled = False

        def __init__(self, arguments: object) -> None: ...

        def load(self) -> Any:
            return lambda: 0

    monkeypatch.setattr("darksight_core.runtime.kernel_cache.KernelCache", Cold)
    monkeypatch.setattr(compilation.sys, "executable", "/bin/true")

    assert kernel.wait(60.0)
    assert events == ["compiling", "loaded"]


def test_code_for_a_named_cpu_is_used_on_another_machine(tmp_path: Path) -> None:
    """What was compiled for a CPU by name is loaded where the cache names it, though numba would name this CPU."""
    environment = small_kernel(tmp_path)
    program = """
from darksight_core.runtime.cpus import use_named_cpu
use_named_cpu()
import small
from darksight_core.runtime.kernel_cache import KernelCache
cache = KernelCache(small.arrays.blank_arguments())
print(cache.is_filled, callable(cache.load()))
"""

    def once(**more: str) -> str:
        process = run(program, environment | more)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        return out.strip()

    assert once(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="") == "False True"
    (tmp_path / "cache" / "darksight" / "cpus").write_text("generic\n")
    assert once() == "True True"


def test_a_cpu_that_is_not_known_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that names a CPU of another version of the code still gives the code for the next one."""
    (tmp_path / "darksight").mkdir()
    (tmp_path / "darksight" / "cpus").write_text("z80 generic\n")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NUMBA_CPU_NAME", "")
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "")

    use_named_cpu()

    assert os.environ["NUMBA_CPU_NAME"] == "generic"


def test_a_cpu_that_is_not_known_is_refused() -> None:
    """The build of an image fails at once and names the CPUs that it can compile for."""
    with pytest.raises(SystemExit, match="no CPU z80; known are generic, x86-64-v3"):
        compilation.main(["z80"])


def test_an_untested_numba_is_not_used_and_is_announced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache uses private parts of numba, which another version may have changed."""
    monkeypatch.setattr(compilation, "version", lambda name: "0.70.1")
    kernel, events = Kernel(), list[str]()
    kernel.on_event = events.append

    kernel.start()

    assert not kernel.wait()
    assert events == ["unavailable"]
    assert kernel.problem == "numba 0.70.1 is not tested with this version; 0.68 is"
