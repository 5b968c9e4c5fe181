"""The drift test of a model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darksight_core.drift.detector import RowBatch
from darksight_core.drift.stream import DriftState, DriftTest
from darksight_core.errors import ConfigError
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats

CLASSES = 10
COUNTS = np.array([110, 95, 88, 105, 101, 99, 94, 107, 98, 103])


def make_test(rng: np.random.Generator, *, level: float = 0.01) -> DriftTest:
    """A test calibrated on 999 normal scores with uniform confidence, and 1,000 rows of ten classes."""
    return DriftTest(Calibration(rng.normal(size=999), top=rng.random(999)), COUNTS, level)


def follow(
    test: DriftTest,
    state: DriftState,
    rng: np.random.Generator,
    rows: int,
    *,
    mean: float = 0.0,
    power: float = 1.0,
    half: bool = False,
) -> tuple[DriftState, Floats]:
    """The test after more rows, with another mean of scores, other confidence, or one class as half of them."""
    classes = rng.integers(0, CLASSES, rows)
    if half:
        classes[rng.random(rows) < 0.45] = 3
    scores, top = rng.normal(mean, 1.0, rows), rng.random(rows) ** power
    return test.follow(state, RowBatch(scores, top, classes, rng.random((rows, 3))))


def test_quiet_streams_rarely_alarm_whatever_their_calibration_set() -> None:
    """At most the level of quiet streams ever alarm, with a small calibration set drawn anew for each."""
    rng, level, runs = np.random.default_rng(11), 0.1, 120
    alarms = 0
    for _ in range(runs):
        test = make_test(rng, level=level)
        alarms += follow(test, test.start(), rng, 1_500)[0].alarm_row is not None

    assert alarms / runs <= level + 3 * math.sqrt(level * (1 - level) / runs)


def test_the_mean_evidence_of_three_replicas_rarely_alarms() -> None:
    """Replicas that share a calibration set are combined by the mean of their evidence, at the same level."""
    rng, level, runs = np.random.default_rng(12), 0.1, 100
    alarms = 0
    for _ in range(runs):
        test = make_test(rng, level=level)
        paths = np.stack([follow(test, test.start(), rng, 500)[1] for _ in range(3)])
        alarms += bool((np.exp(paths).mean(axis=0) >= math.exp(test.threshold)).any())

    assert alarms / runs <= level + 3 * math.sqrt(level * (1 - level) / runs)


def test_two_workers_restarts_and_hot_swaps_add_no_false_alarms() -> None:
    """Batches of two workers in the order in which they are stored, two versions in turn, states written and read."""
    rng, level, runs = np.random.default_rng(18), 0.1, 80
    alarms = 0
    for _ in range(runs):
        versions = [make_test(rng, level=level / 2) for _ in range(2)]
        states = [test.start() for test in versions]
        # Each worker stores its own batches in order; which of them comes next is chance.
        queues = [rng.integers(1, 60, 25).tolist() for _ in range(2)]
        active = 0
        while any(queues):
            queue = queues[int(rng.integers(0, 2))] or queues[0] or queues[1]
            states[active], _ = follow(versions[active], states[active], rng, queue.pop())
            if rng.random() < 0.1:
                states = [test.decode(test.encode(state)) for test, state in zip(versions, states, strict=True)]
            if rng.random() < 0.1:
                active = 1 - active
        alarms += any(state.alarm_row is not None for state in states)

    assert alarms / runs <= level + 3 * math.sqrt(level * (1 - level) / runs)


@pytest.mark.parametrize(
    ("change", "most"), [({"mean": -0.7}, 90), ({"mean": 0.7}, 90), ({"power": 2.0}, 90), ({"half": True}, 60)]
)
def test_a_change_is_detected_within_tens_of_rows(change: dict[str, float | bool], most: int) -> None:
    """Moved scores, lower confidence and a class that becomes half of the traffic are found after 300 quiet rows."""
    rng, delays = np.random.default_rng(13), []
    for _ in range(15):
        test = make_test(rng)
        quiet, _ = follow(test, test.start(), rng, 300)
        state, _ = follow(test, quiet, rng, 500, **change)  # type: ignore[arg-type]  # one dictionary for all kinds
        delays.append(math.inf if state.alarm_row is None else state.alarm_row - 300)

    assert np.median(delays) <= most


def test_a_long_quiet_past_delays_detection_by_less_than_three_times() -> None:
    """After 20,000 quiet rows a change takes at most three times as many rows as after 300."""
    rng = np.random.default_rng(14)
    delays: dict[int, list[float]] = {300: [], 20_000: []}
    for _ in range(5):
        test = make_test(rng)
        for lead, found in delays.items():
            quiet, _ = follow(test, test.start(), rng, lead)
            state, _ = follow(test, quiet, rng, 1_000, mean=-0.7)
            found.append(math.inf if state.alarm_row is None else state.alarm_row - lead)

    assert np.median(delays[20_000]) <= 3 * np.median(delays[300])


def test_a_restarted_test_continues_where_it_was() -> None:
    """A state written to bytes and read back gives the same evidence as one that was kept."""
    rng = np.random.default_rng(15)
    test = make_test(rng)
    state, _ = follow(test, test.start(), rng, 150, mean=-1.0)

    kept, path = follow(test, state, np.random.default_rng(16), 200)
    restored, other = follow(test, test.decode(test.encode(state)), np.random.default_rng(16), 200)

    assert np.array_equal(path, other)
    assert test.encode(restored) == test.encode(kept)
    assert restored.alarm_row == kept.alarm_row
    assert len(test.encode(state)) < 6_000


def test_a_state_of_another_model_is_refused() -> None:
    """The bytes of a model with other classes are not mistaken for a state."""
    rng = np.random.default_rng(17)
    test, other = make_test(rng), DriftTest(Calibration(rng.normal(size=999), top=rng.random(999)), np.array([5, 5]))

    with pytest.raises(ConfigError, match="of another model"):
        test.decode(other.encode(other.start()))
