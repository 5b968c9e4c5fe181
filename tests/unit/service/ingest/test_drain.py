"""The drain: everything intact reaches the store once, in order, whatever dies in between."""

from __future__ import annotations

import itertools
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from darksight_service.errors import StoreUnavailableError
from darksight_service.ingest.drain import Drain, Progress
from darksight_service.ingest.records import decode
from darksight_service.ingest.spool import Spool, frame, frames, segment_files
from darksight_service.store.points import OutcomeBatch, PointTable
from darksight_service.store.store import Store

from darksight_core.errors import DarkSightError
from tests.support import points
from tests.support.points import encode

ROOT = Path(__file__).parents[4]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "service")])}
MS = 1_790_000_000_000

_seeds = itertools.count()

Batch = PointTable | OutcomeBatch


@dataclass(frozen=True)
class Result:
    """What the store below answers."""

    inserted: int
    duplicates: int
    conflicts: int = 0


class MemoryStore:
    """A store in memory: all of an insert or nothing, each record id once; it can be away, or refuse a model."""

    def __init__(self) -> None:
        self.rows: dict[bytes, str] = {}
        self.inserts: list[int] = []
        self.is_away = False
        self.refuses: Callable[[Batch], bool] = lambda batch: False

    def insert(self, batches: Sequence[Batch]) -> Result:
        """Rows by their id, in the order of arrival."""
        if self.is_away:
            raise StoreUnavailableError("the database is away")
        if any(map(self.refuses, batches)):
            raise DarkSightError("a row cannot be stored")
        before = len(self.rows)
        rows = 0
        for batch in batches:
            rows += len(batch)
            for row, record in enumerate(ids_of(batch)):
                self.rows.setdefault(record, f"{batch.model}/{row}")
        self.inserts.append(rows)
        inserted = len(self.rows) - before
        return Result(inserted, rows - inserted)

    @property
    def models(self) -> list[str]:
        """Model of each row, by which tests number their records."""
        models = [row.partition("/")[0] for row in self.rows.values()]
        return [str(int(model)) if model.isdigit() else model for model in models]


def ids_of(batch: Batch) -> list[bytes]:
    """Id of each row."""
    assert isinstance(batch, PointTable)
    return batch.id_bytes()


def make_points(model: object, n: int = 1, *, ms: int = MS) -> PointTable:
    """A batch; a model that is a number has a name of fixed length, so that all records do."""
    name = f"{model:04d}" if isinstance(model, int) else str(model)
    return points.make_points(n, classes=2, seed=next(_seeds), ms=ms, model=name)


def fill(folder: Path, models: Sequence[object], *, n: int = 1, segment_bytes: int = 1000) -> None:
    """A spool with one record per model, closed."""
    with Spool(folder, segment_bytes=segment_bytes) as spool:
        for model in models:
            assert spool.append(encode(make_points(model, n)))


def drain_all(drain: Drain) -> list[Progress]:
    """Step until nothing moves."""
    steps = []
    while (progress := drain.step()) is Progress.MOVED:
        steps.append(progress)
    return [*steps, progress]


def names_in(folder: Path) -> list[str]:
    """What lies in a spool folder beside the lease."""
    return sorted(path.name for path in folder.iterdir() if path.name != "drain.lease")


def test_everything_is_moved_in_order(tmp_path: Path) -> None:
    """All rows of all segments reach the store in order, in inserts of bounded size, and the folder is empty then."""
    fill(tmp_path, range(100), n=3)
    store = MemoryStore()
    drain = Drain(tmp_path, store, max_rows=40)

    before = drain.stats()
    steps = drain_all(drain)
    after = drain.stats()

    assert store.models == [str(i) for i in range(100) for _ in range(3)]
    assert all(40 <= rows < 43 for rows in store.inserts[:-1])
    assert steps[-1] is Progress.IDLE
    assert names_in(tmp_path) == []
    assert before.depth_bytes > 0
    assert (after.depth_bytes, after.lag_seconds, after.inserted, after.duplicates) == (0, 0.0, 300, 0)
    assert (after.lost_bytes, after.quarantined, after.errors) == (0, 0, 0)


def test_calls_to_one_bundle_are_stored_together(tmp_path: Path) -> None:
    """Records of one row reach the store merged, and still the one that it refuses is found and set aside."""
    fill(tmp_path, ["a"] * 500 + ["bad"] + ["b"] * 500, segment_bytes=1 << 20)
    store = MemoryStore()
    sizes = []
    store.refuses = lambda batch: bool(sizes.append(len(batch))) or batch.model == "bad"
    drain = Drain(tmp_path, store)

    drain_all(drain)

    assert sorted(store.models) == ["a"] * 500 + ["b"] * 500
    assert sizes[0] == 500
    assert len(sizes) < 100
    assert (drain.stats().inserted, drain.stats().quarantined, drain.stats().depth_bytes) == (1000, 1, 0)


def test_missing_folder_is_nothing_to_do(tmp_path: Path) -> None:
    """A drain may start before its worker; a folder deleted later does no harm either."""
    store = MemoryStore()
    drain = Drain(tmp_path / "later", store)

    early = drain.step()
    fill(tmp_path / "later", [1])
    first = drain.step()
    shutil.rmtree(tmp_path / "later")
    gone = drain.step()
    fill(tmp_path / "later", [2])
    drain_all(drain)

    assert (early, first, gone) == (Progress.IDLE, Progress.MOVED, Progress.IDLE)
    assert store.models == ["1", "2"]


def test_open_segment_is_drained_while_it_is_written(tmp_path: Path) -> None:
    """Records of a segment that is being written are moved once, and the segment goes when it is closed."""
    store = MemoryStore()
    drain = Drain(tmp_path, store)
    spool = Spool(tmp_path, segment_seconds=1e9)

    for i in range(10):
        spool.append(encode(make_points(i)))
        assert drain.step() is Progress.MOVED
        assert drain.step() is Progress.IDLE
        assert drain.stats().depth_bytes == 0
    open_names = names_in(tmp_path)
    spool.close()
    drain_all(drain)

    assert [name.rpartition(".")[2] for name in open_names] == ["open"]
    assert names_in(tmp_path) == []
    assert store.models == [str(i) for i in range(10)]
    assert store.inserts == [1] * 10


def test_segment_of_a_dead_worker_is_drained(tmp_path: Path) -> None:
    """What a crashed worker left open is moved and removed though no worker comes back for it."""
    whole = frame(encode(make_points("whole")))
    (tmp_path / f"{time.time_ns():020d}.open").write_bytes(whole + whole[:-5])
    store = MemoryStore()
    drain = Drain(tmp_path, store)

    drain_all(drain)

    assert store.models == ["whole"]
    assert drain.stats().lost_bytes == len(whole) - 5
    assert [".corrupt-" in name for name in names_in(tmp_path)] == [True]


def test_outage_delays_and_nothing_else(tmp_path: Path) -> None:
    """While the store is away steps fail and the lag grows; afterwards all is moved once, in order."""
    now = [MS / 1e3 + 10.0]
    store = MemoryStore()
    drain = Drain(tmp_path, store, max_rows=7, clock=lambda: now[0])
    fill(tmp_path, range(20))
    store.is_away = True

    outage = [drain.step() for _ in range(25)]
    now[0] += 50.0
    during = drain.stats()
    fill(tmp_path, range(20, 40))
    store.is_away = False
    drain_all(drain)
    after = drain.stats()

    assert outage == [Progress.FAILED] * 25
    assert (during.errors, during.lag_seconds, during.inserted) == (25, 60.0, 0)
    assert "away" in during.last_error
    assert store.models == [str(i) for i in range(40)]
    assert (after.inserted, after.duplicates, after.last_error, after.lag_seconds) == (40, 0, "", 0.0)


@pytest.mark.parametrize("poison", [[0], [31], [63], [10, 11, 40], list(range(1, 64))], ids=str)
def test_refused_records_are_set_aside(tmp_path: Path, poison: list[int]) -> None:
    """Records that the store refuses for good are put into a file, readable, and all others are stored, once."""
    fill(tmp_path, range(64), segment_bytes=1 << 20)
    store = MemoryStore()
    store.refuses = lambda batch: int(batch.model) in poison
    drain = Drain(tmp_path, store)

    while drain.step() is not Progress.IDLE:
        pass
    stats = drain.stats()
    aside = [tmp_path / name for name in names_in(tmp_path)]
    kept = [payload for path in aside for _, _, payload in frames(path.read_bytes())]

    assert sorted(map(int, store.models)) == [i for i in range(64) if i not in poison]
    assert (stats.quarantined, stats.lost_bytes, stats.duplicates) == (len(poison), 0, 0)
    assert [".refused-" in path.name for path in aside] == [True]
    assert len(kept) == len(poison)
    aside[0].rename(tmp_path / f"{5:020d}.log")
    store.refuses = lambda batch: False
    drain_all(drain)
    assert sorted(map(int, store.models)) == list(range(64))


def test_store_that_refuses_everything_is_not_believed(tmp_path: Path) -> None:
    """While the store takes no record nothing is set aside; with the first that it takes the refused one goes."""
    fill(tmp_path, ["bad"])
    store = MemoryStore()
    store.refuses = lambda batch: batch.model == "bad"
    drain = Drain(tmp_path, store)

    alone = [drain.step() for _ in range(30)]
    before = drain.stats()
    fill(tmp_path, ["good"])
    together = drain.step()
    after = drain.stats()

    assert alone == [Progress.FAILED] * 30
    assert (before.quarantined, before.errors, after.quarantined) == (0, 30, 1)
    assert "cannot be stored" in before.last_error
    assert together is Progress.MOVED
    assert store.models == ["good"]


def test_many_refused_records_do_not_hide_a_good_one(tmp_path: Path) -> None:
    """More refused records in a row than one step takes do not block what comes behind them."""
    fill(tmp_path, ["bad"] * 30 + ["good"])
    store = MemoryStore()
    store.refuses = lambda batch: batch.model == "bad"
    drain = Drain(tmp_path, store, max_rows=5)

    while drain.step() is not Progress.IDLE:
        pass

    assert store.models == ["good"]
    assert drain.stats().quarantined == 30


def test_broken_store_is_not_asked_for_each_record(tmp_path: Path) -> None:
    """A store that refuses everything is asked a few times in a step, not twice per record."""
    fill(tmp_path, range(2000), segment_bytes=1 << 20)
    store = MemoryStore()
    asked = []
    store.refuses = lambda batch: bool(asked.append(batch.model)) or True
    drain = Drain(tmp_path, store)

    assert drain.step() is Progress.FAILED
    assert len(asked) < 20
    store.refuses = lambda batch: False
    drain_all(drain)
    assert len(store.models) == 2000


def test_outage_within_a_bisection_is_survived(tmp_path: Path) -> None:
    """When the store goes away while a refused record is looked for, the search goes on later, without repetition."""
    fill(tmp_path, range(32), segment_bytes=1 << 20)
    store = MemoryStore()
    calls = 0

    def refuses(batch: Batch) -> bool:
        nonlocal calls
        calls += 1
        store.is_away = calls % 2 == 0
        return int(batch.model) == 20

    store.refuses = refuses
    drain = Drain(tmp_path, store)
    for _ in range(200):
        drain.step()
        store.is_away = False

    assert sorted(map(int, store.models)) == [i for i in range(32) if i != 20]
    assert drain.stats().quarantined == 1
    assert drain.stats().duplicates == 0


def test_unreadable_record_is_set_aside(tmp_path: Path) -> None:
    """A record of an unknown format, intact on disk, is put into a file; its neighbours are stored."""
    with Spool(tmp_path) as spool:
        for payload in (encode(make_points(1)), b"\xffof the future", encode(make_points(2))):
            spool.append(payload)
    store = MemoryStore()
    drain = Drain(tmp_path, store)

    drain_all(drain)

    assert store.models == ["1", "2"]
    assert drain.stats().quarantined == 1
    aside = [tmp_path / name for name in names_in(tmp_path)]
    assert [bytes(payload or b"") for path in aside for _, _, payload in frames(path.read_bytes())] == [
        b"\xffof the future"
    ]


def damage(path: Path, chance: random.Random) -> Callable[[int, int], bool]:
    """Flip a bit, zero a stretch, cut the end, or overwrite with noise; returns whether bytes begin:end are intact."""
    data = bytearray(path.read_bytes())
    before = bytes(data)
    start = chance.randrange(len(data))
    size = chance.choice([1, 4, 16, 100, 1000, len(data)])
    match chance.randrange(4):
        case 0:
            data[start] ^= 1 << chance.randrange(8)
        case 1:
            data[start : start + size] = bytes(len(data[start : start + size]))
        case 2:
            del data[start:]
        case _:
            data[start : start + size] = chance.randbytes(len(data[start : start + size]))
    path.write_bytes(data)
    return lambda begin, end: bytes(data[begin:end]) == before[begin:end]


@pytest.mark.parametrize("part", range(4))
def test_damage_costs_only_the_records_it_touches(tmp_path: Path, part: int) -> None:
    """In 200 cases of flipped, zeroed, cut and overwritten segments the spool starts, every intact record is stored
    once and no other, the loss is counted to the byte, and the damaged file is kept.
    """
    for case in range(50 * part, 50 * part + 50):
        chance = random.Random(case)
        folder = tmp_path / str(case)
        fill(folder, range(30), n=chance.choice([1, 5]), segment_bytes=2500)
        expected, lost, is_damaged = [], 0, False
        segments = segment_files(folder)
        victims = chance.sample(segments, chance.randrange(1, 3))
        for segment in segments:
            parts = list(frames(segment.path.read_bytes()))
            is_intact = damage(segment.path, chance) if segment in victims else lambda begin, end: True
            kept = [(begin, end, payload) for begin, end, payload in parts if is_intact(begin, end)]
            expected += [record for _, _, payload in kept for record in ids_of(decode(payload or b""))]
            missing = segment.path.stat().st_size - sum(end - begin for begin, end, _ in kept)
            lost += missing
            is_damaged |= missing > 0
        store = MemoryStore()
        drain = Drain(folder, store, max_rows=chance.choice([3, 1000]))

        with Spool(folder) as spool:
            drain_all(drain)
            assert spool.append(encode(make_points("after")))
        drain_all(drain)

        assert list(store.rows)[:-1] == expected
        assert store.models[-1] == "after"
        assert drain.stats().lost_bytes == lost
        assert (lost > 0) == is_damaged == any(".corrupt-" in name for name in names_in(folder))
        assert (drain.stats().errors, drain.stats().depth_bytes) == (0, 0)


def test_loss_is_known_after_a_restart(tmp_path: Path) -> None:
    """A segment whose damage was passed by an earlier drain is kept aside by the one that finishes it."""
    fill(tmp_path, range(20), segment_bytes=1 << 20)
    path = segment_files(tmp_path)[0].path
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    store = MemoryStore()
    first = Drain(tmp_path, store, max_rows=5)

    first.step()
    first.close()
    second = Drain(tmp_path, store, max_rows=5)
    drain_all(second)

    assert store.models == [str(i) for i in range(1, 20)]
    assert second.stats().duplicates == 0
    assert [".corrupt-" in name for name in names_in(tmp_path)] == [True]


def test_old_quarantine_makes_room(tmp_path: Path) -> None:
    """Damaged segments are kept up to a number of bytes; beyond it the oldest go."""
    store = MemoryStore()
    drain = Drain(tmp_path, store, quarantine_bytes=1000)
    for i in range(5):
        (tmp_path / f"{i:020d}.log").write_bytes(bytes(400))
        drain_all(drain)

    assert [name[:20] for name in names_in(tmp_path)] == [f"{i:020d}" for i in (3, 4)]
    assert (drain.stats().lost_bytes, drain.stats().damaged, drain.stats().aside) == (2000, 5, 2)


def test_refused_rows_that_are_deleted_are_lost(tmp_path: Path) -> None:
    """They could have been stored; their rows count as quarantined, and their bytes as lost when they make room."""
    fill(tmp_path, ["bad", "good", "bad"], n=3, segment_bytes=1)
    store = MemoryStore()
    store.refuses = lambda batch: batch.model == "bad"
    drain = Drain(tmp_path, store, quarantine_bytes=1)

    drain_all(drain)

    stats = drain.stats()
    assert (stats.inserted, stats.quarantined, stats.aside) == (3, 6, 0)
    assert stats.lost_bytes == 2 * len(frame(encode(make_points("bad", 3))))


@pytest.mark.parametrize("noise", [b"", b"garbage", b"00000000 1 2 3", bytes(128)], ids=repr)
def test_lost_position_costs_a_repetition(tmp_path: Path, noise: bytes) -> None:
    """Where the lease does not say how far its holder came, records come again and the store ignores them."""
    fill(tmp_path, range(20), segment_bytes=1 << 20)
    store = MemoryStore()
    first = Drain(tmp_path, store, max_rows=5)
    first.step()
    first.close()
    (tmp_path / "drain.lease").write_bytes(noise)

    second = Drain(tmp_path, store, max_rows=5)
    drain_all(second)

    assert store.models == [str(i) for i in range(20)]
    assert second.stats().duplicates == 5


def test_position_of_an_earlier_folder_hides_nothing(tmp_path: Path) -> None:
    """After a segment was drained in part and deleted, a new one is drained from its beginning."""
    store = MemoryStore()
    drain = Drain(tmp_path, store, max_rows=5)
    fill(tmp_path, range(20), segment_bytes=1 << 20)
    drain.step()
    segment_files(tmp_path)[0].path.unlink()
    fill(tmp_path, range(20, 40), segment_bytes=1 << 20)
    drain.close()

    drain_all(Drain(tmp_path, store, max_rows=5))

    assert store.models == [str(i) for i in [*range(5), *range(20, 40)]]


def test_second_drain_waits_for_the_lease(tmp_path: Path) -> None:
    """Of two drains one works; when it closes the other goes on from where it stopped."""
    fill(tmp_path, range(40), segment_bytes=1 << 20)
    store = MemoryStore()
    first, second = Drain(tmp_path, store, max_rows=10), Drain(tmp_path, store, max_rows=10)

    taken = [first.step(), second.step(), first.step(), second.step()]
    first.close()
    drain_all(second)

    assert taken == [Progress.MOVED, Progress.WAITING] * 2
    assert store.models == [str(i) for i in range(40)]
    assert (first.stats().duplicates, second.stats().duplicates) == (0, 0)


DRAINER = """
import os, sys, threading
from pathlib import Path
from darksight_service.ingest.drain import Drain, Progress
class FileStore:
    # Keeps ids in a file that is appended to by one call, so that an insert is all or nothing under kill -9.
    def insert(self, batches):
        path = Path(sys.argv[2])
        had = path.read_bytes() if path.exists() else b""
        ids = [row for batch in batches for row in batch.id_bytes()]
        known = {had[at : at + 16] for at in range(0, len(had), 16)}
        new = [i for i in ids if i not in known]
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, b"".join(new))
        os.close(fd)
        os.write(1, b"d" * (len(ids) - len(new)) + b"i" * len(new))
        self.inserted, self.duplicates = len(new), len(ids) - len(new)
        self.conflicts = 0
        return self

drain = Drain(Path(sys.argv[1]), FileStore(), max_rows=10, poll_seconds=0.002)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
drain.run(stop)
"""


def start_drainer(folder: Path, stored: Path) -> subprocess.Popen[bytes]:
    """A drain in a process of its own; prints a letter per row, ends when its input does."""
    command = [sys.executable, "-c", DRAINER, str(folder), str(stored)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT)


def ids_in(stored: Path) -> list[bytes]:
    """What the store of the drainers has."""
    data = stored.read_bytes()
    return [data[at : at + 16] for at in range(0, len(data), 16)]


def test_two_processes_on_one_folder_never_duplicate(tmp_path: Path) -> None:
    """Two drains run while a worker writes; killing the one that works hands over, and each row is stored once."""
    folder, stored = tmp_path / "spool", tmp_path / "stored"
    spool = Spool(folder, segment_bytes=2000)
    batches = [make_points(i) for i in range(400)]
    expected = [batch.id_bytes()[0] for batch in batches]
    drainers = [start_drainer(folder, stored) for _ in range(2)]
    for batch in batches[:200]:
        spool.append(encode(batch))
    first, second = drainers
    assert first.stdout is not None
    assert second.stdout is not None

    # Whoever got the lease is the one that is killed.
    speaks, _, _ = select.select([first.stdout, second.stdout], [], [])
    leader, other = (first, second) if first.stdout in speaks else (second, first)
    leader.send_signal(signal.SIGKILL)
    leader.wait()
    for batch in batches[200:]:
        spool.append(encode(batch))
    spool.close()
    output, _ = other.communicate()
    assert leader.stdout is not None
    assert leader.stdin is not None
    leader.stdout.close()
    leader.stdin.close()

    assert ids_in(stored) == expected
    assert output.count(b"i") > 0
    assert output.count(b"d") <= 10
    assert names_in(folder) == []


def test_killed_drain_repeats_at_most_one_insert(tmp_path: Path) -> None:
    """After kill -9 at random moments each row is stored once, and a restart repeats no more than one insert."""
    folder, stored = tmp_path / "spool", tmp_path / "stored"
    batches: list[PointTable] = []
    repeated = []
    for round_ in range(8):
        # More than is waited for, so that there is something to say even if the last one had moved everything.
        batches += [make_points(i) for i in range(100)]
        with Spool(folder, segment_bytes=2000) as spool:
            for batch in batches[-100:]:
                spool.append(encode(batch))
        with start_drainer(folder, stored) as child:
            assert child.stdout is not None
            assert child.stdin is not None
            output = child.stdout.read(1 + 13 * round_)
            child.send_signal(signal.SIGKILL)
            output += child.stdout.read()
        repeated.append(output.count(b"d"))
    with start_drainer(folder, stored) as child:
        output, _ = child.communicate()
    repeated.append(output.count(b"d"))

    assert ids_in(stored) == [batch.id_bytes()[0] for batch in batches]
    assert max(repeated) <= 10
    assert names_in(folder) == []


def test_quota_is_free_again_after_the_drain(tmp_path: Path) -> None:
    """An outage longer than the quota costs the newest records only, and after it new ones are taken."""
    now = [0.0]
    store = MemoryStore()
    store.is_away = True
    drain = Drain(tmp_path, store)
    spool = Spool(tmp_path, max_bytes=5000, segment_bytes=1000, clock=lambda: now[0])

    kept = [i for i in range(100) if spool.append(encode(make_points(i)))]
    drain.step()
    store.is_away = False
    now[0] += 1.0
    drain_all(drain)
    spool.stats()
    drain_all(drain)
    kept += [i for i in range(100, 110) if spool.append(encode(make_points(i)))]
    dropped = spool.stats().dropped
    spool.close()
    drain_all(drain)

    assert kept == [*range(kept.index(100)), *range(100, 110)]
    assert dropped == 110 - len(kept) > 0
    assert store.models == [str(i) for i in kept]


def test_run_goes_on_through_errors_and_flushes_at_the_end(tmp_path: Path) -> None:
    """`run` survives a store that is away and one that has defects, and moves what is left when told to stop."""
    stop = threading.Event()
    store = MemoryStore()
    failures = 0

    def refuses(batch: Batch) -> bool:
        nonlocal failures
        failures += 1
        if failures < 4:
            raise RuntimeError("a defect") if failures % 2 else StoreUnavailableError("away")
        stop.set()
        return False

    store.refuses = refuses
    drain = Drain(tmp_path, store, max_rows=10, backoff_seconds=(0.001, 0.002), poll_seconds=0.001)
    fill(tmp_path, range(100))

    drain.run(stop)

    assert sorted(map(int, store.models)) == list(range(100))
    assert (drain.stats().errors, drain.stats().quarantined) == (1, 0)
    assert Drain(tmp_path, store).step() is Progress.IDLE


def test_full_disk_does_not_stop_the_drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When not even the position can be written down, records move and segments go."""

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fail)
    fill(tmp_path, range(60))
    store = MemoryStore()
    drain = Drain(tmp_path, store, max_rows=7)

    drain_all(drain)

    assert store.models == [str(i) for i in range(60)]
    assert drain.stats().duplicates == 0
    assert names_in(tmp_path) == []


def test_sql_store_has_each_row_once(tmp_path: Path) -> None:
    """With the real store on SQLite, rows that come again after a crash are known as duplicates and stored once."""
    fill(tmp_path / "spool", ["a"] * 50 + ["b"] * 50, segment_bytes=1 << 20)
    fill(tmp_path / "spool", ["a"] * 10, n=7)
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}", auto_upgrade=True) as store:
        first = Drain(tmp_path / "spool", store, max_rows=30)
        first.step()
        first.close()
        (tmp_path / "spool" / "drain.lease").write_bytes(b"")
        second = Drain(tmp_path / "spool", store, max_rows=30)

        drain_all(second)

        assert store.stats().points == 170
    assert (first.stats().inserted, second.stats().inserted, second.stats().duplicates) == (30, 140, 30)
    assert names_in(tmp_path / "spool") == []
