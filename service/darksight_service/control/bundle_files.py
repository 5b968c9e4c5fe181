"""Files of bundles: where they are deployed from, and the copies that a replica serves.

A file of the bundle directory may be replaced or deleted after its deployment. So every replica keeps a copy of each
deployed version, named after the sha256 of the bundle, and loads the copy.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.errors import ConfigError, DarkSightError
from darksight_service.errors import RefusedError, RequestError

__all__ = ["bundle_path", "copy_bundle", "copy_path", "find_bundle", "read_version", "relative_path"]

_SHOWN = 12


def bundle_path(folder: Path, path: str) -> Path:
    """A file of the bundle directory; RequestError for a path outside of it."""
    full = (folder / path).resolve()
    if not path or not full.is_relative_to(folder.resolve()):
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


def copy_bundle(copies: Path, bundle: Path, version: str) -> None:
    """Keep a copy of a version; RefusedError if it cannot be written."""
    target = copy_path(copies, version)
    if target.exists():
        return
    # Several processes may copy at once.
    draft = target.with_suffix(f".{os.getpid()}.new")
    try:
        copies.mkdir(parents=True, exist_ok=True)
        with bundle.open("rb") as source, draft.open("wb") as file:
            shutil.copyfileobj(source, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise RefusedError(f"{target}: the bundle cannot be copied: {error.strerror}") from error


def read_version(folder: Path, copies: Path, path: str, version: str, *, verify: bool) -> Bundle:
    """Read a deployed version from its copy or, if that is missing or damaged, from where it was deployed.

    Parameters
    ----------
    folder, copies
        The bundle directory, and the directory of copies.
    path, version
        Path in the bundle directory, and sha256 of the bundle.
    verify
        Whether to check that the bundle may be used to score.
    """
    problem: DarkSightError | None = None
    for file in (copy_path(copies, version), bundle_path(folder, path)):
        try:
            found = read_bundle(file, verify=verify)
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
