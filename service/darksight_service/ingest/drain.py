"""The drain: moves what the spool holds into the store, in order, and gives up on nothing.

One step takes up to `max_rows` rows from the oldest segments, inserts them, removes the segments that are done and
writes down how far it came in the next. The process may die between any two of these: what was inserted but not written
down is inserted again, at most one step of it, and the store ignores records that it has (`records.record_ids`).

    store away         the same rows are tried again, for ever, at growing intervals
    segment damaged    its intact records are stored, the loss is counted, the file is kept as `<name>.corrupt-<time>`
    record refused     found by bisection and moved to a file `<segment>.refused-<time>`, so that the rest can go on
    second drainer     waits: the folder is leased by a file lock, which the kernel takes from a process that dies

A store that refuses everything is broken, and a record is not to blame for that: one is moved aside only by a step in
which the store took another. A file of refused records is framed like a segment: renamed to `<20 digits>.log` it is
drained again.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol
from zlib import crc32

from darksight_service.errors import RecordError, StoreUnavailableError
from darksight_service.ingest.records import (
    OutcomeBatch,
    PointBatch,
    PointRows,
    count_rows,
    decode,
    decode_all,
    received_ms,
)
from darksight_service.ingest.spool import SegmentFile, close_stale, frame, frames, is_same, segment_files, try_lock

__all__ = ["Drain", "DrainStats", "DrainStore", "Inserted", "Progress"]

_log = logging.getLogger(__name__)

_LEASE = "drain.lease"
_PROBES = 10
_LARGEST_REACH = 8
_NO_DATA = (-1, b"")
_POSITION_BYTES = 128


class Inserted(Protocol):
    """What a store says about one insert, in rows."""

    @property
    def inserted(self) -> int:
        """Rows that are new."""

    @property
    def duplicates(self) -> int:
        """Rows that it had."""


class DrainStore(Protocol):
    """Where records go. Takes all of them or none, and each only once."""

    def insert(self, batches: Sequence[PointBatch | PointRows | OutcomeBatch]) -> Inserted:
        """StoreUnavailableError if it may work later; any other error if one of the batches cannot be stored."""


class Progress(Enum):
    """What became of a step."""

    MOVED = "moved"
    """Records are in the store, and there may be more."""

    IDLE = "idle"
    """There is nothing to move."""

    FAILED = "failed"
    """The store or the disk failed; the same records come again."""

    WAITING = "waiting"
    """Another drain has the lease."""


@dataclass(frozen=True, slots=True)
class DrainStats:
    """What is left to do, and what was done since the drain started.

    Parameters
    ----------
    is_leader
        Whether this drain has the lease.
    depth_bytes
        Bytes of segments that are not in the store yet.
    lag_seconds
        Age of the oldest record among them, 0 if there is none.
    inserted, duplicates
        Rows that were new to the store, and that it had.
    quarantined
        Records moved aside because they cannot be read or stored.
    damaged
        Stretches of segments without an intact record.
    lost_bytes
        Their size, with that of refused records which could not even be moved aside.
    errors
        Steps that failed.
    last_error
        The latest of them; empty when a step has succeeded since.
    """

    is_leader: bool
    depth_bytes: int
    lag_seconds: float
    inserted: int
    duplicates: int
    quarantined: int
    damaged: int
    lost_bytes: int
    errors: int
    last_error: str


@dataclass(slots=True)
class _Position:
    """How far the drain came in the one segment that it has begun."""

    number: int = -1
    offset: int = 0
    lost: int = 0

    def encode(self) -> bytes:
        text = f"{self.number} {self.offset} {self.lost}".encode()
        return (b"%08x " % crc32(text) + text).ljust(_POSITION_BYTES - 1) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> _Position:
        """The position, or the very beginning if it was not written whole: the store has what comes twice."""
        checksum, _, text = data.strip().partition(b" ")
        if checksum != b"%08x" % crc32(text):
            return cls()
        return cls(*map(int, text.split()))


# Not frozen: there is one for every record, and freezing it takes as long as its checksum.
@dataclass(slots=True, eq=False)
class _Item:
    """A record on its way."""

    payload: memoryview
    segment: SegmentFile


@dataclass(slots=True, eq=False)
class _Part:
    """Records that are inserted together, decoded once however often that is tried."""

    items: list[_Item]
    batches: Sequence[PointBatch | PointRows | OutcomeBatch] = ()


@dataclass(slots=True)
class _Haul:
    """What one step moves: its records, and what follows when they are in the store."""

    position: _Position
    rows: int = 0
    bytes: int = 0
    todo: list[_Part] = field(default_factory=list)
    first: _Item | None = None
    is_any_taken: bool = False
    is_confirming: bool = False
    refused: list[tuple[_Item, Exception]] = field(default_factory=list)
    unreadable: list[tuple[_Item, Exception]] = field(default_factory=list)
    damaged: int = 0
    lost: int = 0
    finished: list[tuple[SegmentFile, int]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.todo or self.unreadable or self.damaged or self.finished)

    @property
    def is_store_suspect(self) -> bool:
        """Whether nothing was heard from the store but refusals of single records."""
        return bool(self.refused) and not self.is_any_taken

    def is_readable(self, item: _Item) -> bool:
        """Whether a record can be decoded; remembers those that cannot."""
        try:
            decode(item.payload)
        except RecordError as error:
            self.unreadable.append((item, error))
            return False
        return True

    def oldest_ms(self) -> int | None:
        """When the first of its records came."""
        if self.first is None:
            return None
        try:
            batch = decode(self.first.payload)
        except RecordError:
            return None
        return received_ms(batch.batch_id) if isinstance(batch, PointBatch) else batch.received_ms


class Drain:
    """Moves one spool folder.

    Parameters
    ----------
    folder
        Of a `Spool`; need not exist yet.
    store
        Where the records go.
    max_rows
        Rows of one insert; a single larger batch goes alone.
    max_bytes
        Bytes of one insert, likewise.
    poll_seconds
        Wait of `run` when nothing, or nothing more, is there to move.
    backoff_seconds
        First and largest wait of `run` after a failure.
    quarantine_bytes
        Size of files kept aside; the oldest beyond it are removed.
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
        self._haul: _Haul | None = None
        self._data = _NO_DATA
        self._reach = 1
        self._is_behind = False
        self._inserted = self._duplicates = self._quarantined = 0
        self._damaged = self._lost_bytes = self._errors = 0
        self._last_error = ""

    def step(self) -> Progress:
        """Move one haul; all that can go wrong outside of this process is an outcome, not an exception."""
        try:
            if not self._has_lease():
                return Progress.WAITING
            haul = self._haul = self._haul or self._collect()
            if haul.is_empty:
                self._haul = None
                return Progress.IDLE
            if not self._insert(haul):
                # A store that is away gets the same again. After a refusal of everything a record that came meanwhile,
                # or that lies further back, may show that the store is well.
                if haul.is_store_suspect:
                    self._haul = None
                    self._reach = min(2 * self._reach, _LARGEST_REACH)
                return Progress.FAILED
            self._finish(haul)
        except FileNotFoundError:
            # No worker has made the folder yet, or somebody deleted it.
            self._haul = None
            return Progress.IDLE
        except OSError as error:
            self._haul = None
            self._failed(error)
            return Progress.FAILED
        self._haul = None
        self._reach = 1
        self._last_error = ""
        return Progress.MOVED

    def run(self, stop: threading.Event, *, stop_seconds: float = 10.0) -> None:
        """Step until told to stop, then move what is left, for at most `stop_seconds` and unless the store is away."""
        failures = 0
        while not stop.is_set():
            progress = self._guarded_step()
            failures = failures + 1 if progress is Progress.FAILED else 0
            # A commit for every few records would keep the database busy for nothing: let some gather.
            if progress is not Progress.MOVED or not self._is_behind:
                stop.wait(self._pause(failures))
        give_up = time.monotonic() + stop_seconds
        while self._guarded_step() is Progress.MOVED and time.monotonic() < give_up:
            pass
        self.close()

    def stats(self) -> DrainStats:
        """What is left and what was done."""
        depth, oldest = self._depth()
        haul = self._haul
        if haul is not None and (ms := haul.oldest_ms()) is not None:
            oldest = ms / 1e3
        return DrainStats(
            is_leader=self._lease_fd >= 0,
            depth_bytes=depth,
            lag_seconds=max(self._clock() - oldest, 0.0) if depth else 0.0,
            inserted=self._inserted,
            duplicates=self._duplicates,
            quarantined=self._quarantined,
            damaged=self._damaged,
            lost_bytes=self._lost_bytes,
            errors=self._errors,
            last_error=self._last_error,
        )

    def close(self) -> None:
        """Give the lease back."""
        self._haul = None
        self._data = _NO_DATA
        if self._lease_fd >= 0:
            os.close(self._lease_fd)
            self._lease_fd = -1

    def _guarded_step(self) -> Progress:
        try:
            return self.step()
        except Exception as error:
            # A defect of ours must not end the only thread that empties the disk.
            _log.exception("drain step failed folder=%s", self._folder)
            self._failed(error)
            self._haul = None
            return Progress.FAILED

    def _pause(self, failures: int) -> float:
        if not failures:
            return self._poll_seconds
        first, largest = self._backoff_seconds
        # Jitter, so that the drains of many workers do not come back to a database in step.
        return min(first * 2.0 ** min(failures - 1, 32), largest) * random.uniform(0.5, 1.0)

    def _has_lease(self) -> bool:
        """Hold the lease of the folder as it is now; who gets it starts from what its predecessor wrote into it."""
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

    def _collect(self) -> _Haul:
        haul = _Haul(self._position)
        items: list[_Item] = []
        try:
            self._is_behind = False
            for segment in self._segments():
                if not self._collect_from(segment, haul, items):
                    self._is_behind = True
                    break
        except FileNotFoundError:
            # A segment was renamed since it was listed: it and what follows come with the next step.
            if not items:
                raise
        if items:
            haul.todo, haul.first = [_Part(items)], items[0]
        return haul

    def _collect_from(self, segment: SegmentFile, haul: _Haul, items: list[_Item]) -> bool:
        """Add the records of a segment to the haul; whether there is room for more."""
        start, lost = 0, 0
        if segment.number == self._position.number:
            start, lost = self._position.offset, self._position.lost
        base, data = self._read(segment, start)
        end = start
        for begin, finish, payload in frames(data, start - base, is_closed=segment.is_closed):
            if haul.rows >= self._max_rows * self._reach or haul.bytes >= self._max_bytes * self._reach:
                haul.position = _Position(segment.number, end, lost)
                return False
            end = base + finish
            haul.bytes += finish - begin
            if payload is None:
                haul.damaged += 1
                haul.lost += finish - begin
                lost += finish - begin
                continue
            item = _Item(payload, segment)
            try:
                haul.rows += count_rows(payload)
                items.append(item)
            except RecordError as error:
                haul.unreadable.append((item, error))
        if segment.is_closed:
            haul.finished.append((segment, lost))
        elif end > start:
            haul.position = _Position(segment.number, end, lost)
        return True

    def _segments(self) -> list[SegmentFile]:
        segments = segment_files(self._folder)
        if segments and not segments[-1].is_closed:
            # Nobody may come back for the segment of a worker that died.
            lock = try_lock(self._folder)
            if lock is not None:
                try:
                    close_stale(self._folder)
                finally:
                    os.close(lock)
                segments = segment_files(self._folder)
        return segments

    def _read(self, segment: SegmentFile, start: int) -> tuple[int, bytes]:
        """Where they begin and the bytes of a segment, at least those from `start` on; a closed one is read once."""
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

    def _insert(self, haul: _Haul) -> bool:
        """Whether each record of the haul is stored or known to be refused; goes on where it was interrupted."""
        while haul.todo and not (haul.is_store_suspect and len(haul.todo[-1].items) > 1):
            part = haul.todo[-1]
            try:
                self._offer(part, haul)
            except StoreUnavailableError as error:
                self._failed(error)
                return False
            except Exception as error:
                haul.todo.pop()
                if len(part.items) == 1:
                    haul.refused.append((part.items[0], error))
                else:
                    haul.todo += _halves(part.items) if haul.is_any_taken else _probes(part.items)
            else:
                haul.todo.pop()
            if not haul.todo and haul.is_any_taken and not haul.is_confirming:
                # An error of a moment is no reason: what was refused is offered once more, now that the rest is stored.
                haul.is_confirming = True
                haul.todo = [_Part([item]) for item, _ in reversed(haul.refused)]
                haul.refused = []
        if haul.is_store_suspect:
            self._failed(haul.refused[0][1])
        return not haul.is_store_suspect

    def _offer(self, part: _Part, haul: _Haul) -> None:
        """Insert what can be decoded of a part; raises what the store raises."""
        if not part.batches:
            try:
                part.batches = decode_all(item.payload for item in part.items)
            except RecordError:
                part.items = [item for item in part.items if haul.is_readable(item)]
                part.batches = decode_all(item.payload for item in part.items)
        if part.batches:
            result = self._store.insert(part.batches)
            haul.is_any_taken = True
            self._inserted += result.inserted
            self._duplicates += result.duplicates

    def _finish(self, haul: _Haul) -> None:
        """What follows from a haul that is stored. Segments go first: only for the one begun is there a position."""
        aside = haul.refused + haul.unreadable
        for item, why in aside:
            self._set_aside(item, why)
        if any(segment.number == self._data[0] for segment, _ in haul.finished):
            self._data = _NO_DATA
        for segment, lost in haul.finished:
            with suppress(FileNotFoundError):
                if lost:
                    _log.error("spool segment was damaged segment=%s lost_bytes=%d", segment.path, lost)
                    os.rename(segment.path, _aside(segment, "corrupt", self._clock()))
                else:
                    os.unlink(segment.path)
        self._damaged += haul.damaged
        self._lost_bytes += haul.lost
        with suppress(OSError):
            if haul.position != self._position:
                self._position = haul.position
                # In place, so that it needs no space on a disk that is full; a failure costs a repetition only.
                os.pwrite(self._lease_fd, self._position.encode(), 0)
            if aside or haul.damaged:
                self._trim_quarantine()

    def _set_aside(self, item: _Item, error: Exception) -> None:
        path, payload = _aside(item.segment, "refused", self._clock()), item.payload
        _log.error("record was refused file=%s bytes=%d error=%s", path, len(payload), error)
        self._quarantined += 1
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            try:
                os.write(fd, frame(bytes(payload)))
            finally:
                os.close(fd)
        except OSError as failure:
            # On a full disk: to keep the queue moving is worth more than a record that nobody can store.
            self._failed(failure)
            self._lost_bytes += len(payload)

    def _trim_quarantine(self) -> None:
        aside = [entry for entry in os.scandir(self._folder) if ".corrupt-" in entry.name or ".refused-" in entry.name]
        size = 0
        for entry in sorted(aside, key=lambda entry: entry.name, reverse=True):
            size += entry.stat().st_size
            if size > self._quarantine_bytes:
                os.unlink(entry.path)

    def _depth(self) -> tuple[int, float]:
        """Bytes to do, and the unix time of the oldest of them, by the name of its segment."""
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
        self._errors += 1
        self._last_error = f"{type(error).__name__}: {error}"


def _aside(segment: SegmentFile, why: str, now: float) -> Path:
    return segment.path.with_name(f"{segment.number:020d}.log.{why}-{int(now)}")


def _halves(items: list[_Item]) -> list[_Part]:
    """Two parts, the first of them on top of the stack."""
    middle = len(items) // 2
    return [_Part(items[middle:]), _Part(items[:middle])]


def _probes(items: list[_Item]) -> list[_Part]:
    """Some records alone, on top of the others, to see whether the store takes any."""
    chosen = {len(items) - 1, *random.sample(range(len(items)), min(_PROBES, len(items)))}
    others = [item for number, item in enumerate(items) if number not in chosen]
    return [_Part(others)] * bool(others) + [_Part([items[number]]) for number in sorted(chosen, reverse=True)]
