"""The storage worker: what it reports of the store."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from darksight_service.control.accuracy_file import AccuracyFile
from darksight_service.control.bundle_files import copy_path
from darksight_service.control.state import apply_change
from darksight_service.control.state_file import StateFile
from darksight_service.errors import StoreError, StoreUnavailableError
from darksight_service.ingest.spool import Spool, frame
from darksight_service.metrics.files import read
from darksight_service.metrics.processes import StorageCounts
from darksight_service.processes import live_figures, storage_worker
from darksight_service.processes.storage_worker import StorageWorker
from darksight_service.settings import Settings
from darksight_service.store.audit import Change
from darksight_service.store.engine import writing
from darksight_service.store.points import OutcomeBatch, PointFilter, PointTable
from darksight_service.store.store import Inserted, Store
from darksight_service.store.tables import bundle, model

from darksight_core.bundle import write_bundle
from darksight_core.gate.gate import Gate
from tests.support.bundles import make_bundle
from tests.support.points import VERSION, encode, make_outcomes, make_points
from tests.support.servers import wait_until


@contextmanager
def running(settings: Settings, store: Store, counts: StorageCounts) -> Iterator[StorageWorker]:
    """A storage worker, whose threads end with the block."""
    worker = StorageWorker(settings, store, counts)
    try:
        yield worker
    finally:
        worker.finish()


class FullStore(Store):
    """A store that can be read, and takes no points."""

    def insert(self, batches: Iterable[PointTable | OutcomeBatch]) -> Inserted:
        """Always fails."""
        raise StoreUnavailableError("the disk is full")


def test_size_and_growth_of_the_store_are_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Growth over ten minutes or more, and the days until the disk is full; none while it does not grow."""
    settings, counts = Settings(data_dir=tmp_path), StorageCounts(tmp_path / "counts")
    names = ("store_bytes", "store_growth_bytes_per_day", "store_seconds_left")
    with Store.open(settings.store_url, auto_upgrade=True) as store, running(settings, store, counts) as worker:
        monkeypatch.setattr(storage_worker.shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000_000_000))
        found = []
        for seconds in (0, 60, 1_500):
            store.insert([make_points(5_000, seed=seconds)])
            worker._measure(1e9 + seconds)
            found.append([read(counts.file.path).number(name) for name in names])

    sizes = [size for size, _, _ in found]
    assert sizes[0] < sizes[1] < sizes[2]
    assert [each[1:] for each in found[:2]] == [[0.0, math.inf]] * 2
    growth = 86_400.0 * (sizes[2] - sizes[0]) / 1_500.0
    assert found[2][1:] == pytest.approx([growth, 86_400.0 * 1e10 / growth])


def test_a_store_that_takes_no_points_is_not_up(tmp_path: Path) -> None:
    """Though queries succeed; it was reported as up."""
    settings = Settings(data_dir=tmp_path)
    with Spool(tmp_path / "spool" / "worker-0") as spool:
        assert spool.append(encode(make_points(3)))
    counts = StorageCounts(tmp_path / "counts")
    with FullStore.open(settings.store_url, auto_upgrade=True) as store, running(settings, store, counts) as worker:

        def is_counted() -> bool:
            worker.step(0.0)
            return read(counts.file.path).number("store_errors") > 0.0

        wait_until(is_counted, what="a failed insert")
        found = read(counts.file.path).number("store_up")

    assert found == 0.0


def test_rows_lost_on_disk_are_counted(tmp_path: Path) -> None:
    """A byte of one of five records is flipped on disk, and the store refuses another one; both pass unnoticed else."""
    settings, counts = Settings(data_dir=tmp_path), StorageCounts(tmp_path / "counts")
    records = [encode(make_points(4, seed=seed, model="bad" if seed == 3 else "digits")) for seed in range(5)]
    with Spool(tmp_path / "spool" / "worker-0") as spool:
        assert all(map(spool.append, records))
    (path,) = (tmp_path / "spool" / "worker-0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[data.index(records[1]) + 100] ^= 1
    path.write_bytes(data)

    class Choosy(Store):
        """Refuses a model for good."""

        def insert(self, batches: Iterable[PointTable | OutcomeBatch]) -> Inserted:
            given = list(batches)
            if any(each.model == "bad" for each in given):
                raise StoreError("a row cannot be stored")
            return super().insert(given)

    with Choosy.open(settings.store_url, auto_upgrade=True) as store, running(settings, store, counts) as worker:

        def numbers() -> list[float]:
            worker.step(0.0)
            found = read(counts.file.path)
            names = ("spool_damaged_records", "spool_lost_bytes", "spool_files_aside")
            return [*found.sections["drain_rows"], *map(found.number, names)]

        wait_until(lambda: numbers()[0] == 12.0 and numbers()[-1] == 2.0, what="the intact rows, and the files aside")
        found = numbers()

    # inserted, duplicate, quarantined and conflicting rows; damaged records, their bytes, and a file for each loss
    assert found == [12.0, 0.0, 4.0, 0.0, 1.0, len(frame(records[1])), 2.0]


class DownStore(Store):
    """A store that cannot be queried."""

    def changes_since(self, number: int) -> list[Change]:
        """Always fails."""
        raise StoreUnavailableError("the database is down")


def test_work_without_a_query_does_not_report_the_store_as_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It logged that the store is available every second of an outage."""
    caplog.set_level("INFO", logger="darksight.storage")
    settings, counts = Settings(data_dir=tmp_path), StorageCounts(tmp_path / "counts")
    with DownStore.open(settings.store_url, auto_upgrade=True) as store, running(settings, store, counts) as worker:
        wait_until(lambda: read(counts.file.path).number("store_errors") > 0.0, what="a failed sync")
        worker.step(0.0)
        found = read(counts.file.path).number("store_up")

    assert found == 0.0
    assert caplog.messages == ["store_unavailable"]


def restore(store: Store) -> None:
    """Make a database of the store in which another model has the number of the first one."""
    with writing(store._engine) as connection:
        connection.execute(bundle.delete())
        connection.execute(model.delete())
    with Store(store._engine) as other:
        other.register_bundle("letters", VERSION, class_names=(), calibration_rows=1)


def stored(store: Store) -> list[int]:
    """Points of the restored model and of the one that was scored."""
    return [len(store.newest_points(PointFilter(name, None), limit=100)) for name in ("letters", "digits")]


def test_rows_after_a_restore_belong_to_their_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of models and bundles are read again from the restored database."""
    monkeypatch.setattr(storage_worker, "_SYNC_SECONDS", 0.02)
    settings, counts = Settings(data_dir=tmp_path), StorageCounts(tmp_path / "counts")
    state_file = StateFile(tmp_path / "registry.json")
    with Store.open(settings.store_url, auto_upgrade=True) as store:
        with running(settings, store, counts):
            store.insert([make_points(1, seed=1)])
            restore(store)
            state_file.update(lambda state: replace(state, rebuilds=state.rebuilds + 1))
            wait_until(lambda: read(counts.file.path).number("state_rebuilds") == 1.0, what="the rebuilt state")
        before = stored(store)
        store.insert([make_points(3)])

        assert [now - then for now, then in zip(stored(store), before, strict=True)] == [0, 3]


def test_rows_after_a_fail_over_belong_to_their_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the restored audit trail was read: the insert that failed is repeated with new numbers."""
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}", auto_upgrade=True) as store:
        store.insert([make_points(1, seed=1)])
        restore(store)
        before = stored(store)

        def fail(*_: Any) -> Any:
            raise StoreUnavailableError("the connection was closed")

        with monkeypatch.context() as patch:
            patch.setattr(store._inserter, "_insert_into_sqlite", fail)
            with pytest.raises(StoreUnavailableError):
                store.insert([make_points(3)])
        store.insert([make_points(3)])

        assert [now - then for now, then in zip(stored(store), before, strict=True)] == [0, 3]


@pytest.mark.parametrize("broken", ["state file", "bundle"])
def test_rows_are_stored_without_state_and_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """What cannot be loaded is not read again for each batch."""
    settings, counts = Settings(data_dir=tmp_path), StorageCounts(tmp_path / "counts")
    state_file, attempts = StateFile(tmp_path / "registry.json"), []
    deploy = Change("deploy", "digits", {"version": VERSION, "path": "missing.safetensors", "activate": True})
    state_file.update(partial(apply_change, change=deploy))
    read_version = live_figures.read_version

    def count(*arguments: Any, **options: Any) -> Any:
        attempts.append(1)
        return read_version(*arguments, **options)

    monkeypatch.setattr(live_figures, "read_version", count)
    with Store.open(settings.store_url, auto_upgrade=True) as store, running(settings, store, counts):
        if broken == "state file":
            state_file.path.write_text("{")
        found = [store.insert([make_points(3, seed=seed)]).points for seed in range(3)]

    assert found == [3, 3, 3]
    assert len(attempts) == (0 if broken == "state file" else 1)


def test_a_bundle_that_arrives_late_is_copied_and_its_deployment_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state names a version that the audit trail does not have, and its file comes after the storage worker."""
    monkeypatch.setattr("darksight_service.processes.storage_worker._SYNC_SECONDS", 0.05)
    settings = Settings(data_dir=tmp_path, bundle_dir=tmp_path / "shared")
    settings.bundles.mkdir()
    version = write_bundle(tmp_path / "away", make_bundle(rows=400))
    state_file = StateFile(tmp_path / "registry.json")
    deployed = Change("deploy", "m", {"version": version, "path": "m.safetensors", "activate": True})
    state_file.update(lambda state: apply_change(state, deployed))
    with Store.open(settings.store_url, auto_upgrade=True) as store:
        worker = StorageWorker(settings, store, StorageCounts(tmp_path / "counts"))
        try:
            wait_until(lambda: "bundle_not_copied" in caplog.messages, what="the first sync")
            (tmp_path / "away").rename(settings.bundles / "m.safetensors")
            wait_until(copy_path(state_file.bundle_copies, version).exists, what="the copy")
            wait_until(lambda: store.changes_since(0), what="the entry of the audit trail")
        finally:
            worker.finish()
        (recorded,) = store.changes_since(0)

    assert recorded.payload["version"] == version


@pytest.mark.parametrize(("wrong", "verdict"), [(0.0, "kept"), (0.5, "broken")])
def test_labels_of_accepted_rows_tell_whether_the_certificate_holds(tmp_path: Path, wrong: float, verdict: str) -> None:
    """Every row has a label; metrics and the answer to outcomes say the same, and a policy override says nothing."""
    settings, counts = Settings(data_dir=tmp_path), StorageCounts(tmp_path / "counts")
    settings.bundles.mkdir()
    part = {"kind": "accuracy", "promised": 0.9, "delta": 0.05, "promise": "for the test", "feasible": True}
    bundle = make_bundle(400, 10).with_gate(Gate(reject_score="msp", threshold=-1.0), {"outlier": None, "reject": part})
    version = write_bundle(settings.bundles / "m.safetensors", bundle)
    state_file = StateFile(tmp_path / "registry.json")
    deploy = Change("deploy", "digits", {"version": version, "path": "m.safetensors", "activate": True})
    state_file.update(partial(apply_change, change=deploy))
    points = make_points(700, ms=time.time_ns() // 1_000_000, version=version, names=None, with_invalid=False)
    is_wrong = np.random.default_rng(0).random(700) < wrong
    labels = dict(zip(points.prediction_ids(), ((points.predicted + is_wrong) % 10).tolist(), strict=True))
    opened = Store.open(settings.store_url, audit_rate=1.0, auto_upgrade=True)
    with opened as store, running(settings, store, counts) as worker:
        store.insert([points, make_outcomes(labels)])
        worker.step(0.0)
        found = AccuracyFile(tmp_path / "accuracy.json").read()["digits"]
        (path,) = (tmp_path / "counts").glob("figures-*")
        published = read(path)
        override = {"version": version, "alpha": None, "threshold": "0.38", "log_odds": "-0.5", "fail_open": None}
        state_file.update(partial(apply_change, change=Change("policy", "digits", override)))
        worker.step(100.0)
        overridden = AccuracyFile(tmp_path / "accuracy.json").read()["digits"]["audit"]

    audit = found["audit"]
    assert (found["version"], audit["verdict"], audit["promised"]) == (version, verdict, 0.9)
    assert audit["labels"] == int(points.accepted.sum())
    assert audit["accuracy"] == pytest.approx(1.0 - is_wrong[points.accepted].mean())
    assert (audit["log_evidence"] > audit["threshold"]) == (verdict == "broken")
    assert published.number("certificate_log_evidence") == audit["log_evidence"]
    assert published.sections["audit_accuracy"].tolist() == [audit["accuracy"], audit["low"], audit["high"]]
    assert published.sections["drift_verdict"].sum() == 1.0
    assert (overridden["verdict"], overridden["log_evidence"]) == ("none", 0.0)
