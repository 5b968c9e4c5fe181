"""Change detectors: recursion, run length, sums over replicas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from darksight_core.drift import (
    ChangeDetector,
    Detector,
    OutlierCounts,
    bet_weights,
    detector_path,
)
from darksight_core.errors import ConfigError

Counts = NDArray[np.int64]

CALIBRATION_ROWS, ALPHA, RANK = 2_000, 0.01, 20


def standard_error(share: float, trials: int) -> float:
    """Of a share measured in independent trials."""
    return math.sqrt(share * (1.0 - share) / trials)


@pytest.mark.parametrize("kind", ["sr", "cusum"])
def test_a_detector_fed_in_pieces_equals_the_recursion(kind: Detector) -> None:
    """Values follow the textbook recursion, and a stream cut in pieces gives the same state."""
    flags = np.random.default_rng(11).random(500) < 0.05
    won, lost = bet_weights(0.01, 0.03)
    value, path = 0.0, []
    for is_outlier in flags.tolist():
        value = (value + 1.0 if kind == "sr" else max(value, 1.0)) * math.exp(won if is_outlier else lost)
        path.append(value)

    whole = ChangeDetector(0.01, 0.03, run_length=50.0, kind=kind).update(flags)
    pieces = ChangeDetector(0.01, 0.03, run_length=50.0, kind=kind)
    for part in np.array_split(flags, 7):
        pieces = pieces.update(part)

    assert detector_path(flags, 0.01, 0.03, kind=kind) == pytest.approx(np.log(path), abs=1e-9)
    assert pieces.log_value == pytest.approx(whole.log_value, abs=1e-9)
    assert replace(pieces, log_value=whole.log_value) == whole
    assert whole.alarm_row == 1 + int(np.argmax(np.array(path) >= 50.0))


def test_the_run_length_of_a_detector_is_at_least_its_bound() -> None:
    """Without change e-SR runs for c rows on average, hardly more; with a change it alarms after about 200."""
    rng = np.random.default_rng(12)
    runs, rows, c = 400, 12_000, 1_000

    passed = detector_path(rng.random((runs, rows)) < 0.01, 0.01, 0.03) >= math.log(c)
    length = np.where(passed.any(axis=1), passed.argmax(axis=1) + 1, rows)
    changed = detector_path(rng.random((runs, 3_000)) < 0.03, 0.01, 0.03) >= math.log(c)

    error = float(length.std() / math.sqrt(runs))
    assert c - 3 * error <= length.mean() <= 1.6 * c
    assert changed.any(axis=1).all()
    assert 150 < (changed.argmax(axis=1) + 1).mean() < 250


def test_cusum_alarms_no_sooner_than_shiryaev_roberts() -> None:
    """Row by row e-CUSUM is at most e-SR, so its run length is at least as long."""
    flags = np.random.default_rng(13).random((20, 2_000)) < 0.03

    assert (detector_path(flags, 0.01, 0.03, kind="cusum") <= detector_path(flags, 0.01, 0.03, kind="sr") + 1e-12).all()


def test_added_detectors_keep_the_run_length() -> None:
    """The sum over five replicas runs for c rows on average, counted over all of them."""
    rng = np.random.default_rng(14)
    runs, replicas, rows, c = 300, 5, 2_500, 1_000

    paths = detector_path(rng.random((runs, replicas, rows)) < 0.01, 0.01, 0.03)
    passed = np.logaddexp.reduce(paths, axis=1) >= math.log(c)
    length = replicas * np.where(passed.any(axis=1), passed.argmax(axis=1) + 1, rows)

    assert length.mean() >= c - 3 * length.std() / math.sqrt(runs)


def test_adding_detectors_adds_values_and_rows() -> None:
    """M and rows of two replicas add up; detectors that differ do not."""
    flags = np.random.default_rng(15).random(200) < 0.05
    a, b = (ChangeDetector(0.01, 0.03, run_length=1e9).update(part) for part in (flags[:80], flags[80:]))

    both = a + b

    assert both.rows == 200
    assert math.exp(both.log_value) == pytest.approx(math.exp(a.log_value) + math.exp(b.log_value))
    assert not both.is_alarm
    with pytest.raises(ConfigError, match="cannot be added"):
        _ = a + replace(b, p1=0.05)


def test_states_are_plain_numbers() -> None:
    """Every state survives strict JSON, new or used."""
    flags = np.array([True, False, True])
    for state in (
        OutlierCounts(10, 1),
        ChangeDetector(0.01, 0.03),
        ChangeDetector(0.01, 0.03, run_length=2.0).update(flags),
    ):
        assert type(state)(**json.loads(json.dumps(asdict(state), allow_nan=False))) == state


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: ChangeDetector(0.01, 0.03, run_length=0.5), id="run length below 1"),
        pytest.param(lambda: detector_path(np.array([True]), 0.01, 0.03, kind="other"), id="unknown detector"),  # type: ignore[arg-type] # on purpose
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object]) -> None:
    """Impossible options and counts raise ConfigError."""
    with pytest.raises(ConfigError):
        call()
