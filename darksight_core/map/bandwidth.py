"""The bandwidth of a kernel density, chosen by leave-one-out likelihood.

Scott's rule fits one Gaussian to the whole map and smooths its clusters away.
"""

from __future__ import annotations

import math

import numpy as np

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

__all__ = ["check_references", "choose_bandwidth", "dimension"]

# References that a bandwidth is chosen on, and queries; of more, this many are drawn.
_MOST_REFERENCES, _MOST_QUERIES = 20_000, 2_000


def check_references(points: Floats) -> Floats:
    """Reference points as float64 (n, 2); ConfigError if they cannot be used."""
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
        raise ConfigError(f"reference points must have shape (n, 2) with n >= 1, not {points.shape}")
    if not np.isfinite(points).all():
        raise ConfigError("reference points must be finite")
    return points


def dimension(points: Floats) -> int:
    """1 if the points (n, 2) are on one horizontal line, as on the map of two classes, else 2."""
    width, height = np.ptp(points, axis=0).tolist()
    return 1 if height == 0.0 < width else 2


def choose_bandwidth(points: Floats, seed: int = 0) -> float:
    """Bandwidth h that maximises the leave-one-out log likelihood of the points.

        l(h) = mean_i log[ 1/(n_i (2π h²)^(d/2)) Σ_{j not near i} exp(-|y_i - y_j|² / 2h²) ]

    A classifier maps many rows to the same point, and the plain leave-one-out likelihood then grows without bound as
    h -> 0. So all references nearer to y_i than R/1000 are left out, where R is the radius that holds nine tenths of
    the points, and h stays within [R/1000, 2R]. The hundredth of the queries with the most distant neighbours is
    ignored, because a single isolated point at distance D costs D²/2h² nats and would determine h.

    At most 20,000 references and 2,000 queries are drawn. The result is not scaled down for a larger n: people read
    the map, and a narrower kernel would add detail that they cannot see to a larger bundle.

    Parameters
    ----------
    points
        Reference points, (n, 2), finite.
    seed
        Seed of the draw.
    """
    points = check_references(points)
    rng = np.random.default_rng(seed)
    if len(points) > _MOST_REFERENCES:
        points = points[rng.choice(len(points), _MOST_REFERENCES, replace=False)]
    queries = points if len(points) <= _MOST_QUERIES else points[rng.choice(len(points), _MOST_QUERIES, replace=False)]
    distance = np.hypot(*(points - np.median(points, axis=0)).T)
    radius = float(np.quantile(distance, 0.9)) or float(distance.max())
    if radius == 0.0:
        return 1.0
    unit = radius / 1000.0
    squares, counts = _count_squares(queries / unit, points / unit)
    counts = counts[counts.any(axis=1)]
    nearest = (counts > 0).argmax(axis=1)
    kept = np.argsort(nearest, kind="stable")[: math.ceil(0.99 * len(nearest))]
    counts, nearest = counts[kept], squares[nearest[kept], None]
    offset, axes = np.log(counts.sum(axis=1)), dimension(points)

    def likelihood(log_h: float) -> float:
        half_precision = 0.5 * math.exp(-2.0 * log_h)
        kernel = np.exp(np.minimum((nearest - squares) * half_precision, 0.0))
        log_sum = np.log(np.einsum("qb,qb->q", counts, kernel)) - nearest[:, 0] * half_precision
        return float((log_sum - offset).mean()) - axes * log_h

    # Structure at two scales gives two maxima, so a scan finds the bracket of the golden-section search.
    scan = np.linspace(0.0, math.log(2000.0), 20)
    best = int(np.argmax([likelihood(log_h) for log_h in scan]))
    low, high = float(scan[max(best - 1, 0)]), float(scan[min(best + 1, len(scan) - 1)])
    golden = 0.5 * (math.sqrt(5.0) - 1.0)
    while high - low > 0.002:
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if likelihood(left) > likelihood(right) else (left, high)
    return unit * math.exp(0.5 * (low + high))


def _count_squares(queries: Floats, points: Floats) -> tuple[Floats, Floats]:
    """Centres (B,) of bins of squared distance, and how many points each query has in them, (q, B), from 1 upwards.

    The bins are the leading bits of a float32: 32 per octave, without computing a logarithm for each of 4e7 distances.
    """
    largest = float((np.ptp(points, axis=0) ** 2).sum())
    first, last = (np.array([1.0, 2.0 * max(largest, 1.0)], dtype=np.float32).view(np.int32) >> 18).tolist()
    bins = last - first + 2
    counts = np.empty((len(queries), bins))
    rows = max(1, 1_000_000 // len(points))
    for start in range(0, len(queries), rows):
        chunk = queries[start : start + rows]
        square = (chunk[:, :1] - points[:, 0]) ** 2
        square += (chunk[:, 1:] - points[:, 1]) ** 2
        index = (square.astype(np.float32).view(np.int32) >> 18) - (first - 1)
        np.maximum(index, 0, out=index)
        index += (bins * np.arange(len(chunk), dtype=np.int32))[:, None]
        counts[start : start + rows] = np.bincount(index.ravel(), minlength=bins * len(chunk)).reshape(-1, bins)
    edges = (np.arange(first, last + 2, dtype=np.int32) << 18).view(np.float32).astype(np.float64)
    used = counts[:, 1:].any(axis=0)
    return (0.5 * (edges[1:] + edges[:-1]))[used], counts[:, 1:][:, used]
