"""How well a score finds wrong predictions, or rows of an unknown kind, with bootstrap intervals.

    AURC     mean selective risk over all coverages
    AUGRC    area under the joint risk over coverage: the figure that reject scores are chosen by
    AUROC    probability that a right prediction scores above a wrong one
    FPR95    share of wrong predictions accepted at the strictest threshold that keeps 95% of the right ones

Selective and joint risk are defined in `darksight_core.guarantees.risk_curve`. Scores are compared as float32, as they
are stored: rows that tie have scores that differ by rounding, which must not order them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.errors import ConfigError
from darksight_core.guarantees.risk_curve import Counts, RankedRows, check_scores
from darksight_core.rows.json_record import JsonRecord
from darksight_core.rows.simplex import Floats

__all__ = ["FailureFigures", "OodFigures", "failure_figures", "ood_figures"]

# 0.95 times a count may come out a rounding error above the whole number that it is.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class FailureFigures(JsonRecord):
    """How well a score finds a classifier's errors.

    Parameters
    ----------
    n, errors, accuracy
        Number of rows, of wrong ones among them, and share of right ones.
    aurc
        Mean selective risk over coverages 1/n .. 1; the error rate for a random score.
    e_aurc
        AURC minus the AURC of a perfect score on the same rows; never negative.
    augrc
        Area under the joint risk, (1 - AUROC) r (1 - r) + r² / 2 with error rate r; r / 2 for a random score.
    auroc
        Probability that a right prediction scores above a wrong one, equal scores counting half; None if all
        predictions are right, or all wrong.
    fpr95
        Share of wrong predictions accepted at the strictest threshold that keeps 95% of the right ones; None as above.
    intervals
        Percentile bootstrap interval of each figure. Resamples in which a figure has no value, such as the AUROC
        without errors, are omitted.
    level, resamples, seed
        Coverage of the intervals, number of resamples, and their seed.
    """

    n: int
    errors: int
    accuracy: float
    aurc: float
    e_aurc: float
    augrc: float
    auroc: float | None
    fpr95: float | None
    intervals: dict[str, tuple[float, float]]
    level: float
    resamples: int
    seed: int


@dataclass(frozen=True, slots=True)
class OodFigures(JsonRecord):
    """How well a score separates known rows from foreign ones.

    Parameters
    ----------
    n_in, n_out
        Numbers of known and foreign rows.
    auroc
        Probability that a known row scores above a foreign one, equal scores counting half.
    fpr95
        Share of foreign rows accepted at the strictest threshold that keeps 95% of the known ones.
    intervals, level, resamples, seed
        As in `FailureFigures`; the two samples are resampled separately.
    """

    n_in: int
    n_out: int
    auroc: float
    fpr95: float
    intervals: dict[str, tuple[float, float]]
    level: float
    resamples: int
    seed: int


def failure_figures(
    scores: ArrayLike, errors: ArrayLike, *, level: float = 0.95, resamples: int = 200, seed: int = 0
) -> FailureFigures:
    """How well a score finds errors.

    Parameters
    ----------
    scores, errors
        As in `risk_curve`, (n,).
    level
        Coverage of the intervals.
    resamples
        Bootstrap resamples of the rows; 0 for no intervals.
    seed
        Seed of the resampling.
    """
    confidence, wrong = check_scores(np.asarray(scores, dtype=np.float32), errors)
    ranked = RankedRows.of(confidence, wrong)
    n, k = len(wrong), int(wrong.sum())

    def draw(rng: np.random.Generator) -> Counts:
        return np.bincount(rng.integers(n, size=n), minlength=n)

    figures, intervals = _bootstrap(ranked, draw, level, resamples, seed)
    return FailureFigures(
        n=n,
        errors=k,
        accuracy=(n - k) / n,
        aurc=figures["aurc"],
        e_aurc=figures["e_aurc"],
        augrc=figures["augrc"],
        auroc=figures.get("auroc"),
        fpr95=figures.get("fpr95"),
        intervals=intervals,
        level=level,
        resamples=resamples,
        seed=seed,
    )


def ood_figures(
    score_in: ArrayLike, score_out: ArrayLike, *, level: float = 0.95, resamples: int = 200, seed: int = 0
) -> OodFigures:
    """How well a score finds foreign rows.

    Parameters
    ----------
    score_in
        Scores of known rows, higher is more usual, (n,).
    score_out
        Scores of foreign rows, (m,).
    level, resamples, seed
        As in `failure_figures`.
    """
    n, m = len(np.atleast_1d(score_in)), len(np.atleast_1d(score_out))
    if not n or not m:
        raise ConfigError(f"out-of-distribution figures need rows of both kinds, not {n} known and {m} foreign")
    foreign = np.arange(n + m) >= n
    scores = np.concatenate([np.atleast_1d(score_in), np.atleast_1d(score_out)]).astype(np.float32)
    ranked = RankedRows.of(*check_scores(scores, foreign))
    index = np.argsort(ranked.wrong, kind="stable")

    def draw(rng: np.random.Generator) -> Counts:
        known, strange = rng.integers(n, size=n), rng.integers(n, n + m, size=m)
        return np.bincount(index[np.concatenate([known, strange])], minlength=n + m)

    figures, intervals = _bootstrap(ranked, draw, level, resamples, seed)
    kept = {name: interval for name, interval in intervals.items() if name in ("auroc", "fpr95")}
    return OodFigures(n, m, figures["auroc"], figures["fpr95"], kept, level, resamples, seed)


def _bootstrap(
    ranked: RankedRows, draw: Callable[[np.random.Generator], Counts], level: float, resamples: int, seed: int
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Figures of the rows, and their percentile intervals; `draw` gives the weight of each sorted row, (n,)."""
    if not 0.0 < level < 1.0 or resamples < 0:
        raise ConfigError(
            f"level is {level} and resamples {resamples}; level must be between 0 and 1, resamples 0 or more"
        )
    n = len(ranked.wrong)
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n + 1))])
    figures = _figures(ranked, np.ones(n, dtype=np.int64), harmonic)
    rng = np.random.default_rng(seed)
    samples = [_figures(ranked, draw(rng), harmonic) for _ in range(resamples)]
    intervals = {}
    for name in figures:
        values = [sample[name] for sample in samples if name in sample]
        if values:
            low, high = np.quantile(values, [0.5 - level / 2.0, 0.5 + level / 2.0])
            intervals[name] = (float(low), float(high))
    return figures, intervals


def _figures(ranked: RankedRows, weights: Counts, harmonic: Floats) -> dict[str, float]:
    """Figures of weighted rows by name; a figure without a value is absent."""
    rows = np.add.reduceat(weights, ranked.starts)
    wrong = np.add.reduceat(weights * ranked.wrong, ranked.starts)
    drawn = rows > 0
    rows, wrong = rows[drawn], wrong[drawn]
    ends, errors = np.cumsum(rows), np.cumsum(wrong)
    starts, before = ends - rows, errors - wrong
    n, k = int(ends[-1]), int(errors[-1])
    # Within tied rows the expected number of errors grows evenly, so Σ_j errors(j) / j has this closed form.
    rate = wrong / rows
    aurc = float((wrong + (before - starts * rate) * (harmonic[ends] - harmonic[starts])).sum()) / n
    oracle = (k - (n - k) * (harmonic[n] - harmonic[n - k])) / n
    figures = {
        "aurc": aurc,
        # A perfect score has zero, which rounding could make negative.
        "e_aurc": max(aurc - float(oracle), 0.0),
        "augrc": float(((before + errors) / 2.0 * rows).sum()) / n**2,
    }
    if 0 < k < n:
        right = rows - wrong
        kept = np.searchsorted(np.cumsum(right), math.ceil(0.95 * (n - k) - _ROUNDING))
        figures["auroc"] = float((right * (k - errors + wrong / 2.0)).sum()) / (k * (n - k))
        figures["fpr95"] = float(errors[kept]) / k
    return figures
