"""Thresholds on a reject score with a guarantee for new rows, and how many labels they need.

A row is accepted if its score is at or above the threshold, which is the score of some row. Rows that tie with it are
all accepted, so a score of few values has feasible thresholds too (`risk_curve` says what a tie is).

Choosing the loosest threshold whose *measured* risk meets a target misses that target about every other time, because
it picks the luckiest of all thresholds. Guaranteed are:

    threshold_by_coverage     E[coverage] >= c                       needs no labels
    threshold_by_accuracy     P(selective accuracy >= a) >= 1 - δ    Learn-then-Test
    threshold_by_joint_risk   E[share accepted and wrong] <= α       conformal risk control
    threshold_by_recall       P(recall of a class >= r) >= 1 - δ     order statistic

All of them assume rows that are independent draws from future traffic and were not used to make the score. With too few
labels the result is an infeasible `Threshold`: it accepts nothing and says how many labels would be needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import beta_quantile, binomial_cdf, rows_without_error, upper_bound
from darksight_core.guarantees.risk_curve import Counts, RankedRows, check_scores, lowest_accepted
from darksight_core.rows.json_record import JsonRecord
from darksight_core.rows.simplex import Floats

__all__ = [
    "Threshold",
    "threshold_by_accuracy",
    "threshold_by_coverage",
    "threshold_by_joint_risk",
    "threshold_by_recall",
]

Kind: TypeAlias = Literal["coverage", "accuracy", "joint_risk", "recall"]

# More tests only add chances to stop early: 100 steps of 1% coverage are fine enough.
_MAX_LEVELS = 100
# Errors that the first test allows at most; see `_levels`.
_SPARE_ERRORS = 2
# Probability with which the stated number of labels suffices, and how many times the labels at hand it may be.
_PROBABLY, _MOST_TIMES = 0.8, 100.0
# A count times a rate such as 0.1 may come out a rounding error below the whole number that it is.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Threshold(JsonRecord):
    """A threshold and its guarantee.

    Parameters
    ----------
    value
        Accept if score >= value; inf, which accepts nothing, if infeasible.
    kind
        What is guaranteed.
    promised
        The requested coverage, selective accuracy, joint risk or recall.
    delta
        Probability that the guarantee fails; None if it holds on average.
    n
        Calibration rows.
    errors_accepted
        Wrong rows among the accepted calibration rows; None without labels.
    coverage
        Share of calibration rows accepted.
    feasible
        Whether these rows support the guarantee.
    labels_needed
        If infeasible, the number of labels with which the target becomes feasible with a probability of 80%, by the
        error rates seen here; None if more labels would not help.
    detail
        Further numbers, which depend on the kind.
    attainable
        If infeasible, a weaker target that these rows support; see `darksight_core.gate.attainable`.
    """

    rule: ClassVar[str] = "accept iff score >= value"

    value: float
    kind: Kind
    promised: float
    delta: float | None
    n: int
    errors_accepted: int | None
    coverage: float
    feasible: bool
    labels_needed: int | None
    detail: dict[str, float | int | str]
    attainable: float | None = None


def threshold_by_coverage(scores: ArrayLike, coverage: float) -> Threshold:
    """The strictest threshold that accepts at least a share `coverage` of future rows on average, without labels.

    With k = ⌊(1 - c)(n + 1)⌋ it rejects scores below the k-th smallest of the n scores. The rank of a new row among
    n + 1 is uniform, so a new row is rejected with probability k / (n + 1) <= 1 - c, exactly; ties only lower it. Given
    the calibration rows, the coverage is a draw from Beta(n + 1 - k, k).

    Parameters
    ----------
    scores
        Scores of the calibration rows, (n,).
    coverage
        c, above 0 and up to 1.

    >>> threshold_by_coverage(np.arange(1.0, 100.0), 0.9).detail["expected_coverage"]
    0.9
    """
    confidence, _ = check_scores(scores)
    if not 0.0 < coverage <= 1.0:
        raise ConfigError(f"coverage is {coverage}; it must be above 0 and up to 1")
    n = len(confidence)
    k = math.floor((1.0 - coverage) * (n + 1) + _ROUNDING)
    value, low = -math.inf, 1.0
    if k > 0:
        value = float(np.partition(confidence, k - 1)[k - 1])
        low = float(beta_quantile(0.05, n + 1 - k, k))
    return Threshold(
        value=value,
        kind="coverage",
        promised=coverage,
        delta=None,
        n=n,
        errors_accepted=None,
        coverage=float((confidence >= lowest_accepted(value)).mean()),
        feasible=True,
        labels_needed=None,
        detail={"expected_coverage": 1.0 - k / (n + 1), "coverage_low_5_percent": low},
    )


def threshold_by_accuracy(
    scores: ArrayLike,
    errors: ArrayLike,
    accuracy: float,
    *,
    delta: float = 0.05,
    reference: ArrayLike | None = None,
) -> Threshold:
    """The loosest threshold certified to have a selective accuracy of `accuracy`, with confidence 1 - delta.

    Learn-then-Test with fixed-sequence testing (Angelopoulos et al. 2021). A sequence of thresholds, from strict to
    loose, is fixed without looking at labels. At each, the hypothesis "the selective risk is above r = 1 - accuracy" is
    tested with

        p = P(Bin(m, r) <= k),   k errors among m accepted rows,

    and testing stops before the first p > δ. The result is too loose only if the first threshold with too high a risk
    passes its test, which has probability at most δ. No correction for the number of tests is needed.

    The thresholds accept m rows each, where m is the smallest number that certifies c = 0, 1, 2, ... errors, and
    finally all rows. Thresholds between them would allow no further error but could stop the sequence.

    *With `reference`*, scores of other rows, the thresholds are quantiles of these scores. They are fixed in advance, k
    given m is binomial, and the guarantee holds for every distribution.

    *Without it* the thresholds are scores of the rows themselves. Given the m-th highest score, the rows above it are
    independent draws. But which threshold is the first with too high a risk then depends on the scores. The guarantee
    still holds exactly if the score is continuous and, once the selective risk has passed r, rows at lower scores err
    at a rate of at least r: the m-th row, and rows between the true threshold and the tested one, then err at such a
    rate, so k is stochastically no smaller than Bin(m, r). For a score without this property, pass `reference`.

    Parameters
    ----------
    scores, errors
        Calibration rows, as in `risk_curve`, (n,).
    accuracy
        Between 0 and 1.
    delta
        Between 0 and 1.
    reference
        Scores of other rows from the same traffic, (m,); their labels are not needed.
    """
    confidence, wrong = check_scores(scores, errors)
    risk = _allowed_risk(accuracy, delta)
    levels = np.array(_levels(len(wrong), risk, delta), dtype=np.int64)
    ranked = RankedRows.of(confidence, wrong)
    if reference is None:
        thresholds = ranked.thresholds()[np.unique(np.searchsorted(ranked.accepted()[0], levels))]
    else:
        thresholds = _quantiles(check_scores(reference)[0], levels, len(wrong))
    m, k = ranked.accepted_by(thresholds)
    is_certified = binomial_cdf(k, m, risk) <= delta
    passed = len(is_certified) if is_certified.all() else int(np.argmin(is_certified))
    detail: dict[str, float | int | str] = {
        "tests_passed": passed,
        "tests": len(is_certified),
        "grid": "ranks" if reference is None else "reference",
        "labels_without_error": rows_without_error(risk, delta),
    }
    if passed == 0:
        return _infeasible("accuracy", accuracy, delta, ranked, _labels_needed(ranked, risk, delta), detail)
    last = passed - 1
    detail["upper_bound_on_risk"] = float(upper_bound(k[last], m[last], delta))
    return _feasible("accuracy", accuracy, delta, ranked, float(thresholds[last]), detail)


def threshold_by_joint_risk(scores: ArrayLike, errors: ArrayLike, alpha: float) -> Threshold:
    """The loosest threshold under which at most a share `alpha` of all future rows is accepted and wrong, on average.

    Conformal risk control (Angelopoulos et al. 2022) of the loss 1{accepted and wrong}. The loss never rises with the
    threshold, so the loosest threshold with (errors accepted + 1) / (n + 1) <= α has an expected loss of at most α for
    exchangeable rows. Selective risk is a ratio and not monotone, so it cannot be controlled in this way.

    Parameters
    ----------
    scores, errors
        Calibration rows, as in `risk_curve`, (n,).
    alpha
        Between 0 and 1, and at least 1 / (n + 1) to be feasible.
    """
    confidence, wrong = check_scores(scores, errors)
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f"alpha is {alpha}; it must be between 0 and 1")
    ranked = RankedRows.of(confidence, wrong)
    allowed = math.floor(alpha * (len(wrong) + 1) + _ROUNDING) - 1
    detail: dict[str, float | int | str] = {"errors_allowed": max(allowed, 0)}
    if allowed < 0:
        return _infeasible("joint_risk", alpha, None, ranked, math.ceil(1.0 / alpha - _ROUNDING) - 1, detail)
    thresholds = ranked.thresholds()
    within = np.flatnonzero(ranked.accepted_by(thresholds)[1] <= allowed)
    if not len(within):
        # The rows of the highest score, which tie, include too many errors.
        return _infeasible("joint_risk", alpha, None, ranked, None, detail)
    return _feasible("joint_risk", alpha, None, ranked, float(thresholds[within[-1]]), detail)


def threshold_by_recall(scores: ArrayLike, recall: float, *, delta: float = 0.05) -> Threshold:
    """The strictest threshold that accepts at least a share `recall` of rows like these, with confidence 1 - delta.

    Thresholds are tested from loose to strict, as k rows of n are rejected, with p = P(Bin(n, 1 - recall) <= k). Recall
    falls as the threshold rises, and so does the number of rows accepted, so testing stops where k first exceeds

        c = max {k : P(Bin(n, 1 - recall) <= k) <= δ}.

    The threshold is then the (c + 1)-th smallest score, a tolerance bound that is exact for every distribution.

    Parameters
    ----------
    scores
        Scores of rows whose true class is the one in question, (n,); -inf for a row that no threshold accepts, because
        another class is predicted or it is an outlier.
    recall, delta
        Between 0 and 1.
    """
    confidence, _ = check_scores(scores)
    missed = _allowed_risk(recall, delta)
    n, lost = len(confidence), int((confidence == -np.inf).sum())
    allowed = int(_most_errors(np.array([float(n)]), missed, delta)[0])
    ranked = RankedRows.of(confidence, np.zeros(n, dtype=np.bool_))
    detail: dict[str, float | int | str] = {"rows_lost": lost, "rows_allowed": max(allowed, 0)}
    if lost > allowed:
        attainable = math.floor(1e3 * (1.0 - float(upper_bound(lost, n, delta)))) / 1e3 or None
        needed = _rows_for_recall(n, lost, missed, delta)
        return replace(_infeasible("recall", recall, delta, ranked, needed, detail), attainable=attainable)
    found = _feasible("recall", recall, delta, ranked, float(np.partition(confidence, allowed)[allowed]), detail)
    return replace(found, errors_accepted=None)


def _rows_for_recall(n: int, lost: int, missed: float, delta: float) -> int | None:
    """Rows of the class with which some threshold passes with a probability of `_PROBABLY`; None if no number does."""
    rows = np.unique(np.geomspace(n + 1, _MOST_TIMES * max(n, rows_without_error(missed, delta)), 500).round())
    allowed = _most_errors(rows, missed, delta)
    passes = binomial_cdf(allowed, rows, (lost + 0.5) / (n + 1.0)) >= _PROBABLY
    return int(rows[np.argmax(passes)]) if passes.any() else None


def _most_errors(n: Floats, rate: float, delta: float) -> Floats:
    """The most errors among n rows, (m,), that certify an error rate of at most `rate`; -1 if none do."""
    low, high = np.full(len(n), -1.0), n
    while (low + 1.0 < high).any():
        middle = np.floor((low + high) / 2.0)
        certified = binomial_cdf(middle, n, rate) <= delta
        low, high = np.where(certified, middle, low), np.where(certified, high, middle)
    return low


@lru_cache(maxsize=64)
def _levels(n: int, risk: float, delta: float) -> tuple[int, ...]:
    """Numbers of accepted rows to test at, ascending: the smallest that certify 0, 1, 2, ... errors, and n."""
    most = float(_most_errors(np.array([float(n)]), risk, delta)[0])
    if most < 0.0:
        return ()
    errors = np.unique(np.linspace(0, most, _MAX_LEVELS).round())
    short, enough = errors, np.full(len(errors), float(n))
    while (short + 1 < enough).any():
        middle = np.floor((short + enough) / 2.0)
        certified = binomial_cdf(errors, middle, risk) <= delta
        short, enough = np.where(certified, short, middle), np.where(certified, middle, enough)
    # With rows to spare the first test allows one or two errors, because a single error among the most confident rows
    # would stop the sequence at once. In simulations the infeasible share fell from 8% to 4% for two of three targets.
    start = min(_SPARE_ERRORS, max(0, int(np.searchsorted(enough, n / 5, side="right")) - 1))
    return tuple(int(level) for level in np.unique(np.append(enough[start:], n)))


def _quantiles(reference: Floats, levels: Counts, n: int) -> Floats:
    """Thresholds that accept about `levels` of n rows, from the scores of other rows, strict to loose."""
    # The number accepted is random, so request three standard deviations more than needed.
    share = np.minimum((levels + 3.0 * np.sqrt(levels)) / n, 1.0)
    ranked = np.append(np.sort(reference)[:0:-1], -np.inf)
    rank = np.maximum(np.round(share * len(reference)).astype(np.int64), 1)
    return np.unique(ranked[rank - 1])[::-1]


def _labels_needed(ranked: RankedRows, risk: float, delta: float) -> int | None:
    """Labels with which the first test passes with a probability of `_PROBABLY`; None if no number does.

    The first test allows c errors among the m most confident rows. With N labels these are a share m / N of the rows,
    and their risk is the mean of P(wrong) over that share by a logistic regression: the best measured risk would be
    that of the luckiest threshold, and promise too much.
    """
    n = len(ranked.wrong)
    most_errors = np.arange(_SPARE_ERRORS + 1)
    least, enough = np.zeros(len(most_errors)), np.full(len(most_errors), 2.0 * (_SPARE_ERRORS + 10) / risk / delta)
    while (least + 1 < enough).any():
        middle = np.floor((least + enough) / 2.0)
        certified = binomial_cdf(most_errors, middle, risk) <= delta
        least, enough = np.where(certified, least, middle), np.where(certified, middle, enough)
    if not ranked.wrong.any():
        return max(n + 1, int(enough[0]))
    labels = np.unique(np.geomspace(max(enough[0], n + 1), _MOST_TIMES * max(enough[0], n), 500).round())
    errors = np.clip(np.searchsorted(enough, labels / 5.0, side="right") - 1, 0, _SPARE_ERRORS)
    rows = np.clip((enough[errors] / labels * n).round().astype(np.int64), 1, n)
    size = np.diff(ranked.starts, append=n)
    limits = np.finfo(np.float32)
    scores = np.clip(np.repeat(ranked.values, size), limits.min, limits.max)
    # A score of bounded range, such as a rank, cannot tell how small the risk of its highest values is; ln of the share
    # of rows that are as confident can.
    for column in (scores, np.log(np.repeat(np.append(ranked.starts[1:], n), size) / n)):
        risk = np.cumsum(_logistic_risk(column, ranked.wrong))[rows - 1] / rows
        passes = binomial_cdf(errors, enough[errors], risk) >= _PROBABLY
        if passes.any():
            return int(labels[np.argmax(passes)])
    return None


def _logistic_risk(column: Floats, wrong: NDArray[np.bool_]) -> Floats:
    """P(wrong | column) of rows (n,), by logistic regression; finite for any labels by Firth's correction."""
    design = np.stack([np.ones(len(wrong)), (column - column.mean()) / (float(column.std()) or 1.0)], axis=1)
    weights, risk = np.zeros(2), np.full(len(wrong), 0.5)
    for _ in range(50):
        variance = np.maximum(risk * (1.0 - risk), 1e-12)
        inverse = np.linalg.pinv(design.T @ (design * variance[:, None]))
        leverage = np.einsum("ij,jk,ik->i", design, inverse, design) * variance
        step = inverse @ (design.T @ (wrong - risk + leverage * (0.5 - risk)))
        weights = weights + np.clip(step, -2.0, 2.0)
        risk = 1.0 / (1.0 + np.exp(-np.clip(design @ weights, -500.0, 500.0)))
        if np.abs(step).max() < 1e-9:
            break
    return risk


def _feasible(
    kind: Kind,
    promised: float,
    delta: float | None,
    ranked: RankedRows,
    value: float,
    detail: dict[str, float | int | str],
) -> Threshold:
    m, k = (int(counts[0]) for counts in ranked.accepted_by(np.array([value])))
    n = len(ranked.wrong)
    return Threshold(value, kind, promised, delta, n, k, m / n, True, None, detail)


def _infeasible(
    kind: Kind,
    promised: float,
    delta: float | None,
    ranked: RankedRows,
    labels_needed: int | None,
    detail: dict[str, float | int | str],
) -> Threshold:
    return Threshold(math.inf, kind, promised, delta, len(ranked.wrong), 0, 0.0, False, labels_needed, detail)


def _allowed_risk(accuracy: float, delta: float) -> float:
    """1 - accuracy; ConfigError if accuracy or delta is out of range."""
    if not (0.0 < accuracy < 1.0 and 0.0 < delta < 1.0):
        raise ConfigError(f"accuracy is {accuracy} and delta {delta}; both must be between 0 and 1")
    return 1.0 - accuracy
