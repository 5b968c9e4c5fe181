"""The drain: moves the records of a spool into the store, in order.

One step takes up to `max_rows` rows from the oldest segments, inserts them, removes finished segments and writes its
position in the next one. The process may die between any two of these: rows that were inserted after the last written
position, at most one step of them, are inserted again, and the store ignores records that it has.

    store unavailable  the same rows are retried until it is available, at growing intervals
    segment damaged    its intact records are stored, the loss is counted, the file is kept as `<name>.corrupt-<time>`
    record refused     found by bisection and moved to a file `<segment>.refused-<time>`, so that the rest is stored
    second drain       waits: the directory is leased by a file lock, which the kernel releases when a process dies

A store that refuses everything is broken, and no record is to blame: a record is moved aside only by a step in which
the store accepted another one. A file of refused records has the format of a segment: renamed to `<20 digits>.log` it
is drained again.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Protocol
from zlib import crc32

from darksight_service.errors import RecordError, StoreUnavailableError
from darksight_service.ingest.records import Record, count_rows, decode, decode_all
from darksight_service.ingest.spool import (
    MAGIC,
    SegmentFile,
    close_stale,
    frame,
    frames,
    is_same,
    segment_files,
    try_lock,
)
from darksight_service.store.points import OutcomeBatch

__all__ = ["Drain", "DrainStats", "DrainStore", "Inserted", "Progress"]

_log = logging.getLogger("darksight.drain")

_LEASE = "drain.lease"
_PROBES = 10
_LARGEST_REACH = 8
_NO_DATA = (-1, b"")
_POSITION_BYTES = 128


class Inserted(Protocol):
    """Result of an insert, in rows."""

    @property
    def inserted(self) -> int:
        """New rows."""

    @property
    def duplicates(self) -> int:
        """Rows that were stored before."""

    @property
    def conflicts(self) -> int:
        """Rows with the id of a stored row that is another one."""


class DrainStore(Protocol):
    """Where records go. Stores all of them or none, and each only once."""

    def insert(self, batches: Sequence[Record]) -> Inserted:
        """StoreUnavailableError if it may work later; any other error if one of the batches cannot be stored."""


class Progress(Enum):
    """Result of a step."""

    MOVED = "moved"
    """Records were stored, and there may be more."""

    IDLE = "idle"
    """There are no records."""

    FAILED = "failed"
    """The store or the disk failed; the same records are retried."""

    WAITING = "waiting"
    """Another drain holds the lease."""


@dataclass(slots=True)
class DrainStats:
    """Backlog, and counts since the drain started.

    Parameters
    ----------
    depth_bytes
        Bytes of segments that are not stored yet.
    lag_seconds
        Age of the oldest record among them, 0 if there is none.
    inserted, duplicates, conflicts
        New rows, rows that were stored before, and rows with the id of a stored row that is another one.
    quarantined
        Rows of records moved aside because they cannot be decoded or stored.
    damaged
        Records in damaged parts of segments, at least one in each.
    lost_bytes
        Size of damaged parts of segments, and of refused records that could not be moved aside or were deleted to make
        room.
    aside
        Files of damaged segments and of refused records that are in the directory now.
    errors
        Steps that failed.
    last_error
        Error of the last step if it failed, else empty.
    """

    depth_bytes: int = 0
    lag_seconds: float = 0.0
    inserted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    quarantined: int = 0
    damaged: int = 0
    lost_bytes: int = 0
    aside: int = 0
    errors: int = 0
    last_error: str = ""


@dataclass(slots=True)
class _Position:
    """Position in the segment that was stored in part."""

    number: int = -1
    offset: int = 0
    lost: int = 0

    def encode(self) -> bytes:
        text = f"{self.number} {self.offset} {self.lost}".encode()
        return (b"%08x " % crc32(text) + text).ljust(_POSITION_BYTES - 1) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> _Position:
        """The position, or the start if it was not written completely: the store ignores records that it has."""
        checksum, _, text = data.strip().partition(b" ")
        if checksum != b"%08x" % crc32(text):
            return cls()
        return cls(*map(int, text.split()))


# Not frozen: there is one for every record, and a frozen one takes as long as its checksum.
@dataclass(slots=True, eq=False)
class _Item:
    """A record, and the segment that it is in."""

    payload: memoryview
    segment: SegmentFile


@dataclass(slots=True, eq=False)
class _Part:
    """Records that are inserted together; decoded once, however often the insert is retried."""

    items: list[_Item]
    batches: Sequence[Record] = ()


@dataclass(slots=True)
class _Step:
    """The records of one step, and what to do when they are stored."""

    position: _Position
    rows: int = 0
    bytes: int = 0
    todo: list[_Part] = field(default_factory=list)
    first: _Item | None = None
    is_any_stored: bool = False
    is_confirming: bool = False
    refused: list[tuple[_Item, Exception]] = field(default_factory=list)
    unreadable: list[tuple[_Item, Exception]] = field(default_factory=list)
    damaged: int = 0
    lost: int = 0
    finished: list[tuple[SegmentFile, int]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.todo or self.unreadable or self.lost or self.finished)

    @property
    def is_store_suspect(self) -> bool:
        """Whether the store has refused single records and stored none."""
        return bool(self.refused) and not self.is_any_stored

    def is_readable(self, item: _Item) -> bool:
        """Whether a record can be decoded; those that cannot are kept in `unreadable`."""
        try:
            decode(item.payload)
        except RecordError as error:
            self.unreadable.append((item, error))
            return False
        return True

    def oldest_ms(self) -> int | None:
        """When the first of its records was received."""
        if self.first is None:
            return None
        try:
            batch = decode(self.first.payload)
        except RecordError:
            return None
        return batch.received_ms if isinstance(batch, OutcomeBatch) else int(batch.received_ms[0])


class Drain:
    """Drains one spool directory.

    Parameters
    ----------
    folder
        Of a `Spool`; need not exist yet.
    store
        Where the records go.
    max_rows
        Rows of one insert; a larger batch is inserted alone.
    max_bytes
        Bytes of one insert, likewise.
    poll_seconds
        Wait of `run` when there are no more records.
    backoff_seconds
        First and largest wait of `run` after a failure.
    quarantine_bytes
        Size of files moved aside; the oldest beyond it are removed.
    clock
        Unix time in seconds.
    """

    def __init__(
        self,
        folder: Path,
        store: DrainStore,
        *,
        max_rows: int = 20_000,
        max_bytes: int = 8 << 20,
        poll_seconds: float = 0.5,
        backoff_seconds: tuple[float, float] = (0.1, 5.0),
        quarantine_bytes: int = 256 << 20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._store = store
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._poll_seconds = poll_seconds
        self._backoff_seconds = backoff_seconds
        self._quarantine_bytes = quarantine_bytes
        self._clock = clock
        self._lease_fd = -1
        self._position = _Position()
        self._pending: _Step | None = None
        self._data = _NO_DATA
        self._reach = 1
        self._is_behind = False
        self._stats = DrainStats()

    def step(self) -> Progress:
        """Move records once; failures outside of this process are a result, not an exception."""
        try:
            if not self._has_lease():
                return Progress.WAITING
            step = self._pending = self._pending or self._collect()
            if step.is_empty:
                self._pending = None
                return Progress.IDLE
            if not self._insert(step):
                # An unavailable store gets the same records again. If it refused everything, later records may show
                # that it works.
                if step.is_store_suspect:
                    self._pending = None
                    self._reach = min(2 * self._reach, _LARGEST_REACH)
                return Progress.FAILED
            self._finish(step)
        except FileNotFoundError:
            # No worker has made the directory yet, or it was deleted.
            self._pending = None
            return Progress.IDLE
        except OSError as error:
            self._pending = None
            self._failed(error)
            return Progress.FAILED
        self._pending = None
        self._reach = 1
        self._stats.last_error = ""
        return Progress.MOVED

    def run(self, stop: threading.Event, *, stop_seconds: float = 10.0) -> None:
        """Run steps until `stop` is set, then drain the rest for at most `stop_seconds` if the store is available."""
        failures = 0
        while not stop.is_set():
            progress = self._guarded_step()
            failures = failures + 1 if progress is Progress.FAILED else 0
            # A commit for every few records would keep the database busy: wait for more of them.
            if progress is not Progress.MOVED or not self._is_behind:
                stop.wait(self._pause(failures))
        give_up = time.monotonic() + stop_seconds
        while self._guarded_step() is Progress.MOVED and time.monotonic() < give_up:
            pass
        self.close()

    def stats(self) -> DrainStats:
        """Backlog and counts."""
        depth, oldest = self._depth()
        step = self._pending
        if step is not None and (ms := step.oldest_ms()) is not None:
            oldest = ms / 1e3
        lag = max(self._clock() - oldest, 0.0) if depth else 0.0
        aside = len(_files_aside(self._folder))
        return replace(self._stats, depth_bytes=depth, lag_seconds=lag, aside=aside)

    def close(self) -> None:
        """Release the lease."""
        self._pending = None
        self._data = _NO_DATA
        if self._lease_fd >= 0:
            os.close(self._lease_fd)
            self._lease_fd = -1

    def _guarded_step(self) -> Progress:
        try:
            return self.step()
        except Exception as error:
            # A defect here must not end the only thread that empties the disk.
            _log.exception("drain_step_failed", extra={"folder": str(self._folder)})
            self._failed(error)
            self._pending = None
            return Progress.FAILED

    def _pause(self, failures: int) -> float:
        if not failures:
            return self._poll_seconds
        first, largest = self._backoff_seconds
        # Jitter, so that the drains of many workers do not retry at the same time.
        return min(first * 2.0 ** min(failures - 1, 32), largest) * random.uniform(0.5, 1.0)

    def _has_lease(self) -> bool:
        """Hold the lease of the directory, and start from the position that its previous holder wrote."""
        path = self._folder / _LEASE
        if self._lease_fd >= 0:
            if is_same(path, self._lease_fd):
                return True
            self.close()
        fd = try_lock(path)
        if fd is None:
            return False
        self._lease_fd = fd
        self._position = _Position.decode(os.pread(fd, _POSITION_BYTES, 0))
        return True

    def _collect(self) -> _Step:
        step = _Step(self._position)
        items: list[_Item] = []
        try:
            self._is_behind = False
            for segment in self._segments():
                if not self._collect_from(segment, step, items):
                    self._is_behind = True
                    break
        except FileNotFoundError:
            # A segment was renamed since it was listed: it and later ones are read in the next step.
            if not items:
                raise
        if items:
            step.todo, step.first = [_Part(items)], items[0]
        return step

    def _collect_from(self, segment: SegmentFile, step: _Step, items: list[_Item]) -> bool:
        """Add the records of a segment to the step; whether it may have more."""
        start, lost = 0, 0
        if segment.number == self._position.number:
            start, lost = self._position.offset, self._position.lost
        base, data = self._read(segment, start)
        end = start
        for begin, finish, payload in frames(data, start - base, is_closed=segment.is_closed):
            if step.rows >= self._max_rows * self._reach or step.bytes >= self._max_bytes * self._reach:
                step.position = _Position(segment.number, end, lost)
                return False
            end = base + finish
            step.bytes += finish - begin
            if payload is None:
                step.damaged += max(data.count(MAGIC, begin, finish), 1)
                step.lost += finish - begin
                lost += finish - begin
                continue
            item = _Item(payload, segment)
            try:
                step.rows += count_rows(payload)
                items.append(item)
            except RecordError as error:
                step.unreadable.append((item, error))
        if segment.is_closed:
            step.finished.append((segment, lost))
        elif end > start:
            step.position = _Position(segment.number, end, lost)
        return True

    def _segments(self) -> list[SegmentFile]:
        segments = segment_files(self._folder)
        if segments and not segments[-1].is_closed:
            # A worker that died may have left its segment open.
            lock = try_lock(self._folder)
            if lock is not None:
                try:
                    close_stale(self._folder)
                finally:
                    os.close(lock)
                segments = segment_files(self._folder)
        return segments

    def _read(self, segment: SegmentFile, start: int) -> tuple[int, bytes]:
        """Offset and bytes of a segment, at least those from `start` on; a closed segment is read once."""
        number, data = self._data
        if number == segment.number:
            return 0, data
        with segment.path.open("rb") as file:
            if not segment.is_closed:
                file.seek(start)
                return start, file.read()
            data = file.read()
        self._data = (segment.number, data)
        return 0, data

    def _insert(self, step: _Step) -> bool:
        """Insert the records; whether each one is stored or known to be refused. A retry continues where it failed."""
        while step.todo and not (step.is_store_suspect and len(step.todo[-1].items) > 1):
            part = step.todo[-1]
            try:
                self._insert_part(part, step)
            except StoreUnavailableError as error:
                self._failed(error)
                return False
            except Exception as error:
                step.todo.pop()
                if len(part.items) == 1:
                    step.refused.append((part.items[0], error))
                else:
                    step.todo += _halves(part.items) if step.is_any_stored else _probes(part.items)
            else:
                step.todo.pop()
            if not step.todo and step.is_any_stored and not step.is_confirming:
                # The error may have been transient: refused records are tried once more after the rest is stored.
                step.is_confirming = True
                step.todo = [_Part([item]) for item, _ in reversed(step.refused)]
                step.refused = []
        if step.is_store_suspect:
            self._failed(step.refused[0][1])
        return not step.is_store_suspect

    def _insert_part(self, part: _Part, step: _Step) -> None:
        """Insert the records of a part that can be decoded."""
        if not part.batches:
            try:
                part.batches = decode_all(item.payload for item in part.items)
            except RecordError:
                part.items = [item for item in part.items if step.is_readable(item)]
                part.batches = decode_all(item.payload for item in part.items)
        if part.batches:
            result = self._store.insert(part.batches)
            step.is_any_stored = True
            self._stats.inserted += result.inserted
            self._stats.duplicates += result.duplicates
            self._stats.conflicts += result.conflicts
            facts = {"inserted": result.inserted, "duplicates": result.duplicates, "conflicts": result.conflicts}
            _log.log(
                logging.ERROR if result.conflicts else logging.DEBUG,
                "records_stored",
                extra={"folder": self._folder.name, **facts},
            )

    def _finish(self, step: _Step) -> None:
        """Move records aside, delete segments and write the position, which is within the last segment."""
        aside = step.refused + step.unreadable
        for item, why in aside:
            self._set_aside(item, why)
        if any(segment.number == self._data[0] for segment, _ in step.finished):
            self._data = _NO_DATA
        for segment, lost in step.finished:
            with suppress(FileNotFoundError):
                if lost:
                    _log.error("segment_damaged", extra={"segment": str(segment.path), "lost_bytes": lost})
                    os.rename(segment.path, _aside(segment, "corrupt", self._clock()))
                else:
                    os.unlink(segment.path)
        self._stats.lost_bytes += step.lost
        self._stats.damaged += step.damaged
        with suppress(OSError):
            if step.position != self._position:
                self._position = step.position
                # In place, so that it needs no space on a full disk; after a failure rows are inserted twice.
                os.pwrite(self._lease_fd, self._position.encode(), 0)
            if aside or step.lost:
                self._trim_quarantine()

    def _set_aside(self, item: _Item, error: Exception) -> None:
        path, payload = _aside(item.segment, "refused", self._clock()), item.payload
        _log.error("record_refused", extra={"file": str(path), "bytes": len(payload), "error": str(error)})
        self._stats.quarantined += _rows(payload)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            try:
                os.write(fd, frame(bytes(payload)))
            finally:
                os.close(fd)
        except OSError as failure:
            # On a full disk draining on is worth more than a record that cannot be stored.
            self._failed(failure)
            self._stats.lost_bytes += len(payload)

    def _trim_quarantine(self) -> None:
        size = 0
        for path in sorted(_files_aside(self._folder), reverse=True):
            own = path.stat().st_size
            size += own
            if size > self._quarantine_bytes:
                path.unlink()
                # The intact records of a damaged segment are stored.
                self._stats.lost_bytes += own if ".refused-" in path.name else 0

    def _depth(self) -> tuple[int, float]:
        """Bytes that are not stored, and the Unix time of the oldest of them, from the name of its segment."""
        depth, oldest = 0, 0.0
        try:
            segments = segment_files(self._folder)
        except OSError:
            return 0, 0.0
        for segment in segments:
            done = self._position.offset if segment.number == self._position.number else 0
            with suppress(OSError):
                size = max(segment.path.stat().st_size - done, 0)
                oldest = segment.number / 1e9 if size and not depth else oldest
                depth += size
        return depth, oldest

    def _failed(self, error: Exception) -> None:
        self._stats.errors += 1
        self._stats.last_error = f"{type(error).__name__}: {error}"


def _aside(segment: SegmentFile, why: str, now: float) -> Path:
    return segment.path.with_name(f"{segment.number:020d}.log.{why}-{int(now)}")


def _files_aside(folder: Path) -> list[Path]:
    return [*folder.glob("*.corrupt-*"), *folder.glob("*.refused-*")]


def _rows(payload: memoryview) -> int:
    """Rows of a record that is moved aside; one if it does not say."""
    try:
        return count_rows(payload)
    except RecordError:
        return 1


def _halves(items: list[_Item]) -> list[_Part]:
    """Two parts, the first of them on top of the stack."""
    middle = len(items) // 2
    return [_Part(items[middle:]), _Part(items[:middle])]


def _probes(items: list[_Item]) -> list[_Part]:
    """Some records alone, on top of the others, to test whether the store accepts any."""
    chosen = {len(items) - 1, *random.sample(range(len(items)), min(_PROBES, len(items)))}
    others = [item for number, item in enumerate(items) if number not in chosen]
    return [_Part(others)] * bool(others) + [_Part([items[number]]) for number in sorted(chosen, reverse=True)]
