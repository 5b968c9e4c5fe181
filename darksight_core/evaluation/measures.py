"""How good a map is, in figures that are able to come out badly.

A map places row i of the watched classifier (the teacher, π_i) at a point y_i of the plane. The paper asks four things
of it. One, finding outliers, is judged by the gate; the other three, and the compression itself, are judged here:

    compression           does the student read the teacher's row off the point?           `fidelity`
    local fidelity        do neighbours on the map have similar rows?                      `local_fidelity`,
                          and are neighbours on the map neighbours among the rows?         `trustworthiness`
    cluster preservation  does confidence fall with the distance from the class centre?    `cluster_monotonicity`
    global fidelity       are classes that get confused placed close to each other?        `global_fidelity`

`measure_map` gathers all of them. Only `fidelity` and half of `local_fidelity` need a student, so a map made by another
method is measured by the same code: leave out `log_q` and pass `class_medians` as centres.

Rules that hold throughout. Rows come as logarithms (`simplex.log_probs` deals with exact zeros). The predicted class
is the most probable one, of equally probable ones the lowest index. A figure that the data cannot give, such as a
correlation with a constant, is None and never 0 or NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.figures import Record
from darksight_core.simplex import Floats, entropy, js_distance, kl, kl_sym

__all__ = [
    "ClusterMonotonicity",
    "Fidelity",
    "GlobalFidelity",
    "LocalFidelity",
    "MapMeasures",
    "Trustworthiness",
    "class_medians",
    "cluster_monotonicity",
    "fidelity",
    "global_fidelity",
    "local_fidelity",
    "measure_map",
    "nearest",
    "spearman",
    "trustworthiness",
]

Indices: TypeAlias = NDArray[np.intp]
RowMetric: TypeAlias = Literal["euclidean", "js"]

# 2^19 float64 are 4 MB: the temporary arrays of one block stay near the cache, and larger blocks measured no faster.
_BLOCK = 2**19


@dataclass(frozen=True, slots=True)
class Fidelity(Record):
    """What the student keeps of the teacher; divergences are means over rows, in nats.

    Parameters
    ----------
    kl_sym
        Mean KL_sym(π, q), the objective of the fit.
    kl_teacher_student
        Mean KL(π, q): large where the student rules out what the teacher expects.
    kl_student_teacher
        Mean KL(q, π): large where the student expects what the teacher rules out.
    acc_teacher
        Share of rows where student and teacher predict the same class.
    acc_ground
        Share of rows where the student predicts the label; None without labels.
    teacher_acc_ground
        Share of rows where the teacher predicts the label, the figure `acc_ground` should match; None without labels.
    """

    kl_sym: float
    kl_teacher_student: float
    kl_student_teacher: float
    acc_teacher: float
    acc_ground: float | None
    teacher_acc_ground: float | None


@dataclass(frozen=True, slots=True)
class LocalFidelity(Record):
    """M_k for several k; lower is better, between 0 and √(log 2).

    Parameters
    ----------
    neighbours
        The values of k, ascending.
    teacher
        M_k with p = π, the teacher's rows: what a reader of the map is told about the classifier.
    student
        M_k with p = q, the student's rows, as in the paper's formula: only how smooth the student is at the scale of
        k neighbours, since q depends on nothing but the point. None without a student.
    queries
        Number of points whose neighbourhood was averaged.
    points
        Number of points among which neighbours were searched.
    seed
        Seed of the subsample and of the order among ties.
    """

    neighbours: tuple[int, ...]
    teacher: tuple[float, ...]
    student: tuple[float, ...] | None
    queries: int
    points: int
    seed: int


@dataclass(frozen=True, slots=True)
class Trustworthiness(Record):
    """Trustworthiness of the map; higher is better, at most 1.

    Parameters
    ----------
    value
        The figure.
    neighbours
        Size k of the neighbourhoods.
    metric
        Distance between the teacher's rows.
    rows
        Number of rows in the subsample it was computed on.
    seed
        Seed of that subsample and of the order among ties.
    """

    value: float
    neighbours: int
    metric: RowMetric
    rows: int
    seed: int


@dataclass(frozen=True, slots=True)
class ClusterMonotonicity(Record):
    """Rank correlation of entropy with distance from the class centre; 1 is best.

    Parameters
    ----------
    mean
        Mean over the classes that have a figure, each with equal weight; None when no class has one.
    per_class
        Figure of each of the K classes; None for a class that was skipped.
    """

    mean: float | None
    per_class: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class GlobalFidelity(Record):
    """Rank correlation of closeness of centres with confusion of classes; 1 is best, 0 is an arbitrary arrangement.

    Parameters
    ----------
    soft
        With confusion read off the teacher's own probabilities.
    ground
        With confusion counted against labels; None without labels.
    """

    soft: float | None
    ground: float | None


@dataclass(frozen=True, slots=True)
class MapMeasures(Record):
    """Everything measured about one map.

    Parameters
    ----------
    rows, classes
        n and K.
    fidelity
        None for a map without a student.
    local_fidelity, trustworthiness
        None when the map has too few points to have neighbourhoods.
    cluster_monotonicity, global_fidelity
        Always present; their figures may be None.
    notes
        What was left out or reduced, in sentences for people.
    """

    rows: int
    classes: int
    fidelity: Fidelity | None
    local_fidelity: LocalFidelity | None
    trustworthiness: Trustworthiness | None
    cluster_monotonicity: ClusterMonotonicity
    global_fidelity: GlobalFidelity
    notes: tuple[str, ...]


def fidelity(log_pi: Floats, log_q: Floats, labels: ArrayLike | None = None) -> Fidelity:
    """Compare the student's rows with the teacher's, and both with labels.

    Ties between classes go to the lowest index on both sides, so the figures describe the predictions that are shown
    to people. A student that cannot tell classes apart therefore predicts class 0 everywhere and agrees with the
    teacher as often as the teacher predicts class 0.

    Parameters
    ----------
    log_pi
        Teacher, (n, K).
    log_q
        Student, (n, K).
    labels
        True classes in 0..K-1, (n,).
    """
    log_pi = _finite("log_pi", log_pi)
    log_q = _finite("log_q", log_q, log_pi.shape)
    teacher, student = log_pi.argmax(axis=1), log_q.argmax(axis=1)
    truth = None if labels is None else _checked_labels(labels, *log_pi.shape)
    return Fidelity(
        kl_sym=float(kl_sym(log_pi, log_q).mean()),
        kl_teacher_student=float(kl(log_pi, log_q).mean()),
        kl_student_teacher=float(kl(log_q, log_pi).mean()),
        acc_teacher=float((student == teacher).mean()),
        acc_ground=None if truth is None else float((student == truth).mean()),
        teacher_acc_ground=None if truth is None else float((teacher == truth).mean()),
    )


def nearest(points: Floats, k: int, *, queries: Indices | None = None, seed: int = 0) -> Indices:
    """The k nearest points of each query point, nearest first, (q, k); a point is not its own neighbour.

    Distances are exact differences in float64, never |a|² - 2ab + |b|², which loses all digits of a small gap far from
    the origin. Memory beyond the answer is O(n) for each of the few queries in a block.

    Points at exactly equal distance, mostly points that coincide, are taken in the cyclic order of one seeded shuffle,
    starting at the query's own place in it. So the choice is repeatable, it does not favour rows that happen to stand
    early in a file sorted by class, and the members of one heap do not all choose the same neighbours.

    Parameters
    ----------
    points
        (n, 2).
    k
        Number of neighbours, below n.
    queries
        Indices into `points`, (q,); all points by default.
    seed
        Seed of the shuffle.
    """
    points = _finite("points", points, (len(points), 2))
    n = len(points)
    if not 1 <= k < n:
        raise ConfigError(f"{k} neighbours cannot be found among {n} points: choose k from 1 to n - 1", k=k, n=n)
    queries = np.arange(n) if queries is None else queries
    turn = np.random.default_rng(seed).permutation(n)
    x, y = np.ascontiguousarray(points.T)
    found = np.empty((len(queries), k), dtype=np.intp)
    for part in _blocks(len(queries), n):
        rows = queries[part]
        gap = (x[rows, None] - x) ** 2
        gap += (y[rows, None] - y) ** 2
        gap[np.arange(len(rows)), rows] = np.inf
        found[part] = _closest(gap, rows, turn, k)
    return found


def _closest(gap: Floats, rows: Indices, turn: Indices, k: int) -> Indices:
    """Columns of the k smallest entries in each row of `gap`, sorted by (gap, turn counted from the row's own turn)."""
    near = np.argpartition(gap, k - 1, axis=1)[:, :k]
    reach = np.take_along_axis(gap, near, axis=1).max(axis=1, keepdims=True)
    tied = np.flatnonzero(np.count_nonzero(gap <= reach, axis=1) > k)
    if tied.size:
        order = (turn - turn[rows[tied], None]) % len(turn)
        order[gap[tied] < reach[tied]] = -1
        order[gap[tied] > reach[tied]] = len(turn)
        near[tied] = np.argpartition(order, k - 1, axis=1)[:, :k]
    wait = (turn[near] - turn[rows, None]) % len(turn)
    order = np.lexsort((wait, np.take_along_axis(gap, near, axis=1)), axis=-1)
    return np.take_along_axis(near, order, axis=1)


def local_fidelity(
    log_pi: Floats,
    log_q: Floats | None,
    points: Floats,
    *,
    neighbours: Sequence[int] = (5, 10, 50, 100),
    max_rows: int | None = 10_000,
    seed: int = 0,
) -> LocalFidelity:
    """M_k(Y) = 1/N Σ_i 1/k Σ_{j ∈ NN_k(y_i)} JSD(p_i, p_j), for p = π and for p = q.

    JSD is the Jensen-Shannon distance, the square root of the divergence. `nearest` says how ties are broken; all k
    share one search, so the neighbours for a small k are among those for a larger one.

    Parameters
    ----------
    log_pi
        Teacher, (n, K).
    log_q
        Student, (n, K), or None for a map without one.
    points
        (n, 2).
    neighbours
        Values of k, each below n.
    max_rows
        With more points than this the average runs over a uniform subsample of this size; neighbours are still searched
        among all points. None means no limit.
    seed
        Seed of the subsample and of the order among ties.
    """
    log_pi = _finite("log_pi", log_pi)
    n = len(log_pi)
    points = _finite("points", points, (n, 2))
    ks = tuple(sorted({int(k) for k in neighbours}))
    if not ks or ks[0] < 1:
        raise ConfigError(f"neighbours must be one or more positive numbers, not {tuple(neighbours)}")
    queries = _subsample(n, max_rows, seed)
    near = nearest(points, ks[-1], queries=queries, seed=seed)
    student = None
    if log_q is not None:
        student = _mean_js(_finite("log_q", log_q, log_pi.shape), queries, near, ks)
    return LocalFidelity(ks, _mean_js(log_pi, queries, near, ks), student, len(queries), n, seed)


def _mean_js(log_p: Floats, queries: Indices, near: Indices, ks: tuple[int, ...]) -> tuple[float, ...]:
    """M_k for each k, from neighbours sorted nearest first."""
    by_order = np.zeros(near.shape[1])
    for part in _blocks(len(queries), near.shape[1] * log_p.shape[1]):
        by_order += js_distance(log_p[queries[part], None], log_p[near[part]]).sum(axis=0)
    total = np.cumsum(by_order)
    return tuple(float(total[k - 1] / (k * len(queries))) for k in ks)


def trustworthiness(
    log_pi: Floats,
    points: Floats,
    *,
    neighbours: int = 5,
    metric: RowMetric = "euclidean",
    max_rows: int | None = 2_000,
    seed: int = 0,
) -> Trustworthiness:
    """T = 1 - 2 / (n k (2n - 3k - 1)) Σ_i Σ_{j ∈ NN_k(y_i)} max(0, r(i, j) - k)  (Venna and Kaski).

    r(i, j) is the rank of row j by distance from row i among the teacher's rows: one more than the number of rows
    strictly closer. Rows at equal distance share the best rank, so a heap of equal rows is not held against a map that
    shows it as a heap.

    Parameters
    ----------
    log_pi
        Teacher, (n, K).
    points
        (n, 2).
    neighbours
        k, below half the number of rows used.
    metric
        Distance between rows: "euclidean" on probabilities, or "js", the Jensen-Shannon distance.
    max_rows
        The figure is computed within a uniform subsample of at most this many rows, as it takes all pairs of them.
        None means no limit.
    seed
        Seed of the subsample and of the order among tied points.
    """
    log_pi = _finite("log_pi", log_pi)
    points = _finite("points", points, (len(log_pi), 2))
    if metric not in ("euclidean", "js"):
        raise ConfigError(f"metric must be 'euclidean' or 'js', not {metric!r}")
    sample = _subsample(len(log_pi), max_rows, seed)
    n, k = len(sample), neighbours
    if not 1 <= k < n / 2:
        raise ConfigError(f"{k} neighbours for {n} rows: trustworthiness needs k from 1 to below n / 2", k=k, n=n)
    near = nearest(points[sample], k, seed=seed)
    log_pi = log_pi[sample]
    probs = np.exp(log_pi)
    penalty = 0
    for part in _blocks(n, n * max(k, log_pi.shape[1])):
        if metric == "js":
            gap = js_distance(log_pi[part, None], log_pi)
        else:
            gap = ((probs[part, None] - probs) ** 2).sum(axis=-1)
        taken = np.take_along_axis(gap, near[part], axis=1)
        gap[np.arange(len(gap)), np.arange(n)[part]] = np.inf
        rank = 1 + np.count_nonzero(gap[:, None, :] < taken[:, :, None], axis=-1)
        penalty += int(np.maximum(rank - k, 0).sum())
    return Trustworthiness(1.0 - 2.0 * penalty / (n * k * (2 * n - 3 * k - 1)), k, metric, n, seed)


def cluster_monotonicity(
    log_pi: Floats, points: Floats, centres: Floats, *, min_points: int = 10
) -> ClusterMonotonicity:
    """Spearman correlation of the entropy H(π_i) with |y_i - μ_c| over the rows predicted as class c, for each class.

    Positive means that confidence falls away from the centre, as the paper asks. A class is skipped if it has fewer
    than `min_points` rows, no centre, or rows all equal in entropy or all equally far from the centre.

    Parameters
    ----------
    log_pi
        Teacher, (n, K).
    points
        (n, 2).
    centres
        Centre μ of each class, (K, 2): the student's means, or `class_medians`. A row of NaN means no centre.
    min_points
        Fewest rows that make a correlation worth having.
    """
    log_pi = _finite("log_pi", log_pi)
    points = _finite("points", points, (len(log_pi), 2))
    centres = _checked_centres(centres, log_pi.shape[1])
    predicted = log_pi.argmax(axis=1)
    unsure = entropy(log_pi)
    per_class: list[float | None] = []
    for label, centre in enumerate(centres):
        rows = np.flatnonzero(predicted == label)
        usable = len(rows) >= min_points and not np.isnan(centre).any()
        per_class.append(spearman(unsure[rows], np.hypot(*(points[rows] - centre).T)) if usable else None)
    known = [value for value in per_class if value is not None]
    return ClusterMonotonicity(float(np.mean(known)) if known else None, tuple(per_class))


def class_medians(log_pi: Floats, points: Floats) -> Floats:
    """Coordinate-wise median point of each predicted class, (K, 2): centres for a map that has no student.

    Parameters
    ----------
    log_pi
        Teacher, (n, K).
    points
        (n, 2).

    Returns
    -------
    A class that is never predicted gets a row of NaN.
    """
    log_pi = _finite("log_pi", log_pi)
    points = _finite("points", points, (len(log_pi), 2))
    predicted = log_pi.argmax(axis=1)
    centres = np.full((log_pi.shape[1], 2), np.nan)
    for label in np.unique(predicted):
        centres[label] = np.median(points[predicted == label], axis=0)
    return centres


def global_fidelity(log_pi: Floats, centres: Floats, labels: ArrayLike | None = None) -> GlobalFidelity:
    """Minus the Spearman correlation of |μ_k - μ_l| with the confusion of k and l, over pairs of classes k < l.

    The sign makes a good map positive: closer centres, more confusion. Confusion is (R_kl + R_lk) / 2, where

        soft      R_kl = mean of π_l over the rows predicted as k,
        ground    R_kl = share of the rows with label k that are predicted as l.

    A class without a centre, or without any row to compute its R_k, takes part in no pair. Pairs that are never
    confused are ties and share one rank.

    Parameters
    ----------
    log_pi
        Teacher, (n, K).
    centres
        Centre μ of each class, (K, 2); a row of NaN means no centre.
    labels
        True classes in 0..K-1, (n,).
    """
    log_pi = _finite("log_pi", log_pi)
    n, classes = log_pi.shape
    centres = _checked_centres(centres, classes)
    predicted = log_pi.argmax(axis=1)
    soft = _closeness(centres, _class_means(np.exp(log_pi), predicted))
    if labels is None:
        return GlobalFidelity(soft, None)
    truth = _checked_labels(labels, n, classes)
    return GlobalFidelity(soft, _closeness(centres, _class_means(np.eye(classes)[predicted], truth)))


def _class_means(rows: Floats, groups: Indices) -> Floats:
    """Mean row of each group, (K, K), with NaN for an empty group."""
    classes = rows.shape[1]
    means = np.full((classes, classes), np.nan)
    for group in np.unique(groups):
        means[group] = rows[groups == group].mean(axis=0)
    return means


def _closeness(centres: Floats, confusion: Floats) -> float | None:
    """Minus the rank correlation of centre distance with symmetrised confusion, over pairs where both are known."""
    first, second = np.triu_indices(len(centres), k=1)
    distance = np.hypot(*(centres[first] - centres[second]).T)
    confused = 0.5 * (confusion + confusion.T)[first, second]
    known = ~(np.isnan(distance) | np.isnan(confused))
    rho = spearman(distance[known], confused[known])
    return None if rho is None else -rho


def spearman(a: Floats, b: Floats) -> float | None:
    """Spearman rank correlation of a (n,) and b (n,), ties given their average rank; None if either is constant.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 8.0, 27.0]))
    1.0
    """
    if a.shape != b.shape or a.ndim != 1:
        raise ConfigError(f"spearman needs two arrays of one length, not {a.shape} and {b.shape}")
    if len(a) == 0 or (a == a[0]).all() or (b == b[0]).all():
        return None
    # Doubled average ranks are whole numbers, so centring and sums are exact and a perfect order gives exactly 1.
    u, v = _doubled_ranks(a) - (len(a) + 1), _doubled_ranks(b) - (len(b) + 1)
    return float(u @ v / np.sqrt(float(u @ u) * float(v @ v)))


def _doubled_ranks(values: Floats) -> Floats:
    """Twice the average rank, counted from 1, of each value, (n,)."""
    _, group, size = np.unique(values, return_inverse=True, return_counts=True)
    doubled = (2 * np.cumsum(size) - size + 1).astype(np.float64)
    return doubled[group]


def measure_map(
    log_pi: Floats,
    log_q: Floats | None,
    points: Floats,
    centres: Floats,
    labels: ArrayLike | None = None,
    *,
    neighbours: Sequence[int] = (5, 10, 50, 100),
    seed: int = 0,
    max_rows: int | None = 10_000,
) -> MapMeasures:
    """All measures of one map; a small map loses the figures it cannot have, with a note, instead of failing.

    Parameters
    ----------
    log_pi
        Teacher, (n, K).
    log_q
        Student, (n, K); None for a map made by another method.
    points
        (n, 2).
    centres
        Centre of each class, (K, 2): the student's means, or `class_medians`.
    labels
        True classes in 0..K-1, (n,).
    neighbours
        Values of k for local fidelity; those not below n are dropped with a note.
    seed
        Seed of subsamples and of the order among tied points.
    max_rows
        Most rows over which local fidelity is averaged; trustworthiness uses at most 2,000 of them. None: no limit for
        local fidelity.
    """
    log_pi = _finite("log_pi", log_pi)
    n, classes = log_pi.shape
    points = _finite("points", points, (n, 2))
    notes = []

    ks = [k for k in neighbours if k < n]
    if len(ks) < len(neighbours):
        dropped = ", ".join(str(k) for k in neighbours if k >= n)
        notes.append(f"local fidelity for k = {dropped} dropped: the map has {n} points")
    local = None
    if ks:
        local = local_fidelity(log_pi, log_q, points, neighbours=ks, max_rows=max_rows, seed=seed)

    rows = 2_000 if max_rows is None else min(max_rows, 2_000)
    k = min(5, (min(rows, n) - 1) // 2)
    trust = None
    if k >= 1:
        trust = trustworthiness(log_pi, points, neighbours=k, max_rows=rows, seed=seed)
    if k < 5:
        reduced = f"computed with k = {k} instead of 5" if k >= 1 else "dropped"
        notes.append(f"trustworthiness {reduced}: it uses {min(rows, n)} points")

    return MapMeasures(
        rows=n,
        classes=classes,
        fidelity=None if log_q is None else fidelity(log_pi, log_q, labels),
        local_fidelity=local,
        trustworthiness=trust,
        cluster_monotonicity=cluster_monotonicity(log_pi, points, centres),
        global_fidelity=global_fidelity(log_pi, centres, labels),
        notes=tuple(notes),
    )


def _subsample(n: int, max_rows: int | None, seed: int) -> Indices:
    """Sorted indices of all n rows, or of `max_rows` of them drawn uniformly without replacement."""
    if max_rows is not None and max_rows < 1:
        raise ConfigError(f"max_rows must be positive or None, not {max_rows}")
    if max_rows is None or n <= max_rows:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, size=max_rows, replace=False))


def _blocks(n: int, width: int) -> list[slice]:
    """Slices that cover range(n), each of about `_BLOCK` / `width` rows."""
    step = max(1, _BLOCK // width)
    return [slice(start, start + step) for start in range(0, n, step)]


def _finite(name: str, values: Floats, shape: tuple[int, ...] | None = None) -> Floats:
    """`values` as float64, refused unless finite and of the given shape, or of any shape (n >= 1, K >= 2)."""
    values = np.asarray(values, dtype=np.float64)
    if shape is None and (values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2):
        raise ConfigError(f"{name} must have shape (n, K) with n >= 1 and K >= 2, not {values.shape}")
    if shape is not None and values.shape != shape:
        raise ConfigError(f"{name} must have shape {shape}, not {values.shape}")
    if not np.isfinite(values).all():
        raise ConfigError(f"{name} must be finite; simplex.log_probs makes rows with exact zeros so")
    return values


def _checked_centres(centres: Floats, classes: int) -> Floats:
    """`centres` as float64 (K, 2); NaN is allowed and means no centre."""
    centres = np.asarray(centres, dtype=np.float64)
    if centres.shape != (classes, 2):
        raise ConfigError(f"centres must have shape ({classes}, 2), not {centres.shape}")
    return centres


def _checked_labels(labels: ArrayLike, n: int, classes: int) -> Indices:
    """`labels` as indices, refused unless there is one integer in 0..K-1 for each row."""
    given = np.asarray(labels)
    if given.shape != (n,) or given.dtype.kind not in "iu":
        raise ConfigError(f"labels must be integers of shape ({n},), not {given.dtype} of shape {given.shape}")
    wrong = np.flatnonzero((given < 0) | (given >= classes))
    if wrong.size:
        row = int(wrong[0])
        raise ConfigError(f"label {given[row]} of row {row} is not a class index from 0 to {classes - 1}", row=row)
    return given.astype(np.intp)
