"""Evidence of segments in the transaction that stores the rows, on SQLite and PostgreSQL, and the segment it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from darksight_service.scoring.live_segments import live_segments
from darksight_service.store.engine import writing
from darksight_service.store.store import Store
from darksight_service.store.tables import detector_state
from darksight_service.store.write import detector_state as module

from darksight_core.drift.detector import Baseline, RowBatch, mean_log_evidence
from darksight_core.drift.explanation import describe
from darksight_core.drift.segment_cells import SegmentCells, SegmentCounts, tag_hashes
from darksight_core.drift.segments import SegmentTest
from darksight_core.drift.stream import DriftTest
from darksight_core.drift.urn import row_uniforms
from darksight_core.guarantees.calibration import Calibration
from tests.support.points import VERSION, make_points

NOW_MS = 1_800_000_000_000
CAMERAS, BATCH, SHARE = 40, 400, 0.03


@pytest.fixture(scope="module")
def test() -> DriftTest:
    """The drift test of points that `make_points` makes."""
    rng = np.random.default_rng(1)
    top = rng.dirichlet(np.full(10, 0.3), size=999).max(axis=1)
    return DriftTest(Calibration(rng.normal(-2.0, 1.0, 999), top=top), np.full(10, 100))


def by_segment(test: DriftTest, counts: SegmentCounts | None = None) -> SegmentTest:
    """The test of segments with the same calibration rows."""
    return SegmentTest(Baseline(test.calibration, test.class_counts, counts))


def follow(store: Store, test: DriftTest, replica: str = "a") -> Store:
    """The store, which follows the drift of one model."""
    detectors = test, by_segment(test)
    store.follow_drift(replica, lambda model, version: detectors if (model, version) == ("digits", VERSION) else ())
    return store


def evidence_of(store: Store, segments: SegmentTest) -> float:
    """Log evidence of camera 7, of all replicas."""
    states = store.detector_states("digits", VERSION, segments)["camera", "7"]
    return mean_log_evidence(segments, states)["segment"]


def traffic(number: int, *, is_bad: bool) -> tuple[Any, int]:
    """A batch of 40 cameras, of which camera 0 has 3%; bad rows of camera 0 have low scores. And its rows."""
    rng = np.random.default_rng(number)
    camera = np.where(rng.random(BATCH) < SHARE, 0, rng.integers(1, CAMERAS, BATCH))
    scores = rng.normal(-2.0 - 2.0 * (is_bad & (camera == 0)), 1.0, BATCH)
    tags = [{"camera": str(each), "site": "ab"[each % 2]} for each in camera.tolist()]
    points = make_points(
        BATCH, ms=NOW_MS + number, seed=number, tags=tags, outlier_score=scores, with_invalid=False, classes=3
    )
    return points, int((camera == 0).sum())


def test_an_incident_in_one_of_40_segments_is_named_within_200_of_its_rows(
    url: str, open_store: Callable[..., Store], test: DriftTest
) -> None:
    """Quiet traffic has no discovery; then one camera of 3% of the traffic turns bad, and it alone is named."""
    store, segments = follow(open_store(url), test), by_segment(test)
    store.insert([traffic(number, is_bad=False)[0] for number in range(6)])
    quiet = live_segments(store, segments, "digits", VERSION)
    seen, named = 0, ""
    for number in range(6, 30):
        points, rows = traffic(number, is_bad=True)
        store.insert([points])
        seen += rows
        found = live_segments(store, segments, "digits", VERSION)
        assert found is not None
        if found.changes.explanation:
            named = describe(found.changes.explanation[0])
            break

    assert quiet is not None
    assert (len(quiet.changes.evidence), quiet.changes.found) == (CAMERAS + 2, ())
    assert named == "camera=0"
    assert seen <= 200


def test_a_row_counts_once_in_each_of_its_segments(url: str, open_store: Callable[..., Store], test: DriftTest) -> None:
    """Repeated batches change nothing, and the state is that of the rows of the segment in order."""
    store, segments = follow(open_store(url), test), by_segment(test)
    batches = [make_points(50, ms=NOW_MS + k, seed=k, tags={"camera": "7"}, with_invalid=False) for k in range(3)]
    store.insert(batches[:2])
    store.insert(batches)
    store.insert([make_points(50, ms=NOW_MS + 9, seed=9, tags={"camera": "7"}, is_shadow=True)])

    ((state,),) = store.detector_states("digits", VERSION, segments).values()

    expected = segments.start()
    for points in batches:
        rows = RowBatch(points.outlier_score, points.top, points.predicted, row_uniforms(points.ids))
        expected = segments.update(expected, rows)
    found = np.frombuffer(segments.encode(state))
    assert found == pytest.approx(np.frombuffer(segments.encode(expected)), rel=1e-9)


def test_a_segment_starts_with_its_own_calibration_rows(
    url: str, open_store: Callable[..., Store], test: DriftTest
) -> None:
    """Its name reaches the test when its first rows are stored, and a segment without calibration rows starts empty."""
    cells = SegmentCells(test.calibration, test.class_counts)
    hashes = tag_hashes({"camera": ["7"] * 120}, np.arange(120))
    counts = SegmentCounts.of(cells, np.zeros((120, 3), dtype=np.int64), hashes)
    segments, store = by_segment(test, counts), open_store(url)
    store.follow_drift("a", lambda _, __: (segments,))
    tags = [{"camera": "7"}, {"camera": "8"}] * 10
    store.insert([make_points(20, tags=tags, with_invalid=False)])

    found = {part: state.scores.learned.sum() for part, (state,) in
             store.detector_states("digits", VERSION, segments).items()}  # fmt: skip

    assert found == {("camera", "7"): 130.0, ("camera", "8"): 10.0}


def test_replicas_are_averaged_and_a_reset_deletes_segments(
    url: str, open_store: Callable[..., Store], test: DriftTest
) -> None:
    """Evidence of two replicas of which one has none is half; after a reset there is none."""
    segments = by_segment(test)
    bad = make_points(300, seed=1, tags={"camera": "7"}, with_invalid=False, outlier_score=np.full(300, -6.0))
    usual = make_points(300, ms=NOW_MS + 1, seed=2, tags={"camera": "8"}, with_invalid=False)
    follow(open_store(url), test, "a").insert([bad])
    alone = evidence_of(open_store(url), segments)
    store = follow(open_store(url), test, "b")
    store.insert([usual])

    both = evidence_of(store, segments)
    store.append_change("evidence", "digits", {"version": VERSION})

    assert both == pytest.approx(np.log((np.exp(alone) + 1.0) / 2.0))
    assert store.detector_states("digits", VERSION, segments) == {}


def test_segments_are_bounded_and_states_of_earlier_releases_start_again(
    url: str, open_store: Callable[..., Store], test: DriftTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of further segments are stored all the same."""
    monkeypatch.setattr(module, "MAX_SEGMENTS", 3)
    store, segments = follow(open_store(url), test), by_segment(test)
    tags = [{"camera": str(row)} for row in range(10)]
    store.insert([make_points(10, tags=tags, with_invalid=False)])
    with writing(store._engine) as connection:
        connection.execute(detector_state.update().values(state=b"old"))
    assert store.detector_states("digits", VERSION, segments) == {}

    store.insert([make_points(10, ms=NOW_MS + 5, seed=5, tags=tags, with_invalid=False)])

    found = store.detector_states("digits", VERSION, segments)
    assert len(found) == 3
    assert {state.rows for (state,) in found.values()} == {1}
    assert (
        sum(each.points for each in store.tag_counts("digits", VERSION, until_ms=NOW_MS + 60_000, minutes=5).values())
        == 6
    )
