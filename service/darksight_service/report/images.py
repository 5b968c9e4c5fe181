"""Arrays that belong to the rows of a report, and thumbnails; without an imaging library."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_service.scoring.files.arrays import read_array

__all__ = ["as_data_uri", "encode_png", "read_features", "read_images"]

_SIDE = 64


def _read_rows(path: Path, name: str, rows: int) -> NDArray[Any]:
    """The array `name` of a file; ConfigError unless it has one entry per prediction."""
    array = read_array(path, name)
    if array.ndim == 0 or len(array) != rows:
        count = 0 if array.ndim == 0 else len(array)
        raise ConfigError(f"{path} has {count:,} {name}, but the predictions have {rows:,} rows; give one for each row")
    return array


def read_features(path: Path, rows: int) -> NDArray[np.floating]:
    """Features of the rows, (n, d)."""
    array = _read_rows(path, "features", rows)
    if array.dtype.kind not in "fiu" or array.ndim < 2:
        raise ConfigError(f"{path}: features must be numbers of shape (n, d), not {array.dtype} of shape {array.shape}")
    values = array.reshape(rows, -1).astype(np.float64)
    if not np.isfinite(values).all():
        raise ConfigError(f"{path}: feature row {int(np.argmin(np.isfinite(values).all(axis=1)))} is not finite")
    return values


def read_images(path: Path, rows: int) -> NDArray[np.uint8]:
    """Images of the rows, (n, height, width) or (n, height, width, 3), as uint8; values up to 1 are scaled."""
    array = _read_rows(path, "images", rows)
    shape = array.shape
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


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """PNG of an image (height, width) or (height, width, 3), subsampled to at most 64 pixels."""
    step = max(1, -(-max(image.shape[:2]) // _SIDE))
    image = np.ascontiguousarray(image[::step, ::step])
    height, width = image.shape[:2]
    lines = image.reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), dtype=np.uint8), lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if image.ndim == 2 else 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def as_data_uri(image: NDArray[np.uint8]) -> str:
    """An image as a data URI."""
    return "data:image/png;base64," + base64.b64encode(encode_png(image)).decode("ascii")
