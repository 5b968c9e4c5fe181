"""Loading the watched classifier: a TorchScript module or a torch.export program.

Both are programs and are run, so load only files that you trust. What a classifier does not need is refused before
torch reads the file; `programs` has the list for torch.export. TorchScript has a reader of its own for `data.pkl`,
which knows only TorchScript's types.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from darksight_core.explain.chain import ClassifierError
from darksight_core.explain.programs import check_program

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
                check_program(archive, names, path)
            elif "constants.pkl" not in names:
                raise ClassifierError(f"{path} has no program, perhaps only weights; {_HOW}")
    except OSError as error:
        raise ClassifierError(f"{path} cannot be read: {error.strerror or error}") from error
    except ClassifierError:
        raise
    except Exception as error:
        # zipfile and json raise errors of many kinds on a damaged file.
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
            # Guards are Python code of the file.
            return torch.export.load(io.BytesIO(content)).module(check_guards=False)
    except Exception as error:
        # torch does not document what it raises on a damaged file.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ClassifierError(f"{path} cannot be loaded: {reason}") from error


def _names(archive: zipfile.ZipFile, path: Path) -> dict[str, str]:
    """Members by their name below the only directory of the archive."""
    members = archive.namelist()
    names = {str(PurePosixPath(*PurePosixPath(member).parts[1:])): member for member in members}
    # torch finds members without regard to case.
    if len({name.lower() for name in names}) < len(members):
        raise ClassifierError(f"{path} has two members with the same name; the checked one may not be the loaded one")
    if len({PurePosixPath(member).parts[0] for member in members}) > 1:
        raise ClassifierError(f"{path} has members outside of its directory")
    return names
