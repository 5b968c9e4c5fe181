"""Tags of requests that wait for their responses, in a file that all workers of a data directory map.

The two events of an inference arrive over two connections, perhaps at two workers. What a request adds to its response,
tags, is put into one of a fixed number of slots. The key is the model, the source and the id of the request.

    slot   digest of the key, 16 bytes | Unix milliseconds, uint64 | bytes of the tags, uint32 |
           CRC-32 of all the others, uint32 | key=value of each tag, separated by 0x1f

Nothing is locked and nothing is deleted: a request takes the oldest of the slots that its key may have. A slot that was
overwritten, or that two workers wrote at the same time, has another digest or a wrong checksum; it counts as absent, as
does one that is older than ten minutes.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["RequestTags"]

_HEAD = struct.Struct("<16sQII")
_UNSUMMED = struct.Struct("<16sQI")
# A key may have each slot of a group. Tags in ASCII fit a slot, however many and long they are.
_GROUPS, _GROUP, _SLOT_BYTES = 2048, 4, 2048
_SIZE = _GROUPS * _GROUP * _SLOT_BYTES
_MAX_AGE_MS = 600_000
# Neither keys nor values have control characters.
_BETWEEN = "\x1f"

_log = logging.getLogger("darksight.events")


class RequestTags:
    """The slots, 16 MiB.

    Parameters
    ----------
    path
        The file, which is created if it does not exist. If that fails, requests and responses of one worker are joined.
    clock
        Unix time in seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        try:
            self._map = _open(path)
        except OSError as error:
            _log.warning("requests_not_shared", extra={"path": str(path), "error": str(error)})
            self._map = mmap.mmap(-1, _SIZE)

    def put(self, model: str, source: str, request_id: str, tags: Mapping[str, str]) -> None:
        """Keep the tags of a request; if they do not fit a slot, the longest are left out."""
        digest, starts = _slots(model, source, request_id)
        kept = dict(tags)
        while len(text := _encode(kept)) > _SLOT_BYTES - _HEAD.size:
            del kept[max(kept, key=lambda key: len(kept[key].encode()))]
        now = int(self._clock() * 1000.0)
        start = min(starts, key=lambda each: self._rank(each, digest, now))
        head = _UNSUMMED.pack(digest, now, len(text))
        slot = head + struct.pack("<I", zlib.crc32(text, zlib.crc32(head))) + text
        self._map[start : start + len(slot)] = slot

    def find(self, model: str, source: str, request_id: str) -> dict[str, str] | None:
        """The tags of a request; None if it has not arrived, or is no longer there."""
        digest, starts = _slots(model, source, request_id)
        now = int(self._clock() * 1000.0)
        for start in starts:
            slot = self._map[start : start + _SLOT_BYTES]
            found, ms, size, checksum = _HEAD.unpack_from(slot)
            text = slot[_HEAD.size : _HEAD.size + size]
            if found != digest or abs(now - ms) > _MAX_AGE_MS or len(text) != size:
                continue
            if zlib.crc32(text, zlib.crc32(slot[: _UNSUMMED.size])) == checksum:
                return dict(pair.split("=", 1) for pair in text.decode().split(_BETWEEN) if pair)
        return None

    def _rank(self, start: int, digest: bytes, now: int) -> int:
        """Which slot is taken first: that of the same request, then one whose time cannot be right, then the oldest."""
        found, ms, *_ = _HEAD.unpack_from(self._map, start)
        if found == digest:
            return -1
        return int(ms) if ms <= now + _MAX_AGE_MS else 0


def _encode(tags: Mapping[str, str]) -> bytes:
    return _BETWEEN.join(f"{key}={value}" for key, value in tags.items()).encode()


def _slots(model: str, source: str, request_id: str) -> tuple[bytes, range]:
    """The digest of a key, and where the slots of its group start."""
    key = "\0".join((model, source, request_id)).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(key, digest_size=16).digest()
    start = int.from_bytes(digest[:4], "little") % _GROUPS * _GROUP * _SLOT_BYTES
    return digest, range(start, start + _GROUP * _SLOT_BYTES, _SLOT_BYTES)


def _open(path: Path) -> mmap.mmap:
    """The file as memory, with space on the disk for all of it: on a full disk, a write into a hole kills a process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Another worker may do the same; what it has put there meanwhile is lost.
        while (size := os.fstat(descriptor).st_size) < _SIZE:
            os.pwrite(descriptor, bytes(_SIZE - size), size)
        return mmap.mmap(descriptor, _SIZE)
    finally:
        os.close(descriptor)
