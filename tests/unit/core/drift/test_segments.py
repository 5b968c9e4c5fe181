"""Segments of the traffic: which have changed, and which are always unlike the rest."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darksight_core.drift.detector import Baseline, RowBatch
from darksight_core.drift.segment_cells import SegmentCells, SegmentCounts, tag_hashes
from darksight_core.drift.segments import SegmentChanges, SegmentTest, discoveries, find_changes
from darksight_core.drift.stream import DriftState
from darksight_core.errors import ConfigError
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats

LEVEL, CLASSES = 0.05, 4


def draw(
    rng: np.random.Generator, rows: int, camera: int = 0, *, shift: float = 0.0, sure: float = 0.0, first: float = 0.0
) -> RowBatch:
    """Rows of a camera, which differs from other cameras in score, confidence and classes; and then changes."""
    scores = rng.normal(0.4 * camera + shift, 1.0 + 0.1 * camera, rows)
    odds = rng.normal(1.0 - 0.3 * camera + sure, 1.0, rows)
    weights = np.ones(CLASSES) + camera * np.eye(CLASSES)[camera % CLASSES]
    classes = rng.choice(CLASSES, rows, p=weights / weights.sum())
    classes = np.where(rng.random(rows) < first, 0, classes)
    return RowBatch(scores, 1.0 / (1.0 + np.exp(-odds)), classes, rng.random((rows, 3)))


def joined(parts: list[RowBatch]) -> RowBatch:
    """Rows one after the other."""
    columns = ([getattr(each, name) for each in parts] for name in ("scores", "top", "classes", "uniforms"))
    return RowBatch(*(np.concatenate(each) for each in columns))


def make_test(rng: np.random.Generator, cameras: int = 10, rows: int = 150, *, tagged: bool = True) -> SegmentTest:
    """A test calibrated on rows of cameras that differ, with or without their tags."""
    held = joined([draw(rng, rows, camera) for camera in range(cameras)])
    calibration = Calibration(held.scores, held.classes, held.top)
    counts = np.bincount(held.classes, minlength=CLASSES)
    cells = SegmentCells(calibration, counts)
    tags = {"camera": np.repeat(np.arange(cameras), rows).astype(str).tolist()}
    places = cells.cells(held.scores, held.top, held.classes, held.uniforms)
    known = SegmentCounts.of(cells, places, tag_hashes(tags, np.arange(len(held)))) if tagged else None
    return SegmentTest(Baseline(calibration, counts, known), LEVEL)


def watch(test: SegmentTest, parts: dict[int, RowBatch]) -> SegmentChanges:
    """What has changed after rows of cameras."""
    states = {
        ("camera", str(each)): [test.update(test.start(("camera", str(each))), rows)] for each, rows in parts.items()
    }
    cameras = np.repeat([str(each) for each in parts], [len(rows) for rows in parts.values()])
    return find_changes(test, states, joined(list(parts.values())), {"camera": cameras})


@pytest.mark.parametrize("tagged", [True, False])
def test_segments_that_always_differ_are_not_called_changed(tagged: bool) -> None:
    """At most the level of quiet runs names any segment; most are said to be always unlike the rest instead."""
    rng, runs, named, unlike = np.random.default_rng(1), 25, 0, 0
    for _ in range(runs):
        test = make_test(rng, tagged=tagged)
        found = watch(test, {camera: draw(rng, 200, camera) for camera in range(10)})
        named += bool(found.found)
        unlike += sum(test.is_unlike(each) for each in found.states.values())

    assert named / runs <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / runs)
    assert unlike / runs >= 5


@pytest.mark.parametrize("change", [{"shift": -1.2}, {"sure": -1.2}, {"first": 0.5}])
@pytest.mark.parametrize("tagged", [True, False])
def test_a_change_of_scores_confidence_or_classes_is_named(change: dict[str, float], tagged: bool) -> None:
    """One of ten cameras changes in one of the three; it alone is named."""
    rng, runs, alone = np.random.default_rng(2), 10, 0
    for _ in range(runs):
        parts = {camera: draw(rng, 150, camera) for camera in range(10)}
        parts[3] = joined([parts[3], draw(rng, 150, 3, **change)])
        alone += watch(make_test(rng, tagged=tagged), parts).explanation == ((("camera", "3"),),)

    assert alone >= 0.9 * runs


def test_the_change_is_dated() -> None:
    """Rows since the change are counted in the segment."""
    rng = np.random.default_rng(3)
    rows = joined([draw(rng, 300, 1), draw(rng, 100, 1, shift=-2.0)])

    (state,) = watch(make_test(rng), {1: rows}).states.values()

    assert 280 <= state.since_row <= 320


def test_a_restarted_segment_continues_where_it_was() -> None:
    """A state written to bytes and read back gives the same evidence, and division into calls does not matter."""
    rng = np.random.default_rng(5)
    test, rows = make_test(rng), draw(rng, 300, 2, shift=-0.5)
    first: DriftState = test.start(("camera", "2"))

    whole = test.update(first, rows)
    half = test.decode(test.encode(test.update(first, rows.take(slice(130)))))
    parts = test.update(half, rows.take(slice(130, None)))

    assert np.allclose(np.frombuffer(test.encode(parts)), np.frombuffer(test.encode(whole)), rtol=1e-9)
    assert (parts.rows, first.scores.learned.sum()) == (300, 150.0)
    assert len(test.encode(whole)) < 2_500


def test_a_state_of_another_calibration_is_refused() -> None:
    """The bytes of a test with other cells are not mistaken for a state."""
    rng = np.random.default_rng(6)
    other = make_test(rng, cameras=1, rows=20)

    with pytest.raises(ConfigError, match="of another model"):
        make_test(rng).decode(other.encode(other.start()))


def test_counts_of_segments_are_bounded_and_checked() -> None:
    """Segments with few rows are left out, references are none, and rare classes share a cell."""
    rng = np.random.default_rng(7)
    held = draw(rng, 400)
    cells = SegmentCells(Calibration(held.scores, top=held.top), np.arange(1_000))
    places = cells.cells(held.scores, held.top, held.classes, held.uniforms)
    tags = {"camera": ["7"] * 300 + ["8"] * 60 + [""] * 40, "reference": ["a.png"] * 400}

    counts = SegmentCounts.of(cells, places, tag_hashes(tags, np.arange(400)))

    assert counts is not None
    assert counts.counts.sum(axis=1).tolist() == [900]
    assert len(cells.usual[2]) == 40
    assert counts.counts_of(("camera", "8"), cells) is None
    with pytest.raises(ConfigError, match="other cells"):
        counts.counts_of(("camera", "7"), SegmentCells(Calibration(np.zeros(9), top=np.ones(9)), np.array([1])))
    with pytest.raises(ConfigError, match="as many hashes"):
        SegmentCounts(counts.hashes, counts.counts[0])
    with pytest.raises(ConfigError, match="not negative"):
        SegmentCounts(counts.hashes, -counts.counts)


def incident(rng: np.random.Generator, *, pair: bool, other: float = 0.0) -> tuple[SegmentChanges, Floats]:
    """What is found in 12,000 rows: camera 7 turns bad, or camera 7 in Lyon alone; odd cameras have firmware 2."""
    rows = draw(rng, 12_000)
    camera = rng.integers(0, 40, 12_000).astype(str)
    city = np.where(rng.random(12_000) < 0.5, "Lyon", "Paris")
    firmware = np.where(camera.astype(int) % 2 == 1, "2", "1")
    late = np.arange(12_000) >= 6_000
    bad = (camera == "7") & ((city == "Lyon") | (not pair))
    rows.scores[late & bad] -= 3.0
    rows.scores[late & (camera == "12")] -= other
    test, tags = make_test(rng, tagged=False, cameras=1, rows=999), {"camera": camera, "city": city, "fw": firmware}
    states = {
        (key, value): [test.update(test.start((key, value)), rows.take(column == value))]
        for key, column in tags.items()
        for value in np.unique(column).tolist()
    }
    return find_changes(test, states, rows, tags), rows.scores


def test_the_smallest_description_is_named_first() -> None:
    """A larger segment that contains the bad one, and may therefore be a discovery too, is not named."""
    found, _ = incident(np.random.default_rng(7), pair=False)

    assert found.explanation == ((("camera", "7"),),)


def test_a_pair_is_named_if_each_value_is_quiet_without_the_other() -> None:
    """Camera 7 is usual in Paris and Lyon is usual with other cameras: camera 7 is named, with Lyon if it was found."""
    found, _ = incident(np.random.default_rng(8), pair=True)

    expected = {("camera", "7"), ("city", "Lyon")} & set(found.found)
    assert [set(each) for each in found.explanation] == [expected]


def test_two_incidents_have_two_names() -> None:
    """Neither explains the other."""
    found, _ = incident(np.random.default_rng(9), pair=False, other=2.0)

    assert set(found.explanation) == {(("camera", "7"),), (("camera", "12"),)}


def test_without_discoveries_nothing_is_named() -> None:
    """Also without recent rows."""
    test = make_test(np.random.default_rng(10))
    empty = draw(np.random.default_rng(0), 0)

    assert discoveries({}, LEVEL) == ()
    assert find_changes(test, {("camera", "7"): [test.start()]}, empty, {}).explanation == ()
