"""Loading the watched classifier: a TorchScript module or a torch.export program.

Both are programs, so load only files that you trust: TorchScript is code, and torch evaluates expressions of a `.pt2`.
Pickled objects and compiled libraries, which a classifier does not need, are refused before torch reads the file.

    TorchScript   torch.jit.load has its own reader for `data.pkl`, which knows only TorchScript's types
    torch.export  torch.export.load unpickles what is marked `use_pickle`, weights of the older format, and example
                  inputs that are not plain tensors; it also loads compiled libraries
"""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from darksight_core.explain.chain import ClassifierError

__all__ = ["load_classifier"]

_HOW = "save it with torch.export.save (.pt2) or as TorchScript (.pt)"


def load_classifier(path: Path) -> Callable[[Tensor], Tensor]:
    """The module in a file, on the CPU; ClassifierError if there is none, or if it needs pickle.

    Parameters
    ----------
    path
        `.pt2` file of torch.export.save, or a TorchScript file.
    """
    try:
        content = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = _names(archive, path)
            if "models/model.json" in names:
                _check_program(archive, names, path)
            elif "constants.pkl" not in names:
                raise ClassifierError(f"{path} has no program, perhaps only weights; {_HOW}")
    except OSError as error:
        raise ClassifierError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ClassifierError(f"{path} is not a torch module; {_HOW}") from error
    return _load(content, path, exported="models/model.json" in names)


def _load(content: bytes, path: Path, *, exported: bool) -> Callable[[Tensor], Tensor]:
    try:
        with warnings.catch_warnings():
            # The deprecation of TorchScript does not concern who only loads a file.
            warnings.simplefilter("ignore", DeprecationWarning)
            if not exported:
                script: torch.jit.ScriptModule = torch.jit.load(io.BytesIO(content), map_location="cpu")
                return script.eval()
            return torch.export.load(io.BytesIO(content)).module()
    except Exception as error:
        # torch does not document what it raises on a damaged file.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ClassifierError(f"{path} cannot be loaded: {reason}") from error


def _names(archive: zipfile.ZipFile, path: Path) -> dict[str, str]:
    """Members by their name below the only folder of the archive."""
    members = archive.namelist()
    names = {str(PurePosixPath(*PurePosixPath(member).parts[1:])): member for member in members}
    if len(names) < len(members):
        raise ClassifierError(f"{path} has two members with the same name; the checked one may not be the loaded one")
    return names


def _check_program(archive: zipfile.ZipFile, names: dict[str, str], path: Path) -> None:
    """Refuse what torch.export.load would unpickle or load as a library."""
    for name, member in names.items():
        if name.startswith(("data/aotinductor/", "data/executorch/")):
            raise ClassifierError(f"{path} has compiled libraries; {_HOW}, not compiled")
        if name.startswith(("data/weights/", "data/constants/")) and name.endswith(".pt"):
            raise ClassifierError(f"{path} has pickled weights of an older torch; {_HOW} with a newer one")
        if name.endswith("_config.json"):
            for weight, meta in json.loads(archive.read(member))["config"].items():
                if meta["use_pickle"]:
                    raise ClassifierError(
                        f"{path} has a pickled {weight}, and pickles are not read; {_HOW} with plain tensors"
                    )
        if name.startswith("data/sample_inputs/"):
            _check_plain(archive.read(member), path)


def _check_plain(content: bytes, path: Path) -> None:
    """Refuse example inputs that are not plain tensors."""
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise ClassifierError(
            f"{path} has example inputs that are not plain tensors, and pickles are not read"
        ) from error
