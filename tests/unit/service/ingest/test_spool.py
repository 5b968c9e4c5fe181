"""The spool: what is on disk, and what becomes of appends when the disk fails."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from darksight_service.errors import SpoolError
from darksight_service.ingest.spool import MAGIC, Spool, frame, frames, segment_files, try_lock
from hypothesis import given
from hypothesis import strategies as st

from darksight_core.errors import ConfigError
from tests.support.tools import find_tool

ROOT = Path(__file__).parents[4]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'service'}"}


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


def records_in(folder: Path) -> list[bytes]:
    """Payloads of all intact frames of a folder, in order."""
    return [
        bytes(payload)
        for segment in segment_files(folder)
        for _, _, payload in frames(segment.path.read_bytes())
        if payload is not None
    ]


def lost_in(folder: Path) -> int:
    """Bytes that are in no intact frame."""
    return sum(
        end - begin
        for segment in segment_files(folder)
        for begin, end, payload in frames(segment.path.read_bytes())
        if payload is None
    )


def python(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A process of its own that can import what the tests can."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Run work(0) to work(count - 1) at the same time."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = find_tool("mount")
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted; run the tests as root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_records_are_on_disk_in_order(tmp_path: Path) -> None:
    """What was appended lies in the folder before it is closed, over many segments, in order."""
    payloads = [os.urandom(random.Random(i).randrange(300)) for i in range(200)]

    with Spool(tmp_path, segment_bytes=2000) as spool:
        results = [spool.append(payload) for payload in payloads]
        found = records_in(tmp_path)
        stats = spool.stats()

    assert all(results)
    assert found == payloads
    assert stats.appended == 200
    assert len(segment_files(tmp_path)) > 10
    assert stats.bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_record_larger_than_a_segment_is_kept(tmp_path: Path) -> None:
    """The size of a segment is no limit for a record."""
    payload = os.urandom(5000)

    with Spool(tmp_path, segment_bytes=100) as spool:
        assert spool.append(b"before")
        assert spool.append(payload)
        assert spool.append(b"after")

    assert records_in(tmp_path) == [b"before", payload, b"after"]


def test_segment_is_closed_when_old(tmp_path: Path) -> None:
    """An old segment is closed by the next append or by `stats`, and removing it lowers the stats."""
    clock = Clock()
    with Spool(tmp_path, segment_seconds=1.0, clock=clock) as spool:
        spool.append(b"one")
        clock.now += 1.0
        spool.append(b"two")
        names = [segment.path.suffix for segment in segment_files(tmp_path)]
        clock.now += 1.0
        spool.stats()
        clock.now += 3.0
        before = spool.stats()
        for segment in segment_files(tmp_path):
            assert segment.is_closed
            segment.path.unlink()
        after = spool.stats()

    assert names == [".log", ".open"]
    assert before.oldest_seconds == 5.0
    assert (after.bytes, after.oldest_seconds) == (0, 0.0)


def test_writer_of_a_folder_is_alone(tmp_path: Path) -> None:
    """A second writer is refused until the first has closed."""
    first = Spool(tmp_path)

    with pytest.raises(SpoolError, match="in use"):
        Spool(tmp_path, lock_seconds=0.0)
    first.close()
    second = Spool(tmp_path, lock_seconds=0.0)

    assert (first.append(b"x"), second.append(b"x")) == (False, True)
    second.close()


def test_bad_durability_is_refused(tmp_path: Path) -> None:
    """A misspelt durability is an error, not a weaker promise."""
    with pytest.raises(ConfigError):
        Spool(tmp_path, durability="fsnc")  # type: ignore[arg-type]  # what a settings file may say


WRITER = """
import os, sys
from pathlib import Path
from darksight_service.ingest.spool import Spool

folder, first = Path(sys.argv[1]), int(sys.argv[2])
spool = Spool(folder, segment_bytes=4000, durability=sys.argv[3])
while True:
    if spool.append(first.to_bytes(4, "little") * 20):
        os.write(1, first.to_bytes(4, "little"))
    first += 1
"""


@pytest.mark.parametrize("durability", ["process", "fsync"])
def test_kill_loses_nothing_acknowledged(tmp_path: Path, durability: str) -> None:
    """Each record that was acknowledged before kill -9 is there once, for 20 deaths in a row in the same folder."""
    chance = random.Random(durability)
    acknowledged: list[int] = []
    for _ in range(20 if durability == "process" else 3):
        first = acknowledged[-1] + 1000 if acknowledged else 0
        with python(WRITER, str(tmp_path), str(first), durability) as child:
            assert child.stdout is not None
            heard = child.stdout.read(4 * chance.randrange(1, 400))
            child.send_signal(signal.SIGKILL)
            heard += child.stdout.read()
        acknowledged += [int.from_bytes(heard[at : at + 4], "little") for at in range(0, len(heard) - 3, 4)]

    found = [int.from_bytes(record[:4], "little") for record in records_in(tmp_path)]

    assert len(found) == len(set(found))
    assert found == sorted(found)
    assert set(acknowledged) <= set(found)
    assert len(acknowledged) >= (20 if durability == "process" else 3)


def test_stale_segment_is_closed_at_start(tmp_path: Path) -> None:
    """What a dead process left open, with half a frame at its end, is closed, counted and followed by new segments."""
    stale = tmp_path / f"{7:020d}.open"
    stale.write_bytes(frame(b"whole") + frame(b"half")[:-2])

    with Spool(tmp_path) as spool:
        stats = spool.stats()
        spool.append(b"new")

    assert stats.bytes == stale.with_suffix(".log").stat().st_size
    assert [segment.number == 7 for segment in segment_files(tmp_path)] == [True, False]
    assert records_in(tmp_path) == [b"whole", b"new"]


def test_quota_drops_the_newest_until_there_is_room(tmp_path: Path) -> None:
    """At the quota records are dropped and counted; when the drain has made room they are taken again."""
    clock = Clock()
    spool = Spool(tmp_path, max_bytes=10_000, segment_bytes=1000, clock=clock)

    results = [spool.append(bytes([i]) * 84) for i in range(150)]
    full = spool.stats()
    kept = records_in(tmp_path)
    clock.now += 1.0
    still_full = spool.append(b"x" * 84)
    segment_files(tmp_path)[0].path.unlink()
    clock.now += 1.0
    again = [spool.append(b"y" * 84) for _ in range(11)]
    spool.close()

    assert results == [True] * 100 + [False] * 50
    assert (full.bytes, full.appended, full.dropped, full.errors) == (10_000, 100, 50, 0)
    assert kept == [bytes([i]) * 84 for i in range(100)]
    assert not still_full
    assert again == [True] * 10 + [False]


def test_full_disk_drops_and_recovers(small_disk: Path) -> None:
    """On a full disk append answers False, leaves no torn frame, and works again when there is space."""
    clock = Clock()
    filler = small_disk / "filler"
    spool = Spool(small_disk / "spool", clock=clock)
    filler.write_bytes(bytes(150_000))

    results = []
    for i in range(300):
        results.append(spool.append(i.to_bytes(4, "little") * 250))
        clock.now += 0.2
    full = spool.stats()
    filler.unlink()
    clock.now += 0.2
    recovered = [spool.append(b"after" * 200) for _ in range(20)]
    spool.close()

    kept = [i.to_bytes(4, "little") * 250 for i in range(300) if results[i]]
    assert 0 < len(kept) < 200
    assert full.dropped == 300 - len(kept)
    assert full.errors
    assert "No space" in full.last_error
    assert all(recovered)
    assert records_in(small_disk / "spool") == kept + [b"after" * 200] * 20
    assert lost_in(small_disk / "spool") == 0


LIMITED = """
import os, resource, sys
from pathlib import Path
from darksight_service.ingest.spool import Spool

now = [0.0]
spool = Spool(Path(sys.argv[1]), segment_seconds=1e9, clock=lambda: now[0])
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
for i in range(100):
    os.write(1, b"01"[spool.append(bytes([i]) * 300):][:1])
    now[0] += 0.2
"""


def test_write_in_part_is_cut_away(tmp_path: Path) -> None:
    """When only the first part of a frame could be written it is removed, and the next segment goes on."""
    with python(LIMITED, str(tmp_path)) as child:
        assert child.stdout is not None
        results = child.stdout.read()

    assert child.returncode == 0
    assert 0 < results.count(b"0") < 20
    assert records_in(tmp_path) == [bytes([i]) * 300 for i in range(100) if results[i : i + 1] == b"1"]
    assert lost_in(tmp_path) == 0


def test_deleted_folder_is_made_again(tmp_path: Path) -> None:
    """A folder deleted under the writer is noticed by the next append, which makes it again and locks it."""
    folder = tmp_path / "spool"
    spool = Spool(folder)
    spool.append(b"gone")
    shutil.rmtree(folder)

    is_kept = spool.append(b"kept")

    assert is_kept
    assert records_in(folder) == [b"kept"]
    assert try_lock(folder) is None
    assert spool.stats().bytes == len(frame(b"kept"))
    spool.close()


def test_broken_folder_is_counted_and_recovers(tmp_path: Path) -> None:
    """A spool whose place is taken by a file starts, drops, counts, and works once the file is gone."""
    clock = Clock()
    folder = tmp_path / "spool"
    folder.write_text("in the way")

    spool = Spool(folder, clock=clock)
    broken = spool.append(b"lost")
    stats = spool.stats()
    folder.unlink()
    too_early = spool.append(b"lost too")
    clock.now += 0.2
    recovered = spool.append(b"kept")
    spool.close()

    assert (broken, too_early, recovered) == (False, False, True)
    assert stats.dropped == 1
    assert stats.errors >= 1
    assert stats.last_error
    assert records_in(folder) == [b"kept"]


def test_append_never_raises(tmp_path: Path) -> None:
    """Even what is no record at all is an answer and a count."""
    with Spool(tmp_path) as spool:
        assert not spool.append(None)  # type: ignore[arg-type]  # a defect of the caller
        assert spool.append(b"")
        assert spool.stats().dropped == 1


def test_fsync_comes_before_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With durability fsync each append of many threads is on disk when it answers, over many segments."""
    synced: dict[int, int] = {}
    fsync = os.fsync

    def recorded(fd: int) -> None:
        size = os.fstat(fd).st_size
        fsync(fd)
        inode = os.fstat(fd).st_ino
        synced[inode] = max(size, synced.get(inode, 0))

    monkeypatch.setattr(os, "fsync", recorded)
    answers: list[tuple[bytes, bool, dict[int, int]]] = []

    def work(number: int) -> None:
        for i in range(40):
            payload = f"{number} {i}".encode()
            answers.append((payload, spool.append(payload), dict(synced)))

    with Spool(tmp_path, durability="fsync", segment_bytes=1000, segment_seconds=1e9) as spool:
        in_threads(8, work)

    places = {
        bytes(payload or b""): (segment.path.stat().st_ino, end)
        for segment in segment_files(tmp_path)
        for _, end, payload in frames(segment.path.read_bytes())
    }
    assert len(places) == len(answers) == 320
    assert all(is_kept for _, is_kept, _ in answers)
    assert all(on_disk.get(places[payload][0], 0) >= places[payload][1] for payload, _, on_disk in answers)


def test_threads_share_an_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records written while one fsync runs are covered by the next: all, or all but one that was not done writing."""
    calls = []

    def slow(fd: int) -> None:
        calls.append(fd)
        while 0 < os.fstat(fd).st_size < 8 * len(frame(b"0")) and os.path.isfile(f"/proc/self/fd/{fd}"):
            os.sched_yield()

    with Spool(tmp_path, durability="fsync", segment_seconds=1e9) as spool:
        monkeypatch.setattr(os, "fsync", slow)
        in_threads(8, lambda number: spool.append(str(number).encode()))
        data_calls = len(calls) - 1  # the first one is for the folder

        assert spool.stats().appended == 8
        assert 1 <= data_calls <= 3


def test_failed_fsync_is_no_acknowledgement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record whose fsync failed is not promised, and the next one goes to a segment of its own."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    spool = Spool(tmp_path, durability="fsync")
    assert spool.append(b"one")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        failed = spool.append(b"two")
    recovered = spool.append(b"three")
    stats = spool.stats()
    spool.close()

    assert (failed, recovered) == (False, True)
    assert (stats.appended, stats.dropped, stats.errors) == (2, 1, 1)
    assert len(segment_files(tmp_path)) == 2


@given(st.lists(st.binary(max_size=40) | st.just(MAGIC) | st.just(frame(b"inner")), max_size=8), st.data())
def test_damage_costs_only_what_it_touches(payloads: list[bytes], data: st.DataObject) -> None:
    """Frames that no damaged byte lies in are found, in order, and the parts cover the whole segment."""
    whole = b"".join(map(frame, payloads))
    damaged = bytearray(whole)
    touched = data.draw(st.sets(st.integers(0, max(len(whole) - 1, 0)), max_size=5)) if whole else set()
    for place in touched:
        damaged[place] ^= data.draw(st.integers(1, 255))

    parts = list(frames(bytes(damaged)))

    found = [bytes(payload) for _, _, payload in parts if payload is not None]
    assert [bytes(p) for _, _, p in frames(whole) if p is not None] == payloads
    assert all(left[1] == right[0] for left, right in pairwise(parts))
    assert (parts[0][0], parts[-1][1]) == (0, len(whole)) if parts else not whole
    begin = 0
    intact = []
    for payload in payloads:
        end = begin + len(frame(payload))
        intact += [payload] if not any(begin <= place < end for place in touched) else []
        begin = end
    # A frame inside the payload of a damaged one may come to light, so there can be more.
    remaining = iter(found)
    assert all(payload in remaining for payload in intact)


def test_open_segment_is_read_up_to_what_is_whole() -> None:
    """Of a segment that is being written only the whole frames at its beginning are taken."""
    data = frame(b"one") + frame(b"two")

    for size in range(len(data)):
        found = [(end, bytes(payload or b"damage")) for _, end, payload in frames(data[:size], is_closed=False)]
        assert found == ([(len(frame(b"one")), b"one")] if size >= len(frame(b"one")) else [])
