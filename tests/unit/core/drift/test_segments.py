"""Segments of the traffic: which have changed, and which one explains a drift."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darksight_core.drift.detector import RowBatch
from darksight_core.drift.segments import SegmentState, SegmentTest, describe, discoveries, explain
from darksight_core.errors import ConfigError
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats

SEGMENTS, LEVEL = 40, 0.05


def make_test(rng: np.random.Generator, rows: int = 999) -> SegmentTest:
    """A test calibrated on normal scores."""
    return SegmentTest(Calibration(rng.normal(size=rows)), LEVEL)


def batch(scores: Floats, uniforms: Floats) -> RowBatch:
    """Rows of a segment, whose confidence and classes do not matter."""
    return RowBatch(scores, np.ones(len(scores)), np.zeros(len(scores), dtype=np.int64), uniforms)


def follow(test: SegmentTest, state: SegmentState, rng: np.random.Generator, scores: Floats) -> SegmentState:
    """The state of a segment after more rows."""
    return test.update(state, batch(scores, rng.random((len(scores), 3))))


def test_quiet_segments_are_rarely_discovered() -> None:
    """At most the level of 200 quiet runs of 40 segments has any discovery; each run has its own calibration rows."""
    rng, runs = np.random.default_rng(1), 200
    false = 0
    for _ in range(runs):
        test = make_test(rng)
        states = [follow(test, test.start(), rng, rng.normal(size=64)) for _ in range(SEGMENTS)]
        false += bool(discoveries({k: test.log_evidence(each) for k, each in enumerate(states)}, LEVEL))

    assert false / runs <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / runs)


def test_quiet_segments_are_not_discovered_however_often_they_are_read() -> None:
    """The evidence is read after each of ten batches, of which the segments are unequal shares."""
    rng, runs = np.random.default_rng(2), 40
    false = 0
    for _ in range(runs):
        test = make_test(rng)
        states = {k: test.start() for k in range(SEGMENTS)}
        any_found = False
        for _ in range(10):
            states = {k: follow(test, each, rng, rng.normal(size=1 + k // 4)) for k, each in states.items()}
            any_found |= bool(discoveries({k: test.log_evidence(each) for k, each in states.items()}, LEVEL))
        false += any_found

    assert false / runs <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / runs)


@pytest.mark.parametrize("kind", ["lower scores", "a third foreign"])
def test_an_incident_in_one_of_40_segments_is_found_within_200_rows_of_it(kind: str) -> None:
    """After 100 quiet rows of each segment one of them changes; it is the discovery, and the only one."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(20):
        test = make_test(rng)
        states = {k: follow(test, test.start(), rng, rng.normal(size=100)) for k in range(SEGMENTS)}
        scores = rng.normal(size=200)
        scores = scores - 0.8 if kind == "lower scores" else np.where(rng.random(200) < 0.33, scores - 4.0, scores)
        states[7] = follow(test, states[7], rng, scores)
        found.append(discoveries({k: test.log_evidence(each) for k, each in states.items()}, LEVEL))

    assert sum(each == (7,) for each in found) >= 19


def test_a_segment_that_was_always_different_is_told_from_one_that_changed() -> None:
    """Both are unlike the calibration rows, but only one is unlike its own past."""
    rng = np.random.default_rng(4)
    test = make_test(rng)
    different = follow(test, test.start(), rng, rng.normal(-1.0, 1.0, 400))
    changed = follow(test, test.start(), rng, rng.normal(-0.2, 1.0, 300))
    changed = follow(test, changed, rng, rng.normal(-1.5, 1.0, 200))

    found = discoveries({"different": test.log_evidence(different), "changed": test.log_evidence(changed)}, LEVEL)

    assert set(found) == {"different", "changed"}
    assert not test.is_changed(different)
    assert test.is_changed(changed)
    assert 250 <= changed.since_row <= 350


def test_a_restarted_segment_continues_where_it_was() -> None:
    """A state written to bytes and read back gives the same evidence, and division into calls does not matter."""
    rng = np.random.default_rng(5)
    test = make_test(rng)
    scores, uniforms = rng.normal(-0.5, 1.0, 300), rng.random((300, 3))

    whole = test.update(test.start(), batch(scores, uniforms))
    half = test.decode(test.encode(test.update(test.start(), batch(scores[:130], uniforms[:130]))))
    parts = test.update(half, batch(scores[130:], uniforms[130:]))

    assert np.allclose(np.frombuffer(test.encode(parts)), np.frombuffer(test.encode(whole)), rtol=1e-9)
    assert parts.rows == 300
    assert len(test.encode(whole)) < 1_200


def test_a_state_of_another_calibration_is_refused() -> None:
    """The bytes of a test with other cells are not mistaken for a state."""
    rng = np.random.default_rng(6)

    other = make_test(rng, rows=20)
    with pytest.raises(ConfigError, match="of another model"):
        make_test(rng).decode(other.encode(other.start()))


def incident(rng: np.random.Generator, *, pair: bool) -> tuple[Floats, dict[str, np.ndarray]]:
    """P-values of 12,000 rows: camera 7 is bad, or camera 7 in Lyon alone; model 2 runs on half of all cameras."""
    camera = rng.integers(0, 40, 12_000).astype(str)
    city = np.where(rng.random(12_000) < 0.5, "Lyon", "Paris")
    model = np.where(camera.astype(int) % 2 == 1, "2", "1")
    p_values = rng.random(12_000)
    bad = (camera == "7") & ((city == "Lyon") | (not pair))
    p_values[bad] **= 4
    return p_values, {"camera": camera, "city": city, "model": model}


def test_the_smallest_description_is_named_first() -> None:
    """A larger segment that contains the bad one, and is therefore a discovery too, is not named."""
    p_values, tags = incident(np.random.default_rng(7), pair=False)

    named = explain([("model", "2"), ("camera", "7"), ("city", "Lyon")], p_values, tags, 2_000)

    assert named == ((("camera", "7"),),)
    assert describe(named[0]) == "camera=7"


def test_a_pair_is_named_if_each_value_is_quiet_without_the_other() -> None:
    """Camera 7 is usual in Paris and Lyon is usual with other cameras: the pair explains both."""
    p_values, tags = incident(np.random.default_rng(8), pair=True)

    named = explain([("camera", "7"), ("city", "Lyon")], p_values, tags, 2_000)

    assert [set(each) for each in named] == [{("camera", "7"), ("city", "Lyon")}]


def test_two_incidents_have_two_names() -> None:
    """Neither explains the other."""
    p_values, tags = incident(np.random.default_rng(9), pair=False)
    p_values[tags["camera"] == "12"] **= 3

    named = explain([("camera", "7"), ("camera", "12")], p_values, tags, 2_000)

    assert named == ((("camera", "7"),), (("camera", "12"),))


def test_without_discoveries_nothing_is_named() -> None:
    """Also without tags of a discovered key."""
    assert discoveries({}, LEVEL) == ()
    assert explain([], np.empty(0), {}, 100) == ()
    assert explain([("camera", "7")], np.array([0.1]), {}, 100) == ()
