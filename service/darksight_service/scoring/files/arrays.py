"""One array from an .npy or .npz file, as `report` and `explain` are given them; nothing is ever unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError

__all__ = ["read_array"]


def read_array(path: Path, *names: str) -> NDArray[Any]:
    """The array of an .npy, or the first of `names` in an .npz, where a single array may have any name."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            known = [name for name in names if name in loaded.files]
            if not known and len(loaded.files) != 1:
                raise ConfigError(f"{path} has no array {names[0]!r}, but {', '.join(loaded.files) or 'nothing'}")
            array: NDArray[Any] = loaded[known[0] if known else loaded.files[0]]
            return array
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except ConfigError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} is no .npy or .npz file of plain arrays ({error})") from None
