"""The figures of the drift page.

Figures over time come from counts per minute, so their cost does not grow with the number of points. The maps need the
points themselves: a bounded number, spread evenly over the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

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
from darksight_core.rows.schema import Reason
from darksight_core.rows.simplex import Floats
from darksight_service.store.rollups import ClassRate, Rates

__all__ = [
    "LEVEL",
    "PSI_BINS",
    "Cell",
    "CellComparison",
    "Histogram",
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
"""False-alarm probability of every test on the page."""

PSI_BINS = 10
"""Bins of PSI, as in the alerts; the store counts twice as many."""

_DELTA = 0.05
_CLOUD_ROWS = 250


@dataclass(frozen=True, slots=True, eq=False)
class OverTime:
    """Figures of m time steps, (m,) each, from the first to the last with scored points; NaN in steps without any.

    Parameters
    ----------
    start_ms
        Start of the step.
    rows, outliers
        Scored points, and the outliers among them.
    low, high
        Exact 95% interval of the outlier rate.
    psi, psi_critical
        PSI of the p-values, and the value that it exceeds by chance in a share `LEVEL` of steps.
    evidence
        ln M of the outlier rate since the outlier rule was set, NaN before; None without a rule.
    threshold
        Evidence that is ever reached by chance with probability `LEVEL`.
    expected
        Outlier rate without drift; None without an outlier rule.
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
        Range of a bin's share in 99% of windows without drift, with the noise of both samples.
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
        Name of the class or region.
    before, now
        Number of points.
    share_before, share_now
        Share of the points of the window.
    residual
        Standardised difference of the shares, about N(0, 1) without drift.
    p_value
        Two-sided p-value of this cell alone.
    is_moved
        Whether the share changed at `LEVEL`, corrected for the number of cells (Holm).
    outliers_before, outliers_now
        Outlier rates; None without points, or where they are not known.
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
class CellComparison:
    """Cells of two windows, the largest change first, and the joint test; None if a window is empty."""

    cells: tuple[Cell, ...]
    test: OccupancyTest | None


def over_time(
    rates: Rates, *, step_ms: int, calibration_rows: int, rank: int | None, rule_since_ms: int = 0
) -> OverTime:
    """Outlier rate, PSI and evidence of each time step.

    Parameters
    ----------
    rates
        Counts over time.
    step_ms
        Length of a step.
    calibration_rows
        Calibration rows of the bundle.
    rank
        A row is an outlier if its p-value is at most rank / (calibration_rows + 1); None without an outlier rule.
    rule_since_ms
        When the rule was set; evidence starts with the first step after it.
    """
    start_ms, bins, outliers = _every_step(rates, step_ms)
    rows = bins.sum(axis=1)
    known = rows > 0
    outliers = np.minimum(outliers, rows)
    evidence, expected = None, None
    if rank is not None:
        test = OutlierRateTest(calibration_rows, rank / (calibration_rows + 1), level=LEVEL, rank=rank)
        counted = known & (start_ms >= rule_since_ms)
        evidence = np.full(len(rows), np.nan)
        evidence[counted] = test.log_evidence(np.cumsum(outliers[counted]), np.cumsum(rows[counted]))
        expected = rank / (calibration_rows + 1)
    low, high, shift, critical = np.full((4, len(rows)), np.nan)
    if known.any():
        low[known] = lower_bound(outliers[known], rows[known], _DELTA / 2)
        high[known] = upper_bound(outliers[known], rows[known], _DELTA / 2)
        shift[known] = psi(bins[known])
        limits = {n: psi_critical(n, calibration_rows, bins=PSI_BINS, level=LEVEL) for n in set(rows[known].tolist())}
        critical[known] = [limits[n] for n in rows[known].tolist()]
    return OverTime(
        start_ms=start_ms,
        rows=rows,
        outliers=outliers,
        low=low,
        high=high,
        psi=shift,
        psi_critical=critical,
        evidence=evidence,
        threshold=ville_threshold(LEVEL),
        expected=expected,
    )


def histogram(bins: ArrayLike, calibration_rows: int) -> Histogram:
    """p-values of a window, counted in bins (B,), compared with a uniform distribution."""
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
) -> CellComparison:
    """Compare the shares of K cells in two windows.

    Parameters
    ----------
    names
        Names of the cells.
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
        rare = (None, None) if outliers is None else tuple(int(np.asarray(each)[number]) for each in outliers)
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
                outliers_before=None if rare[0] is None or not first else rare[0] / first,
                outliers_now=None if rare[1] is None or not second else rare[1] / second,
            )
        )
    return CellComparison(tuple(sorted(cells, key=lambda cell: -abs(cell.residual))), test)


def class_counts(rates: Sequence[ClassRate], classes: int) -> tuple[Counts, Counts]:
    """Points and outliers by class, (K,); the last class includes all further ones, invalid rows are skipped."""
    points, outliers = np.zeros((2, classes), dtype=np.int64)
    for each in rates:
        if each.predicted >= 0:
            number = min(each.predicted, classes - 1)
            points[number] += each.points
            outliers[number] += each.outliers
    return points, outliers


def count_inside(points: Floats, regions: Sequence[Callable[[Floats], NDArray[np.bool_]]]) -> Counts:
    """How many points (n, 2) lie in each of r regions, and how many in none, (r + 1,).

    A point in several regions counts for the first of them.
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
    """MMD test whether points (n, 2) and (m, 2) have the same distribution on the map; None with too few points."""
    clouds = [points[np.isfinite(points).all(axis=1)] for points in (before, now)]
    if min(map(len, clouds)) < 20:
        return None
    return mmd_test(*clouds, max_rows=_CLOUD_ROWS)


def slices(rates: Rates, since_ms: int, until_ms: int, parts: int) -> list[tuple[int, int]]:
    """Split a window into at most `parts` parts with about equally many points, oldest first."""
    if not rates.points.sum():
        return []
    shares = np.cumsum(rates.points) / rates.points.sum()
    edges = [since_ms]
    for part in range(1, parts):
        step = int(np.searchsorted(shares, part / parts))
        edge = int(rates.start_ms[min(step, len(shares) - 1)])
        if edges[-1] < edge < until_ms:
            edges.append(edge)
    return list(zip(edges, [*edges[1:], until_ms], strict=True))


def _every_step(rates: Rates, step_ms: int) -> tuple[Counts, Counts, Counts]:
    """Starts (m,), counts in the bins of PSI (m, 10) and outliers (m,) of all steps between the first and the last."""
    bins = _coarse(rates.bins)
    scored = np.flatnonzero(bins.sum(axis=1))
    if not len(scored):
        return np.empty(0, dtype=np.int64), np.empty((0, PSI_BINS), dtype=np.int64), np.empty(0, dtype=np.int64)
    found = rates.start_ms[scored]
    start_ms = np.arange(found[0], found[-1] + 1, step_ms, dtype=np.int64)
    number = (found - found[0]) // step_ms
    counts = np.zeros((len(start_ms), PSI_BINS + 1), dtype=np.int64)
    counts[number, :PSI_BINS], counts[number, PSI_BINS] = bins[scored], rates.reasons[scored, Reason.OUTLIER]
    return start_ms, counts[:, :PSI_BINS], counts[:, PSI_BINS]


def _coarse(bins: Counts) -> Counts:
    """Counts (m, B) added up to the bins of PSI, (m, 10)."""
    m, fine = bins.shape
    return np.asarray(bins.reshape(m, PSI_BINS, fine // PSI_BINS).sum(axis=2), dtype=np.int64)


def _holm(p_values: Floats) -> NDArray[np.bool_]:
    """Which hypotheses Holm's procedure rejects at `LEVEL`."""
    order = np.argsort(p_values, kind="stable")
    limits = LEVEL / np.arange(len(p_values), 0, -1)
    failed = p_values[order] > limits
    count = int(np.argmax(failed)) if failed.any() else len(p_values)
    moved = np.zeros(len(p_values), dtype=np.bool_)
    moved[order[:count]] = True
    return moved
