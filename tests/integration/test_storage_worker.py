"""The storage worker: what it reports of the store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from darksight_service.control.bundle_files import copy_path
from darksight_service.control.state import Change, apply_change
from darksight_service.control.state_file import StateFile
from darksight_service.errors import StoreUnavailableError
from darksight_service.ingest.spool import Spool
from darksight_service.metrics.files import read
from darksight_service.metrics.processes import StorageCounts
from darksight_service.processes.storage_worker import StorageWorker
from darksight_service.settings import Settings
from darksight_service.store.points import OutcomeBatch, PointTable
from darksight_service.store.store import Inserted, Store

from darksight_core.bundle import write_bundle
from tests.support.bundles import make_bundle
from tests.support.points import encode, make_points
from tests.support.servers import wait_until


class FullStore(Store):
    """A store that can be read, and takes no points."""

    def insert(self, batches: Iterable[PointTable | OutcomeBatch]) -> Inserted:
        """Always fails."""
        raise StoreUnavailableError("the disk is full")


def test_a_store_that_takes_no_points_is_not_up(tmp_path: Path) -> None:
    """Though queries succeed; it was reported as up."""
    settings = Settings(data_dir=tmp_path)
    with Spool(tmp_path / "spool" / "worker-0") as spool:
        assert spool.append(encode(make_points(3)))
    counts = StorageCounts(tmp_path / "counts")
    with FullStore.open(settings.store_url, auto_upgrade=True) as store:
        worker = StorageWorker(settings, store, counts)

        def is_counted() -> bool:
            worker.step(0.0)
            return read(counts.file.path).number("store_errors") > 0.0

        wait_until(is_counted, what="a failed insert")
        found = read(counts.file.path).number("store_up")
        worker.finish()

    assert found == 0.0


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
