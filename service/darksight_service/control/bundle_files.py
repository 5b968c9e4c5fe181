"""Files of bundles: where they are deployed from, and the copies that a replica serves.

A file of the bundle directory may be replaced or deleted after its deployment. So every replica keeps a copy of each
deployed version, named after the sha256 of the bundle, and loads the copy.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.errors import ConfigError, DarkSightError
from darksight_service.control.signatures import SignatureKey, signature_path
from darksight_service.errors import RefusedError, RequestError

__all__ = [
    "LOAD_SECONDS",
    "BundleLoader",
    "bundle_path",
    "copy_bundle",
    "copy_path",
    "find_bundle",
    "read_signed",
    "read_version",
    "relative_path",
]

LOAD_SECONDS = 5.0
"""Longest time in which a bundle must be loaded to be deployed or activated."""

T = TypeVar("T")

_SHOWN = 12


class BundleLoader:
    """Loads bundles for operators, one at a time, in a thread that no call waits for longer than a limit.

    A thread cannot be ended from outside, so a load that takes too long keeps its thread; until it ends, no other load
    is started. What it returns is kept for a retry.

    Parameters
    ----------
    seconds
        Longest time of a load.
    """

    def __init__(self, seconds: float = LOAD_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        # The last load that took too long, with its key.
        self._late: tuple[Hashable, Future[Any]] | None = None

    def run(self, load: Callable[[], T], key: Hashable = None) -> T:
        """What `load` returns; RefusedError if it takes too long, or if another load still runs.

        A load that took too long is not started again with the same `key`, which must change with what is loaded.
        """
        late = self._late
        if late is not None and key is not None and late[0] == key:
            found: T = self._wait(late[1], key)
            return found
        if not self._lock.acquire(timeout=self._seconds):
            raise RefusedError("another bundle is still being loaded; retry later")
        result: Future[T] = Future()

        def work() -> None:
            try:
                result.set_result(load())
            except BaseException as error:
                result.set_exception(error)
            finally:
                self._lock.release()

        threading.Thread(target=work, name="bundle_loader", daemon=True).start()
        return self._wait(result, key)

    def _wait(self, result: Future[T], key: Hashable) -> T:
        self._late = None
        try:
            return result.result(self._seconds)
        except TimeoutError:
            self._late = key, result
            raise RefusedError(f"the bundle was not loaded within {self._seconds:g} s") from None


def bundle_path(folder: Path, path: str) -> Path:
    """A file of the bundle directory; RequestError for a path outside of it."""
    try:
        full = (folder / path).resolve()
        is_inside = bool(path) and full.is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):
        # A NUL, or links that lead to themselves.
        is_inside = False
    if not is_inside:
        raise RequestError("path: must name a file in the bundle directory of the server", field="path")
    return full


def find_bundle(folder: Path, path: Path) -> Path:
    """A bundle named in settings, in the working or the bundle directory; ConfigError if it is in neither."""
    found = path if path.exists() or path.is_absolute() else bundle_path(folder, str(path))
    if not found.is_file():
        raise ConfigError(f"{path}: file does not exist, neither here nor in the bundle directory {folder}")
    return found


def relative_path(folder: Path, bundle: Path, version: str) -> str:
    """Path of a bundle relative to the bundle directory; for a file from elsewhere, the name of its copy."""
    if bundle.resolve().is_relative_to(folder.resolve()):
        return str(bundle.resolve().relative_to(folder.resolve()))
    return copy_path(folder, version).name


def copy_path(copies: Path, version: str) -> Path:
    """The file of the copy of a version."""
    return copies / f"{version}.safetensors"


def copy_bundle(copies: Path, bundle: Path, version: str, model: str) -> None:
    """Keep a copy of a version and of its signature for a model, if it has one; RefusedError if that fails."""
    target = copy_path(copies, version)
    if not target.exists():
        _copy(bundle, target)
    signature, copied = signature_path(bundle, model), signature_path(target, model)
    if signature.is_file() and not (copied.is_file() and filecmp.cmp(signature, copied, shallow=False)):
        _copy(signature, copied)


def _copy(source: Path, target: Path) -> None:
    # Several processes may copy at once.
    draft = target.with_suffix(f".{os.getpid()}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as original, draft.open("wb") as file:
            shutil.copyfileobj(original, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise RefusedError(f"the bundle cannot be copied to the data directory: {error.strerror}") from error


def read_signed(file: Path, source: str, key: SignatureKey | None, model: str) -> Bundle:
    """Read and verify a bundle and, if there is a key, its signature for a model; `source` is its name in messages."""
    found = read_bundle(file, verify=True, source=source)
    if key is not None:
        key.check(file, found.version, model, source)
    return found


def read_version(
    folder: Path,
    copies: Path,
    path: str,
    version: str,
    *,
    verify: bool,
    key: SignatureKey | None = None,
    model: str = "",
) -> Bundle:
    """Read a deployed version from its copy or, if that is missing or damaged, from where it was deployed.

    Parameters
    ----------
    folder, copies
        The bundle directory, and the directory of copies.
    path, version
        Path in the bundle directory, and sha256 of the bundle.
    verify
        Whether to check that the bundle may be used to score.
    key
        Public key that must have signed the bundle; None if no signature is required.
    model
        Name of the model that it must be signed for.
    """
    problem: DarkSightError | None = None
    for file in (copy_path(copies, version), bundle_path(folder, path)):
        try:
            found = read_signed(file, path, key, model) if verify else read_bundle(file, verify=False, source=path)
        except DarkSightError as error:
            problem = error
            continue
        if found.version == version:
            return found
        problem = ConfigError(
            f"{path}: the file of version {version[:_SHOWN]} was replaced by version {found.version[:_SHOWN]}"
        )
    assert problem is not None
    raise problem
