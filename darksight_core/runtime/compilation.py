"""Loads the compiled kernel in the background, and has it compiled first where no process has done so before.

Compiling takes a dozen CPU seconds and 250 MB, loading the machine code half a second. So a process does not compile by
itself: it starts another one that fills the cache, and loads from there. Of processes that start together, such as the
workers of a service, one compiles and the others wait for it. Where no cache can be written, as in a read-only
container without one, each process compiles for itself, in the background.

    python -m darksight_core.runtime.compilation                        compiles for this CPU
    python -m darksight_core.runtime.compilation x86-64-v3 generic      for CPUs by name, as the build of an image does
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib.metadata import version

from darksight_core.runtime.arrays import blank_arguments
from darksight_core.runtime.cpus import CPUS, cache_folder, use_named_cpu

__all__ = ["KERNEL", "Kernel", "main"]

_MODULE = "darksight_core.runtime.compilation"
# The cache of the kernel uses private parts of numba, so another minor version is not used before it was tested.
_TESTED_NUMBA = "0.68"


class Kernel:
    """The compiled kernel of this process, once it is there; `score_rows` is None until then."""

    def __init__(self) -> None:
        self.score_rows: Callable[..., None] | None = None
        self.on_event: Callable[[str], None] = lambda event: None
        """Called with "unavailable" by `start` if numba cannot be used. Otherwise called in another thread with
        "compiling", before a compilation that takes long, and with "loaded"."""
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None
        self._compiler: subprocess.Popen[bytes] | None = None
        self._stops = False
        self._is_refused = False
        self._stopping = threading.Lock()

    @property
    def is_available(self) -> bool:
        """Whether a tested version of numba is installed."""
        return not self.problem

    @property
    def problem(self) -> str:
        """Why rows are scored by numpy alone; empty if numba can be used."""
        if importlib.util.find_spec("numba") is None:
            return "numba is not installed"
        installed = version("numba")
        is_tested = installed.startswith(f"{_TESTED_NUMBA}.")
        return "" if is_tested else f"numba {installed} is not tested with this version; {_TESTED_NUMBA} is"

    def start(self) -> None:
        """Begin to load the kernel, unless that has begun; it is there when `wait` returns true."""
        with self._start:
            if self._thread is not None or self._is_refused:
                return
            if not self.is_available:
                self._is_refused = True
                self.on_event("unavailable")
            else:
                self._thread = threading.Thread(target=self._load, name="darksight-kernel", daemon=True)
                self._thread.start()
                atexit.register(self._stop)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the kernel is loaded, at most for some seconds; whether it is."""
        self.start()
        if self._thread is not None:
            self._thread.join(timeout)
        return self.score_rows is not None

    def _load(self) -> None:
        use_named_cpu()
        from darksight_core.runtime.kernel_cache import KernelCache

        cache = KernelCache(blank_arguments())
        if not cache.is_filled:
            self.on_event("compiling")
            with suppress(OSError), self._stopping:
                if not self._stops:
                    self._compiler = subprocess.Popen([sys.executable, "-m", _MODULE], stdout=subprocess.DEVNULL)
            if self._compiler is not None:
                self._compiler.wait()
        if not self._stops:
            self.score_rows = cache.load()
            self.on_event("loaded")

    def _stop(self) -> None:
        """End before the interpreter does: it must not take LLVM away from a thread that runs in it."""
        with self._stopping:
            self._stops = True
            if self._compiler is not None:
                self._compiler.kill()
        if self._thread is not None:
            self._thread.join()


KERNEL = Kernel()
"""The kernel of this process."""


def _compile_for(cpus: list[str]) -> None:
    """Compile for CPUs by name, each in a process of its own, and write their names down."""
    unknown = set(cpus) - set(CPUS)
    if unknown:
        raise SystemExit(f"no CPU {', '.join(sorted(unknown))}; known are {', '.join(CPUS)}")
    # Elsewhere than on x86 there is one choice.
    named = [cpu for cpu in cpus if cpu == "generic" or platform.machine() in ("x86_64", "AMD64")]
    for cpu in named:
        environment = {**os.environ, "NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": ""}
        subprocess.run([sys.executable, "-m", _MODULE], env=environment, check=True)
    (cache_folder() / "cpus").write_text("\n".join(named) + "\n", encoding="utf-8")


def main(cpus: list[str] | None = None) -> None:
    """Compile into the cache, or wait for the process that does.

    Parameters
    ----------
    cpus
        Names of the CPUs, the best one first; by default the one of this machine.
    """
    if cpus:
        return _compile_for(cpus)
    # The code is as fast as with level 3, and takes less time and memory to make.
    os.environ.setdefault("NUMBA_OPT", "1")
    from darksight_core.runtime.kernel_cache import KernelCache

    with suppress(OSError):
        # A process that serves meanwhile comes first.
        os.nice(5)
    cache = KernelCache(blank_arguments())
    with ExitStack() as stack:
        # ImportError: systems that have no such locks. OSError: a cache that cannot be written to.
        with suppress(ImportError, OSError):
            import fcntl

            cache_folder().mkdir(mode=0o755, parents=True, exist_ok=True)
            lock = stack.enter_context((cache_folder() / "darksight.lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not cache.is_filled:
            cache.load()


if __name__ == "__main__":
    main(sys.argv[1:])
