"""The spool: records are on disk before the reply is sent, whatever the state of the database.

A directory of append-only segments with one writer. Every record is one frame, written by one system call:

    magic (8 bytes) | length u32 | crc32 u32 | payload

A frame survives the death of the process (durability "process"), or of the machine as well ("fsync"; threads that
append at the same time share one fsync). There is no index and no header whose loss would hide other frames: after
damage a reader continues at the next magic, so every intact record is found (`frames`).

    <number>.open           the segment that is being written
    <number>.log            a closed one, which the drain removes when it is stored
    <number>.log.corrupt-*  a damaged one; its intact records were stored
    <number>.log.refused-*  records that the store refused
    drain.lease             locked by the process that drains, with its position (see `drain`)

The writer locks the directory itself. The lock ends with its process, so there is no lock file that could become stale.
Numbers are the Unix time in nanoseconds, so that none is used twice, and grow within a directory.

`Spool.append` never raises. It returns whether the record is on disk. If the quota is reached, the disk is full or the
directory is broken, the newest records are dropped and counted, and later appends try again.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zlib import crc32

from darksight_core.errors import ConfigError
from darksight_service.errors import SpoolError

__all__ = [
    "MAGIC",
    "SegmentFile",
    "Spool",
    "SpoolStats",
    "close_stale",
    "frame",
    "frames",
    "is_same",
    "segment_files",
    "try_lock",
]

MAGIC = b"\xd5\xf1\xc9\xfe\xda\xf7\xcd\xfb"
"""Starts a frame. These bytes are in no text, as they are not UTF-8, and no float32 in [0, 1] ends in one of them."""

_HEADER = struct.Struct("<8sII")

# The checksum starts from the length, so that it covers it, and not from 0: zeroes after a magic are not a record.
_SEED = 0x5EED_F00D
_NAME = re.compile(r"(\d{20})\.(open|log)")


# write(2) that keeps the interpreter lock: os.write releases it, and to acquire it again takes 20 us in a busy server,
# where the write itself takes one. A large record is written by os.writev, so that other threads run meanwhile.
_write = ctypes.PyDLL(None, use_errno=True).write
_write.argtypes, _write.restype = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t), ctypes.c_ssize_t
# access(2), for the same reason.
_access = ctypes.PyDLL(None).access
_access.argtypes = ctypes.c_char_p, ctypes.c_int
_SMALL = 1 << 16


@dataclass(frozen=True, slots=True)
class SpoolStats:
    """Backlog of a spool, and counts since it was opened.

    Parameters
    ----------
    bytes
        Of segments that are not drained yet.
    oldest_seconds
        Age of the oldest segment; 0 if there is none.
    appended, dropped
        Records that are on disk, and those that are not: quota, full disk or broken directory.
    errors, last_error
        Number of failed system calls, and the last error.
    """

    bytes: int
    oldest_seconds: float
    appended: int
    dropped: int
    errors: int
    last_error: str


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment in the directory."""

    number: int
    path: Path
    is_closed: bool


class _Segment:
    """The segment that is being written."""

    __slots__ = ("born", "fd", "is_broken", "name", "path", "size", "sync_lock", "synced")

    def __init__(self, path: Path, fd: int, born: float) -> None:
        self.path = path
        self.name = os.fsencode(path)
        self.fd = fd
        self.born = born
        self.size = 0
        self.synced = 0
        self.is_broken = False
        self.sync_lock = threading.Lock()


class Spool:
    """Writer of a spool directory.

    Parameters
    ----------
    folder
        Created if it does not exist. SpoolError if another process writes to it; other defects are handled by `append`.
    max_bytes
        Quota of all segments; a record that would exceed it is dropped.
    durability
        "process": a record survives the process. "fsync": it survives the machine.
    segment_bytes, segment_seconds
        A segment is closed at this size or, by the next append or `stats`, at this age.
    retry_seconds
        After a failure records are dropped for this long before the disk is tried again.
    lock_seconds
        How long to wait for the previous writer to exit.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = 1 << 30,
        durability: Literal["process", "fsync"] = "process",
        segment_bytes: int = 16 << 20,
        segment_seconds: float = 1.0,
        retry_seconds: float = 0.1,
        lock_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if durability not in ("process", "fsync"):
            raise ConfigError(f'durability is "process" or "fsync", not {durability!r}')
        self._folder = folder
        self._max_bytes = max_bytes
        self._is_synced = durability == "fsync"
        self._segment_bytes = segment_bytes
        self._segment_seconds = segment_seconds
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._lock_fd = -1
        self._segment: _Segment | None = None
        self._closed: deque[tuple[Path, int, float]] = deque()
        self._bytes = 0
        self._last_number = 0
        self._retry_at = -float("inf")
        self._appended = self._dropped = self._errors = 0
        self._last_error = ""
        self._is_shut = False
        try:
            self._enter(lock_seconds)
        except OSError as error:
            self._failed(error)

    def append(self, payload: bytes) -> bool:
        """Write one record; whether it is on disk. Never raises."""
        try:
            header = _header(payload)
            size = len(header) + len(payload)
            now = self._clock()
            with self._lock:
                segment = self._write(header, payload, size, now)
                if segment is None:
                    self._dropped += 1
                    return False
                if not self._is_synced:
                    self._appended += 1
                    return True
                end = segment.size
            is_durable = self._sync(segment, end)
            with self._lock:
                self._appended += is_durable
                self._dropped += not is_durable
            return is_durable
        except Exception as error:
            # Scoring must continue; the error is counted and kept.
            with self._lock:
                self._failed(error)
                self._dropped += 1
            return False

    def stats(self) -> SpoolStats:
        """Backlog and counts; closes the segment if it is old enough, which in times without traffic no append does."""
        with self._lock:
            segment = self._segment
            if segment is not None and self._clock() - segment.born >= self._segment_seconds:
                self._close_segment()
            self._forget_drained()
            born = [self._closed[0][2]] if self._closed else []
            born += [self._segment.born] if self._segment is not None else []
            return SpoolStats(
                bytes=self._bytes,
                oldest_seconds=max(self._clock() - min(born), 0.0) if born else 0.0,
                appended=self._appended,
                dropped=self._dropped,
                errors=self._errors,
                last_error=self._last_error,
            )

    def close(self) -> None:
        """Close the segment and release the directory; later records are dropped."""
        with self._lock:
            self._is_shut = True
            self._close_segment()
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, header: bytes, payload: bytes, size: int, now: float) -> _Segment | None:
        """The segment to which the frame was written, or None."""
        if now < self._retry_at or self._is_shut:
            return None
        segment = self._segment
        try:
            if segment is not None and (
                segment.size + size > self._segment_bytes
                or now - segment.born >= self._segment_seconds
                or segment.is_broken
                # Writing to a deleted file succeeds, and is lost.
                or _access(segment.name, os.F_OK) != 0
            ):
                self._close_segment()
                segment = None
            if self._bytes + size > self._max_bytes:
                self._forget_drained()
                if self._bytes + size > self._max_bytes:
                    self._retry_at = now + self._retry_seconds
                    return None
            if segment is None:
                segment = self._open_segment(now)
            if size > _SMALL:
                written = os.writev(segment.fd, (header, payload))
            else:
                written = _write(segment.fd, header + payload, size)
            if written != size:
                code = ctypes.get_errno() if written < 0 else errno.ENOSPC
                raise OSError(code, f"{os.strerror(code)}: {max(written, 0)} of {size} bytes were written")
        except (OSError, SpoolError) as error:
            self._failed(error)
            self._retry_at = now + self._retry_seconds
            self._close_segment()
            return None
        segment.size += size
        self._bytes += size
        return segment

    def _sync(self, segment: _Segment, end: int) -> bool:
        """Flush the segment up to `end`; one thread does it for all frames written before it started."""
        with segment.sync_lock:
            if segment.synced < end and not segment.is_broken:
                size = segment.size
                try:
                    os.fsync(segment.fd)
                    segment.synced = size
                except OSError as error:
                    # After a failed fsync the content of the disk is not known: the segment is not used any more. It
                    # is not truncated, as the drain may have read it; a record may be stored that was not promised.
                    segment.is_broken = True
                    self._failed(error)
            return segment.synced >= end

    def _enter(self, lock_seconds: float = 0.0) -> None:
        """Create the directory if it does not exist, lock it, and close segments that an earlier process left open."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._lock_fd >= 0:
            if is_same(self._folder, self._lock_fd):
                return
            os.close(self._lock_fd)
            self._lock_fd = -1
        # A drain that closes stale segments holds the lock for a moment.
        give_up = time.monotonic() + lock_seconds
        while (fd := try_lock(self._folder)) is None:
            if time.monotonic() >= give_up:
                raise SpoolError(f"{self._folder} is in use: another process writes to this spool")
            time.sleep(0.01)
        self._lock_fd = fd
        close_stale(self._folder)
        self._closed.clear()
        now, wall = self._clock(), time.time()
        for segment in segment_files(self._folder):
            try:
                found = segment.path.stat()
            except FileNotFoundError:
                continue  # just drained
            self._closed.append((segment.path, found.st_size, now - max(wall - found.st_mtime, 0.0)))
            self._last_number = max(self._last_number, segment.number)
        self._bytes = sum(size for _, size, _ in self._closed)

    def _open_segment(self, now: float) -> _Segment:
        self._enter()
        self._last_number = max(self._last_number + 1, time.time_ns())
        path = self._folder / f"{self._last_number:020d}.open"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._segment = _Segment(path, fd, now)
        if self._is_synced:
            # The directory entry must be on disk too.
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return self._segment

    def _close_segment(self) -> None:
        """Truncate a partial frame and close the segment for the drain; errors are only counted."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        with segment.sync_lock:
            try:
                if os.fstat(segment.fd).st_size > segment.size:
                    os.ftruncate(segment.fd, segment.size)
                if self._is_synced and segment.synced < segment.size and not segment.is_broken:
                    os.fsync(segment.fd)
                    segment.synced = segment.size
                os.close(segment.fd)
            except OSError as error:
                self._failed(error)
                segment.is_broken = True
                with suppress(OSError):
                    os.close(segment.fd)
        path = segment.path.with_suffix(".log")
        try:
            if segment.size:
                os.rename(segment.path, path)
            else:
                os.unlink(segment.path)
        except OSError as error:
            # The drain treats an open segment as closed once there is a later one.
            self._failed(error)
            path = segment.path
        if segment.size:
            self._closed.append((path, segment.size, segment.born))
        self._forget_drained()

    def _forget_drained(self) -> None:
        """Segments are drained in order, so only the oldest is checked."""
        while self._closed and not os.path.lexists(self._closed[0][0]):
            self._bytes -= self._closed.popleft()[1]

    def _failed(self, error: Exception) -> None:
        self._errors += 1
        self._last_error = f"{type(error).__name__}: {error}"


def frame(payload: bytes) -> bytes:
    """A payload with its header, as `Spool.append` writes it."""
    return _header(payload) + payload


def _header(payload: bytes) -> bytes:
    length = len(payload)
    return _HEADER.pack(MAGIC, length, crc32(payload, length ^ _SEED))


def frames(data: bytes, start: int = 0, *, is_closed: bool = True) -> Iterator[tuple[int, int, memoryview | None]]:
    """Begin, end and payload of each frame from `start` on; a stretch without an intact frame has no payload.

    In an open segment the bytes after the last intact frame may be a partial one and are skipped.
    """
    view = memoryview(data)
    damaged = -1
    while start < len(data):
        end = _end_of_frame(view, start)
        if end:
            if damaged >= 0:
                yield damaged, start, None
                damaged = -1
            yield start, end, view[start + _HEADER.size : end]
            start = end
        elif not is_closed:
            return
        else:
            damaged = start if damaged < 0 else damaged
            start = data.find(MAGIC, start + 1)
            if start < 0:
                break
    if damaged >= 0:
        yield damaged, len(data), None


def _end_of_frame(view: memoryview, start: int) -> int:
    """End of the frame at `start`, or 0 if it is not intact."""
    body = start + _HEADER.size
    if body > len(view):
        return 0
    magic, length, checksum = _HEADER.unpack_from(view, start)
    end: int = body + length
    if magic != MAGIC or end > len(view) or crc32(view[body:end], length ^ _SEED) != checksum:
        return 0
    return end


def segment_files(folder: Path) -> list[SegmentFile]:
    """The segments of a directory in order; FileNotFoundError if it does not exist.

    A writer has one segment open at a time, so an open one that is followed by another is in fact closed.
    """
    found = sorted((int(name[1]), name[2], name[0]) for name in map(_NAME.fullmatch, os.listdir(folder)) if name)
    last = len(found) - 1
    return [
        SegmentFile(number, folder / name, is_closed=kind == "log" or position < last)
        for position, (number, kind, name) in enumerate(found)
    ]


def close_stale(folder: Path) -> None:
    """Close the segments that a dead writer left open; the caller holds the writer's lock."""
    for segment in segment_files(folder):
        if segment.path.suffix == ".open":
            os.rename(segment.path, segment.path.with_suffix(".log"))


def try_lock(path: Path) -> int | None:
    """Lock a directory, or a file that is created if needed, until the descriptor is closed; None if it is locked."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    fd = os.open(path, flags | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A lock on a file that was deleted meanwhile excludes nobody.
        if is_same(path, fd):
            return fd
    except BlockingIOError:
        pass
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None


def is_same(path: Path, fd: int) -> bool:
    """Whether a path still names the open file."""
    try:
        named, opened = os.stat(path), os.fstat(fd)
    except OSError:
        return False
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
