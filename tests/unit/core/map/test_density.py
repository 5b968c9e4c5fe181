from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.map.bandwidth import choose_bandwidth
from darksight_core.map.density import MOST_NODES, Kde
from darksight_core.rows.simplex import Floats
from tests.support.densities import exact_log_kde

# The promise of the module: nats where log p is near its maximum, at worst and in 99 of 100 places; deeper, a share.
CORE_DEPTH, CORE_ERROR, CORE_ERROR_99 = 15.0, 0.25, 0.06
TAIL_DEPTH, TAIL_ERROR = 450.0, 0.02


def make_clusters(n: int = 3_000, seed: int = 0) -> Floats:
    """Ten tight clusters on a ring with 5% of the points on bridges between them."""
    rng = np.random.default_rng(seed)
    angles = 2.0 * np.pi * np.arange(10) / 10
    centres = np.column_stack([np.cos(angles), np.sin(angles)]) * rng.uniform(5.0, 15.0, (10, 1))
    ends = centres[rng.integers(0, 10, (2, n))]
    points = ends[0] + rng.normal(0.0, 0.4, (n, 2))
    share = rng.random((n, 1))
    bridge = ends[0] * share + ends[1] * (1.0 - share) + rng.normal(0.0, 0.05, (n, 2))
    return np.where(rng.random((n, 1)) < 0.05, bridge, points)


def make_heavy(n: int = 2_000, seed: int = 0) -> Floats:
    """A Gaussian core with eight points at fifty times its radius."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(0.0, 1.0, (n, 2)), 50.0 * rng.normal(0.0, 1.0, (8, 2))])


def make_line(n: int = 600, seed: int = 0) -> Floats:
    """Points on a slanted segment."""
    along = np.random.default_rng(seed).uniform(-10.0, 10.0, n)
    return np.column_stack([0.8 * along, 0.6 * along])


def make_curve(n: int = 2_000, seed: int = 0) -> Floats:
    """Points on an open arc, as two classes make them."""
    angle = 2.5 * np.random.default_rng(seed).beta(0.5, 0.5, n)
    return 20.0 * np.column_stack([np.cos(angle), np.sin(angle)])


def make_disc(n: int = 6_000, seed: int = 0) -> Floats:
    """A dense disc with a sharp rim beside a small one."""
    rng = np.random.default_rng(seed)
    angle, radius = rng.uniform(0.0, 2.0 * np.pi, n), np.sqrt(rng.random(n))
    points = np.column_stack([np.cos(angle), np.sin(angle)]) * radius[:, None]
    points[: n // 2] = 0.3 * points[: n // 2] + [4.0, 1.0]
    return points


CLOUDS: dict[str, tuple[Floats, float | None]] = {
    "one point": (np.array([[3.0, -2.0]]), 0.7),
    "two points": (np.array([[0.0, 0.0], [10.0, 1.0]]), 0.5),
    "two far points": (np.array([[0.0, 0.0], [200.0, 100.0]]), 0.5),
    "identical": (np.full((50, 2), 4.0), None),
    "clusters": (make_clusters(), None),
    "narrow kernel": (make_clusters(800), 0.07),
    "heavy tail": (make_heavy(), None),
    "line": (make_line(), 0.1),
    "curve": (make_curve(), 0.4),
    "two discs": (make_disc(), 0.15),
    "duplicates": (np.round(make_clusters(), 0), None),
}


@functools.cache
def fit_cloud(name: str) -> Kde:
    """Density of a cloud, fitted once in whatever order the tests run."""
    points, bandwidth = CLOUDS[name]
    return Kde.fit(points, bandwidth=bandwidth)


@pytest.fixture(params=CLOUDS)
def cloud(request: pytest.FixtureRequest) -> tuple[Floats, Kde]:
    """References and their density."""
    return CLOUDS[request.param][0], fit_cloud(request.param)


def make_queries(points: Floats, bandwidth: float, count: int, seed: int = 1) -> Floats:
    """Places in the box, between references, around them, and up to a thousand extents away in all directions."""
    rng = np.random.default_rng(seed)
    low, high = points.min(axis=0), points.max(axis=0)
    extent, middle = max(float((high - low).max()), bandwidth), 0.5 * (low + high)
    first, second = points[rng.integers(0, len(points), (2, count))]
    share = rng.random((count, 1))
    angle, reach = rng.uniform(0.0, 2.0 * np.pi, count), extent * 10.0 ** rng.uniform(-0.5, 3.0, count)
    return np.concatenate(
        [
            middle + 1.3 * extent * (rng.random((count, 2)) - 0.5),
            first * share + second * (1.0 - share),
            first + bandwidth * rng.uniform(0.0, 8.0, (count, 1)) * rng.normal(0.0, 1.0, (count, 2)),
            middle + reach[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]),
        ]
    )


def find_depth(points: Floats, log_density: Floats, bandwidth: float) -> Floats:
    """Nats below the maximum over some references."""
    some = points[:: max(1, len(points) // 300)]
    return np.asarray(exact_log_kde(some, points, bandwidth).max() - log_density)


def test_promise_holds_on_every_cloud(cloud: tuple[Floats, Kde]) -> None:
    """Errors against the exact sum stay below the promise near references and in the gaps between them."""
    points, kde = cloud
    queries = make_queries(points, kde.bandwidth, 4_000_000 // max(len(points), 5_000))

    exact = exact_log_kde(queries, points, kde.bandwidth)
    error, depth = np.abs(kde.log_density(queries) - exact), find_depth(points, exact, kde.bandwidth)

    core = depth < CORE_DEPTH
    assert np.quantile(error[core], 0.99) <= CORE_ERROR_99
    assert error[core].max() <= CORE_ERROR
    tail = ~core & (depth < TAIL_DEPTH) & is_inside(queries, points, 8.0 * kde.bandwidth)
    assert (error[tail] <= TAIL_ERROR * depth[tail]).all()


def is_inside(queries: Floats, points: Floats, margin: float) -> np.ndarray:
    """Which queries the grid covers."""
    low, high = points.min(axis=0) - margin, points.max(axis=0) + margin
    return np.asarray(((low <= queries) & (queries <= high)).all(axis=1))


def test_tails_fall_at_any_distance(cloud: tuple[Floats, Kde]) -> None:
    """Along a ray out of the cloud the density falls, and it is finite a million extents away."""
    points, kde = cloud
    low, high = points.min(axis=0), points.max(axis=0)
    extent = max(float((high - low).max()), kde.bandwidth)
    reach = extent * np.geomspace(1.5, 1e6, 200)

    for angle in np.linspace(0.0, 2.0 * np.pi, 12, endpoint=False):
        ray = 0.5 * (low + high) + reach[:, None] * [math.cos(angle), math.sin(angle)]
        log_density = kde.log_density(ray)
        assert np.isfinite(log_density).all()
        assert (np.diff(log_density) < 0.0).all()


def test_batch_equals_its_rows(cloud: tuple[Floats, Kde]) -> None:
    """A row alone, in a batch and in another order has the same density to the last bit, and the batch is unchanged."""
    points, kde = cloud
    queries = make_queries(points, kde.bandwidth, 30)
    before = queries.copy()

    batch = kde.log_density(queries)

    np.testing.assert_array_equal([kde.log_density(query[None])[0] for query in queries], batch)
    np.testing.assert_array_equal(kde.log_density(queries[::-1])[::-1], batch)
    np.testing.assert_array_equal(queries, before)


def test_tensors_round_trip(cloud: tuple[Floats, Kde]) -> None:
    """A density rebuilt from copies of its arrays reads the same, and a chosen one fits a bundle."""
    points, kde = cloud
    queries = make_queries(points, kde.bandwidth, 20)

    tensors = {name: array.copy() for name, array in kde.tensors().items()}
    again = Kde.from_tensors(tensors)

    np.testing.assert_array_equal(again.log_density(queries), kde.log_density(queries))
    assert sum(array.nbytes for array in tensors.values()) < 4_250_000


def test_density_is_continuous_at_the_edge_of_the_grid() -> None:
    """Interpolation inside and the tail outside meet, also at corners."""
    points = make_clusters(500)
    kde = Kde.fit(points)
    step = 0.5 * kde.bandwidth
    low, high = kde.origin + step, kde.origin + step * (np.array(kde.values.shape) - 2)
    share = np.linspace(0.0, 1.0, 200)[:, None]
    edge = np.concatenate([low + share * [high[0] - low[0], 0.0], high - share * [0.0, high[1] - low[1]]])
    middle = 0.5 * (low + high)

    inside, outside = (kde.log_density(middle + (edge - middle) * scale) for scale in (1.0 - 1e-9, 1.0 + 1e-9))

    np.testing.assert_allclose(inside, outside, rtol=1e-6)


def test_no_rows() -> None:
    """An empty batch has an empty result."""
    assert Kde.fit(make_line(10)).log_density(np.empty((0, 2))).shape == (0,)


def test_one_reference_is_the_gaussian() -> None:
    """With one reference the density is the kernel, and falls at any distance."""
    kde = Kde.fit(np.array([[3.0, -2.0]]), bandwidth=0.7)
    queries = np.array([[3.0, -2.0], [3.5, -1.0], [5.0, -3.0], [3.0, 3.0], [9.0, -2.0]])

    expected = -((queries - [3.0, -2.0]) ** 2).sum(axis=1) / (2 * 0.7**2) - math.log(2 * math.pi * 0.7**2)

    np.testing.assert_allclose(kde.log_density(queries), expected, rtol=1e-3)


@pytest.mark.parametrize("name", ["clusters", "heavy tail", "line", "two points"])
def test_density_integrates_to_one(name: str) -> None:
    """The sum over a fine grid around the references is one."""
    points, bandwidth = CLOUDS[name]
    points = points[np.abs(points).max(axis=1) < 20.0]
    kde = Kde.fit(points, bandwidth=bandwidth or max(choose_bandwidth(points), 0.1))
    step = 0.5 * kde.bandwidth
    low, high = points.min(axis=0) - 6.0 * kde.bandwidth, points.max(axis=0) + 6.0 * kde.bandwidth
    x, y = (np.arange(a, b, step) for a, b in zip(low, high, strict=True))

    total = sum(np.exp(kde.log_density(np.column_stack([np.full(len(y), value), y]))).sum() for value in x)

    assert total * step**2 == pytest.approx(1.0, abs=1e-3)


def test_density_on_a_line_is_one_dimensional() -> None:
    """References on one horizontal line, as of two classes: the density is that along the line."""
    x = np.random.default_rng(0).normal(size=2_000)
    kde = Kde.fit(np.column_stack([x, np.zeros_like(x)]))

    grid = np.linspace(-8.0, 8.0, 1_601)
    log_density = kde.log_density(np.column_stack([grid, np.zeros_like(grid)]))

    truth = np.exp(-0.5 * grid**2) / math.sqrt(2.0 * math.pi)
    assert np.exp(log_density).sum() * 0.01 == pytest.approx(1.0, abs=0.01)
    assert np.abs(np.exp(log_density) - truth).sum() * 0.01 < 0.1


def test_moves_with_the_references() -> None:
    """A rotated and shifted cloud has the rotated and shifted density, within the promise."""
    points = make_clusters(1_000)
    turn = np.array([[math.cos(0.7), -math.sin(0.7)], [math.sin(0.7), math.cos(0.7)]])
    kde = Kde.fit(points, bandwidth=0.3)
    turned = points @ turn.T + [100.0, -30.0]
    moved = Kde.fit(turned, bandwidth=0.3)
    queries = make_queries(points, 0.3, 500)
    turned_queries = queries @ turn.T + [100.0, -30.0]

    here, there = kde.log_density(queries), moved.log_density(turned_queries)

    depth = find_depth(points, here, 0.3)
    core, inside = depth < CORE_DEPTH, is_inside(queries, points, 2.4) & is_inside(turned_queries, turned, 2.4)
    assert np.abs(here - there)[core].max() <= 2 * CORE_ERROR
    assert (np.abs(here - there) <= 2 * TAIL_ERROR * depth)[~core & inside & (depth < TAIL_DEPTH)].all()


def test_duplicating_all_points_changes_nothing() -> None:
    """Twice the same references have the same bandwidth and density."""
    points = make_clusters(900)
    queries = make_queries(points, 0.3, 300)

    once, twice = Kde.fit(points), Kde.fit(np.concatenate([points, points]))

    # A repeated point counts as its place once it is left out; only the normaliser of the rest differs, by 1 / n.
    assert twice.bandwidth == pytest.approx(once.bandwidth, rel=0.02)
    same = Kde.fit(np.concatenate([points, points]), bandwidth=once.bandwidth)
    np.testing.assert_allclose(same.log_density(queries), once.log_density(queries), rtol=0.0, atol=CORE_ERROR)


def loo_likelihood(points: Floats, bandwidth: float) -> Floats:
    """Leave-one-out log likelihood of each point, by a plain loop."""
    return np.array(
        [exact_log_kde(points[[i]], np.delete(points, i, axis=0), bandwidth)[0] for i in range(len(points))]
    )


@pytest.mark.parametrize("points", [make_clusters(400), make_heavy(300)[:300]], ids=["clusters", "gauss"])
def test_bandwidth_is_the_leave_one_out_optimum(points: Floats) -> None:
    """The chosen bandwidth is where a naive leave-one-out likelihood of the same points has its maximum."""
    chosen = choose_bandwidth(points)
    distance = np.hypot(*(points[:, None] - points).T) + np.diag(np.full(len(points), np.inf))
    kept = np.argsort(distance.min(axis=1))[: math.ceil(0.99 * len(points))]

    grid = chosen * np.geomspace(0.7, 1.4, 29)
    likelihood = [loo_likelihood(points, bandwidth)[kept].mean() for bandwidth in grid]

    assert chosen == pytest.approx(grid[np.argmax(likelihood)], rel=0.04)


def test_scott_smooths_clusters_away() -> None:
    """On held-out points of clusters the chosen bandwidth gains more than a nat over Scott's rule."""
    points = make_clusters(3_000)
    held_out, points = points[::7], np.delete(points, np.s_[::7], axis=0)
    scott = len(points) ** (-1 / 6) * math.sqrt(points.var(axis=0).mean())

    chosen = choose_bandwidth(points)

    assert scott > 4.0 * chosen
    gain = exact_log_kde(held_out, points, chosen).mean() - exact_log_kde(held_out, points, scott).mean()
    assert gain > 1.0


def test_repeated_places_do_not_collapse_the_bandwidth() -> None:
    """Rows that land on the same place, exactly or nearly, leave the bandwidth where the other points put it."""
    rng = np.random.default_rng(0)
    points = rng.normal(0.0, 1.0, (1_000, 2))
    repeated = np.concatenate([points, points[:600], points[:600] + 1e-7 * rng.normal(0.0, 1.0, (600, 2))])

    assert choose_bandwidth(repeated) == pytest.approx(choose_bandwidth(points), rel=0.3)


def test_one_lost_point_does_not_set_the_bandwidth() -> None:
    """A single point far away leaves the bandwidth of a thousand others alone."""
    points = np.random.default_rng(0).normal(0.0, 1.0, (1_000, 2))

    assert choose_bandwidth(np.vstack([points, [[1e4, 0.0]]])) == pytest.approx(choose_bandwidth(points), rel=0.1)


def test_chosen_bandwidth_is_raised_until_the_grid_fits() -> None:
    """A cloud too finely drawn for the grid is smoothed a little more."""
    points = make_line(800)

    kde = Kde.fit(points)

    assert choose_bandwidth(points) < kde.bandwidth < 0.01 * np.ptp(points, axis=0).max()
    assert max(kde.values.shape) <= MOST_NODES


def test_same_seed_same_arrays() -> None:
    """Two fits with a seed are equal to the last bit; the seed matters only where points are drawn."""
    points = make_clusters(2_100)

    first, second = Kde.fit(points[:500], seed=1), Kde.fit(points[:500], seed=1)

    for name, array in first.tensors().items():
        np.testing.assert_array_equal(array, second.tensors()[name])
    assert choose_bandwidth(points, seed=1) != choose_bandwidth(points, seed=2)


def test_given_bandwidth_is_kept() -> None:
    """A given bandwidth is used as it is."""
    assert Kde.fit(make_clusters(300), bandwidth=0.123).bandwidth == 0.123


@pytest.mark.parametrize(
    "points", [np.empty((0, 2)), np.zeros((3, 3)), np.array([[0.0, np.nan]]), np.array([[np.inf, 0.0]])]
)
def test_bad_references_are_refused(points: Floats) -> None:
    """No references, the wrong shape and values that are not finite are refused."""
    with pytest.raises(ConfigError):
        Kde.fit(points)
    with pytest.raises(ConfigError):
        choose_bandwidth(points)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.nan, math.inf])
def test_bad_bandwidth_is_refused(bandwidth: float) -> None:
    """A bandwidth must be positive and finite."""
    with pytest.raises(ConfigError, match="bandwidth must be positive"):
        Kde.fit(make_line(5), bandwidth=bandwidth)


def test_bandwidth_too_narrow_for_the_grid_is_refused() -> None:
    """A given bandwidth is never changed; the message names the smallest one."""
    with pytest.raises(ConfigError, match=r"at least 0\.02"):
        Kde.fit(np.array([[0.0, 0.0], [10.0, 1.0]]), bandwidth=0.01)


@pytest.mark.parametrize("name", ["bandwidth", "origin", "values"])
def test_missing_arrays_are_refused(name: str) -> None:
    """All arrays must be there."""
    tensors = {key: array for key, array in Kde.fit(make_clusters(500)).tensors().items() if key != name}

    with pytest.raises(ConfigError, match=name):
        Kde.from_tensors(tensors)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("bandwidth", np.array([-1.0])),
        ("bandwidth", np.array([np.inf])),
        ("bandwidth", np.array([np.nan])),
        ("origin", np.zeros(3)),
        ("values", np.zeros(16)),
        ("values", np.zeros((3, 8))),
        ("values", np.zeros((8, MOST_NODES + 1))),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name: str, array: np.ndarray) -> None:
    """Arrays that the kernel could not read are refused before a point is read from them."""
    with pytest.raises(ConfigError):
        Kde.from_tensors({**Kde.fit(make_clusters(500)).tensors(), name: array})
