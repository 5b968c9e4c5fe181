"""Counter files: named rows of float64 in a memory-mapped file with one writer, which outlive it.

What is stored is in the page cache the moment it is stored, so `kill -9` loses nothing and a restarted process goes on
counting where it stopped; Prometheus sees no reset. A reader copies the whole file at any time: numbers are aligned
words, each of which is old or new.

    magic (8) | layout version u32 | size of the labels u32 | crc32 of the labels u32 | 0 u32 | labels (JSON) | numbers

The labels name the kind of file, what it is about and every section with its length: a reader needs to know nothing in
advance. A file that does not fit (cut off, of another layout, with numbers that no counter can have) is replaced.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["SUFFIX", "CounterFile", "Snapshot", "UnreadableError", "list_files", "read"]

SUFFIX = ".counts"

_MAGIC = b"\x89DkCnt\r\n"
_LAYOUT = 1
_HEAD = struct.Struct("<8sIIII")
# Numbers begin at a multiple of this, so that none of them lies across two cache lines.
_ALIGN = 64

Sections = Sequence[tuple[str, int]]


class UnreadableError(Exception):
    """A file that holds no counters."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The counters of a file at one moment.

    Parameters
    ----------
    labels
        What the file is about.
    sections
        Numbers of each section, by name.
    """

    labels: Mapping[str, Any]
    sections: Mapping[str, NDArray[np.float64]]

    def number(self, section: str) -> float:
        """The first number of a section."""
        return float(self.sections[section][0])


def list_files(folder: Path) -> list[Path]:
    """Counter files of a folder, in order of their names; none if there is no folder."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def read(path: Path) -> Snapshot:
    """Copy of the counters of a file; `UnreadableError` if there are none."""
    try:
        labels, sections, start, content = _parse(path.read_bytes())
    except OSError as error:
        raise UnreadableError(str(error)) from error
    values = np.frombuffer(content, dtype="<f8", offset=start)
    found, offset = {}, 0
    for name, length in sections:
        found[name] = values[offset : offset + length]
        offset += length
    return Snapshot(labels, found)


def _parse(content: bytes) -> tuple[dict[str, Any], list[tuple[str, int]], int, bytes]:
    """Labels, sections and where the numbers begin."""
    if len(content) < _HEAD.size:
        raise UnreadableError("cut off in its header")
    magic, layout, size, checksum, _ = _HEAD.unpack_from(content)
    text = content[_HEAD.size : _HEAD.size + size]
    if magic != _MAGIC or layout != _LAYOUT or zlib.crc32(text) != checksum:
        raise UnreadableError("no header of this layout")
    header = json.loads(text)
    sections = [(str(name), int(length)) for name, length in header["sections"]]
    start = _start(size)
    if len(content) != start + 8 * sum(length for _, length in sections):
        raise UnreadableError("of another size than its header says")
    return header["labels"], sections, start, content


def _start(size: int) -> int:
    return -(-(_HEAD.size + size) // _ALIGN) * _ALIGN


class CounterFile:
    """The writer's side: opens the file of these labels if it is sound, or begins a new one.

    Parameters
    ----------
    path
        The file; its folder is made if it is missing.
    labels
        What it is about, JSON. A file with other labels is replaced.
    sections
        Names and lengths, in order. A file with others is replaced.
    """

    def __init__(self, path: Path, labels: Mapping[str, Any], sections: Sections) -> None:
        self.path = path
        text = json.dumps({"labels": dict(labels), "sections": [list(section) for section in sections]}).encode()
        start, total = _start(len(text)), sum(length for _, length in sections)
        header = _HEAD.pack(_MAGIC, _LAYOUT, len(text), zlib.crc32(text), 0) + text
        was_there = path.exists()
        is_sound = was_there and _is_sound(path, header, start, total)
        self.was_replaced = was_there and not is_sound
        """Whether counters were lost because the file was damaged or of another layout."""
        try:
            if not is_sound:
                _create(path, header.ljust(start, b"\0") + bytes(8 * total))
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), 0)
            self.is_durable = True
            """Whether there is a file at all."""
        except OSError:
            # A full disk must not stop the scoring: counted in memory, and seen by nobody.
            self._map = mmap.mmap(-1, start + 8 * total)
            self.is_durable = False
        self.array: NDArray[np.float64] = np.frombuffer(self._map, dtype="<f8", offset=start)
        """All numbers, for batches."""
        self.cells = memoryview(self._map)[start:].cast("d")
        """The same numbers, for one at a time: a third of numpy's price."""
        self.offsets: dict[str, int] = {}
        offset = 0
        for name, length in sections:
            self.offsets[name] = offset
            offset += length

    def close(self) -> None:
        """Let go of the file; it keeps its numbers."""
        self.cells.release()
        self.array = np.empty(0)
        # Where someone still holds a view, the map goes with the process.
        with contextlib.suppress(BufferError):
            self._map.close()


def _create(path: Path, content: bytes) -> None:
    # Under its name only when complete: a reader never sees half of a header.
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def _is_sound(path: Path, header: bytes, start: int, total: int) -> bool:
    try:
        content = path.read_bytes()
    except OSError:
        return False
    if content[: len(header)] != header or len(content) != start + 8 * total:
        return False
    return bool(np.isfinite(np.frombuffer(content, dtype="<f8", offset=start)).all())
