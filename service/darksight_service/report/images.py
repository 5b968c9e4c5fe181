"""The input of each row of a report, as a thumbnail, a text or a sound."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_service.errors import NotFoundError
from darksight_service.report.references.files import read_file
from darksight_service.report.references.names import resolve
from darksight_service.report.references.pictures import as_data_uri, read_picture
from darksight_service.scoring.files.arrays import read_array

__all__ = ["ImageArray", "Inputs", "ReferenceFiles", "Shown", "read_images"]

_MAX_SOUND = 256 << 10
_MAX_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Shown:
    """The input of a row on the page: a picture or a sound as a data URI, a text, or why it is not shown."""

    image: str = ""
    audio: str = ""
    text: str = ""
    problem: str = ""


class Inputs(Protocol):
    """Inputs of the rows."""

    def show(self, row: int) -> Shown:
        """The input of a row."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageArray:
    """An image for each row, (n, height, width) or (n, height, width, 3)."""

    images: NDArray[np.uint8]

    def show(self, row: int) -> Shown:
        """The image of a row."""
        return Shown(image=as_data_uri(self.images[row]))


@dataclass(frozen=True, slots=True)
class ReferenceFiles:
    """Files below a folder that the rows name by their tag `reference`; the page loads nothing, so URLs are texts."""

    folder: Path
    references: Sequence[str]

    def show(self, row: int) -> Shown:
        """The file of a row."""
        reference = self.references[row]
        if not reference:
            return Shown()
        target = resolve(reference, (), has_folder=True)
        if target.kind != "file":
            return Shown(problem=f"{reference} {target.problem}")
        try:
            file = read_file(self.folder, target.parts)
            if file.kind == "image":
                return Shown(image=as_data_uri(read_picture(file.data)))
        except (NotFoundError, ConfigError) as error:
            return Shown(problem=f"{reference}: {error.message.removeprefix('reference: ')}")
        if file.kind == "text":
            return Shown(text=file.text[:_MAX_CHARACTERS] + ("…" if len(file.text) > _MAX_CHARACTERS else ""))
        if len(file.data) > _MAX_SOUND:
            return Shown(problem=f"{reference}: a sound of more than {_MAX_SOUND >> 10} KiB is not put into a report")
        return Shown(audio=f"data:{file.media_type};base64,{base64.b64encode(file.data).decode('ascii')}")


def read_images(path: Path, rows: int) -> NDArray[np.uint8]:
    """Images of the rows, (n, height, width) or (n, height, width, 3), as uint8; values up to 1 are scaled."""
    array = read_array(path, "images")
    shape = array.shape
    count = len(array) if shape else 0
    if count != rows:
        raise ConfigError(f"{path} has {count:,} images, but the predictions have {rows:,} rows; give one for each row")
    if array.dtype.kind not in "fiub" or not (len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3))):
        raise ConfigError(
            f"{path}: images must be numbers of shape (n, height, width) or (n, height, width, 3), "
            f"not {array.dtype} of shape {shape}"
        )
    array = array[..., 0] if len(shape) == 4 and shape[3] == 1 else array
    if array.dtype == np.uint8:
        return array.view(np.uint8)
    values = np.nan_to_num(array.astype(np.float32))
    scale = 255.0 if values.max(initial=0.0) <= 1.0 else 1.0
    return np.clip(np.round(values * scale), 0, 255).astype(np.uint8)
