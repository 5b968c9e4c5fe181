"""The storage worker: the one process of a replica that writes to the database.

It drains the spools of all workers, follows the drift of their rows, applies changes that other replicas made, drops
points beyond the retention limits, and publishes drift and accuracy. While the database is down it waits, and scoring
is not affected.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import shutil
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from darksight_core.errors import DarkSightError
from darksight_service.control.changes import check_gates, copy_deployed, record_deployments, restore_state, sync
from darksight_service.control.clock import SteadyClock, known_time
from darksight_service.control.installation import share_secret
from darksight_service.control.state import State
from darksight_service.control.state_file import StateFile
from darksight_service.errors import AuditError, StoreUnavailableError
from darksight_service.ingest.drain import Drain
from darksight_service.metrics.processes import StorageCounts
from darksight_service.processes.children import keep_reporting, stop_event
from darksight_service.processes.live_figures import LiveFigures
from darksight_service.settings import Settings, read_settings
from darksight_service.store.store import Store
from darksight_service.store.write.retention import Limits
from darksight_service.telemetry.logging import set_up_logs
from darksight_service.telemetry.tracing import set_up_tracing, stop_tracing, traced_store

__all__ = ["StorageWorker", "main"]

_NICE = 10
_TICK_SECONDS = 0.1
_SYNC_SECONDS = 1.0
_DRIFT_SECONDS = 1.0
_ACCURACY_SECONDS = 15.0
_PRUNE_SECONDS = 60.0
_VERIFY_SECONDS = 600.0
_ANCHOR_SECONDS = 86_400.0
_RETRY_SECONDS = 2.0
_DAY_SECONDS = 86_400.0
_DAY_MS = 86_400_000
# Growth is measured over at least this time.
_LEAST_SECONDS = 600.0
# Time to write what the workers left after they have exited.
_FINISH_SECONDS = 10.0

_log = logging.getLogger("darksight.storage")


def main() -> int:
    """Run the storage worker until it is told to stop."""
    settings = read_settings()
    set_up_logs("storage", settings.log_level)
    set_up_tracing("storage")
    # Scoring has priority: what is in the spool is safe.
    os.nice(_NICE)
    stop = stop_event()
    counts = StorageCounts(settings.data_dir / "counts", max_models=settings.max_models)
    keep_reporting(stop)
    store = _open_store(settings, stop, counts)
    if store is None:
        return 0
    storage = StorageWorker(settings, store, counts)
    # Everything loaded so far stays. A garbage collection need not visit it while thousands of records come and go.
    gc.collect()
    gc.freeze()
    while not stop.wait(_TICK_SECONDS):
        storage.step(time.monotonic())
    storage.finish()
    store.close()
    stop_tracing()
    counts.close()
    return 0


class StorageWorker:
    """Drains spools, follows changes and maintains the database.

    Parameters
    ----------
    settings
        Settings of the service.
    store
        The database.
    counts
        Metrics of the storage worker.
    clock
        Retention by age follows it. Default: one that goes on from the last run.
    """

    def __init__(
        self, settings: Settings, store: Store, counts: StorageCounts, clock: SteadyClock | None = None
    ) -> None:
        self._settings = settings
        self._store = store
        self._counts = counts
        self._state_file = StateFile(settings.data_dir / "registry.json")
        self._stop = threading.Event()
        self._drains: dict[Path, Drain] = {}
        self._threads: list[threading.Thread] = []
        self._due = dict.fromkeys((_DRIFT_SECONDS, _ACCURACY_SECONDS, _PRUNE_SECONDS), 0.0)
        self._anchor_due = 0.0
        # Size of the store each minute of the last day.
        self._sizes: deque[tuple[float, int]] = deque(maxlen=1440)
        self._time_file = settings.data_dir / "time"
        self._clock = clock or SteadyClock(known_time(settings.data_dir))
        self._broken_trail = ""
        self._recorded_rebuilds = -1
        # Number of rebuilds and last change of the state whose bundles are copied, and why bundles are not.
        self._copied: tuple[int, int] | None = None
        self._not_copied: dict[str, str] = {}
        self._is_store_up = True
        self._figures = LiveFigures(settings, self._state_file, store, counts)
        store.follow_drift(_replica(settings.data_dir), self._figures.detectors)
        store.predict_errors(self._figures.curve)
        self._start(self._follow_changes, "changes")

    def step(self, now: float) -> None:
        """Start drains for new spools, run what is due, and update the metrics."""
        self._find_spools()
        works = (self._figures.publish_evidence, self._figures.publish_accuracy, self._maintain)
        for every, work in zip(self._due, works, strict=True):
            if now >= self._due[every]:
                self._due[every] = now + every
                self._attempt(work)
        self._count_drains()

    def finish(self) -> None:
        """Write what the workers left after they have exited, as far as possible now."""
        self._find_spools()
        end = time.monotonic() + _FINISH_SECONDS
        while time.monotonic() < end:
            stats = [drain.stats() for drain in self._drains.values()]
            if not any(each.depth_bytes for each in stats) or any(each.last_error for each in stats):
                break
            time.sleep(_TICK_SECONDS)
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._count_drains()

    def _find_spools(self) -> None:
        """Start a drain for every new spool, including those that former workers left."""
        for folder in sorted((self._settings.data_dir / "spool").glob("worker-*")):
            if folder not in self._drains:
                drain = self._drains[folder] = Drain(folder, traced_store(self._store))
                self._start(partial(drain.run, self._stop), f"drain-{folder.name}")

    def _start(self, work: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=work, name=name)
        thread.start()
        self._threads.append(thread)

    def _follow_changes(self) -> None:
        """Apply changes every second, however long pruning takes meanwhile, and verify all of them now and then."""
        due = 0.0
        while True:
            self._attempt(self._sync)
            if time.monotonic() >= due:
                due = time.monotonic() + _VERIFY_SECONDS
                self._attempt(self._verify)
            if self._stop.wait(_SYNC_SECONDS):
                return

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StoreUnavailableError as error:
            if self._is_store_up:
                _log.warning("store_unavailable", extra={"error": error.message})
            self._is_store_up = False
            self._counts.add("store_errors")
        except AuditError as error:
            # Every second by the thread that follows changes.
            if error.message != self._broken_trail:
                _log.error("audit_trail_broken", extra={"error": error.message})
            self._broken_trail = error.message
            self._counts.set("audit_trail_broken", 1.0)
        except Exception:
            _log.exception("maintenance_failed", extra={"work": work.__name__})
            self._counts.add("store_errors")

    def _sync(self) -> None:
        state = sync(self._state_file, self._store)
        self._counts.set("state_rebuilds", state.rebuilds)
        # At the start and after each rebuild.
        if state.rebuilds != self._recorded_rebuilds:
            self._store.forget_database()
            share_secret(self._settings.data_dir, self._store)
            record_deployments(self._state_file, self._store, self._settings.bundles)
            self._recorded_rebuilds = state.rebuilds
            state = sync(self._state_file, self._store)
        # Only here: other work may succeed without a query.
        if not self._is_store_up:
            _log.info("store_available")
        self._is_store_up = True
        if (state.rebuilds, state.last_change) != self._copied:
            self._copy(state)

    def _verify(self) -> None:
        """Verify the audit trail, and the state file against it; log the anchor of the trail once a day."""
        changes, last_hash = self._store.verify_trail()
        record_deployments(self._state_file, self._store, self._settings.bundles)
        sync(self._state_file, self._store)
        restore_state(self._state_file, self._store)
        check_gates(self._state_file, self._store)
        self._broken_trail = ""
        self._counts.set("audit_trail_broken", 0.0)
        if time.monotonic() >= self._anchor_due:
            self._anchor_due = time.monotonic() + _ANCHOR_SECONDS
            _log.info("audit_anchor", extra={"anchor": f"{changes}:{last_hash}"})

    def _copy(self, state: State) -> None:
        """Copy deployed bundles; those that cannot be read are tried again at the next sync."""
        failures = copy_deployed(self._state_file, self._settings.bundles, state)
        for version in failures.keys() - self._not_copied.keys():
            _log.warning("bundle_not_copied", extra={"version": version, "error": failures[version]})
        if self._not_copied.keys() - failures.keys():
            # Its deployment may not be in the audit trail yet, for want of the bundle.
            self._recorded_rebuilds = -1
        self._not_copied = failures
        self._copied = None if failures else (state.rebuilds, state.last_change)

    def _maintain(self) -> None:
        settings = self._settings
        now, ahead = self._clock.read()
        self._counts.set("clock_offset_seconds", ahead)
        # A process that starts while the clock is ahead goes on from there. On a full disk retention is needed most.
        with suppress(OSError):
            self._time_file.write_text(f"{now}", encoding="ascii")
        self._store.maintain()
        self._measure(time.monotonic())
        limits = Limits(
            max_age_ms=int(settings.retention_days * _DAY_MS),
            max_rows=settings.retention_rows,
            max_bytes=settings.retention_bytes,
        )
        if limits == Limits():
            return
        # The clock of a database server is another witness.
        pruned = self._store.prune(limits, now_ms=int(1000.0 * min(now, self._store.server_time())))
        if pruned.points:
            self._counts.add("store_pruned_rows", pruned.points)
            _log.info("points_pruned", extra={"points": pruned.points})

    def _measure(self, now: float) -> None:
        """Publish the size of the store, its growth during the last day, and when the disk is full.

        The disk of a PostgreSQL server is not known here.
        """
        sizes = self._sizes
        sizes.append((now, self._store.used_bytes()))
        (start, before), (_, size) = sizes[0], sizes[-1]
        growth = _DAY_SECONDS * (size - before) / (now - start) if now - start >= _LEAST_SECONDS else 0.0
        is_local = self._settings.store_url.startswith("sqlite")
        free = shutil.disk_usage(self._settings.data_dir).free if is_local else math.inf
        self._counts.set("store_bytes", size)
        self._counts.set("store_growth_bytes_per_day", growth)
        self._counts.set("store_seconds_left", _DAY_SECONDS * free / growth if growth > 0.0 else math.inf)

    def _count_drains(self) -> None:
        stats = [drain.stats() for drain in self._drains.values()]
        self._counts.follow("drain_rows", sum(each.inserted for each in stats), value="inserted")
        self._counts.follow("drain_rows", sum(each.duplicates for each in stats), value="duplicate")
        self._counts.follow("drain_rows", sum(each.conflicts for each in stats), value="conflict")
        self._counts.follow("drain_rows", sum(each.quarantined for each in stats), value="quarantined")
        self._counts.follow("spool_damaged_records", sum(each.damaged for each in stats))
        self._counts.follow("spool_lost_bytes", sum(each.lost_bytes for each in stats))
        self._counts.set("spool_files_aside", sum(each.aside for each in stats))
        self._counts.follow("store_errors", sum(each.errors for each in stats))
        self._counts.follow("tag_values_dropped", self._store.folded_tags())
        lag = max((each.lag_seconds for each in stats), default=0.0)
        is_up = self._is_store_up and not any(each.last_error for each in stats)
        self._counts.set_drain(lag_seconds=lag, is_store_up=is_up)


def _replica(folder: Path) -> str:
    """Name of the replica, kept in its data directory."""
    path = folder / "replica"
    if not path.exists():
        partial = path.with_suffix(".partial")
        with open(partial, "w", encoding="ascii") as file:
            file.write(uuid.uuid4().hex)
            file.flush()
            # An empty name after a power cut would be that of another replica.
            os.fsync(file.fileno())
        os.replace(partial, path)
    return path.read_text(encoding="ascii").strip()


def _open_store(settings: Settings, stop: threading.Event, counts: StorageCounts) -> Store | None:
    """The database, as soon as it can be opened; None if told to stop before."""
    was_logged = False
    while True:
        try:
            return Store.open(
                settings.read_store_url,
                keep_probs=settings.keep_probabilities,
                max_tag_values=settings.max_tag_values,
                keep_accepted=settings.keep_accepted,
                audit_rate=settings.audit_rate,
                auto_upgrade=settings.upgrades_store,
            )
        except DarkSightError as error:
            counts.add("store_errors")
            if not was_logged:
                _log.warning("store_unavailable", extra={"error": error.message})
                was_logged = True
        if stop.wait(_RETRY_SECONDS):
            return None


if __name__ == "__main__":
    sys.exit(main())
