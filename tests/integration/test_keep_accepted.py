"""`keep_accepted`: few accepted rows are stored, all are counted, and what is stored stands for the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from darksight_service.scoring.files.export import export_points
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.store import Store
from sqlalchemy import text

from darksight_core.drift.urn import audit_numbers
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from darksight_core.map.regions import Region
from tests.support.points import VERSION, make_outcomes, make_points

ROWS = 8_000
SHARE, AUDITED = 0.02, 0.01
NOW_MS = 1_800_000_000_000
ALL = {"since_ms": 0, "until_ms": 2 * NOW_MS}


def traffic(rows: int = ROWS, seed: int = 0) -> PointTable:
    """Rows of which a fifth is rejected."""
    points = make_points(rows, seed=seed, names=None, with_invalid=False, ms=NOW_MS - 60_000)
    rejected = np.random.default_rng(seed).random(rows) < 0.2
    reason = np.where(rejected, 3, 1).astype(np.int8)
    return replace(points, reason=reason, decision=np.where(rejected, 2, 1).astype(np.int8))


def counts(store: Store) -> list[tuple[Any, ...]]:
    """All counts per minute."""
    with store._engine.connect() as connection:
        return [
            tuple(row)
            for table in ("rollup", "rollup_bin", "audit_point")
            for row in connection.execute(text(f"SELECT * FROM {table} ORDER BY 1, 2, 3"))
        ]


@pytest.fixture
def stores(url: str, open_store: Callable[..., Store], tmp_path: Path) -> tuple[Store, Store]:
    """A store of some accepted rows, and one of all rows."""
    every = f"sqlite:///{tmp_path / 'all.db'}"
    return (
        open_store(url, keep_accepted=SHARE, audit_rate=AUDITED),
        open_store(every, audit_rate=AUDITED, auto_upgrade=True),
    )


def stored_points(store: Store) -> PointTable:
    """All stored points."""
    return store.newest_points(PointFilter("digits"), limit=ROWS)


def test_few_accepted_rows_are_stored_and_all_are_counted(stores: tuple[Store, Store]) -> None:
    """Rejected, unusual, drawn and labelled rows are all there; counts and audit are those of all rows."""
    points = traffic()
    labelled = dict(zip(points.prediction_ids()[:50], [3] * 50, strict=True))
    for store in stores:
        store.insert([make_outcomes(labelled)])
        written = store.insert([points])
        assert (written.points, written.duplicates, written.matched) == (ROWS, 0, 50)

    some, every = stores
    found = stored_points(some)
    known = {*map(bytes, found.id_bytes())}
    is_drawn = audit_numbers(points.ids) < AUDITED
    always = ~points.accepted | (points.p_value <= 0.01) | is_drawn
    assert {each for each, wanted in zip(points.id_bytes(), always, strict=True) if wanted} <= known
    assert {*points.id_bytes()[:50]} <= known
    share = (found.accepted & (found.odds < 1.0)).sum() / points.accepted.sum()
    assert share == pytest.approx(SHARE, rel=0.25)
    assert {round(float(each), 4) for each in np.unique(found.odds)} == {SHARE, 1.0}
    with some._engine.connect() as one, every._engine.connect() as other:
        for table in ("rollup", "rollup_bin", "audit_point"):
            query = text(f"SELECT count(*), sum({'key' if table == 'audit_point' else 'points'}) FROM {table}")
            assert tuple(one.execute(query).one()) == pytest.approx(tuple(other.execute(query).one()))


def test_a_batch_that_comes_again_is_not_counted_again(stores: tuple[Store, Store]) -> None:
    """Whole, or with others; after some hours its batch is forgotten, and what is stored is still stored once."""
    some, _ = stores
    first, second = traffic(2_000, seed=1), traffic(500, seed=2)
    some.insert([first])
    before = counts(some)

    again = some.insert([first])
    assert (again.points, again.duplicates, again.conflicts) == (0, 2_000, 0)
    assert counts(some) == before
    both = some.insert([second, first])
    assert (both.points, both.duplicates) == (500, 2_000)
    stored = len(stored_points(some))

    some.maintain()
    with some._engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM thinned_batch")) == 2
    some._clock = lambda: NOW_MS + 3 * 3_600_000
    some.maintain()
    with some._engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM thinned_batch")) == 0
    some.insert([first])
    assert len(stored_points(some)) == stored


def test_figures_of_pages_are_those_of_all_rows(stores: tuple[Store, Store], tmp_path: Path) -> None:
    """By their odds, within the noise of the sample: dry run, region, labels; and a sample that is uniform."""
    points = traffic()
    labels = dict(zip(points.prediction_ids(), points.predicted.tolist(), strict=True))
    for store in stores:
        store.insert([points])
        store.insert([make_outcomes(labels)])
    gate = Gate(outlier=cutoff(1_000, 0.1), reject_score="msp", threshold=0.6)
    region = Region("r", ((-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)))
    found: list[dict[str, float]] = []
    for store in stores:
        before, after = store.evaluate_policy("digits", VERSION, replace(gate, regions=(region,)), **ALL)
        inside = store.newest_inside("digits", VERSION, region, **ALL, limit=ROWS)
        known = store.label_counts("digits")
        found.append(
            {
                "points": before.points,
                "accepted": after.accepted,
                "regions": after.regions,
                "examined": inside.examined,
                "inside": float((1.0 / inside.inside.odds).sum()),
                "labelled": known.accepted_labelled,
            }
        )
    for name, expected in found[1].items():
        # A stored row stands for at most 1 / SHARE rows.
        assert abs(found[0][name] - expected) <= 4.0 * (expected / SHARE) ** 0.5, name
    assert before.points == before.stored == ROWS

    sample = stored_points(stores[0]).sample()
    assert sample.accepted.mean() == pytest.approx(points.accepted.mean(), abs=0.12)
    assert len(sample) == pytest.approx(SHARE * ROWS, rel=0.3)
    export_points(stores[0], str(tmp_path / "out"))
    odds = np.concatenate(
        [pq.read_table(path)["odds"].fill_null(1.0).to_numpy() for path in (tmp_path / "out").rglob("*.parquet")]
    )
    assert float((1.0 / odds).sum()) == pytest.approx(ROWS, abs=4.0 * (ROWS / SHARE) ** 0.5)


def test_an_hour_that_grows_is_exported_again(stores: tuple[Store, Store], tmp_path: Path) -> None:
    """Rows that were left out are no rows that retention has deleted."""
    some, target = stores[0], str(tmp_path / "out")
    some.insert([traffic(1_000, seed=3)])
    assert export_points(some, target).written == 1
    some.insert([traffic(1_000, seed=4)])

    again = export_points(some, target)

    assert (again.written, again.incomplete) == (1, 0)


def test_a_day_of_traffic_takes_a_part_of_the_disk(tmp_path: Path) -> None:
    """SQLite, ten classes, names of 16 letters, 1 % rejected; audit lists are there in both."""
    sizes = {}
    for share in (1.0, SHARE):
        with Store.open(f"sqlite:///{tmp_path / str(share)}.db", auto_upgrade=True, keep_accepted=share) as store:
            empty = store.used_bytes()
            for seed in range(3):
                points = make_points(ROWS, seed=seed, names=None, with_invalid=False, ms=time.time_ns() // 1_000_000)
                ones = np.where(np.arange(ROWS) % 100, 1, 2).astype(np.int8)
                store.insert([replace(points, decision=ones, reason=np.where(ones == 1, 1, 3).astype(np.int8))])
            sizes[share] = (store.used_bytes() - empty) / (3 * ROWS)
            usage = store.usage()
            assert usage.bytes_per_day == pytest.approx(86_400 * usage.rows_per_second * usage.bytes / (3 * ROWS))

    assert sizes[SHARE] < 0.07 * sizes[1.0]
