"""Metric files: named sections of float64 in a memory-mapped file with one writer.

A stored number is in the page cache at once, so `kill -9` loses nothing, and a restarted process continues to count
where its predecessor stopped: Prometheus sees no reset. A reader may copy the file at any time: numbers are aligned
words, so each is either old or new.

    magic (8) | layout version u32 | header size u32 | header crc32 u32 | 0 u32 | header (JSON) | numbers

The header has the labels of the file, and name and length of each section, so a reader needs no other information. A
file of another release, with other labels or sections, is rewritten and keeps the numbers of the sections that are the
same. A file that is truncated, of another layout, or holds numbers that are not finite is replaced.
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

from darksight_service.errors import MetricFileError

__all__ = ["SUFFIX", "MetricFile", "Snapshot", "list_files", "read"]

SUFFIX = ".counts"

_MAGIC = b"\x89DkCnt\r\n"
_LAYOUT = 1
_HEAD = struct.Struct("<8sIIII")
# Numbers start at a multiple of this, so that none crosses a cache line.
_ALIGN = 64

Sections = Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Copy of a metric file.

    Parameters
    ----------
    labels
        Kind of the file, and what it counts for.
    sections
        Numbers of each section, by name.
    """

    labels: Mapping[str, Any]
    sections: Mapping[str, NDArray[np.float64]]

    def number(self, section: str) -> float:
        """The first number of a section."""
        return float(self.sections[section][0])


def list_files(folder: Path) -> list[Path]:
    """Metric files of a directory, sorted by name; none if the directory does not exist."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def read(path: Path) -> Snapshot:
    """Copy a metric file; MetricFileError if it cannot be read or is damaged."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MetricFileError(f"{path}: {error.strerror}") from error
    if len(content) < _HEAD.size:
        raise MetricFileError(f"{path}: the header is truncated")
    magic, layout, size, checksum, _ = _HEAD.unpack_from(content)
    text = content[_HEAD.size : _HEAD.size + size]
    if magic != _MAGIC or layout != _LAYOUT or zlib.crc32(text) != checksum:
        raise MetricFileError(f"{path}: the header is not of layout {_LAYOUT}")
    header = json.loads(text)
    offset = _start(size)
    if len(content) != offset + 8 * sum(length for _, length in header["sections"]):
        raise MetricFileError(f"{path}: the size differs from that in the header")
    sections = {}
    for name, length in header["sections"]:
        sections[name] = np.frombuffer(content, dtype="<f8", count=length, offset=offset)
        offset += 8 * length
    return Snapshot(header["labels"], sections)


def _start(size: int) -> int:
    return -(-(_HEAD.size + size) // _ALIGN) * _ALIGN


class MetricFile:
    """The writer's side: opens an existing file with these labels and sections, or creates it.

    Parameters
    ----------
    path
        The file; its directory is created if necessary.
    labels
        Kind of the file and what it counts for, JSON values.
    sections
        Names and lengths, in order.
    """

    def __init__(self, path: Path, labels: Mapping[str, Any], sections: Sections) -> None:
        self.path = path
        text = json.dumps({"labels": dict(labels), "sections": [list(section) for section in sections]}).encode()
        start, total = _start(len(text)), sum(length for _, length in sections)
        header = _HEAD.pack(_MAGIC, _LAYOUT, len(text), zlib.crc32(text), 0) + text
        kept, self.was_replaced = _kept(path)
        """Whether counts were lost because the file was damaged or of another layout."""
        numbers = b"".join(
            kept[name].tobytes() if name in kept and len(kept[name]) == length else bytes(8 * length)
            for name, length in sections
        )
        try:
            if self.was_replaced or not _has_header(path, header):
                _create(path, header.ljust(start, b"\0") + numbers)
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), 0)
            self.is_durable = True
            """Whether the numbers are in a file."""
        except OSError:
            # A full disk must not stop scoring: count in memory, invisible to Prometheus.
            self._map = mmap.mmap(-1, start + 8 * total)
            self.is_durable = False
        self.array: NDArray[np.float64] = np.frombuffer(self._map, dtype="<f8", offset=start)
        """All numbers, for batches."""
        self.cells = memoryview(self._map)[start:].cast("d")
        """The same numbers, for single updates: a third of numpy's time."""
        self.offsets: dict[str, int] = {}
        offset = 0
        for name, length in sections:
            self.offsets[name] = offset
            offset += length

    def close(self) -> None:
        """Unmap the file; it keeps its numbers."""
        self.cells.release()
        self.array = np.empty(0)
        # While another view exists, the mapping stays until the process exits.
        with contextlib.suppress(BufferError):
            self._map.close()


def _create(path: Path, content: bytes) -> None:
    # Renamed when complete: a reader never sees a partial header.
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def _kept(path: Path) -> tuple[Mapping[str, NDArray[np.float64]], bool]:
    """The sections of a file, none if there is none; and whether it is damaged."""
    if not path.exists():
        return {}, False
    try:
        sections = read(path).sections
    except MetricFileError:
        return {}, True
    is_sound = all(np.isfinite(part).all() for part in sections.values())
    return (sections, False) if is_sound else ({}, True)


def _has_header(path: Path, header: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(header)) == header
    except OSError:
        return False
