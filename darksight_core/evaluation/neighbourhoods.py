"""Whether neighbours on the map have similar rows, and are neighbours among the rows.

local fidelity     mean Jensen-Shannon distance between the row of a point and the rows of its neighbours
trustworthiness    share of neighbours on the map that are neighbours among the rows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from darksight_core.errors import ConfigError
from darksight_core.evaluation.checks import Indices, check_rows
from darksight_core.rows.json_record import JsonRecord
from darksight_core.rows.simplex import Floats

__all__ = ["LocalFidelity", "Trustworthiness", "local_fidelity", "nearest", "trustworthiness"]

# 2^19 float64 are 4 MB: the temporary arrays of one block stay near the cache, and larger blocks measured no faster.
_BLOCK = 2**19
# Local fidelity compares at most this many probabilities, about a second, but at least `_LEAST_QUERIES` rows.
_MOST_COMPARED = 10**8
_LEAST_QUERIES = 300
# Of squared distances between rows: a matrix product rounds equal ones differently, by about 1e-15.
_DIGITS = 12
_ROUNDING = 2e-15
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class LocalFidelity(JsonRecord):
    """M_k for several k; lower is better, between 0 and √(log 2).

    Parameters
    ----------
    neighbours
        The values of k, ascending.
    teacher
        M_k with p = π, the teacher's rows.
    student
        M_k with p = q, the student's rows, as in the paper. It measures only how smooth the student is, because q
        depends on the point alone. None without a student.
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
class Trustworthiness(JsonRecord):
    """Trustworthiness of the map; higher is better, at most 1.

    Parameters
    ----------
    value
        T.
    neighbours
        Size k of the neighbourhoods.
    rows
        Number of rows in the subsample.
    seed
        Seed of the subsample and of the order among ties.
    """

    value: float
    neighbours: int
    rows: int
    seed: int


def nearest(points: Floats, k: int, *, queries: Indices | None = None, seed: int = 0) -> Indices:
    """The k nearest points of each query point, nearest first, (q, k); a point is not its own neighbour.

    Squared distances are sums of squared differences, not |a|² - 2ab + |b|², which loses all digits of a small distance
    far from the origin.

    Points at exactly equal distance, mostly points that coincide, are taken in the cyclic order of one seeded shuffle,
    starting at the query. The choice is reproducible, does not favour rows at the start of a file that is sorted by
    class, and differs between the points of a group that coincides.

    Parameters
    ----------
    points
        Points on the map, (n, 2).
    k
        Number of neighbours, below n.
    queries
        Indices into `points`, (q,); all points by default.
    seed
        Seed of the shuffle.
    """
    points = check_rows("points", points, (len(points), 2))
    n = len(points)
    if not 1 <= k < n:
        raise ConfigError(f"neighbours must be from 1 to n - 1 = {n - 1}, not {k}", k=k, n=n)
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
    """Columns of the k smallest entries in each row of `gap`, sorted by gap, then by turn from the row's own turn."""
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

    JSD is the Jensen-Shannon distance, the square root of the divergence. Ties are broken as in `nearest`.

    Parameters
    ----------
    log_pi
        Log-probabilities of the teacher, (n, K).
    log_q
        Log-probabilities of the student, (n, K); None for a map without one.
    points
        Points on the map, (n, 2).
    neighbours
        Values of k, each below n.
    max_rows
        Most points over which the average runs, drawn uniformly, fewer with many classes; neighbours are always
        searched among all points. None for no limit.
    seed
        Seed of the subsample and of the order among ties.
    """
    log_pi = check_rows("log_pi", log_pi)
    n = len(log_pi)
    points = check_rows("points", points, (n, 2))
    ks = tuple(sorted({int(k) for k in neighbours}))
    if not ks or ks[0] < 1:
        raise ConfigError(f"neighbours must be positive numbers, not {tuple(neighbours)}")
    if max_rows is not None:
        max_rows = min(max_rows, max(_LEAST_QUERIES, _MOST_COMPARED // (ks[-1] * log_pi.shape[1])))
    queries = _subsample(n, max_rows, seed)
    near = nearest(points, ks[-1], queries=queries, seed=seed)
    student = None
    if log_q is not None:
        student = _mean_js(check_rows("log_q", log_q, log_pi.shape), queries, near, ks)
    return LocalFidelity(ks, _mean_js(log_pi, queries, near, ks), student, len(queries), n, seed)


def _mean_js(log_p: Floats, queries: Indices, near: Indices, ks: tuple[int, ...]) -> tuple[float, ...]:
    """M_k for each k, from neighbours in order of distance.

    JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2, with the entropy of each row computed once.
    """
    p = np.exp(log_p)
    entropy = -np.einsum("ij,ij->i", p, log_p)
    by_order = np.zeros(near.shape[1])
    for part in _blocks(len(queries), near.shape[1] * log_p.shape[1]):
        mean = p[near[part]]
        mean += p[queries[part], None]
        mean *= 0.5
        mixed = -np.einsum("ijk,ijk->ij", mean, np.log(np.maximum(mean, _TINY)))
        divergence = mixed - 0.5 * (entropy[queries[part], None] + entropy[near[part]])
        # Entropies round to about 1e-15, so that equal rows are not exactly at distance 0.
        by_order += np.sqrt(np.maximum(divergence - _ROUNDING, 0.0)).sum(axis=0)
    total = np.cumsum(by_order)
    return tuple(float(total[k - 1] / (k * len(queries))) for k in ks)


def trustworthiness(
    log_pi: Floats,
    points: Floats,
    *,
    neighbours: int = 5,
    max_rows: int | None = 2_000,
    seed: int = 0,
) -> Trustworthiness:
    """T = 1 - 2 / (n k (2n - 3k - 1)) Σ_i Σ_{j ∈ NN_k(y_i)} max(0, r(i, j) - k)  (Venna and Kaski).

    r(i, j) is the rank of row j by Euclidean distance from row i among the teacher's rows: one more than the number of
    rows that are strictly closer. Rows at equal distance share the best rank, so that equal rows at one point of the
    map are not penalised.

    Parameters
    ----------
    log_pi
        Log-probabilities of the teacher, (n, K).
    points
        Points on the map, (n, 2).
    neighbours
        k, below half the number of rows used.
    max_rows
        Size of the uniform subsample, because the cost grows with its square; None for no limit.
    seed
        Seed of the subsample and of the order among tied points.
    """
    log_pi = check_rows("log_pi", log_pi)
    points = check_rows("points", points, (len(log_pi), 2))
    sample = _subsample(len(log_pi), max_rows, seed)
    n, k = len(sample), neighbours
    if not 1 <= k < n / 2:
        raise ConfigError(f"neighbours must be from 1 to below n / 2 = {n / 2:g}, not {k}", k=k, n=n)
    near = nearest(points[sample], k, seed=seed)
    probs = np.exp(log_pi[sample])
    squares = np.einsum("ij,ij->i", probs, probs)
    penalty = 0
    for part in _blocks(n, n * k):
        gap = np.round(squares[part, None] + squares - 2.0 * probs[part] @ probs.T, _DIGITS)
        taken = np.take_along_axis(gap, near[part], axis=1)
        gap[np.arange(len(gap)), np.arange(n)[part]] = np.inf
        rank = 1 + np.count_nonzero(gap[:, None, :] < taken[:, :, None], axis=-1)
        penalty += int(np.maximum(rank - k, 0).sum())
    return Trustworthiness(1.0 - 2.0 * penalty / (n * k * (2 * n - 3 * k - 1)), k, n, seed)


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
