"""Loading the watched classifier: a TorchScript module, or a program of torch.export.

Both are programs, and running one means trusting whoever made it: TorchScript is code, and torch itself evaluates
expressions that it finds in a `.pt2`. What can be refused is refused before torch sees it, namely everything that only
Python's pickle could read and all compiled libraries: a classifier needs neither.

    TorchScript   torch.jit.load has its own reader for `data.pkl`, which knows TorchScript's types and calls nothing
    torch.export  torch.export.load unpickles what is marked `use_pickle`, weights of the older format, and example
                  inputs that are no plain tensors; it also loads compiled libraries
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

_HOW = "save it by torch.export.save (.pt2) or as TorchScript (.pt)"


def load_classifier(path: Path) -> Callable[[Tensor], Tensor]:
    """The module in a file, on the CPU; ClassifierError if it is none, or none that is read without pickle.

    Parameters
    ----------
    path
        `.pt2` of torch.export.save, or TorchScript under any other name.
    """
    try:
        content = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = _names(archive, path)
            if "models/model.json" in names:
                _check_program(archive, names, path)
            elif "constants.pkl" not in names:
                raise ClassifierError(f"{path} holds no program, perhaps weights alone; {_HOW}")
    except OSError as error:
        raise ClassifierError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ClassifierError(f"{path} is no module of torch; {_HOW}") from error
    return _load(content, path, exported="models/model.json" in names)


def _load(content: bytes, path: Path, *, exported: bool) -> Callable[[Tensor], Tensor]:
    try:
        with warnings.catch_warnings():
            # That TorchScript is deprecated is no news to whoever has such a file.
            warnings.simplefilter("ignore", DeprecationWarning)
            if not exported:
                script: torch.jit.ScriptModule = torch.jit.load(io.BytesIO(content), map_location="cpu")
                return script.eval()
            return torch.export.load(io.BytesIO(content)).module()
    except Exception as error:
        # torch raises what it likes on a damaged file.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ClassifierError(f"{path} cannot be loaded: {reason}") from error


def _names(archive: zipfile.ZipFile, path: Path) -> dict[str, str]:
    """Members by their name below the archive's one folder."""
    members = archive.namelist()
    names = {str(PurePosixPath(*PurePosixPath(member).parts[1:])): member for member in members}
    if len(names) < len(members):
        raise ClassifierError(f"{path} has two members of one name, so what is checked need not be what is loaded")
    return names


def _check_program(archive: zipfile.ZipFile, names: dict[str, str], path: Path) -> None:
    """Refuse what torch.export.load would unpickle, or load as a library."""
    for name, member in names.items():
        if name.startswith(("data/aotinductor/", "data/executorch/")):
            raise ClassifierError(f"{path} holds compiled libraries; {_HOW}, not compiled")
        if name.startswith(("data/weights/", "data/constants/")) and name.endswith(".pt"):
            raise ClassifierError(f"{path} has pickled weights of an older torch; {_HOW} by a newer one")
        if name.endswith("_config.json"):
            for weight, meta in json.loads(archive.read(member))["config"].items():
                if meta["use_pickle"]:
                    raise ClassifierError(
                        f"{path} has {weight} pickled, and pickles are not read; {_HOW} of plain tensors"
                    )
        if name.startswith("data/sample_inputs/"):
            _check_plain(archive.read(member), path)


def _check_plain(content: bytes, path: Path) -> None:
    """Example inputs are loaded as plain tensors if they can be, so they must."""
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise ClassifierError(
            f"{path} has example inputs that are no plain tensors, and pickles are not read"
        ) from error
