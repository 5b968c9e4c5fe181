"""The reject option: how well a score tells right from wrong predictions, and where to cut it.

Scores are confidences, higher is surer, and errors are 1 where the prediction was wrong. Every threshold here is one
rule, *accept iff score > value*, so rows of equal score share one fate. A curve therefore has points at distinct scores
only; between two of them it is what rejecting a random part of the tied rows gives.

    coverage        share of rows accepted
    selective risk  share of the accepted rows that are wrong        AURC is its mean over coverage
    joint risk      share of all rows that are accepted and wrong    AUGRC is its area over coverage, our headline

A measured curve is no promise. Taking the loosest threshold whose measured risk meets the target breaks that target
about every other time, because of all thresholds it picks the luckiest. What can be promised, and by which function:

    threshold_by_coverage     E[coverage] >= c                               no labels
    threshold_by_accuracy     P(selective accuracy >= a) >= 1 - δ            Learn-then-Test, the one to use
    threshold_by_sgr          the same, by Geifman and El-Yaniv's search     the published reference
    threshold_by_joint_risk   E[share accepted and wrong] <= α               conformal risk control

All of them need rows that are independent draws from the traffic to come, unseen by whatever made the score. Too few
labels give an answer too: an infeasible `Threshold`, which accepts nothing and says how many labels it would take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.figures import Record
from darksight_core.guarantees.binomial import beta_quantile, binomial_cdf, rows_without_error, upper_bound
from darksight_core.simplex import Floats

__all__ = [
    "FailureFigures",
    "OodFigures",
    "RiskCurve",
    "Threshold",
    "failure_figures",
    "ood_figures",
    "risk_curve",
    "threshold_by_accuracy",
    "threshold_by_coverage",
    "threshold_by_joint_risk",
    "threshold_by_sgr",
]

Counts: TypeAlias = NDArray[np.int64]
Kind: TypeAlias = Literal["coverage", "accuracy", "sgr", "joint_risk"]

# More tests in a sequence only add chances to stop early: 100 steps of 1% coverage are as fine as anyone looks.
_MAX_LEVELS = 100
# Counts times a rate such as 0.1 come out a rounding error below the whole number they are.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class RiskCurve:
    """Risk against coverage at the m distinct scores, from the strictest threshold to none.

    Parameters
    ----------
    threshold
        Accept iff score > threshold, (m,); the last is -inf and accepts all.
    coverage, selective_risk, joint_risk
        As in the module docstring, (m,).
    """

    threshold: Floats
    coverage: Floats
    selective_risk: Floats
    joint_risk: Floats

    @property
    def accuracy(self) -> Floats:
        """Accuracy on the rows kept, (m,): against `coverage` it is the paper's accuracy-data plot."""
        return 1.0 - self.selective_risk


@dataclass(frozen=True, slots=True)
class FailureFigures(Record):
    """How well a score finds a classifier's errors.

    Parameters
    ----------
    n, errors, accuracy
        Of the rows measured on.
    aurc
        Mean selective risk over coverages 1/n .. 1; the error rate for a useless score.
    e_aurc
        AURC less that of an oracle on the same rows; never negative.
    augrc
        Area under the joint risk, (1 - AUROC) r (1 - r) + r² / 2 with error rate r; r / 2 for a useless score.
    auroc
        Chance that a right prediction scores above a wrong one, equal scores counting half; None without both kinds.
    fpr95
        Share of wrong predictions accepted at the strictest threshold that keeps 95% of the right ones; None likewise.
    intervals
        Percentile bootstrap interval of each figure that has one. Resamples in which a figure has no value, such as the
        AUROC of one without errors, are left out of its interval.
    level, resamples, seed
        How the intervals were made.
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
class OodFigures(Record):
    """How well a score tells rows of the known kind from foreign ones.

    Parameters
    ----------
    n_in, n_out
        Number of rows of each.
    auroc
        Chance that a known row scores above a foreign one, equal scores counting half.
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


@dataclass(frozen=True, slots=True)
class Threshold(Record):
    """A threshold with what it promises: its certificate.

    Parameters
    ----------
    value
        Accept iff score > value; inf, which accepts nothing, when infeasible.
    kind
        What is promised, by the function that made it.
    promised
        The coverage, selective accuracy or joint risk that was asked for.
    delta
        Probability that the promise is broken; None for a promise on average.
    n
        Calibration rows.
    errors_accepted
        Wrong rows among the accepted calibration rows; None without labels.
    coverage
        Share of calibration rows accepted.
    feasible
        Whether the promise can be made with these rows.
    labels_needed
        When infeasible, an estimate of the labels it takes, at the error rates seen here; None when no part of the rows
        had an error rate below the target, so that more labels would not help.
    detail
        Facts that belong to one kind.
    """

    rule: ClassVar[str] = "accept iff score > value"

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

    def accepts(self, scores: Floats) -> NDArray[np.bool_]:
        """Whether each score is accepted, (n,); NaN never is."""
        return np.asarray(scores, dtype=np.float64) > self.value


def risk_curve(scores: ArrayLike, errors: ArrayLike) -> RiskCurve:
    """Risk at every distinct score.

    Parameters
    ----------
    scores
        Confidence, higher is surer, (n,).
    errors
        1 or True where the prediction was wrong, (n,).

    >>> curve = risk_curve([0.9, 0.8, 0.8, 0.5], [0, 1, 0, 1])
    >>> curve.coverage, curve.selective_risk
    (array([0.25, 0.75, 1.  ]), array([0.        , 0.33333333, 0.5       ]))
    """
    ranked = _Ranked.of(*_checked(scores, errors))
    accepted, wrong = ranked.cumulated()
    n = accepted[-1]
    return RiskCurve(ranked.thresholds(), accepted / n, wrong / accepted, wrong / n)


def failure_figures(
    scores: ArrayLike, errors: ArrayLike, *, level: float = 0.95, resamples: int = 200, seed: int = 0
) -> FailureFigures:
    """Figures of a score as a detector of errors, with bootstrap intervals.

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
    confidence, wrong = _checked(scores, errors)
    ranked = _Ranked.of(confidence, wrong)
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
    """Figures of a score as a detector of foreign rows, with bootstrap intervals.

    Parameters
    ----------
    score_in
        Scores of rows of the known kind, higher is more normal, (n,).
    score_out
        Scores of foreign rows, (m,).
    level, resamples, seed
        As in `failure_figures`.
    """
    n, m = len(np.atleast_1d(score_in)), len(np.atleast_1d(score_out))
    if not n or not m:
        raise ConfigError(f"out-of-distribution figures need rows of both kinds, not {n} known and {m} foreign")
    foreign = np.arange(n + m) >= n
    ranked = _Ranked.of(*_checked(np.concatenate([np.atleast_1d(score_in), np.atleast_1d(score_out)]), foreign))
    place = np.argsort(ranked.wrong, kind="stable")

    def draw(rng: np.random.Generator) -> Counts:
        known, strange = rng.integers(n, size=n), rng.integers(n, n + m, size=m)
        return np.bincount(place[np.concatenate([known, strange])], minlength=n + m)

    figures, intervals = _bootstrap(ranked, draw, level, resamples, seed)
    kept = {name: interval for name, interval in intervals.items() if name in ("auroc", "fpr95")}
    return OodFigures(n, m, figures["auroc"], figures["fpr95"], kept, level, resamples, seed)


def threshold_by_coverage(scores: ArrayLike, coverage: float) -> Threshold:
    """The strictest threshold that accepts at least a share `coverage` of future rows on average, without labels.

    With k = ⌊(1 - c)(n + 1)⌋ it rejects what is below the k-th smallest of the n scores. The rank of a new row among
    n + 1 is uniform, so it is rejected with probability k / (n + 1) <= 1 - c, exactly; ties can only make that less.
    Given the calibration rows, the coverage is a draw from Beta(n + 1 - k, k).

    Parameters
    ----------
    scores
        Of calibration rows, (n,).
    coverage
        c, above 0 and up to 1.
    """
    confidence, _ = _checked(scores, None)
    if not 0.0 < coverage <= 1.0:
        raise ConfigError(f"coverage is {coverage}; it must be above 0 and up to 1")
    n = len(confidence)
    k = math.floor((1.0 - coverage) * (n + 1) + _ROUNDING)
    value, low = -math.inf, 1.0
    if k > 0:
        # A row that ties with the k-th score must be accepted, else a plateau could take all coverage away.
        value = float(np.nextafter(np.partition(confidence, k - 1)[k - 1], -np.inf))
        low = float(beta_quantile(0.05, n + 1 - k, k))
    return Threshold(
        value=value,
        kind="coverage",
        promised=coverage,
        delta=None,
        n=n,
        errors_accepted=None,
        coverage=float((confidence > value).mean()),
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

    Learn-then-Test with a fixed sequence (Angelopoulos et al. 2021). A list of thresholds is laid down from strict to
    loose without looking at a label. Each tests "the selective risk is above r = 1 - accuracy" with

        p = P(Bin(m, r) <= k),   k errors among m accepted,

    and the walk ends before the first p > δ. To end too far it must pass the first threshold that is really too risky,
    and that one test is passed with probability at most δ; no correction for the number of tests is due.

    The list. Its places in coverage follow from n, r and δ alone: the smallest m that c = 0, 1, 2, ... errors can
    certify, then all rows. Steps between them would allow no further error, but could end the walk.

    *With `reference`*, scores of other rows, thresholds are their quantiles. They are fixed beforehand, k given m is
    binomial, and the promise holds for every distribution.

    *Without it* they are ranks of these rows. Given the score at a rank, the m rows above it are independent draws from
    all that lies above, so each p by itself is exact. Which threshold is the first risky one then hangs on the scores,
    and given all of them errors are no longer equally likely. The promise still holds exactly if the score is
    continuous and the marginal row is never safer than r once the selective risk has passed r, as for any score of use:
    the rows above the true threshold err at rate r, the few between it and the tested one at a higher rate, so k is no
    smaller than a Bin(m, r). For a score that may be stranger than that, pass `reference`.

    Parameters
    ----------
    scores, errors
        Calibration rows, as in `risk_curve`, (n,).
    accuracy
        Between 0 and 1.
    delta
        Between 0 and 1.
    reference
        Scores of other rows from the same traffic, whose labels need not be known, (m,).
    """
    confidence, wrong = _checked(scores, errors)
    risk = _checked_promise(accuracy, delta)
    levels = np.array(_levels(len(wrong), risk, delta), dtype=np.int64)
    ranked = _Ranked.of(confidence, wrong)
    accepted, cumulated = ranked.cumulated()
    if reference is None:
        places = np.unique(np.searchsorted(accepted, levels))
        thresholds = ranked.thresholds()[places]
    else:
        thresholds = _quantiles(_checked(reference, None)[0], levels, len(wrong))
        # Of the distinct scores those above a threshold are accepted; before the first one stands "none".
        places = np.searchsorted(-ranked.values, -thresholds) - 1
    m = np.where(places < 0, 0, accepted[places])
    k = np.where(places < 0, 0, cumulated[places])
    passed = binomial_cdf(k, m, risk) <= delta
    steps = len(passed) if passed.all() else int(np.argmin(passed))
    detail: dict[str, float | int | str] = {
        "tests_passed": steps,
        "tests": len(passed),
        "grid": "ranks" if reference is None else "reference",
        "labels_without_error": rows_without_error(risk, delta),
    }
    if steps == 0:
        return _infeasible("accuracy", accuracy, delta, ranked, _labels_needed(ranked, risk, delta), detail)
    last = steps - 1
    detail["upper_bound_on_risk"] = float(upper_bound(k[last], m[last], delta))
    return _feasible("accuracy", accuracy, delta, ranked, float(thresholds[last]), detail)


def threshold_by_sgr(scores: ArrayLike, errors: ArrayLike, accuracy: float, *, delta: float = 0.05) -> Threshold:
    """Selection with guaranteed risk (Geifman and El-Yaniv 2017): the same promise by binary search, for comparison.

    Each of the at most ⌈log2 n⌉ thresholds visited is tested with a Clopper-Pearson bound at δ / ⌈log2 n⌉, and the
    loosest one within the target is kept. The search starts at half of the rows and sees few of the strict thresholds,
    so it is infeasible far more often than `threshold_by_accuracy`.

    Parameters
    ----------
    scores, errors, accuracy, delta
        As in `threshold_by_accuracy`.
    """
    confidence, wrong = _checked(scores, errors)
    risk = _checked_promise(accuracy, delta)
    ranked = _Ranked.of(confidence, wrong)
    accepted, cumulated = ranked.cumulated()
    visits = max(1, math.ceil(math.log2(len(wrong))))
    low, high, best = 0, len(accepted) - 1, -1
    for _ in range(visits):
        if low > high:
            break
        middle = (low + high) // 2
        # The same question as whether the Clopper-Pearson bound is within the risk, without finding that bound.
        if binomial_cdf(cumulated[middle], accepted[middle], risk) <= delta / visits:
            low, best = middle + 1, middle
        else:
            high = middle - 1
    least = rows_without_error(risk, delta / visits)
    detail: dict[str, float | int | str] = {"visits": visits, "labels_without_error": least}
    if best < 0:
        return _infeasible("sgr", accuracy, delta, ranked, _labels_needed(ranked, risk, delta / visits), detail)
    return _feasible("sgr", accuracy, delta, ranked, float(ranked.thresholds()[best]), detail)


def threshold_by_joint_risk(scores: ArrayLike, errors: ArrayLike, alpha: float) -> Threshold:
    """The loosest threshold under which at most a share `alpha` of all future rows is accepted and wrong, on average.

    Conformal risk control (Angelopoulos et al. 2022) of the loss 1{accepted and wrong}, which can only fall as the
    threshold rises: the loosest threshold with (errors accepted + 1) / (n + 1) <= α has an expected loss of at most α
    for exchangeable rows. Selective risk is a ratio and does not fall steadily, so it cannot be had in this way.

    Parameters
    ----------
    scores, errors
        Calibration rows, as in `risk_curve`, (n,).
    alpha
        Between 0 and 1, and at least 1 / (n + 1) to be feasible.
    """
    confidence, wrong = _checked(scores, errors)
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f"alpha is {alpha}; it must be between 0 and 1")
    ranked = _Ranked.of(confidence, wrong)
    allowed = math.floor(alpha * (len(wrong) + 1) + _ROUNDING) - 1
    detail: dict[str, float | int | str] = {"errors_allowed": max(allowed, 0)}
    if allowed < 0:
        return _infeasible("joint_risk", alpha, None, ranked, math.ceil(1.0 / alpha - _ROUNDING) - 1, detail)
    at_errors = np.sort(confidence[wrong])[::-1]
    value = float(at_errors[allowed]) if allowed < len(at_errors) else -math.inf
    return _feasible("joint_risk", alpha, None, ranked, value, detail)


@dataclass(frozen=True, slots=True, eq=False)
class _Ranked:
    """Rows sorted from the surest down.

    Parameters
    ----------
    wrong
        Errors in that order, (n,).
    starts
        Where each distinct score begins, (m,).
    values
        The distinct scores, descending, (m,).
    """

    wrong: NDArray[np.bool_]
    starts: NDArray[np.intp]
    values: Floats

    @classmethod
    def of(cls, scores: Floats, wrong: NDArray[np.bool_]) -> _Ranked:
        order = np.argsort(-scores, kind="stable")
        ranked = scores[order]
        starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
        return cls(wrong[order], starts, ranked[starts])

    def thresholds(self) -> Floats:
        """Threshold that accepts each distinct score and all above, (m,)."""
        return np.append(self.values[1:], -np.inf)

    def cumulated(self) -> tuple[Counts, Counts]:
        """Rows and errors accepted down to each distinct score, (m,) each."""
        ends = np.append(self.starts[1:], len(self.wrong))
        return ends.astype(np.int64), np.cumsum(self.wrong)[ends - 1]


def _bootstrap(
    ranked: _Ranked, draw: Callable[[np.random.Generator], Counts], level: float, resamples: int, seed: int
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Figures of the rows, and percentile intervals over resamples, which are weights of the sorted rows, (n,)."""
    if not 0.0 < level < 1.0 or resamples < 0:
        raise ConfigError(f"level {level} must be between 0 and 1 and the number of resamples {resamples} not negative")
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


def _figures(ranked: _Ranked, weights: Counts, harmonic: Floats) -> dict[str, float]:
    """The figures of weighted rows; those without a value are missing."""
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
        # Zero for the oracle itself, which rounding could make negative.
        "e_aurc": max(aurc - float(oracle), 0.0),
        "augrc": float(((before + errors) / 2.0 * rows).sum()) / n**2,
    }
    if 0 < k < n:
        right = rows - wrong
        kept = np.searchsorted(np.cumsum(right), math.ceil(0.95 * (n - k) - _ROUNDING))
        figures["auroc"] = float((right * (k - errors + wrong / 2.0)).sum()) / (k * (n - k))
        figures["fpr95"] = float(errors[kept]) / k
    return figures


@lru_cache(maxsize=64)
def _levels(n: int, risk: float, delta: float) -> tuple[int, ...]:
    """Numbers of accepted rows to test at, ascending: the least that certify 0, 1, 2, ... errors, and n."""
    if n < rows_without_error(risk, delta):
        return ()
    low, high = 0, n
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_cdf(middle, n, risk) <= delta else (low, middle)
    errors = np.unique(np.linspace(0, low, _MAX_LEVELS).round())
    short, enough = errors, np.full(len(errors), float(n))
    while (short + 1 < enough).any():
        middle = np.floor((short + enough) / 2.0)
        certified = binomial_cdf(errors, middle, risk) <= delta
        short, enough = np.where(certified, short, middle), np.where(certified, middle, enough)
    # With rows to spare the walk starts where an error or two are allowed, as one stray error at the very top would
    # end it at once: in simulations that took the share of infeasible answers from 8% to 4% for two targets of three.
    start = min(2, max(0, int(np.searchsorted(enough, n / 5, side="right")) - 1))
    return tuple(int(level) for level in np.unique(np.append(enough[start:], n)))


def _quantiles(reference: Floats, levels: Counts, n: int) -> Floats:
    """Thresholds that accept about `levels` of n rows, from the scores of other rows, strict to loose."""
    # As many are accepted as chance gives, so ask for three standard deviations more than are needed.
    share = np.minimum((levels + 3.0 * np.sqrt(levels)) / n, 1.0)
    ranked = np.append(np.sort(reference)[::-1], -np.inf)
    return np.unique(ranked[np.round(share * len(reference)).astype(np.int64)])[::-1]


def _labels_needed(ranked: _Ranked, risk: float, delta: float) -> int | None:
    """Labels that likely suffice: ln(1/δ) / KL(ρ, r) accepted rows where the measured risk ρ is best for it.

    That is Chernoff's bound, about the number at which the test passes at the measured risk with room for bad luck.
    """
    accepted, wrong = ranked.cumulated()
    n = len(ranked.wrong)
    rho = wrong / accepted
    below = rho < risk
    if not below.any():
        return None
    rho, share = rho[below], accepted[below] / n
    divergence = (1.0 - rho) * np.log((1.0 - rho) / (1.0 - risk))
    divergence += np.where(rho > 0.0, rho * np.log(np.maximum(rho, 1e-300) / risk), 0.0)
    rows = -math.log(delta) / divergence
    return max(n + 1, math.ceil(float((rows / share).min()) - _ROUNDING))


def _feasible(
    kind: Kind,
    promised: float,
    delta: float | None,
    ranked: _Ranked,
    value: float,
    detail: dict[str, float | int | str],
) -> Threshold:
    accepted, wrong = ranked.cumulated()
    place = int(np.searchsorted(-ranked.values, -value)) - 1
    k, m = (int(wrong[place]), int(accepted[place])) if place >= 0 else (0, 0)
    n = len(ranked.wrong)
    return Threshold(value, kind, promised, delta, n, k, m / n, True, None, detail)


def _infeasible(
    kind: Kind,
    promised: float,
    delta: float | None,
    ranked: _Ranked,
    labels_needed: int | None,
    detail: dict[str, float | int | str],
) -> Threshold:
    return Threshold(math.inf, kind, promised, delta, len(ranked.wrong), 0, 0.0, False, labels_needed, detail)


def _checked_promise(accuracy: float, delta: float) -> float:
    """The risk that an accuracy allows."""
    if not (0.0 < accuracy < 1.0 and 0.0 < delta < 1.0):
        raise ConfigError(f"accuracy and delta must be between 0 and 1, not {accuracy} and {delta}")
    return 1.0 - accuracy


def _checked(scores: ArrayLike, errors: ArrayLike | None) -> tuple[Floats, NDArray[np.bool_]]:
    confidence = np.asarray(scores, dtype=np.float64)
    if confidence.ndim != 1 or not len(confidence) or np.isnan(confidence).any():
        raise ConfigError("scores must be one or more numbers in one dimension, none of them NaN")
    if errors is None:
        return confidence, np.zeros(len(confidence), dtype=np.bool_)
    wrong = np.asarray(errors)
    if wrong.shape != confidence.shape or not np.isin(wrong, (0, 1)).all():
        raise ConfigError(f"errors must be 0 or 1, one for each of the {len(confidence)} scores")
    return confidence, wrong.astype(np.bool_)
