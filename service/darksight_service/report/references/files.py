"""Files below the folder of references.

A path is opened folder by folder without following links, so neither `..` nor a link that is made meanwhile leads out
of the folder. What a file is, its first bytes say and not its name. Pictures and sounds of a few formats are served as
such. Everything else that is UTF-8, an SVG or HTML page included, is plain text, and what is not is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from darksight_service.errors import NotFoundError

__all__ = ["MAX_BYTES", "MAX_TEXT", "ReferenceFile", "media_type", "read_file"]

MAX_BYTES = 16 << 20
"""Largest picture or sound."""

MAX_TEXT = 64 << 10
"""Bytes of a text that are read; the rest is cut off."""

_STARTS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"OggS": "audio/ogg",
    b"ID3": "audio/mpeg",
}
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class ReferenceFile:
    """Content of a file; `is_cut` if it is the beginning of a longer text."""

    media_type: str
    data: bytes
    is_cut: bool = False

    @property
    def kind(self) -> str:
        """`image`, `audio` or `text`."""
        return self.media_type.partition("/")[0]

    @property
    def text(self) -> str:
        """A text; a character that was cut in two is left out."""
        return self.data.decode("utf-8", errors="ignore")


def media_type(data: bytes) -> str:
    r"""Type of a file by its bytes; empty if it is none that is shown.

    >>> media_type(b"GIF89a..."), media_type(b"<svg onload=alert(1)>"), media_type(b"\x7fELF\x00")
    ('image/gif', 'text/plain; charset=utf-8', '')
    """
    for start, kind in _STARTS.items():
        if data.startswith(start):
            return kind
    if data[:4] == b"RIFF" and data[8:12] in _RIFF:
        return _RIFF[data[8:12]]
    if len(data) > 3 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2:
        # A frame of MPEG audio, layer III.
        return "audio/mpeg"
    try:
        text = data[:MAX_TEXT].decode()
    except UnicodeDecodeError as error:
        # The last character may be cut in two.
        if error.start < len(data[:MAX_TEXT]) - 3 or len(data) <= MAX_TEXT:
            return ""
        text = data[: error.start].decode()
    return "" if "\0" in text else _TEXT


def read_file(folder: Path, parts: Sequence[str]) -> ReferenceFile:
    """A file below a folder; NotFoundError if it is missing, too large or of no kind that is shown."""
    descriptor = _open(folder, parts)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotFoundError("reference: is not a file", field="reference")
    with os.fdopen(descriptor, "rb") as file:
        head = file.read(MAX_TEXT + 1)
        kind = media_type(head)
        if not kind:
            raise NotFoundError("reference: is no picture, sound or text that is shown", field="reference")
        if kind == _TEXT:
            return ReferenceFile(kind, head[:MAX_TEXT], is_cut=len(head) > MAX_TEXT)
        data = head + file.read(MAX_BYTES + 1 - len(head))
    if len(data) > MAX_BYTES:
        raise NotFoundError(f"reference: is larger than {MAX_BYTES >> 20} MiB", field="reference")
    return ReferenceFile(kind, data)


def _open(folder: Path, parts: Sequence[str]) -> int:
    """A descriptor of a file, reached without following a link below the folder."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for number, part in enumerate(parts):
            try:
                inner = os.open(part, flags | (os.O_DIRECTORY if number < len(parts) - 1 else 0), dir_fd=here)
            finally:
                os.close(here)
            here = inner
    except (OSError, ValueError):
        raise NotFoundError(
            "reference: there is no such file below the folder of references", field="reference"
        ) from None
    return here
