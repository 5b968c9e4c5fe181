"""The store on SQLite and on a real PostgreSQL: what comes in comes out, once, and the figures are right."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from darksight_service.errors import (
    AuditError,
    RequestError,
    StoreError,
    StoreUnavailableError,
)
from darksight_service.ingest.records import decode_all
from darksight_service.store.engine import Timeouts, make_engine, translate_database_errors
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.read.policy_evaluation import DecisionCounts
from darksight_service.store.store import Store
from darksight_service.store.tables import BINS
from darksight_service.store.texts import Texts

from darksight_core.errors import ConfigError
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import Cutoff
from darksight_core.map.regions import Region, inside_any
from tests.support.points import VERSION, encode, make_outcomes, make_points, rows_of
from tests.support.postgres import Postgres, running_postgres
from tests.support.servers import wait_until

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000
DAY_MS = 86_400_000
ALL = {"since_ms": 0, "until_ms": 2 * NOW_MS}


def everything(store: Store, **wanted: Any) -> list[Any]:
    """All points of a filter, page by page."""
    found: list[Any] = []
    token = ""
    while True:
        page = store.list_points(PointFilter("digits", **wanted), page_size=97, page_token=token)
        found += rows_of(page.points)
        token = page.next_token
        if not token:
            return found


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Rows from the database itself."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            return connection.execute(statement).fetchall()
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)  # type: ignore[call-overload]  # wants a literal
        return [] if cursor.description is None else cursor.fetchall()


def test_a_point_that_arrived_late_is_received_when_it_arrived(store: Store) -> None:
    """Points are sorted by the time of their ids; the time at which they were received is stored beside it."""
    store.insert([make_points(2, ms=NOW_MS, delay_ms=90_000), make_points(1, ms=NOW_MS + 1)])

    found = everything(store)

    assert [point.received_ms for point in found] == [NOW_MS + 1, NOW_MS + 90_000, NOW_MS + 90_000]


def spread(count: int, *, seed: int = 0, **options: Any) -> list[PointTable]:
    """Batches over a few hours, of several sizes."""
    rng = np.random.default_rng(seed)
    return [
        make_points(
            int(rng.integers(1, 40)), ms=NOW_MS - int(rng.integers(0, 5 * 60 * MINUTE_MS)), seed=number, **options
        )
        for number in range(count)
    ]


def test_a_point_is_read_as_it_was_stored(store: Store) -> None:
    """Every column of a batch is there again, with the probabilities to half precision."""
    batch = make_points(20, ms=NOW_MS, names=None)

    store.insert([batch])

    found = everything(store)[::-1]
    assert [point.prediction_id for point in found] == batch.prediction_ids()
    assert [point.id.replace("-", "") for point in found] == [each.hex() for each in batch.id_bytes()]
    assert {(point.model, point.version, point.received_ms, point.event_ms, point.label) for point in found} == {
        ("digits", VERSION, NOW_MS, 0, -1)
    }
    for name in (
        "log_density",
        "log_kde",
        "outlier_score",
        "p_value",
        "confidence",
        "top",
        "decision",
        "reason",
        "predicted",
    ):
        np.testing.assert_array_equal(
            np.array([getattr(point, name) for point in found], np.float32), getattr(batch, name)
        )
    np.testing.assert_array_equal(np.array([(point.x, point.y) for point in found], np.float32), batch.points)
    valid = batch.reason != 5
    kept = np.stack([point.probs for point, is_valid in zip(found, valid, strict=True) if is_valid])
    np.testing.assert_allclose(kept, batch.probs[valid], rtol=1e-3, atol=1e-7)
    assert [len(point.probs) for point, is_valid in zip(found, valid, strict=True) if not is_valid] == [0, 0]


def test_no_stored_number_is_nan(url: str, store: Store) -> None:
    """What a row that is not valid lacks is NULL."""
    store.insert([make_points(50, ms=NOW_MS)])

    (found,) = query(url, "SELECT count(*), count(x), count(p_value), count(probs) FROM point")

    assert found == (50, 43, 43, 43)
    if not url.startswith("sqlite"):
        assert query(url, "SELECT count(*) FROM point WHERE x = 'NaN' OR p_value = 'NaN' OR top = 'NaN'") == [(0,)]


def test_event_time_and_own_names_are_kept(store: Store) -> None:
    """The time that a caller gave is kept; a row without a name is called by its batch and number."""
    given = make_points(3, ms=NOW_MS, seed=1, event_ms=NOW_MS - 12_345)

    store.insert([given])

    found = everything(store)
    assert {point.event_ms for point in found} == {NOW_MS - 12_345}
    assert [point.prediction_id for point in found[::-1]] == given.prediction_ids()


@pytest.mark.parametrize("event_ms", [-(1 << 62), 1 << 62], ids=["before", "after"])
def test_times_out_of_the_calendar_are_brought_into_it(store: Store, event_ms: int) -> None:
    """No event time that a caller gives can make a point unreadable."""
    store.insert([make_points(2, ms=NOW_MS, event_ms=event_ms)])

    assert len(everything(store)) == 2


@pytest.mark.parametrize(
    ("keep", "kept"), [("float16", 10), ("topK:2", 2), ("topK:9", 10), ("none", 0)], ids=lambda value: str(value)
)
def test_probabilities_are_kept_as_asked(url: str, open_store: Callable[..., Store], keep: str, kept: int) -> None:
    """All, the largest few, or none; what was kept before the setting changed can still be read."""
    batch = make_points(30, ms=NOW_MS, with_invalid=False)
    with_all = make_points(1, ms=NOW_MS - 1, with_invalid=False)
    open_store(url).insert([with_all])
    store = open_store(url, keep_probs=keep)

    store.insert([batch])

    *found, old = everything(store)
    assert max(np.count_nonzero(point.probs) for point in found) == kept
    assert len(old.probs) == 10
    if kept:
        assert [int(point.probs.argmax()) for point in found[::-1]] == batch.predicted.tolist()


def test_unknown_way_to_keep_probabilities_is_refused(url: str, open_store: Callable[..., Store]) -> None:
    """A setting that means nothing is an error at the start."""
    with pytest.raises(ConfigError, match="topK:<k>"):
        open_store(url, keep_probs="top5")


def test_merged_single_rows_are_stored_like_the_batches_they_were(url: str, open_store: Callable[..., Store]) -> None:
    """The drain may bring calls of one row merged; nothing differs."""
    store = open_store(url)
    batches = [make_points(1, ms=NOW_MS + number, seed=number, names=(f"n{number}",)) for number in range(30)]
    merged = decode_all(map(encode, batches))

    first = store.insert(merged)
    again = store.insert(batches)

    assert (first.points, again.points, again.repeated) == (30, 0, 30)
    assert [point.prediction_id for point in everything(store)[::-1]] == [f"n{number}" for number in range(30)]


def test_the_same_batch_twice_is_stored_once(store: Store) -> None:
    """In two calls, in one call, and mixed with new ones."""
    batches = [make_points(40, ms=NOW_MS - number, seed=number) for number in range(6)]

    counts = [store.insert(batches[:3]), store.insert(batches[:3]), store.insert(batches[1:5] + batches[3:])]

    assert [(count.points, count.repeated) for count in counts] == [(120, 0), (0, 120), (120, 160)]
    assert len({point.id for point in everything(store)}) == len(everything(store)) == 240


@pytest.mark.parametrize("change", ["model", "names", "predicted", "top", "scores"])
def test_an_id_of_another_row_is_a_conflict(store: Store, change: str) -> None:
    """Not stored, and not taken for a repetition, which may have other scores: another version may have made them."""
    first = make_points(14, names=None)
    columns: dict[str, Any] = {
        "model": {"model": "other"},
        "names": {"names": Texts.of([f"other-{row}" for row in range(14)])},
        "predicted": {"predicted": first.predicted + 1},
        "top": {"top": first.top + np.float32(0.01)},
        "scores": {"p_value": first.p_value / 2, "versions": ("b" * 64,)},
    }
    store.insert([first])

    found = store.insert([make_points(5, seed=1), replace(first, **columns[change])])

    # The invalid rows have no largest probability.
    conflicts = {"scores": 0, "top": 12}.get(change, 14)
    assert (found.points, found.conflicts, found.duplicates) == (5, conflicts, 14 - conflicts)


def test_replicas_share_the_first_secret(store: Store) -> None:
    """Whoever comes later gets the one that is stored."""
    assert store.keep_secret(b"a" * 32) == store.keep_secret(b"b" * 32) == b"a" * 32


def test_two_writers_of_the_same_rows_store_each_once(url: str, open_store: Callable[..., Store]) -> None:
    """Overlapping batches from threads with stores of their own."""
    batches = spread(60)
    failures: list[BaseException] = []
    inserted = []

    def write(mine: list[PointTable]) -> None:
        store = open_store(url)
        try:
            for start in range(0, len(mine), 5):
                while True:
                    try:
                        inserted.append(store.insert(mine[start : start + 5]).points)
                        break
                    except StoreUnavailableError:
                        time.sleep(0.01)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(mine,)) for mine in (batches[:45], batches[15:][::-1], batches)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    store = open_store(url)
    total = sum(map(len, batches))
    assert failures == []
    assert sum(inserted) == total == store.stats().points
    assert len(everything(store)) == len({point.id for point in everything(store)}) == total


def test_counts_per_minute_equal_the_points(url: str, store: Store) -> None:
    """After random inserts and repetitions, with shadows and classes above the limit."""
    rng = np.random.default_rng(3)
    batches = spread(40, classes=130) + spread(20, seed=9, is_shadow=True, version="b" * 64)
    for _ in range(30):
        chosen = rng.integers(len(batches), size=4)
        store.insert([batches[number] for number in chosen])

    minute = "(('x' || substr(id::text, 1, 8) || substr(id::text, 10, 4))::bit(48)::bigint / 60000)"
    if url.startswith("sqlite"):
        # Points carry the minute in the first six bytes of their id; SQLite cannot read them, so Python does.
        rows = query(
            url, "SELECT id, bundle_id, is_shadow, is_accepted, reason, predicted, log_density, p_value FROM point"
        )
        found = [(int.from_bytes(row[0][:6], "big") // MINUTE_MS, *row[1:]) for row in rows]
    else:
        found = query(
            url,
            f"SELECT {minute}, bundle_id, is_shadow::int, is_accepted::int, reason, predicted, log_density, p_value "
            "FROM point",
        )
    points: Counter[Any] = Counter()
    sums: Counter[Any] = Counter()
    bins: Counter[Any] = Counter()
    for at, bundle, shadow, decision, reason, predicted, density, p_value in found:
        key = (bundle, at, shadow, decision, reason, min(predicted, 100))
        points[key] += 1
        sums[key] += density or 0.0
        if p_value is not None:
            bins[bundle, at, shadow, min(BINS - 1, max(0, int(np.ceil(p_value * BINS - 1e-6)) - 1))] += 1
    columns = "bundle_id, minute, cast(is_shadow as int), cast(is_accepted as int), reason, predicted"
    rollup = query(url, f"SELECT {columns}, points, log_density_sum FROM rollup")
    assert {row[:6]: row[6] for row in rollup} == dict(points)
    np.testing.assert_allclose([row[7] for row in rollup], [sums[row[:6]] for row in rollup], rtol=1e-6, atol=1e-9)
    binned = query(url, "SELECT bundle_id, minute, cast(is_shadow as int), bin, points FROM rollup_bin")
    assert {row[:4]: row[4] for row in binned} == dict(bins)


FILTERS: list[dict[str, Any]] = [
    {},
    {"version": VERSION},
    {"version": "c" * 64},
    {"decisions": (2,)},
    {"reasons": (2,)},
    {"predicted": (3, 4)},
    {"predicted": (117,)},
    {"reasons": (2, 5), "decisions": (2,), "predicted": (-1, 2)},
    {"since_ms": NOW_MS - 90 * MINUTE_MS - 7, "until_ms": NOW_MS - 31 * MINUTE_MS - 3},
    {"until_ms": NOW_MS - 120 * MINUTE_MS, "predicted": (5,)},
    {"is_shadow": True},
]


def test_filters_find_what_they_say(store: Store) -> None:
    """Pages hold exactly the points that a look at every point finds, newest first."""
    store.insert(spread(60, classes=130) + spread(9, seed=5, version="b" * 64) + spread(9, seed=6, is_shadow=True))
    points = {shadow: everything(store, is_shadow=shadow) for shadow in (False, True)}

    def is_wanted(point: Any, wanted: dict[str, Any]) -> bool:
        columns = (("decision", "decisions"), ("reason", "reasons"), ("predicted", "predicted"))
        return (
            wanted.get("version") in (None, point.version)
            and all(getattr(point, name) in wanted[names] for name, names in columns if names in wanted)
            and wanted.get("since_ms", 0) <= point.received_ms < wanted.get("until_ms", 1 << 60)
        )

    found = [[point.id for point in everything(store, **wanted)] for wanted in FILTERS]

    expected = [
        [point.id for point in points[wanted.get("is_shadow", False)] if is_wanted(point, wanted)] for wanted in FILTERS
    ]
    assert found == expected
    assert found[0] == sorted(found[0], reverse=True)
    assert sum(map(bool, found)) == len(FILTERS) - 1


def test_paging_sees_each_point_once_while_others_write(url: str, open_store: Callable[..., Store]) -> None:
    """What was there at the first page is seen exactly once; what comes later does no harm."""
    store = open_store(url)
    store.insert(spread(60))
    before = {point.id for point in everything(store)}
    stop = threading.Event()

    def write() -> None:
        writer = open_store(url)
        number = 1000
        while not stop.is_set():
            writer.insert([make_points(5, ms=NOW_MS - number * 17, seed=number)])
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = [point.id for _ in range(3) for point in everything(store)]
    finally:
        stop.set()
        thread.join()

    counts = Counter(seen)
    assert {counts[each] for each in before} == {3}
    assert max(counts.values()) == 3


@pytest.mark.parametrize("token", ["x", "!!!", "AAAA", "é"], ids=["short", "no base64", "wrong length", "no ASCII"])
def test_a_page_token_that_is_none_is_refused(store: Store, token: str) -> None:
    """As an error of the request, with the field."""
    with pytest.raises(RequestError) as caught:
        store.list_points(PointFilter("digits"), page_token=token)

    assert caught.value.details["field"] == "page_token"


def test_a_page_token_of_another_request_is_refused(store: Store) -> None:
    """A token goes on with the request that it came from, and no other."""
    store.insert([make_points(30, ms=NOW_MS)])
    token = store.list_points(PointFilter("digits"), page_size=10).next_token

    with pytest.raises(RequestError, match="page_token"):
        store.list_points(PointFilter("digits", decisions=(1,)), page_size=10, page_token=token)
    with pytest.raises(RequestError, match="from 1 to 10,000"):
        store.list_points(PointFilter("digits"), page_size=10_001)


REGIONS = (
    Region("middle", ((-1.0, -1.0), (1.5, -0.5), (0.2, 0.3), (0.5, 2.0))),
    Region("overlapping", ((0.0, 0.0), (2.0, 0.0), (2.0, 2.0))),
)


def make_gate(rank: int = 0, threshold: float | None = None, **options: Any) -> Gate:
    """A gate with an outlier rule at rank / 1001 unless it is 0, and a threshold if there is one."""
    outlier = Cutoff(rank, 1000, rank / 1001, None, 1) if rank else None
    if threshold is None:
        return Gate(outlier, **options)
    return Gate(outlier, "msp", threshold, **options)


GATES = [
    make_gate(),
    make_gate(100),
    make_gate(20, 0.7),
    make_gate(0, 0.3),
    make_gate(500, 0.9, fail_open=True),
    make_gate(50, -np.inf),
    make_gate(100, 0.5, fail_open=True, regions=REGIONS),
    make_gate(regions=REGIONS[:1]),
]


def reason_by(gate: Gate, point: Any) -> int:
    """The rules of the gate, in their order."""
    has_rule = gate.reject_score is not None
    if point.reason == 5:
        return 5
    if gate.outlier is not None and point.p_value <= np.float32(gate.outlier.p_value):
        return 2
    if np.isnan(point.p_value) or (has_rule and np.isnan(point.confidence)):
        return 6
    if has_rule and point.confidence <= np.float32(gate.threshold):
        return 3
    return 1


def counted(points: list[Any], reasons: list[int], accepted: list[bool]) -> DecisionCounts:
    """Counts one point at a time."""
    counts = DecisionCounts()
    fields = {2: "outliers", 3: "low_confidence", 4: "regions", 5: "invalid", 6: "unscored"}
    for point, reason, is_accepted in zip(points, reasons, accepted, strict=True):
        names = [
            "points",
            "stored",
            *(["accepted"] if is_accepted else []),
            *([fields[reason]] if reason in fields else []),
        ]
        side = "accepted" if is_accepted else "rejected"
        names += [f"{side}_labelled"] if point.label >= 0 else []
        names += [f"{side}_correct"] if point.label == point.predicted >= 0 else []
        for name in names:
            setattr(counts, name, getattr(counts, name) + 1)
    return counts


def test_evaluating_a_policy_equals_deciding_again(store: Store) -> None:
    """Before and after are what the stored numbers say, by the rules of the gate and in their order."""
    regions = make_points(
        30, ms=NOW_MS - 5, seed=77, reason=np.full(30, 4), decision=np.full(30, 2), with_invalid=False
    )
    unscored = make_points(
        9, ms=NOW_MS - 9, seed=78, p_value=np.full(9, np.nan), reason=np.full(9, 6), decision=np.ones(9)
    )
    store.insert([*spread(30, names=None), regions, unscored, make_points(50, ms=NOW_MS, seed=4, is_shadow=True)])
    truth = {point.prediction_id: point.predicted + (n % 3 == 0) for n, point in enumerate(everything(store))}
    store.insert([make_outcomes({name: label for name, label in truth.items() if label >= 0})])
    points = everything(store)

    found = [store.evaluate_policy("digits", VERSION, gate, **ALL) for gate in GATES]

    before = counted(points, [point.reason for point in points], [point.decision == 1 for point in points])
    expected = []
    for gate in GATES:
        reasons = [reason_by(gate, point) for point in points]
        accepting = (1, 6) if gate.fail_open else (1,)
        inside = inside_any(gate.regions, [(point.x, point.y) for point in points])
        reasons = [4 if is_in and each in accepting else each for each, is_in in zip(reasons, inside, strict=True)]
        expected.append((before, counted(points, reasons, [reason in accepting for reason in reasons])))
    assert found == expected
    assert before.regions == 30
    assert before.accepted_correct > 0
    assert len({after.accepted for _, after in found}) >= 5


def test_indexed_queries_use_their_index(postgres_url: str, open_store: Callable[..., Store]) -> None:
    """On PostgreSQL a page reads a range of the primary key of the days it needs, and a name is found by its index."""
    store = open_store(postgres_url)
    store.insert([make_points(2_000, ms=NOW_MS - day * DAY_MS, seed=day, names=None) for day in range(5)])
    query(postgres_url, "ANALYZE")

    low, high = (f"'{(each << 80).to_bytes(16, 'big').hex()}'" for each in (NOW_MS - 1000, NOW_MS + 1000))
    page = f"EXPLAIN SELECT * FROM point WHERE id >= {low} AND id < {high} ORDER BY id DESC LIMIT 10"
    wanted = "'order-0001-00001'"
    name = f"hashtext(prediction_id) & 262143 = hashtext({wanted}) & 262143 AND prediction_id = {wanted}"
    plan = "\n".join(row[0] for row in query(postgres_url, page))
    by_name = "\n".join(row[0] for row in query(postgres_url, f"EXPLAIN SELECT id FROM point WHERE {name}"))

    assert re.search(r"Index Scan Backward using point_20270115_pkey on point_20270115", plan)
    assert "point_20270114" not in plan
    assert by_name.count("_expr_idx") >= 5 or by_name.count("Index Cond") >= 5
    assert "Seq Scan on point_2027" not in by_name


def test_sparse_searches_read_few_rows_on_sqlite(tmp_path: Path, open_store: Callable[..., Store]) -> None:
    """Ranges of minutes are looked up one by one in the primary key, not by reading all rows between them."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store = open_store(url, auto_upgrade=True)
    store.insert([make_points(3, ms=NOW_MS - each * MINUTE_MS, seed=each, with_invalid=False) for each in range(300)])

    plans: list[str] = []
    from sqlalchemy import event

    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "spans" in statement and not statement.startswith("EXPLAIN"):
            driver = connection.connection.driver_connection
            plans.extend(row[3] for row in driver.execute("EXPLAIN QUERY PLAN " + statement, parameters))

    event.listen(store._engine, "before_cursor_execute", explain)
    found = store.list_points(PointFilter("digits", predicted=(4,)), page_size=30)

    assert len(found.points) == 30
    assert any("SEARCH point USING PRIMARY KEY (id>? AND id<?)" in plan for plan in plans)
    order = [plan for plan in plans if "spans" in plan or "point USING PRIMARY KEY" in plan or "SCAN point" in plan]
    assert "spans" in order[0]


def test_points_of_a_wrong_clock_are_kept_and_find_their_day_later(
    postgres_url: str, open_store: Callable[..., Store]
) -> None:
    """Years off goes to the default partition; when its day is made, its points move there."""
    store = open_store(postgres_url)
    ahead = make_points(5, ms=NOW_MS + 10 * DAY_MS, seed=1)
    store.insert([ahead, make_points(5, ms=NOW_MS + 9_000 * DAY_MS, seed=2), make_points(5, ms=1_000, seed=3)])
    assert query(postgres_url, "SELECT count(*) FROM point_default") == [(15,)]

    later = open_store(postgres_url, now_ms=NOW_MS + 10 * DAY_MS)
    later.insert([make_points(5, ms=NOW_MS + 10 * DAY_MS + 1, seed=4)])
    again = later.insert([ahead])

    assert again.repeated == 5
    assert query(postgres_url, "SELECT count(*) FROM point_default") == [(10,)]
    assert query(postgres_url, "SELECT count(*) FROM point_20270125") == [(10,)]
    assert len(everything(later)) == 20


def test_old_points_find_a_partition_that_is_older_than_any_we_would_make(
    postgres_url: str, open_store: Callable[..., Store]
) -> None:
    """A process that does not know the day yet looks, and does not send its points to the default partition."""
    open_store(postgres_url).insert([make_points(5, ms=NOW_MS, seed=1)])
    later = open_store(postgres_url, now_ms=NOW_MS + 100 * DAY_MS)

    assert later.insert([make_points(5, ms=NOW_MS, seed=2)]).points == 5
    assert query(postgres_url, "SELECT count(*) FROM point_20270115") == [(10,)]


def test_a_partition_made_by_someone_else_is_used(postgres_url: str, open_store: Callable[..., Store]) -> None:
    """Two processes whose clocks differ: one makes the day that the other sent to the default partition."""
    behind, ahead = open_store(postgres_url), open_store(postgres_url, now_ms=NOW_MS + 9 * DAY_MS)
    early = make_points(5, ms=NOW_MS + 10 * DAY_MS, seed=1)
    behind.insert([early])
    ahead.insert([make_points(5, ms=NOW_MS + 10 * DAY_MS, seed=2)])

    behind.insert([early, make_points(5, ms=NOW_MS + 10 * DAY_MS, seed=3)])

    assert query(postgres_url, "SELECT count(*) FROM point_20270125") == [(15,)]
    assert len(everything(behind)) == 15


def test_partitions_are_made_ahead(postgres_url: str, open_store: Callable[..., Store]) -> None:
    """Maintenance makes today and two days more; doing it twice changes nothing."""
    store = open_store(postgres_url)

    store.maintain()
    store.maintain()

    assert store.stats().days == ["point_20270115", "point_20270116", "point_20270117"]


def test_a_partition_dropped_by_someone_else_is_made_again(postgres_url: str, open_store: Callable[..., Store]) -> None:
    """A store that remembers a partition which is gone inserts all the same."""
    store = open_store(postgres_url)
    store.insert([make_points(5, ms=NOW_MS, seed=1)])
    query(postgres_url, "DROP TABLE point_20270115")

    assert store.insert([make_points(5, ms=NOW_MS, seed=2)]).points == 5


def test_a_database_that_is_away_is_said_to_be_away(open_store: Callable[..., Store]) -> None:
    """Stopped, or frozen in mid-connection: StoreUnavailableError, in bounded time; then it works again."""
    short = Timeouts(connect=1.0, statement=1.0, silence=1.5)
    with running_postgres() as server:
        with Store.open(server.url(), check=False) as first:
            first.upgrade()
        store = open_store(server.url(), timeouts=short)
        took = []

        def is_there(seed: int) -> bool:
            # So short a time may not be enough on a machine that does other things, too.
            with suppress(StoreUnavailableError):
                return store.insert([make_points(5, ms=NOW_MS, seed=seed)]).points == 5
            return False

        def is_away() -> bool:
            started = time.monotonic()
            with pytest.raises(StoreUnavailableError):
                store.insert([make_points(5, ms=NOW_MS, seed=2)])
            took.append(time.monotonic() - started)
            return True

        wait_until(lambda: is_there(1))
        server.pause()
        try:
            assert is_away()
        finally:
            server.resume()
        server.stop()
        assert is_away()
        server.start()
        wait_until(lambda: is_there(2))
    assert max(took) < 30


def test_errors_do_not_tell_the_password(open_store: Callable[..., Store]) -> None:
    """Neither the message nor the details have it."""
    with pytest.raises(StoreUnavailableError) as caught:
        open_store("postgresql://me:hunter2@127.0.0.1:1/none")

    assert "hunter2" not in f"{caught.value} {caught.value.details}"


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "sqlite://"])
def test_a_database_that_cannot_be_used_is_refused(url: str) -> None:
    """With a sentence that says what can."""
    with pytest.raises(ConfigError, match=r"sqlite|SQLite"):
        Store.open(url)


def test_the_audit_trail_is_numbered_and_found_again(url: str, open_store: Callable[..., Store]) -> None:
    """Appends from several threads get the numbers 1, 2, 3, ... and a sound chain."""
    stores = [open_store(url) for _ in range(4)]
    numbers: list[int] = []

    def append(store: Store) -> None:
        numbers.extend(
            store.append_change("policy", "digits", {"alpha": n / 7, "name": "é"}, "ann", "why") for n in range(5)
        )

    threads = [threading.Thread(target=append, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stores[0].append_change("deploy", "other", {"version": VERSION})

    assert sorted(numbers) == list(range(1, 21))
    assert [change.id for change in stores[0].changes_since(17)] == [18, 19, 20, 21]
    (last, *_) = stores[0].history("digits", kinds=("policy",))
    assert (last.id, last.kind, last.author, last.comment, last.changed_ms) == (20, "policy", "ann", "why", NOW_MS)
    assert last.payload["name"] == "é"
    assert stores[0].check()[0] == 21


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE policy_change SET payload = '{}' WHERE id = 2",
        "UPDATE policy_change SET author = 'bob' WHERE id = 1",
        "DELETE FROM policy_change WHERE id = 2",
        "DELETE FROM policy_change WHERE id = 1",
    ],
)
def test_tampering_with_the_audit_trail_shows(url: str, store: Store, tampering: str) -> None:
    """The database refuses it; and where someone gets around that, the check finds the place."""
    for number in range(3):
        store.append_change("policy", "digits", {"alpha": number})
    with pytest.raises((sqlite3.DatabaseError, psycopg.Error), match="append-only"):
        query(url, tampering)

    if url.startswith("sqlite"):
        query(url, "DROP TRIGGER policy_change_no_update")
        query(url, "DROP TRIGGER policy_change_no_delete")
    else:
        query(url, "DROP TRIGGER policy_change_append_only ON policy_change")
    store.check()
    query(url, tampering)

    with pytest.raises(AuditError) as caught:
        store.check()
    assert caught.value.details["id"] in (1, 2, 3)


def test_a_change_of_unknown_kind_is_refused(store: Store) -> None:
    """The trail has only what can be folded."""
    with pytest.raises(ConfigError, match="deploy"):
        store.append_change("typo", "digits", {})


def test_of_the_newest_points_those_inside_a_region_are_found(store: Store) -> None:
    """What the database and the region say together is what the region says about every stored point."""
    old = make_points(40, ms=NOW_MS - 90 * DAY_MS, seed=3, version="b" * 64)
    store.insert([*spread(20, names=None), make_points(30, ms=NOW_MS, seed=4, is_shadow=True), old])
    points = [point for point in everything(store) if point.version == VERSION]
    store.insert(
        [make_outcomes({point.prediction_id: max(0, point.predicted - n % 2) for n, point in enumerate(points[::3])})]
    )
    points = [point for point in everything(store) if point.version == VERSION]
    region = Region("drawn", ((-1.0, -1.0), (1.5, -0.5), (0.2, 0.3), (0.5, 2.0)))

    for limit in (1, 70, 10_000):
        found = store.newest_inside("digits", VERSION, region, since_ms=0, until_ms=NOW_MS + DAY_MS, limit=limit)
        examined = points[:limit]
        inside = [point for point in examined if region.inside([(point.x, point.y)])[0]]
        assert found.examined == len(examined)
        assert found.accepted == sum(point.decision == 1 for point in examined)
        assert found.oldest_ms == examined[-1].received_ms
        assert [str(uuid.UUID(bytes=each)) for each in found.inside.id_bytes()] == [point.id for point in inside]
        for name in ("label", "decision", "reason", "predicted"):
            assert getattr(found.inside, name).tolist() == [getattr(point, name) for point in inside]
    assert len(inside) > 20
    some = store.points_by_id("digits", VERSION, found.inside.id_bytes()[6::-1])
    assert [point.id for point in rows_of(some)] == [point.id for point in inside[6::-1]]
    empty = store.newest_inside("digits", VERSION, region, since_ms=NOW_MS + 1, until_ms=NOW_MS + DAY_MS, limit=9)
    assert (empty.examined, empty.oldest_ms, len(empty.inside)) == (0, 0, 0)
    other = store.newest_inside("digits", "b" * 64, region, since_ms=0, until_ms=NOW_MS + 1, limit=9)
    assert other.examined == 9


def test_a_broken_record_is_no_outage(store: Store) -> None:
    """What the database can never take is a StoreError, so that the drain puts it aside; all else is not touched."""
    bad = make_points(3, ms=NOW_MS, names=("a", "b\0", "c"))

    if store.stats().database == "postgresql":
        with pytest.raises(StoreError):
            store.insert([bad])
        assert store.stats().points == 0


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('connection failed: connection to server at "10.0.0.7", port 5432 failed: Connection refused', "refused"),
        ('FATAL:  password authentication failed for user "secret-user"', "wrong user or password"),
        ('FATAL:  role "secret-user" does not exist', "wrong user or password"),
        ('FATAL:  database "secret" does not exist', "no such database"),
        ("server does not support SSL, but SSL was required", "TLS"),
        ("SSL error: certificate verify failed", "TLS"),
        ("connection timeout expired", "no response"),
    ],
    ids=["refused", "password", "role", "database", "no TLS", "certificate", "timeout"],
)
def test_a_failed_connection_says_why_and_where(message: str, reason: str) -> None:
    """The server is the one of the URL, wherever it is named; nothing of the driver's text is shown."""
    engines = {
        "postgresql://user:word@db.example:5433/points": "db.example:5433/points",
        "postgresql://user@/points?host=/run/pg": "/run/pg/points",
    }
    for url, place in engines.items():
        with pytest.raises(StoreUnavailableError) as raised, translate_database_errors(make_engine(url)):
            raise psycopg.OperationalError(message)

        assert reason in raised.value.message
        assert raised.value.message.startswith(f"{place} is not available")
        assert not any(word in raised.value.message for word in ("10.0.0.7", "secret", "word@"))


def test_a_new_connection_uses_the_url_of_now(postgres_url: str, postgres: Postgres) -> None:
    """A password, or a user, that changed in the file of the URL needs no restart."""
    postgres.execute("CREATE ROLE other LOGIN SUPERUSER")
    url = [postgres_url]
    engine = make_engine(lambda: url[0])

    def user() -> str:
        with engine.connect() as connection:
            return str(connection.exec_driver_sql("SELECT current_user").scalar())

    before = user()
    url[0] = postgres_url.replace("postgres@", "other@")
    kept = user()
    engine.dispose()

    assert (before, kept, user()) == ("postgres", "postgres", "other")
    engine.dispose()
