"""Neighbours, local fidelity and trustworthiness against naive loops and scikit-learn."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from darksight_core.errors import ConfigError
from darksight_core.evaluation.neighbourhoods import local_fidelity, nearest, trustworthiness
from darksight_core.rows.simplex import Floats, log_probs
from tests.support.builders import draw_map

# A Jensen-Shannon distance is the root of a difference of rounded numbers, so two equal rows may be √(2e-16) apart.
JS_NOISE = 3e-8


def naive_nearest(points: Floats, k: int) -> NDArray[np.int64]:
    """Sort all others by distance, one point at a time; for points without ties."""
    found = []
    for i, point in enumerate(points):
        gaps = [math.inf if j == i else math.dist(point, other) for j, other in enumerate(points)]
        found.append(sorted(range(len(points)), key=gaps.__getitem__)[:k])
    return np.array(found)


def naive_local(log_p: Floats, points: Floats, k: int) -> float:
    """The formula of M_k, term by term."""
    total = 0.0
    for i, near in enumerate(naive_nearest(points, k)):
        for j in near:
            p, q = np.exp(log_p[i]), np.exp(log_p[j])
            m = 0.5 * (p + q)
            total += math.sqrt(max(0.0, 0.5 * float((p * np.log(p / m) + q * np.log(q / m)).sum())))
    return total / (k * len(points))


def test_nearest_equals_the_naive_loop() -> None:
    """The blocked search finds the same neighbours, in the same order, as sorting all distances."""
    points = np.random.default_rng(0).normal(size=(150, 2))

    assert np.array_equal(nearest(points, 20), naive_nearest(points, 20))


def test_nearest_equals_the_naive_loop_across_blocks() -> None:
    """Queries are answered the same when they do not fit in one block."""
    points = np.random.default_rng(0).normal(size=(1_500, 2))
    queries = np.array([1_499, 0, 7])
    gaps = np.hypot(*(points[queries, None] - points).transpose(2, 0, 1))

    assert np.array_equal(nearest(points, 5)[queries], np.argsort(gaps, axis=1)[:, 1:6])
    assert np.array_equal(nearest(points, 5, queries=queries), np.argsort(gaps, axis=1)[:, 1:6])


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e6], ids=["origin", "1e3", "-1e6"])
def test_nearest_keeps_its_digits_far_from_the_origin(offset: float) -> None:
    """A cloud with spacing 1e-3 has the same neighbours wherever on the plane it lies."""
    # Multiples of 2^-20 stay exact under the shift, so that the shift does not change the true neighbours.
    cloud = np.round(np.random.default_rng(1).normal(size=(200, 2)) * 1e-3 * 2**20) / 2**20

    assert np.array_equal(nearest(cloud + offset, 10), nearest(cloud, 10))


def test_far_clusters_do_not_disturb_each_other() -> None:
    """With clusters 1e3 apart and points 1e-3 apart, the two neighbours on a line are its two next points."""
    line = np.column_stack([1e-3 * np.arange(50) ** 1.01, np.zeros(50)])
    points = np.concatenate([line + 1e3, line - 1e3, line])

    near = np.sort(nearest(points, 2), axis=1)

    for start in (0, 50, 100):
        inner = np.arange(start + 1, start + 49)
        assert np.array_equal(near[inner], np.column_stack([inner - 1, inner + 1]))


def test_ties_are_repeatable_and_favour_no_row() -> None:
    """In a heap of coincident points every point is chosen as neighbour equally often, the same way each time."""
    heap = np.zeros((300, 2))

    near = nearest(heap, 40, seed=5)

    assert np.array_equal(near, nearest(heap, 40, seed=5))
    assert not np.array_equal(near, nearest(heap, 40, seed=6))
    assert set(Counter(near.ravel().tolist()).values()) == {40}
    assert all(i not in row and len(set(row)) == 40 for i, row in enumerate(near.tolist()))


def test_neighbours_for_a_small_k_are_the_first_of_those_for_a_larger_k() -> None:
    """One search serves all k, also where points tie inside a neighbourhood."""
    points = np.random.default_rng(0).integers(4, size=(300, 2)).astype(float)

    assert np.array_equal(nearest(points, 120)[:, :30], nearest(points, 30))


def test_ties_do_not_displace_closer_points() -> None:
    """Only the last places of a neighbourhood are dealt among tied points; strictly closer points come first."""
    points = np.concatenate([[[0.0, 0.0], [0.1, 0.0], [0.0, 0.2]], np.tile([[1.0, 0.0]], (30, 1)), [[9.0, 9.0]]])

    near = nearest(points, 6)

    assert near[0, :2].tolist() == [1, 2]
    assert set(near[0, 2:].tolist()) <= set(range(3, 33))


@pytest.mark.parametrize("k", [0, 4, 5], ids=["none", "n", "above n"])
def test_impossible_neighbourhoods_are_refused(k: int) -> None:
    """k must leave at least one point besides the query."""
    log_pi, log_q, points, _, _ = draw_map(n=4)

    with pytest.raises(ConfigError, match="neighbours"):
        local_fidelity(log_pi, log_q, points, neighbours=(k,))


def test_local_fidelity_of_two_points_is_their_distance() -> None:
    """With two points and k = 1, M_1 is JSD(one-hot, uniform), known in closed form."""
    log_pi = log_probs(np.array([[1.0, 0.0], [0.5, 0.5]]))
    expected = math.sqrt(0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3) + 0.25 * math.log(2))

    got = local_fidelity(log_pi, log_pi[::-1], np.array([[0.0, 0.0], [1.0, 0.0]]), neighbours=(1,))

    assert got.teacher == pytest.approx((expected,))
    assert got.student == pytest.approx((expected,))


def test_opposite_one_hot_rows_reach_the_upper_bound() -> None:
    """Exact zeros pass through log_probs, and neighbours that exclude each other score √(log 2)."""
    log_pi = log_probs(np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))

    got = local_fidelity(log_pi, None, np.array([[0.0, 0.0], [1.0, 0.0]]), neighbours=(1,))

    assert got.teacher == pytest.approx((math.sqrt(math.log(2)),))
    assert got.student is None


def test_local_fidelity_equals_the_naive_loop() -> None:
    """Teacher and student figures for all k from one search equal the formula summed term by term."""
    log_pi, log_q, points, _, _ = draw_map(n=120)

    got = local_fidelity(log_pi, log_q, points, neighbours=(20, 5, 1))

    assert got.neighbours == (1, 5, 20)
    assert got.teacher == pytest.approx([naive_local(log_pi, points, k) for k in (1, 5, 20)], abs=JS_NOISE)
    assert got.student == pytest.approx([naive_local(log_q, points, k) for k in (1, 5, 20)], abs=JS_NOISE)


def test_local_fidelity_of_a_scrambled_map_is_bad() -> None:
    """Points dealt to the wrong rows raise M_k to the mean distance between any two rows."""
    log_pi, _, points, _, _ = draw_map()
    dealt = np.random.default_rng(1).permutation(points)
    anywhere = float(pdist(np.exp(log_pi), "jensenshannon").mean())

    good = local_fidelity(log_pi, None, points, neighbours=(10,)).teacher[0]
    bad = local_fidelity(log_pi, None, dealt, neighbours=(10,)).teacher[0]

    assert good < 0.4 * anywhere
    assert bad == pytest.approx(anywhere, rel=0.05)


def test_coincident_points_score_the_mean_over_all_pairs() -> None:
    """A map that puts everything in one place is not rewarded for rows that are sorted in the file."""
    log_pi, _, _, _, labels = draw_map(n=400)
    rows = log_pi[np.argsort(labels)]
    anywhere = float(pdist(np.exp(rows), "jensenshannon").mean())

    got = local_fidelity(rows, None, np.zeros((400, 2)), neighbours=(5, 100))

    assert got.teacher == pytest.approx((anywhere, anywhere), rel=0.04)


def test_query_subsample_is_recorded_and_close() -> None:
    """A subsample averages fewer neighbourhoods of the full map, which keeps the neighbours as near as before."""
    log_pi, log_q, points, _, _ = draw_map(n=2_000)

    full = local_fidelity(log_pi, log_q, points, neighbours=(5, 50))
    part = local_fidelity(log_pi, log_q, points, neighbours=(5, 50), max_rows=500, seed=1)

    assert (full.queries, full.points) == (2_000, 2_000)
    assert (part.queries, part.points, part.seed) == (500, 2_000, 1)
    assert part.teacher == pytest.approx(full.teacher, rel=0.1)
    assert part == local_fidelity(log_pi, log_q, points, neighbours=(5, 50), max_rows=500, seed=1)
    assert part != local_fidelity(log_pi, log_q, points, neighbours=(5, 50), max_rows=500, seed=2)


@pytest.mark.parametrize("k", [1, 5, 40])
def test_trustworthiness_equals_scikit_learn(k: int) -> None:
    """On rows without ties the figure is that of sklearn.manifold."""
    manifold = pytest.importorskip("sklearn.manifold")
    log_pi, _, points, _, _ = draw_map(n=250, noise=2.0)

    got = trustworthiness(log_pi, points, neighbours=k)

    assert got.value == pytest.approx(manifold.trustworthiness(np.exp(log_pi), points, n_neighbors=k), abs=1e-9)


def test_trustworthiness_separates_good_maps_from_scrambled_ones() -> None:
    """The probabilities themselves are a perfect map; the same places dealt at random are about 0.5."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), size=500)
    plane = probs @ np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)]])

    assert trustworthiness(log_probs(probs), plane).value == 1.0
    assert abs(trustworthiness(log_probs(probs), rng.permutation(plane)).value - 0.5) < 0.05


def test_a_heap_of_equal_rows_shown_as_a_heap_is_trusted() -> None:
    """One-hot rows that coincide, placed on one point for each class, are all among each other's nearest rows."""
    labels = np.arange(90) % 3

    got = trustworthiness(log_probs(np.eye(3)[labels]), 10.0 * np.eye(3)[labels, :2])

    assert got.value == 1.0


def test_trustworthiness_subsample_is_seeded_and_recorded() -> None:
    """The default limit is 2,000 rows, the sample depends on the seed alone, and its size is part of the result."""
    log_pi, _, points, _, _ = draw_map(n=2_100)

    got = trustworthiness(log_pi, points, max_rows=300, seed=1)

    assert trustworthiness(log_pi, points).rows == 2_000
    assert (got.rows, got.seed, got.neighbours) == (300, 1, 5)
    assert got == trustworthiness(log_pi, points, max_rows=300, seed=1)
    assert got.value != trustworthiness(log_pi, points, max_rows=300, seed=2).value


def test_trustworthiness_refuses_what_it_cannot_compute() -> None:
    """Half the rows as neighbours, an unknown metric and an empty subsample are configuration errors."""
    log_pi, _, points, _, _ = draw_map(n=10)

    with pytest.raises(ConfigError, match="below n / 2"):
        trustworthiness(log_pi, points, neighbours=5)
    with pytest.raises(ConfigError, match="max_rows"):
        trustworthiness(log_pi, points, max_rows=0)
