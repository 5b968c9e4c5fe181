"""Is the traffic drifting, and where: the figures of the drift page, without a wire.

Everything over time comes from counts per minute, so it costs the same for a thousand points and for ten million.
Where points themselves are needed, on the map, a bounded number is spread evenly over the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.drift import (
    OccupancyTest,
    OutlierRateTest,
    PsiVerdict,
    TwoSampleTest,
    mmd_test,
    occupancy_test,
    psi,
    psi_critical,
    psi_verdict,
    ville_threshold,
)
from darksight_core.guarantees.binomial import lower_bound, upper_bound
from darksight_core.scored import Reason
from darksight_core.simplex import Floats

if TYPE_CHECKING:
    from darksight_service.store import ClassRate, Rates

__all__ = [
    "LEVEL",
    "PSI_BINS",
    "Cell",
    "Histogram",
    "Moved",
    "OverTime",
    "class_counts",
    "compare_clouds",
    "compare_counts",
    "count_inside",
    "histogram",
    "over_time",
    "slices",
]

Counts: TypeAlias = NDArray[np.int64]

LEVEL = 0.01
"""Chance of a false alarm that every figure of the page is drawn for."""

PSI_BINS = 10
"""Bins of PSI, as in the alerts; the store keeps twice as many."""

_DELTA = 0.05
_CLOUD_ROWS = 250


@dataclass(frozen=True, slots=True, eq=False)
class OverTime:
    """Figures of m steps of time, (m,) each; steps without scored points are left out.

    Parameters
    ----------
    start_ms
        When the step begins.
    rows
        Scored points.
    outliers
        Of them outliers.
    low, high
        Exact 95% interval of the step's outlier rate.
    psi, psi_critical
        Of the step's p-values, and what it exceeds by chance in a share `LEVEL` of steps.
    evidence
        ln M of the outlier rate since the rule is in force, NaN before; None without an outlier rule.
    threshold
        What the evidence ever reaches by chance with probability `LEVEL`.
    expected
        The outlier rate without drift; None without an outlier rule.
    """

    start_ms: Counts
    rows: Counts
    outliers: Counts
    low: Floats
    high: Floats
    psi: Floats
    psi_critical: Floats
    evidence: Floats | None
    threshold: float
    expected: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """p-values of a window.

    Parameters
    ----------
    counts
        In bins of equal width, (B,).
    low, high
        Shares between which a bin stays in 99% of windows without drift, both samples' noise included.
    verdict
        PSI against uniform; None without points.
    """

    counts: Counts
    low: float
    high: float
    verdict: PsiVerdict | None


@dataclass(frozen=True, slots=True)
class Cell:
    """A class or a region in two windows.

    Parameters
    ----------
    name
        Of it.
    before, now
        Points in it.
    share_before, share_now
        Of all points of the window.
    residual
        Standardised gap of the shares, about N(0, 1) without drift.
    p_value
        Two-sided, of this cell alone.
    is_moved
        Whether it moved at `LEVEL`, all cells considered (Holm).
    outliers_before, outliers_now
        Outlier rates in it; None where it has no points or they are not known.
    """

    name: str
    before: int
    now: int
    share_before: float
    share_now: float
    residual: float
    p_value: float
    is_moved: bool
    outliers_before: float | None = None
    outliers_now: float | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """Cells of two windows, the most moved first, and the test of all together; None if a window is empty."""

    cells: tuple[Cell, ...]
    test: OccupancyTest | None


def over_time(rates: Rates, *, calibration_rows: int, rank: int | None, rule_since_ms: int = 0) -> OverTime:
    """Outlier rate, PSI and evidence step by step.

    Parameters
    ----------
    rates
        Counts over time.
    calibration_rows
        Rows that p-values are ranks among.
    rank
        Rows with a p-value of at most rank / (calibration_rows + 1) were called outliers; None without such a rule.
    rule_since_ms
        Since when that is so: evidence is counted from the first step after it.
    """
    bins = _coarse(rates.bins)
    rows = bins.sum(axis=1)
    kept = rows > 0
    bins, rows = bins[kept], rows[kept]
    outliers = np.minimum(rates.reasons[kept, Reason.OUTLIER], rows)
    evidence, expected = None, None
    if rank is not None:
        test = OutlierRateTest(calibration_rows, rank / (calibration_rows + 1), level=LEVEL, rank=rank)
        counted = rates.start_ms[kept] >= rule_since_ms
        evidence = np.full(len(rows), np.nan)
        evidence[counted] = test.log_evidence(np.cumsum(outliers[counted]), np.cumsum(rows[counted]))
        expected = rank / (calibration_rows + 1)
    low, high = np.empty((2, 0))
    if len(rows):
        low, high = lower_bound(outliers, rows, _DELTA / 2), upper_bound(outliers, rows, _DELTA / 2)
    critical = [psi_critical(each, calibration_rows, bins=PSI_BINS, level=LEVEL) for each in rows.tolist()]
    return OverTime(
        start_ms=rates.start_ms[kept],
        rows=rows,
        outliers=outliers,
        low=low,
        high=high,
        psi=psi(bins) if len(bins) else np.empty(0),
        psi_critical=np.array(critical, dtype=np.float64),
        evidence=evidence,
        threshold=ville_threshold(LEVEL),
        expected=expected,
    )


def histogram(bins: ArrayLike, calibration_rows: int) -> Histogram:
    """p-values of a window, counted in bins (B,), against uniform."""
    counts = np.asarray(bins, dtype=np.int64)
    rows, cells = int(counts.sum()), len(counts)
    verdict = psi_verdict(_coarse(counts[None])[0], calibration_rows, level=LEVEL)
    share = 1.0 / cells
    spread = 2.5758 * math.sqrt(share * (1.0 - share) * (1.0 / max(rows, 1) + 1.0 / calibration_rows))
    return Histogram(counts, max(0.0, share - spread), share + spread, verdict)


def compare_counts(
    names: Sequence[str],
    before: ArrayLike,
    now: ArrayLike,
    *,
    outliers: tuple[ArrayLike, ArrayLike] | None = None,
) -> Moved:
    """Which of K cells have another share of the points now than before.

    Parameters
    ----------
    names
        Of the cells.
    before, now
        Points of each cell in the two windows, (K,).
    outliers
        Outliers of each cell in the two windows, (K,) each.
    """
    counts = np.asarray(before, dtype=np.int64), np.asarray(now, dtype=np.int64)
    totals = [int(each.sum()) for each in counts]
    test = occupancy_test(*counts) if all(totals) else None
    residuals = np.zeros(len(names)) if test is None else np.array(test.residuals)
    p_values = np.array([math.erfc(abs(each) / math.sqrt(2.0)) for each in residuals.tolist()])
    moved = _holm(p_values)
    cells = []
    for number, name in enumerate(names):
        first, second = (int(each[number]) for each in counts)
        odd = (None, None) if outliers is None else tuple(int(np.asarray(each)[number]) for each in outliers)
        cells.append(
            Cell(
                name=name,
                before=first,
                now=second,
                share_before=first / max(totals[0], 1),
                share_now=second / max(totals[1], 1),
                residual=float(residuals[number]),
                p_value=float(p_values[number]),
                is_moved=bool(moved[number]),
                outliers_before=None if odd[0] is None or not first else odd[0] / first,
                outliers_now=None if odd[1] is None or not second else odd[1] / second,
            )
        )
    return Moved(tuple(sorted(cells, key=lambda cell: -abs(cell.residual))), test)


def class_counts(rates: Sequence[ClassRate], classes: int) -> tuple[Counts, Counts]:
    """Points and outliers by class, (K,); classes from the last one on count as one, rows not valid nowhere."""
    points, outliers = np.zeros((2, classes), dtype=np.int64)
    for each in rates:
        if each.predicted >= 0:
            place = min(each.predicted, classes - 1)
            points[place] += each.points
            outliers[place] += each.outliers
    return points, outliers


def count_inside(points: Floats, regions: Sequence[Callable[[Floats], NDArray[np.bool_]]]) -> Counts:
    """How many points (n, 2) lie in each of r regions, and how many in none, (r + 1,).

    A point in several regions counts for the first, so that cells do not overlap.
    """
    counts = np.zeros(len(regions) + 1, dtype=np.int64)
    free = np.isfinite(points).all(axis=1)
    for number, contains in enumerate(regions):
        inside = free & contains(points)
        counts[number] = inside.sum()
        free &= ~inside
    counts[-1] = free.sum()
    return counts


def compare_clouds(before: Floats, now: Floats) -> TwoSampleTest | None:
    """Whether points (n, 2) and (m, 2) lie alike on the map; None if there are too few to say."""
    clouds = [points[np.isfinite(points).all(axis=1)] for points in (before, now)]
    if min(map(len, clouds)) < 20:
        return None
    return mmd_test(*clouds, max_rows=_CLOUD_ROWS)


def slices(rates: Rates, since_ms: int, until_ms: int, parts: int) -> list[tuple[int, int]]:
    """A window cut into at most so many parts of about equally many points each, oldest first."""
    if not rates.points.sum():
        return []
    shares = np.cumsum(rates.points) / rates.points.sum()
    edges = [since_ms]
    for part in range(1, parts):
        place = int(np.searchsorted(shares, part / parts))
        edge = int(rates.start_ms[min(place, len(shares) - 1)])
        if edges[-1] < edge < until_ms:
            edges.append(edge)
    return list(zip(edges, [*edges[1:], until_ms], strict=True))


def _coarse(bins: Counts) -> Counts:
    """Counts (m, B) in the bins of PSI, (m, 10)."""
    m, fine = bins.shape
    return np.asarray(bins.reshape(m, PSI_BINS, fine // PSI_BINS).sum(axis=2), dtype=np.int64)


def _holm(p_values: Floats) -> NDArray[np.bool_]:
    """Which hypotheses fall at `LEVEL` for all of them together."""
    order = np.argsort(p_values, kind="stable")
    limits = LEVEL / np.arange(len(p_values), 0, -1)
    failed = p_values[order] > limits
    count = int(np.argmax(failed)) if failed.any() else len(p_values)
    moved = np.zeros(len(p_values), dtype=np.bool_)
    moved[order[:count]] = True
    return moved
