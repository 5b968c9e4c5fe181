from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.evaluation.measures import (
    class_medians,
    cluster_monotonicity,
    fidelity,
    global_fidelity,
    local_fidelity,
    measure_map,
    nearest,
    spearman,
    trustworthiness,
)
from darksight_core.map.student import Student
from darksight_core.simplex import Floats, js_distance, log_probs, log_softmax

# js_distance is the root of a difference of rounded numbers, so two equal rows may be √(2e-16) apart.
JS_NOISE = 3e-8


def make_map(
    *, n: int = 300, classes: int = 4, noise: float = 0.5, seed: int = 0
) -> tuple[Floats, Floats, Floats, Floats, NDArray[np.int64]]:
    """log_pi, log_q, points, centres, labels of a student and of a teacher that is the student with noisy logits."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    centres = 4.0 * rng.normal(size=(classes, 2))
    points = centres[labels] + rng.standard_t(3.0, size=(n, 2))
    log_q = Student(centres, np.ones(classes), np.zeros(classes)).log_posterior(points)
    log_pi = log_softmax(log_q + noise * rng.normal(size=log_q.shape))
    return log_pi, log_q, points, centres, labels


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


def test_fidelity_of_a_perfect_student_is_perfect() -> None:
    """A student equal to the teacher has no divergence, full agreement and the teacher's own accuracy."""
    log_pi, _, _, _, labels = make_map()

    got = fidelity(log_pi, log_pi.copy(), labels)

    assert (got.kl_sym, got.kl_teacher_student, got.kl_student_teacher, got.acc_teacher) == (0.0, 0.0, 0.0, 1.0)
    assert got.acc_ground == got.teacher_acc_ground
    assert got.teacher_acc_ground is not None
    assert 0.5 < got.teacher_acc_ground < 1.0


def test_fidelity_equals_hand_computed_figures() -> None:
    """Two rows over two classes give the divergences and shares worked out by hand."""
    log_pi = log_probs(np.array([[0.5, 0.5], [0.25, 0.75]]))
    log_q = log_probs(np.array([[0.25, 0.75], [0.25, 0.75]]))
    forward = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    backward = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)

    got = fidelity(log_pi, log_q, [1, 0])

    assert got.kl_teacher_student == pytest.approx(forward / 2)
    assert got.kl_student_teacher == pytest.approx(backward / 2)
    assert got.kl_sym == pytest.approx((forward + backward) / 4)
    # The first teacher row is a tie, which goes to class 0, so the student's class 1 does not agree with it.
    assert got.acc_teacher == 0.5
    assert (got.acc_ground, got.teacher_acc_ground) == (0.5, 0.0)


def test_agreement_on_shuffled_rows_is_chance() -> None:
    """Student rows dealt to the wrong points agree no more often than a random permutation would."""
    log_pi, log_q, _, _, _ = make_map(n=4_000, classes=10, seed=3)
    order = np.random.default_rng(4).permutation(len(log_pi))
    n, teacher, student = len(log_pi), log_pi.argmax(axis=1), log_q.argmax(axis=1)
    t, s = np.bincount(teacher, minlength=10), np.bincount(student, minlength=10)
    chance = float(t @ s) / n**2
    # Variance of Σ_i a(i, σ(i)) over random permutations σ: the doubly centred a, squared and summed, over n - 1.
    centred = np.eye(10) - s[:, None] / n - t[None, :] / n + chance
    error = math.sqrt(float(t @ centred**2 @ s) / (n - 1)) / n

    shuffled = fidelity(log_pi, log_q[order]).acc_teacher

    assert fidelity(log_pi, log_q).acc_teacher > 0.85
    assert abs(shuffled - chance) < 4 * error
    assert chance < 0.2


def test_a_student_that_knows_nothing_predicts_class_zero() -> None:
    """Ties go to the lowest class, so a uniform student agrees exactly where the teacher predicts class 0."""
    log_pi, _, _, _, _ = make_map()
    uniform = np.full_like(log_pi, -math.log(log_pi.shape[1]))

    got = fidelity(log_pi, uniform)

    assert got.acc_teacher == np.mean(log_pi.argmax(axis=1) == 0)
    assert got.acc_ground is None
    assert got.teacher_acc_ground is None


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
    log_pi, log_q, points, _, _ = make_map(n=4)

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
    log_pi, log_q, points, _, _ = make_map(n=120)

    got = local_fidelity(log_pi, log_q, points, neighbours=(20, 5, 1))

    assert got.neighbours == (1, 5, 20)
    assert got.teacher == pytest.approx([naive_local(log_pi, points, k) for k in (1, 5, 20)], abs=JS_NOISE)
    assert got.student == pytest.approx([naive_local(log_q, points, k) for k in (1, 5, 20)], abs=JS_NOISE)


def test_local_fidelity_of_a_scrambled_map_is_bad() -> None:
    """Points dealt to the wrong rows raise M_k to the mean distance between any two rows."""
    log_pi, _, points, _, _ = make_map()
    dealt = np.random.default_rng(1).permutation(points)
    anywhere = float(js_distance(log_pi[:, None], log_pi).sum() / (300 * 299))

    good = local_fidelity(log_pi, None, points, neighbours=(10,)).teacher[0]
    bad = local_fidelity(log_pi, None, dealt, neighbours=(10,)).teacher[0]

    assert good < 0.4 * anywhere
    assert bad == pytest.approx(anywhere, rel=0.05)


def test_coincident_points_score_the_mean_over_all_pairs() -> None:
    """A map that puts everything in one place is not rewarded for rows that are sorted in the file."""
    log_pi, _, _, _, labels = make_map(n=400)
    rows = log_pi[np.argsort(labels)]
    anywhere = float(js_distance(rows[:, None], rows).sum() / (400 * 399))

    got = local_fidelity(rows, None, np.zeros((400, 2)), neighbours=(5, 100))

    assert got.teacher == pytest.approx((anywhere, anywhere), rel=0.04)


def test_query_subsample_is_recorded_and_close() -> None:
    """A subsample averages fewer neighbourhoods of the full map, which keeps the neighbours as near as before."""
    log_pi, log_q, points, _, _ = make_map(n=2_000)

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
    log_pi, _, points, _, _ = make_map(n=250, noise=2.0)

    got = trustworthiness(log_pi, points, neighbours=k)

    assert got.value == pytest.approx(manifold.trustworthiness(np.exp(log_pi), points, n_neighbors=k), abs=1e-9)


def test_trustworthiness_by_jensen_shannon_equals_scikit_learn() -> None:
    """The other row metric gives what sklearn gives for the matrix of Jensen-Shannon distances."""
    manifold = pytest.importorskip("sklearn.manifold")
    log_pi, _, points, _, _ = make_map(n=200, noise=2.0)
    rows = js_distance(log_pi[:, None], log_pi)

    got = trustworthiness(log_pi, points, metric="js")

    expected = manifold.trustworthiness(rows, points, n_neighbors=5, metric="precomputed")
    assert got.value == pytest.approx(expected, abs=1e-9)
    assert got.metric == "js"


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
    log_pi, _, points, _, _ = make_map(n=2_100)

    got = trustworthiness(log_pi, points, max_rows=300, seed=1)

    assert trustworthiness(log_pi, points).rows == 2_000
    assert (got.rows, got.seed, got.neighbours) == (300, 1, 5)
    assert got == trustworthiness(log_pi, points, max_rows=300, seed=1)
    assert got.value != trustworthiness(log_pi, points, max_rows=300, seed=2).value


def test_trustworthiness_refuses_what_it_cannot_compute() -> None:
    """Half the rows as neighbours, an unknown metric and an empty subsample are configuration errors."""
    log_pi, _, points, _, _ = make_map(n=10)

    with pytest.raises(ConfigError, match="below n / 2"):
        trustworthiness(log_pi, points, neighbours=5)
    with pytest.raises(ConfigError, match="metric"):
        trustworthiness(log_pi, points, neighbours=2, metric="cosine")  # type: ignore[arg-type]  # the error under test
    with pytest.raises(ConfigError, match="max_rows"):
        trustworthiness(log_pi, points, max_rows=0)


def test_monotonicity_of_rings_is_one() -> None:
    """Rows that grow less certain with every step from their centre score exactly 1, reversed rows exactly -1."""
    steps = np.arange(1, 21)
    points = np.concatenate([np.column_stack([steps, 0 * steps]), np.column_stack([100 - steps, 0 * steps])])
    sure = 1.0 - 0.02 * steps
    rows = np.concatenate([np.column_stack([sure, 1 - sure]), np.column_stack([1 - sure, sure])])
    centres = np.array([[0.0, 0.0], [100.0, 0.0]])

    good = cluster_monotonicity(log_probs(rows), points, centres)
    bad = cluster_monotonicity(log_probs(np.concatenate([rows[19::-1], rows[:19:-1]])), points, centres)

    assert (good.mean, good.per_class) == (1.0, (1.0, 1.0))
    assert (bad.mean, bad.per_class) == (-1.0, (-1.0, -1.0))


def test_monotonicity_is_the_correlation_within_each_predicted_class() -> None:
    """Each class has scipy's correlation over the rows predicted as that class; the mean weighs classes equally."""
    stats = pytest.importorskip("scipy.stats")
    log_pi, _, points, centres, _ = make_map()
    predicted = log_pi.argmax(axis=1)
    unsure = stats.entropy(np.exp(log_pi), axis=1)
    expected = []
    for label in range(4):
        far = np.linalg.norm(points[predicted == label] - centres[label], axis=1)
        expected.append(stats.spearmanr(unsure[predicted == label], far).statistic)

    got = cluster_monotonicity(log_pi, points, centres)

    assert got.per_class == pytest.approx(expected)
    assert got.mean == pytest.approx(np.mean(expected))


def test_monotonicity_skips_classes_it_cannot_judge() -> None:
    """A class with nine rows, with constant entropy, at one place or without a centre has no figure."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), [9, 30, 30, 30, 30])
    sure = np.where(labels == 1, 0.9, rng.uniform(0.6, 0.9, size=len(labels)))
    rows = (1 - sure)[:, None] / 4 + (sure - (1 - sure) / 4)[:, None] * np.eye(5)[labels]
    points = rng.normal(size=(len(labels), 2))
    points[labels == 2] = 1.0
    centres = np.zeros((5, 2))
    centres[3] = np.nan

    got = cluster_monotonicity(log_probs(rows), points, centres)

    assert got.per_class[:4] == (None, None, None, None)
    assert got.per_class[4] == got.mean is not None


def test_class_medians_are_robust_and_leave_absent_classes_empty() -> None:
    """The centre of a predicted class is its median point; a class never predicted has none."""
    log_pi = log_probs(np.eye(3)[[0, 0, 0, 2]])
    points = np.array([[0.0, 1.0], [1.0, 2.0], [50.0, 90.0], [7.0, 8.0]])

    assert np.array_equal(class_medians(log_pi, points), [[1.0, 2.0], [np.nan] * 2, [7.0, 8.0]], equal_nan=True)


def test_global_fidelity_is_positive_when_confused_classes_are_close() -> None:
    """Classes on a line whose rows and labels leak most to the nearest class score 1, and moved apart they score -1."""
    leak = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]])
    log_pi = log_probs(np.repeat(leak, 10, axis=0))
    labels = np.concatenate([np.repeat([0, 1, 2], (10 * row).round().astype(int)) for row in leak])
    good = np.array([[0.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    bad = np.array([[0.0, 0.0], [3.0, 0.0], [1.0, 0.0]])

    assert global_fidelity(log_pi, good, labels).as_dict() == {"soft": 1.0, "ground": 1.0}
    assert global_fidelity(log_pi, good).as_dict() == {"soft": 1.0, "ground": None}
    got = global_fidelity(log_pi, bad, labels)
    assert got.soft == pytest.approx(-0.5)
    assert got.ground == pytest.approx(-0.5)


def test_global_fidelity_equals_the_naive_loop() -> None:
    """Both confusions equal those counted pair by pair, correlated by scipy."""
    stats = pytest.importorskip("scipy.stats")
    log_pi, _, _, centres, labels = make_map(classes=6, noise=2.0)
    predicted = log_pi.argmax(axis=1)
    pairs = [(k, m) for k in range(6) for m in range(k + 1, 6)]
    far = [math.dist(centres[k], centres[m]) for k, m in pairs]

    def soft(k: int, m: int) -> float:
        return float(np.exp(log_pi[predicted == k, m]).mean())

    def ground(k: int, m: int) -> float:
        return float((predicted[labels == k] == m).mean())

    got = global_fidelity(log_pi, centres, labels)

    assert got.soft == pytest.approx(-stats.spearmanr(far, [soft(k, m) + soft(m, k) for k, m in pairs]).statistic)
    assert got.ground == pytest.approx(-stats.spearmanr(far, [ground(k, m) + ground(m, k) for k, m in pairs]).statistic)


def test_global_fidelity_leaves_out_classes_it_knows_nothing_about() -> None:
    """A class that is never predicted, never a label and has no centre changes nothing."""
    log_pi, _, _, centres, labels = make_map(classes=4)
    wider = np.column_stack([log_pi, np.full(len(log_pi), -69.0)])

    got = global_fidelity(wider, np.concatenate([centres, [[np.nan, np.nan]]]), labels)

    assert got == global_fidelity(log_pi, centres, labels)
    assert global_fidelity(wider, np.concatenate([centres, [[99.0, 99.0]]]), labels) == got


@pytest.mark.parametrize("levels", [3, 10, 10**9], ids=["many ties", "some ties", "no ties"])
def test_spearman_equals_scipy(levels: int) -> None:
    """Average ranks are those of scipy.stats, with and without ties."""
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(levels)
    a = rng.integers(levels, size=80).astype(float)
    b = 0.3 * a + rng.integers(levels, size=80)

    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


def test_spearman_of_a_constant_is_unknown() -> None:
    """Without variation there is no correlation, and one value or none has no variation."""
    assert spearman(np.zeros(5), np.arange(5.0)) is None
    assert spearman(np.arange(5.0), np.ones(5)) is None
    assert spearman(np.zeros(1), np.zeros(1)) is None
    assert spearman(np.zeros(0), np.zeros(0)) is None
    with pytest.raises(ConfigError):
        spearman(np.zeros(3), np.zeros(4))


def test_measures_do_not_depend_on_the_order_of_rows() -> None:
    """Without ties, a permutation of rows leaves every figure as it was up to rounding."""
    log_pi, log_q, points, centres, labels = make_map()
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
    log_pi, log_q, points, centres, labels = make_map()

    got = measure_map(log_pi, log_q, points, centres, labels, neighbours=(5, 10), seed=3, max_rows=200)

    assert got.fidelity == fidelity(log_pi, log_q, labels)
    assert got.local_fidelity == local_fidelity(log_pi, log_q, points, neighbours=(5, 10), max_rows=200, seed=3)
    assert got.trustworthiness == trustworthiness(log_pi, points, max_rows=200, seed=3)
    assert got.cluster_monotonicity == cluster_monotonicity(log_pi, points, centres)
    assert got.global_fidelity == global_fidelity(log_pi, centres, labels)
    assert (got.rows, got.classes, got.notes) == (300, 4, ())
    assert json.loads(json.dumps(got.as_dict(), allow_nan=False)) == got.as_dict()


def test_inputs_are_left_alone() -> None:
    """Arrays that may not be written are enough, and two calls give equal results."""
    arrays = make_map(n=60)
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False

    first = measure_map(*arrays)

    assert measure_map(*arrays) == first
    assert all(np.array_equal(array, copy) for array, copy in zip(arrays, copies, strict=True))


def test_a_map_without_a_student_is_measured_by_its_medians() -> None:
    """A map from another method has every figure but those about the student."""
    log_pi, _, points, _, _ = make_map()

    got = measure_map(log_pi, None, points, class_medians(log_pi, points))

    assert got.fidelity is None
    assert got.local_fidelity is not None
    assert got.local_fidelity.student is None
    assert got.cluster_monotonicity.mean is not None
    assert got.global_fidelity.ground is None


@pytest.mark.parametrize(("n", "ks", "trusted"), [(1, None, 0), (2, [1], 0), (7, [1, 5], 3), (60, [1, 5, 50], 5)])
def test_small_maps_lose_figures_with_a_note(n: int, ks: list[int] | None, trusted: int) -> None:
    """Neighbourhoods that do not exist are dropped and named, down to a map of one point."""
    log_pi, log_q, points, centres, labels = make_map(n=n)

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
    log_pi, log_q, points, centres, labels = make_map(n=20)

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
