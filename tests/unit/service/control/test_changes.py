"""Applying the audit trail to the state file."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from darksight_service.control.changes import deploy_at_start, record_deployments, sync
from darksight_service.control.state import apply_change
from darksight_service.control.state_file import StateFile
from darksight_service.store.audit import Change
from darksight_service.store.store import Store

from darksight_core.bundle import write_bundle
from tests.support.bundles import make_bundle


def make_change(number: int, history: str = "", model: str = "m") -> Change:
    """The deployment of a version, in one of several possible histories."""
    payload = {"version": f"{history}v{number}", "path": "p", "activate": True}
    return Change("deploy", model, payload, id=number, hash=f"{history}{number}")


class Trail:
    """An audit trail in memory, in pages of two entries."""

    def __init__(self, entries: int) -> None:
        self.changes = [make_change(number + 1) for number in range(entries)]

    def changes_since(self, number: int) -> list[Change]:
        """Up to two entries after a number."""
        return [change for change in self.changes if change.id > number][:2]


class HungTrail(Trail):
    """An audit trail whose database does not respond until it is released."""

    def __init__(self, entries: int) -> None:
        super().__init__(entries)
        self.is_asked, self.release = threading.Event(), threading.Event()

    def changes_since(self, number: int) -> list[Change]:
        """Wait for the release."""
        self.is_asked.set()
        assert self.release.wait(30)
        return super().changes_since(number)


@pytest.fixture
def state_file(tmp_path: Path) -> StateFile:
    """A state file that does not exist yet."""
    return StateFile(tmp_path / "registry.json")


def in_thread(work: Any) -> threading.Thread:
    """Run in a thread."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_all_new_entries_are_applied_once(state_file: StateFile) -> None:
    """Page by page; what was applied before is not applied again."""
    trail: Any = Trail(5)

    first, again = sync(state_file, trail), sync(state_file, trail)

    assert first == again == state_file.read()
    assert (first.last_change, first.models["m"].active, len(first.models["m"].versions)) == (5, "v5", 5)


def test_a_database_that_does_not_respond_delays_no_local_change(state_file: StateFile) -> None:
    """Another process changes the state file while a sync waits for the database; both changes are kept."""
    trail: Any = HungTrail(3)
    waiting = in_thread(lambda: sync(state_file, trail))
    assert trail.is_asked.wait(30)
    local = Change("deploy", "other", {"version": "w", "path": "p", "activate": True})

    done = in_thread(lambda: state_file.update(lambda state: apply_change(state, local)))
    done.join(10)
    was_delayed = done.is_alive()
    trail.release.set()
    waiting.join(30)
    done.join(30)

    assert not was_delayed
    assert set(state_file.read().models) == {"m", "other"}
    assert state_file.read().last_change == 3


def test_two_that_sync_at_once_apply_each_entry_once(state_file: StateFile) -> None:
    """The slower one finds the entries applied and changes nothing."""
    slow: Any = HungTrail(4)
    waiting = in_thread(lambda: sync(state_file, slow))
    assert slow.is_asked.wait(30)
    fast: Any = Trail(6)

    done = sync(state_file, fast)
    slow.changes[:] = fast.changes
    slow.release.set()
    waiting.join(30)

    assert state_file.read() == done
    assert done.last_change == 6
    assert done.models["m"].previous == ("v1", "v2", "v3", "v4", "v5")


@pytest.mark.parametrize("entries", [3, 5, 7])
def test_a_restored_trail_replaces_the_state(state_file: StateFile, entries: int) -> None:
    """Two entries of a backup and new ones: fewer than before, as many or more; all of them are applied."""
    trail: Any = Trail(5)
    sync(state_file, trail)

    trail.changes[2:] = [make_change(number, "new-") for number in range(3, entries + 1)]
    state = sync(state_file, trail)

    assert (state.last_change, state.last_hash, state.rebuilds) == (entries, f"new-{entries}", 1)
    assert set(state.models["m"].versions) == {"v1", "v2", *(f"new-v{number}" for number in range(3, entries + 1))}
    assert state.models["m"].active == f"new-v{entries}"
    assert sync(state_file, trail) == state


def test_a_model_that_a_restored_trail_does_not_contain_stays(state_file: StateFile) -> None:
    """The trail knows another model alone; calls of the lost one must not fail."""
    trail: Any = Trail(2)
    sync(state_file, trail)

    trail.changes[:] = [make_change(1, "new-", "other")]
    state = sync(state_file, trail)

    assert {name: model.active for name, model in state.models.items()} == {"m": "v2", "other": "new-v1"}
    assert state.rebuilds == 1


def test_an_emptied_database_gets_the_deployments_again(tmp_path: Path, state_file: StateFile) -> None:
    """The active version stays the active one, and other replicas learn of all versions."""
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    paths = [bundles / f"{seed}.safetensors" for seed in range(2)]
    versions = [write_bundle(path, make_bundle(rows=400, seed=seed)) for seed, path in enumerate(paths)]
    with Store.open(f"sqlite:///{tmp_path / 'before.db'}", auto_upgrade=True) as store:
        for path in paths:
            deploy_at_start(state_file, store, bundles, [("m", path)])
        store.append_change("rollback", "m", {"version": versions[0]}, author="a", comment="")
        sync(state_file, store)

    with Store.open(f"sqlite:///{tmp_path / 'after.db'}", auto_upgrade=True) as store:
        sync(state_file, store)
        record_deployments(state_file, store, bundles)
        here, elsewhere = sync(state_file, store), sync(StateFile(tmp_path / "other.json"), store)

    assert here.models["m"].active == elsewhere.models["m"].active == versions[0]
    assert set(here.models["m"].versions) == set(elsewhere.models["m"].versions) == set(versions)
    assert here.rebuilds == 1
