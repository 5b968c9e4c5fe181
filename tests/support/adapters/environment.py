"""The environment of the packages that DarkSight works with, and of the Node packages.

Some of them need protobuf below 7, which the environment of the tests has not. uv installs them in seconds, together
with darksight[service]; both environments are in .venv and are made again when what they are made of changes.
`python -m tests.support.adapters.environment` makes them, which ./dev does in CI beside the checks.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.tools import find_tool

__all__ = ["NODE_PACKAGES", "REQUIREMENTS", "adapters_python", "node_modules", "pinned"]

ROOT = Path(__file__).parents[3]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
NODE_PACKAGES = {"@grpc/grpc-js": "1.14.7", "@grpc/proto-loader": "0.8.1"}


def pinned() -> dict[str, str]:
    """Versions of the required packages by name."""
    lines = [line.partition("#")[0].strip() for line in REQUIREMENTS.read_text().splitlines()]
    pairs = [line.partition("==")[::2] for line in lines if line]
    return {name.partition("[")[0]: version for name, version in pairs}


def adapters_python() -> Path:
    """Python of the environment; the test is skipped if it cannot be made."""
    folder = ROOT / ".venv" / "adapters"
    parts = [REQUIREMENTS.read_text(), (ROOT / "pyproject.toml").read_text(), sys.version, str(ROOT)]

    def make() -> None:
        if find_spec("uv") is None:
            pytest.skip("uv is not installed; run ./dev setup")
        uv = [sys.executable, "-m", "uv"]
        _run(*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
        python = str(folder / "bin" / "python")
        packages = ("-r", str(REQUIREMENTS), "-e", f"{ROOT}[service]")
        _run(*uv, "pip", "install", "--quiet", "--python", python, *packages)

    with _made_once(folder, parts, make):
        return folder / "bin" / "python"


def node_modules() -> Path:
    """Folder of the Node packages; without npm the test is skipped."""
    folder = ROOT / ".venv" / "node"
    specs = [f"{name}@{version}" for name, version in NODE_PACKAGES.items()]
    npm = find_tool("npm")

    def make() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        _run(npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(folder), *specs)

    with _made_once(folder, specs, make):
        return folder / "node_modules"


@contextmanager
def _made_once(folder: Path, parts: list[str], make: Callable[[], None]) -> Iterator[None]:
    """Make what is in a folder if it was made of other parts; of several processes the first one does."""
    stamp, wanted = folder / ".stamp", hashlib.sha256("\0".join(parts).encode()).hexdigest()
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            make()
            stamp.write_text(wanted)
    yield


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        cause = " ".join(line.strip() for line in (done.stderr or done.stdout).strip().splitlines()[-3:])
        again = "python -m tests.support.adapters.environment"
        pytest.skip(f"packages of other programs cannot be installed; with a network run: {again} ({cause})")


if __name__ == "__main__":
    adapters_python()
    node_modules()
