"""Retention: by age, number and size, on both databases; nobody waits for it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest
from darksight_service.store.points import PointFilter
from darksight_service.store.store import Store
from darksight_service.store.tables import rollup
from darksight_service.store.write.retention import Limits
from sqlalchemy import func, select

from tests.support.points import make_outcomes, make_points
from tests.support.servers import wait_until

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


def fill(store: Store, *, days: int = 5, rows: int = 100) -> None:
    """As many points on each of the last days, today included, and an outcome for the first of each."""
    for day in range(days):
        names = tuple(f"{day}-{row}" for row in range(rows))
        ms = NOW_MS - day * DAY_MS
        store.insert([make_points(rows, ms=ms, seed=day, names=names), make_outcomes({names[0]: 1}, ms=ms)])


def ages(store: Store) -> dict[int, int]:
    """Stored points by their age in days."""
    points = store.list_points(PointFilter("digits"), page_size=10_000).points
    return Counter(((NOW_MS - points.received_ms) // DAY_MS).tolist())


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        (Limits(max_age_ms=2 * DAY_MS + 1), {0: 100, 1: 100, 2: 100}),
        (Limits(max_rows=250), {0: 100, 1: 100}),
        (Limits(max_rows=10), {0: 100}),
        (Limits(max_rows=500), {0: 100, 1: 100, 2: 100, 3: 100, 4: 100}),
        (Limits(max_bytes=1), {0: 100}),
    ],
    ids=["age", "rows", "few rows", "none", "bytes"],
)
def test_whole_days_go_on_postgresql(
    postgres_url: str, open_store: Callable[..., Store], limits: Limits, left: dict[int, int]
) -> None:
    """The oldest first, until the limits are met; the current day stays whatever they say."""
    store = open_store(postgres_url)
    fill(store)

    planned = store.prune(limits, dry_run=True)
    before = ages(store)
    pruned = store.prune(limits)

    assert sum(before.values()) == 500
    assert ages(store) == left
    assert pruned.points == planned.points == 500 - sum(left.values())
    assert pruned.days == planned.days
    assert len(store.stats().days) == len(left)
    assert pruned.bytes == planned.bytes
    assert store.prune(limits).points == 0


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        (Limits(max_age_ms=2 * DAY_MS + 1), {0: 100, 1: 100, 2: 100}),
        (Limits(max_rows=250), {0: 100, 1: 100, 2: 50}),
        (Limits(max_rows=10), {0: 10}),
        (Limits(max_rows=500), {0: 100, 1: 100, 2: 100, 3: 100, 4: 100}),
    ],
    ids=["age", "rows", "few rows", "none"],
)
def test_the_oldest_points_go_on_sqlite(
    tmp_path_factory: pytest.TempPathFactory, open_store: Callable[..., Store], limits: Limits, left: dict[int, int]
) -> None:
    """Exactly as many as needed."""
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('db') / 'store.db'}", auto_upgrade=True)
    fill(store)

    planned = store.prune(limits, dry_run=True)
    pruned = store.prune(limits)

    assert ages(store) == left
    assert pruned.points == planned.points == 500 - sum(left.values())
    assert store.prune(limits).points == 0


def test_sqlite_gives_its_space_back(
    tmp_path_factory: pytest.TempPathFactory, open_store: Callable[..., Store]
) -> None:
    """By size: the file shrinks to what is allowed."""
    path = tmp_path_factory.mktemp("db") / "store.db"
    store = open_store(f"sqlite:///{path}", auto_upgrade=True)
    for part in range(5):
        store.insert([make_points(4000, ms=NOW_MS - part * 1000, seed=part, names=None)])
    size = store.stats().bytes

    pruned = store.prune(Limits(max_bytes=size // 2))

    assert store.stats().bytes <= size // 2
    assert pruned.points > 5_000
    store.close()
    assert path.stat().st_size < 0.7 * size


def counted_points(store: Store) -> int:
    """Points by the counts per minute."""
    with store._engine.begin() as connection:
        return int(connection.scalar(select(func.sum(rollup.c.points))) or 0)


def test_outcomes_and_counts_go_when_they_are_old(store: Store) -> None:
    """Outcomes with their points, unmatched ones by age; counts per minute only if asked, and after their points."""
    fill(store)
    store.insert([make_outcomes({"never": 1}, ms=NOW_MS - 4 * DAY_MS), make_outcomes({"yet": 1}, ms=NOW_MS)])

    planned = store.prune(Limits(max_age_ms=2 * DAY_MS + 1), dry_run=True)
    pruned = store.prune(Limits(max_age_ms=2 * DAY_MS + 1))
    counted = counted_points(store)

    # A dry run sees outcomes that still have their points, and so only those that have none.
    assert (planned.outcomes, pruned.outcomes) == (1, 3)
    assert (store.stats().outcomes, store.stats().unmatched) == (4, 1)
    assert counted == 500

    assert store.prune(Limits(max_rollup_age_ms=1), dry_run=True).rollups > 0
    store.prune(Limits(max_rollup_age_ms=1))
    assert counted_points(store) == sum(ages(store).values()) == store.stats().points == 300


def test_points_of_a_wrong_clock_are_pruned_by_age_too(postgres_url: str, open_store: Callable[..., Store]) -> None:
    """Those in the default partition go one by one."""
    store = open_store(postgres_url)
    store.insert([make_points(5, ms=1_000, seed=1), make_points(5, ms=NOW_MS + 900 * DAY_MS, seed=2)])

    assert store.prune(Limits(max_age_ms=DAY_MS), dry_run=True).points == 5
    assert store.prune(Limits(max_age_ms=DAY_MS)).points == 5
    assert len(store.list_points(PointFilter("digits")).points) == 5


def test_writers_and_long_readers_go_on_while_days_are_dropped(
    postgres_url: str, open_store: Callable[..., Store]
) -> None:
    """A drop that has to wait for a reader steps back again and again: inserts get through while it waits."""
    store, writer = open_store(postgres_url), open_store(postgres_url)
    fill(store)
    drops = threading.Thread(target=store.prune, args=(Limits(max_age_ms=DAY_MS),))

    with psycopg.connect(postgres_url) as reader:
        reader.execute("SELECT count(*) FROM point")
        drops.start()
        wait_until(lambda: is_waiting_for_a_lock(postgres_url), what="the drop to wait")
        for number in range(5):
            writer.insert([make_points(5, ms=NOW_MS, seed=1000 + number)])
        assert drops.is_alive()
        reader.rollback()
        drops.join()

    assert len(store.stats().days) <= 2


def is_waiting_for_a_lock(url: str) -> bool:
    """Whether somebody waits to have a table for himself."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"
        ).fetchone()
    return found is not None and found[0] > 0


def test_stats_count_the_rows_that_are_left(url: str, open_store: Callable[..., Store]) -> None:
    """Not those that were deleted in the same minute, and those of any age."""
    store = open_store(url)
    store.insert([make_points(100, ms=NOW_MS - 3 * DAY_MS)])
    store.insert([make_points(50, ms=NOW_MS, seed=1)])
    before = store.stats().points

    store.prune(Limits(max_rows=70))

    assert before == 150
    assert store.stats().points == len(store.list_points(PointFilter("digits"), page_size=10_000).points)
