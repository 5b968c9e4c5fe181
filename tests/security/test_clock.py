"""A clock that jumps ends no region and deletes no point before its time."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from darksight_service.control.changes import Control
from darksight_service.control.clock import SteadyClock
from darksight_service.control.registry import Registry
from darksight_service.control.state import ModelState, State, apply_changes
from darksight_service.control.state_file import StateFile
from darksight_service.metrics.counts import Counts
from darksight_service.metrics.files import read
from darksight_service.metrics.processes import StorageCounts
from darksight_service.processes.storage_worker import StorageWorker
from darksight_service.scoring.service import ScoringService
from darksight_service.settings import Settings
from darksight_service.store.audit import Change
from darksight_service.store.ids import id_ms
from darksight_service.store.points import PointFilter
from darksight_service.store.store import Store

from darksight_core.bundle import write_bundle
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle
from tests.support.points import make_points

NOW = 1_800_000_000.0
DAY = 86_400.0
SQUARE = [(-9.0, -9.0), (9.0, -9.0), (9.0, 9.0), (-9.0, 9.0)]


class Machine:
    """A machine whose clock can be set."""

    def __init__(self) -> None:
        self.now, self.counter = NOW, 0.0

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.counter += seconds

    def clock(self, known: float | None = None) -> SteadyClock:
        """A clock on this machine."""
        return SteadyClock(known, lambda: self.now, lambda: self.counter)


@pytest.mark.parametrize("jump", [40 * DAY, -40 * DAY])
def test_a_jump_is_believed_after_an_hour(jump: float) -> None:
    """Meanwhile time goes on from where it was."""
    machine = Machine()
    clock = machine.clock()

    machine.now += jump
    machine.wait(70.0)
    assert clock.read() == (NOW + 70.0, jump)
    machine.now -= jump
    assert clock.read() == (NOW + 70.0, 0.0)

    machine.now += jump
    clock.read()
    machine.wait(3600.0)
    assert clock.read() == (machine.now, 0.0)


def test_many_small_steps_are_a_jump() -> None:
    """A clock that is moved a little at a time is not believed either."""
    machine = Machine()
    clock = machine.clock()
    for _ in range(1000):
        machine.now += 50.0
        clock()

    assert clock() == NOW


@pytest.mark.parametrize("jump", [40 * DAY, -40 * DAY])
def test_a_process_that_starts_while_the_clock_is_wrong_goes_on_from_the_time_before(jump: float) -> None:
    """A restart does not make a wrong clock right."""
    machine = Machine()
    machine.now += jump

    assert machine.clock(known=NOW).read() == (NOW, jump)


def test_points_of_a_clock_that_was_set_back_are_not_deleted_when_it_is_right_again(registry: Registry) -> None:
    """They were stored as 40 days old, and deleted as soon as the clock was right."""
    machine = Machine()
    recorder = SimpleNamespace(append=lambda payload: True)
    registry.clock = machine.clock()
    registry.refresh()
    machine.now -= 40 * DAY
    machine.wait(600.0)
    reply = ScoringService(registry, recorder, registry.clock).score("m", "", make_probs(1, 3))

    assert id_ms(reply.batch_id) == int((NOW + 600.0) * 1000)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """A model with an enforced region that ends in a day; its registry is at `NOW`."""
    (tmp_path / "bundles").mkdir()
    write_bundle(tmp_path / "bundles" / "m.safetensors", make_bundle(rows=400))
    state_file = StateFile(tmp_path / "registry.json")
    made = Registry(state_file, tmp_path / "bundles", Counts(tmp_path / "counts", 0), lambda: NOW)
    url = f"sqlite:///{tmp_path / 'points.db'}"
    with Store.open(url, auto_upgrade=True, clock=lambda: int(NOW * 1000)) as store:
        control = Control(made, state_file, lambda: store)
        control.deploy("m", "m.safetensors", activate=True, author="a")
        control.regions.save("m", "", "all", SQUARE, expires_ms=int((NOW + DAY) * 1000))
        control.regions.set_mode("m", "", "all", enforce=True)
    return made


def test_an_enforced_region_survives_a_clock_that_jumps_ahead_and_back(registry: Registry) -> None:
    """It stayed off for ever."""
    times = [NOW]
    registry.clock = lambda: times[0]
    times[0] += 40 * DAY
    registry.refresh()
    assert registry.get("m").gate.regions == ()
    times[0] -= 40 * DAY
    registry.refresh()

    assert len(registry.get("m").gate.regions) == 1


def test_an_enforced_region_stays_on_while_the_clock_is_ahead(registry: Registry) -> None:
    """Until the jump is confirmed."""
    machine = Machine()
    registry.clock = machine.clock()
    machine.now += 40 * DAY
    registry.refresh()
    assert len(registry.get("m").gate.regions) == 1

    machine.wait(3601.0)
    registry.refresh()
    assert registry.get("m").gate.regions == ()


def test_a_worker_that_starts_while_the_clock_is_ahead_goes_on_from_the_time_before(tmp_path: Path) -> None:
    """It takes the time that the storage worker wrote, so regions stay enforced."""
    (tmp_path / "time").write_text(str(time.time() - 40 * DAY))
    state_file = StateFile(tmp_path / "registry.json")

    started = Registry(state_file, tmp_path / "bundles", Counts(tmp_path / "counts", 1))

    assert abs(started.clock() - (time.time() - 40 * DAY)) < DAY


def test_a_preview_counts_points_that_are_ahead_of_the_time_that_is_believed(
    registry: Registry, tmp_path: Path
) -> None:
    """Points carry the time of the machine."""
    version = registry.get("m").version
    state_file = StateFile(tmp_path / "registry.json")
    with Store.open(f"sqlite:///{tmp_path / 'points.db'}") as store:
        store.insert([make_points(5, model="m", version=version, ms=int((NOW + 40 * DAY) * 1000))])
        preview = Control(registry, state_file, lambda: store).regions.preview("m", polygon=SQUARE)

    assert preview.examined == 5


def test_a_change_made_while_the_clock_was_ahead_removes_no_region() -> None:
    """Regions that had expired by the time of the change were removed from the state."""
    region = {"version": "v", "polygon": SQUARE, "expires_ms": 1_000, "action": "save"}
    deploy = Change("deploy", "m", {"version": "v", "path": "p"}, id=1)
    first = Change("region", "m", {**region, "region": "first"}, id=2, changed_ms=500)
    ahead = Change("region", "m", {**region, "region": "second", "expires_ms": 0}, id=3, changed_ms=9_000)
    again = Change("region", "m", {**region, "region": "first", "expires_ms": 0}, id=4, changed_ms=9_000)

    def regions(*changes: Change) -> dict[str, int]:
        model: ModelState = apply_changes(State(), changes).models["m"]
        return {name: saved.region.expires_ms for name, saved in model.versions["v"].regions.items()}

    assert regions(deploy, first, ahead) == {"first": 1_000, "second": 0}
    assert regions(deploy, first, ahead, again) == {"first": 0, "second": 0}


def test_retention_waits_until_a_jump_is_confirmed(tmp_path: Path) -> None:
    """All points were deleted within 70 s of a clock that was 40 days ahead."""
    machine = Machine()
    settings = Settings(data_dir=tmp_path, retention_days=30.0)
    counts = StorageCounts(tmp_path / "counts")
    with Store.open(settings.store_url, auto_upgrade=True, clock=lambda: int(machine.now * 1000)) as store:
        store.insert([make_points(5, ms=int(NOW * 1000))])
        worker = StorageWorker(settings, store, counts, machine.clock())

        def left() -> int:
            worker.step(machine.counter)
            return len(store.newest_points(PointFilter("digits", None), limit=100))

        try:
            assert left() == 5
            machine.now += 40 * DAY
            machine.wait(70.0)
            assert left() == 5
            assert read(counts.file.path).number("clock_offset_seconds") == 40 * DAY
            assert float((tmp_path / "time").read_text()) == NOW + 70.0
            machine.wait(3600.0)
            assert left() == 0
        finally:
            worker.finish()
