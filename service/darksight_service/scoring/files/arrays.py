"""Arrays of .npy and .npz files for `report` and `explain`; nothing is unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError, DarkSightError
from darksight_core.predictions.sizes import check_expansion

__all__ = ["read_array"]


def read_array(path: Path, *names: str) -> NDArray[Any]:
    """The array of an .npy file, or the first of `names` in an .npz file; a single array may have any name."""
    try:
        # A map of the file compares its size with the header before anything is allocated.
        loaded = np.load(path, allow_pickle=False, mmap_mode="r")
        if isinstance(loaded, np.ndarray):
            return np.array(loaded)
        with loaded:
            declared = sum(info.file_size for info in loaded.zip.infolist())
            check_expansion(declared, path.stat().st_size, str(path))
            known = [name for name in names if name in loaded.files]
            if not known and len(loaded.files) != 1:
                raise ConfigError(f"{path} has no array {names[0]!r}; it has {', '.join(loaded.files) or 'none'}")
            array: NDArray[Any] = loaded[known[0] if known else loaded.files[0]]
            return array
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except DarkSightError:
        raise
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} is not an .npy or .npz file of plain arrays ({error})") from None
