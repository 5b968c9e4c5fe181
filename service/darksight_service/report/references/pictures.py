"""Small pictures of files and arrays, for reports: decoded, subsampled and encoded again, so only pixels are left."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError

__all__ = ["as_data_uri", "encode_png", "read_picture"]

_SIDE = 64
_MAX_PIXELS = 50_000_000
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")


def read_picture(data: bytes) -> NDArray[np.uint8]:
    """A picture file as a small array (height, width, 3); ConfigError if it is damaged or too large."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise ConfigError(f"a picture of {image.width} x {image.height} pixels is too large")
            # Decodes a JPEG at a fraction of its size.
            image.draft("RGB", (2 * _SIDE, 2 * _SIDE))
            image.thumbnail((_SIDE, _SIDE))
            return np.asarray(image.convert("RGB"))
    except ConfigError:
        raise
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ConfigError(f"a picture cannot be decoded ({type(error).__name__})") from None


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
