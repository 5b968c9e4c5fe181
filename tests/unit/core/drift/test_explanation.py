"""Which of the segments that changed explains the others."""

from __future__ import annotations

import numpy as np

from darksight_core.drift.explanation import SegmentRows, describe, explain, is_alike

CELLS = 10


def test_a_pair_is_named_if_each_value_is_quiet_without_the_other() -> None:
    """Camera 7 is usual in Paris, and Lyon is usual with other cameras."""
    rng = np.random.default_rng(1)
    camera, city = rng.integers(0, 5, 4_000) == 0, rng.random(4_000) < 0.5
    cells = np.where(camera & city, 0, rng.integers(0, CELLS, 4_000))
    usual = [np.full(CELLS, 100)] * 3
    found = {
        ("camera", "7"): SegmentRows(camera, int(camera.sum()), usual),
        ("city", "Lyon"): SegmentRows(city, int(city.sum()), usual),
    }

    (named,) = explain(found, lambda rows: [np.bincount(cells[rows], minlength=CELLS)] * 3)

    assert set(named) == set(found)
    assert describe(named) in ("camera=7 and city=Lyon", "city=Lyon and camera=7")


def test_what_a_segment_always_had_is_taken_from_the_one_around_it() -> None:
    """Half of a city is a camera whose rows were always low; when it changes, the rest of the city is quiet."""
    rng = np.random.default_rng(2)
    camera, city = np.repeat([True, False], 500), np.ones(1_000, dtype=np.bool_)
    cells = np.where(camera, 0, rng.integers(5, CELLS, 1_000))
    low, high = np.repeat([100, 0], 5), np.repeat([0, 100], 5)
    found = {
        ("city", "Lyon"): SegmentRows(city, 1_000, [low + high] * 3),
        ("camera", "7"): SegmentRows(camera, 500, [low] * 3),
    }

    named = explain(found, lambda rows: [np.bincount(cells[rows], minlength=CELLS)] * 3)

    assert named == ((("camera", "7"),),)


def test_samples_of_one_distribution_are_alike() -> None:
    """At a level of 5% about as many of 200 pairs are not; another distribution is not."""
    rng = np.random.default_rng(3)
    shares = np.arange(1, CELLS + 1) / np.arange(1, CELLS + 1).sum()
    unlike = sum(not is_alike([rng.multinomial(200, shares)], [rng.multinomial(500, shares)], 0.05) for _ in range(200))

    assert unlike <= 0.05 * 200 + 3 * np.sqrt(200 * 0.05 * 0.95)
    assert not is_alike([rng.multinomial(200, shares)], [rng.multinomial(500, shares[::-1])], 1e-6)
