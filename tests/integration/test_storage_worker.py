"""The storage worker: what it reports of the store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from darksight_service.errors import StoreUnavailableError
from darksight_service.ingest.spool import Spool
from darksight_service.metrics.files import read
from darksight_service.metrics.processes import StorageCounts
from darksight_service.processes.storage_worker import StorageWorker
from darksight_service.settings import Settings
from darksight_service.store.points import OutcomeBatch, PointTable
from darksight_service.store.store import Inserted, Store

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
