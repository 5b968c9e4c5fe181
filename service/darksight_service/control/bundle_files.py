"""Files of bundles in the bundle directory of a replica."""

from __future__ import annotations

import shutil
from pathlib import Path

from darksight_core.errors import ConfigError
from darksight_service.errors import RequestError

__all__ = ["bundle_path", "copy_for_version", "deployed_path", "find_bundle", "import_bundle"]


def bundle_path(folder: Path, path: str) -> Path:
    """A file of the bundle directory; RequestError for a path outside of it."""
    full = (folder / path).resolve()
    if not path or not full.is_relative_to(folder.resolve()):
        raise RequestError("path: must name a file in the bundle directory of the server", field="path")
    return full


def find_bundle(folder: Path, path: Path) -> Path:
    """A bundle named on the command line, in the working or the bundle directory; ConfigError if it is in neither."""
    found = path if path.exists() or path.is_absolute() else bundle_path(folder, str(path))
    if not found.is_file():
        raise ConfigError(f"{path}: file does not exist, neither here nor in the bundle directory {folder}")
    return found


def deployed_path(folder: Path, path: str, version: str) -> Path:
    """The file of a version: the one named after it if it exists, else the one that it was deployed from."""
    own = folder / _file_name(version)
    return own if own.is_file() else bundle_path(folder, path)


def import_bundle(folder: Path, bundle: Path, version: str) -> str:
    """Path of a bundle relative to the bundle directory; a file from elsewhere is copied there."""
    if bundle.resolve().is_relative_to(folder.resolve()):
        return str(bundle.resolve().relative_to(folder.resolve()))
    return _copy(folder, bundle, version)


def copy_for_version(folder: Path, path: str, bundle: Path, version: str) -> None:
    """Copy a version that another replica deployed from its own bundle directory.

    Parameters
    ----------
    folder, path
        The bundle directory here, and the path in it that the other replica named.
    bundle, version
        A file with that version.
    """
    if bundle.resolve() != deployed_path(folder, path, version).resolve():
        _copy(folder, bundle, version)


def _file_name(version: str) -> str:
    return f"{version}.safetensors"


def _copy(folder: Path, bundle: Path, version: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    name = _file_name(version)
    if not (folder / name).exists():
        draft = folder / f"{name}.new"
        shutil.copyfile(bundle, draft)
        draft.replace(folder / name)
    return name
