"""Applying the audit trail to the state file."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from darksight_service.control.changes import sync
from darksight_service.control.state import apply_change
from darksight_service.control.state_file import StateFile
from darksight_service.store.audit import Change


def make_change(number: int) -> Change:
    """The deployment of a version."""
    return Change("deploy", "m", {"version": f"v{number}", "path": "p", "activate": True}, id=number)


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
    slow.release.set()
    waiting.join(30)

    assert state_file.read() == done
    assert done.last_change == 6
    assert done.models["m"].previous == ("v1", "v2", "v3", "v4", "v5")
