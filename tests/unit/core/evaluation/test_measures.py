"""All measures of a map together."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.evaluation.classes import class_medians, cluster_monotonicity, global_fidelity
from darksight_core.evaluation.fidelity import fidelity
from darksight_core.evaluation.measures import measure_map
from darksight_core.evaluation.neighbourhoods import local_fidelity, trustworthiness
from darksight_core.rows.simplex import log_probs
from tests.support.builders import draw_map

# A Jensen-Shannon distance is the root of a difference of rounded numbers, so two equal rows may be √(2e-16) apart.
JS_NOISE = 3e-8


def test_measures_do_not_depend_on_the_order_of_rows() -> None:
    """Without ties, a permutation of rows leaves every figure as it was up to rounding."""
    log_pi, log_q, points, centres, labels = draw_map()
    order = np.random.default_rng(9).permutation(len(points))

    before = measure_map(log_pi, log_q, points, centres, labels)
    after = measure_map(log_pi[order], log_q[order], points[order], centres, labels[order])

    assert flat(after.as_dict()) == pytest.approx(flat(before.as_dict()), rel=1e-9)


def flat(value: object) -> list[float]:
    """All numbers in nested JSON, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in flat(item)]
    return [value] if isinstance(value, (int, float)) else []


def test_measure_map_gathers_the_single_measures() -> None:
    """Each part equals the function of its name, and the whole survives JSON unchanged."""
    log_pi, log_q, points, centres, labels = draw_map()

    got = measure_map(log_pi, log_q, points, centres, labels, neighbours=(5, 10), seed=3, max_rows=200, bound=1e-9)

    nearest = ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    shares = {"star_agreement": float((nearest == log_pi.argmax(axis=1)).mean()), "on_border": 1.0}
    assert got.fidelity == replace(fidelity(log_pi, log_q, labels), **shares)
    assert got.local_fidelity == local_fidelity(log_pi, log_q, points, neighbours=(5, 10), max_rows=200, seed=3)
    assert got.trustworthiness == trustworthiness(log_pi, points, max_rows=200, seed=3)
    assert got.cluster_monotonicity == cluster_monotonicity(log_pi, points, centres)
    assert got.global_fidelity == global_fidelity(log_pi, centres, labels)
    assert (got.rows, got.classes, got.notes) == (300, 4, ())
    assert json.loads(json.dumps(got.as_dict(), allow_nan=False)) == got.as_dict()


def test_inputs_are_left_alone() -> None:
    """Arrays that may not be written are enough, and two calls give equal results."""
    arrays = draw_map(n=60)
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False

    first = measure_map(*arrays)

    assert measure_map(*arrays) == first
    assert all(np.array_equal(array, copy) for array, copy in zip(arrays, copies, strict=True))


def test_a_map_without_a_student_is_measured_by_its_medians() -> None:
    """A map from another method has every figure but those about the student."""
    log_pi, _, points, _, _ = draw_map()

    got = measure_map(log_pi, None, points, class_medians(log_pi, points))

    assert got.fidelity is None
    assert got.local_fidelity is not None
    assert got.local_fidelity.student is None
    assert got.cluster_monotonicity.mean is not None
    assert got.global_fidelity.ground is None


@pytest.mark.parametrize(("n", "ks", "trusted"), [(1, None, 0), (2, [1], 0), (7, [1, 5], 3), (60, [1, 5, 50], 5)])
def test_small_maps_lose_figures_with_a_note(n: int, ks: list[int] | None, trusted: int) -> None:
    """Neighbourhoods that do not exist are dropped and named, down to a map of one point."""
    log_pi, log_q, points, centres, labels = draw_map(n=n)

    got = measure_map(log_pi, log_q, points, centres, labels, neighbours=(1, 5, 50, 100))

    assert (None if got.local_fidelity is None else list(got.local_fidelity.neighbours)) == ks
    assert (0 if got.trustworthiness is None else got.trustworthiness.neighbours) == trusted
    assert "100 dropped" in got.notes[0]
    assert len(got.notes) == (1 if trusted == 5 else 2)
    json.dumps(got.as_dict(), allow_nan=False)


def test_a_collapsed_map_has_figures_or_none_but_no_nan() -> None:
    """All points in one place with one-hot rows of one class leaves nothing to correlate, and nothing breaks."""
    log_pi = log_probs(np.tile([[0.0, 1.0, 0.0]], (30, 1)))
    points = np.full((30, 2), 2.5)

    got = measure_map(log_pi, log_pi, points, class_medians(log_pi, points), np.ones(30, dtype=np.int64))

    assert got.fidelity is not None
    assert got.fidelity.acc_teacher == got.fidelity.acc_ground == 1.0
    assert got.local_fidelity is not None
    assert max(got.local_fidelity.teacher) < JS_NOISE
    assert got.trustworthiness is not None
    assert got.trustworthiness.value == 1.0
    assert got.cluster_monotonicity.mean is None
    assert got.cluster_monotonicity.per_class == (None, None, None)
    assert (got.global_fidelity.soft, got.global_fidelity.ground) == (None, None)
    json.dumps(got.as_dict(), allow_nan=False)


def test_defective_arrays_are_named() -> None:
    """Wrong shapes, infinite values and labels that are no classes are refused with the name of the array."""
    log_pi, log_q, points, centres, labels = draw_map(n=20)

    with pytest.raises(ConfigError, match="log_pi"), np.errstate(divide="ignore"):
        measure_map(np.log(np.eye(4)), None, points[:4], centres)
    with pytest.raises(ConfigError, match="log_pi"):
        measure_map(log_pi[0], log_q, points, centres)
    with pytest.raises(ConfigError, match="log_q"):
        measure_map(log_pi, log_q[:, :3], points, centres)
    with pytest.raises(ConfigError, match="points"):
        measure_map(log_pi, log_q, np.column_stack([points, points]), centres)
    with pytest.raises(ConfigError, match="centres"):
        measure_map(log_pi, log_q, points, centres[:3])
    with pytest.raises(ConfigError, match=r"labels .*float64"):
        measure_map(log_pi, log_q, points, centres, labels + 0.5)
    with pytest.raises(ConfigError, match="label 4 of row 0"):
        measure_map(log_pi, log_q, points, centres, np.full(20, 4))
