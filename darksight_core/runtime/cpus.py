"""The folder of compiled code, and which of the code in it this machine uses.

An image is built on one machine and runs on others, so its code is for CPUs that the build names, the best one first. A
process uses the code for the first of them that its own CPU can run.

Whoever can write to the folder can run code in every process that loads from it. So a folder that other users can write
to is not used.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

__all__ = ["CPUS", "cache_folder", "use_named_cpu"]

CPUS: dict[str, set[str]] = {"generic": set(), "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}}
"""CPUs by the name that LLVM gives them, with the flags of /proc/cpuinfo that their code needs."""


def cache_folder() -> Path:
    """NUMBA_CACHE_DIR; else a folder of the package, if it can be written to or is filled; else one of the user.

    A NUMBA_CACHE_DIR that other users can write to is passed over.
    """
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named and _is_private(Path(named, "darksight")):
        return Path(named, "darksight")
    beside = Path(__file__).parent / "compiled" / "__pycache__"
    if os.access(beside if beside.exists() else beside.parent, os.W_OK) or any(beside.glob("*.nbi")):
        return beside
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "darksight", "kernel")


def _is_private(folder: Path) -> bool:
    """Whether root or this user alone can write to a folder and to the code in it, or create it."""
    try:
        existing = next(each for each in (folder, *folder.parents) if each.exists())
        found = [existing.stat()] if existing != folder else [each.stat() for each in (folder, *folder.glob("*.nb?"))]
    except OSError:
        return False
    # A folder with the sticky bit, such as /tmp, lets nobody replace a folder of another user.
    is_own = all(each.st_uid in (0, os.geteuid()) for each in found)
    return is_own and not any(each.st_mode & 0o022 and not each.st_mode & stat.S_ISVTX for each in found)


def use_named_cpu() -> None:
    """Have numba use the code for the first CPU that the cache names and this machine can run."""
    with suppress(OSError):
        named = (cache_folder() / "cpus").read_text(encoding="utf-8").split()
        usable = [cpu for cpu in named if _can_run(cpu)]
        if usable:
            # numba would otherwise add the features of this machine.
            os.environ |= {"NUMBA_CPU_NAME": usable[0], "NUMBA_CPU_FEATURES": ""}


def _can_run(cpu: str) -> bool:
    found: set[str] = set()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("flags"):
                found = set(line.split())
                break
    return cpu in CPUS and CPUS[cpu] <= found
