"""Is the certificate still true: the accuracy of accepted rows from labels of a random audit.

Labels that callers happen to report say little about the rows without one. An audit draws rows with known odds when
they are stored, and has them labelled:

    f_i   probability that row i is wrong, from its largest probability, as calibrated when the bundle was made
    o_i   odds of row i, min(1, r (U + (1 - U) s_i / mean s)) with s_i = √(f_i (1 - f_i)), the rate r and U = 0.9
    u_i   a number of its id, uniform in [0, 1) and independent of everything else; the row is drawn iff u_i < o_i

So rows are drawn more often where f says little, and never much less often than at random. f_i and o_i are stored with
the row; they may follow any rule that does not look at labels, so rows of an earlier rule or rate stay usable. Rows are
labelled in the order of u_i / o_i. If not all get labels, those with u_i / o_i < 2^-j are themselves a draw with the
odds o_i / 2^j, so j = 0, ..., 7 are all looked at. j = 0 has four fifths of the level: label all rows that are drawn.

With Z_i = 1 for a wrong row, X_i = c f_i + [i drawn] (Z_i - c f_i) / o_i has the mean Z_i for every c, and f of rows
that are not drawn counts too. The number N of rows and the sum of their f are kept with the counts per minute. Bets
with a stake λ, for more errors or (λ < 0) for fewer, have the capital

    interval   Π_drawn (1 + λ (Z_i - c f_i) / o_i) · exp(-λ (Σ Z - c Σ f))
    test       Π_drawn (1 + λ (Z_i - c f_i) / o_i) · exp(λ c Σ f - ((e^λ - 1) c + λ (1 - c)) ε N)     c = 0 or 1

Over the draw alone a factor of the first has a mean of at most one, since 1 + x <= e^x: whatever the rows are, and
however they change, Σ Z of all rows so far is one of the numbers at which a mixture of such bets has not won 1/a, at
all times with probability 1 - a (Ville). The second is for the promise that each row, given those before it, is wrong
with probability at most ε: a factor has a mean of at most one because E[e^(λ μ)] <= 1 + (e^λ - 1) ε for a probability μ
with mean ε. New bets are opened every day, such that errors that begin late are found too.

A drawn row without a label counts as right where that lowers the capital, else as wrong. So both hold whichever rows
get labels, and whenever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.accuracy import Accuracy
from darksight_core.drift.checks import checked_share
from darksight_core.drift.isotonic import Isotonic
from darksight_core.rows.simplex import Floats

__all__ = [
    "MARGIN",
    "UNIFORM",
    "WIDTH",
    "AuditReport",
    "AuditedRows",
    "CertificateVerdict",
    "audit_odds",
    "audited_accuracy",
    "certificate_evidence",
    "error_chances",
    "group_accuracies",
    "labels_to_find",
    "labels_to_measure",
    "report_audit",
]

CertificateVerdict: TypeAlias = Literal["none", "open", "kept", "broken"]

LEVEL = 0.01
"""Probability that a certificate that holds is ever called broken."""

UNIFORM = 0.9
"""Share of the draw that is uniform. With less, rows that are drawn seldom limit the stakes, which costs more than the
others save."""

WIDTH, MARGIN = 0.04, 0.03
"""Labels are planned for an interval of this width, and to find an accuracy this much below the promise."""

POWER = 0.8
"""Probability with which the planned labels do."""

_COVERAGE = 0.95
_MOST_CHANCE = 0.5
_HALVINGS = 8
# Share of the level for the whole draw.
_WHOLE = 0.8
_LEAST_LABELS = 30
# Quantile of a normal variable at POWER.
_Z_POWER = 0.8416
_SAMPLE = 2_000
_MOST_LABELS = 1e7

# Stakes as shares of the smallest odds, and c of each. Those of the interval have either sign; while errors are few the
# largest wins most, so it has more of the capital.
_STAKES = np.array([0.1, 0.3, 0.6, 0.95, 0.03, 0.06, 0.11, 0.2, 0.33, 0.5, 0.7, 0.95])
_WITH_CHANCE = np.repeat([0.0, 1.0], [4, 8])
_SHARES = np.where(_STAKES == 0.95, 0.2, 0.06)
_TEST_STAKES = np.array([0.5, 1.5, 5.0, 0.15, 0.3, 0.6, 1.0, 1.7])
_TEST_WITH_CHANCE = np.repeat([0.0, 1.0], [3, 5])
_TEST_SHARES = np.array([0.05, 0.15, 0.2, 0.05, 0.15, 0.2, 0.1, 0.1])


class _Choice(NamedTuple):
    """The draw that an accuracy is from: the days up to one, and the number of halvings j."""

    days: int
    halvings: int


@dataclass(frozen=True, slots=True, eq=False)
class AuditedRows:
    """All rows by day, and those of them that were drawn.

    Parameters
    ----------
    first_day
        Number of the first day, counted from the day when the evidence started.
    rows, chance_sums
        Number of rows of each day since then, and the sum of f over them, (days,).
    day
        Day of each drawn row, as an index of `rows`, (n,).
    keys
        u / o of each drawn row, (n,).
    chances, odds
        f and o of each, (n,).
    is_labelled, is_wrong
        Whether it has a label, and whether its prediction is known to be wrong, (n,).
    depth
        All drawn rows with a key below this are given.
    """

    first_day: int
    rows: NDArray[np.int64]
    chance_sums: Floats
    day: NDArray[np.int64]
    keys: Floats
    chances: Floats
    odds: Floats
    is_labelled: NDArray[np.bool_]
    is_wrong: NDArray[np.bool_]
    depth: float = 1.0

    def take(self, chosen: NDArray[Any]) -> AuditedRows:
        """The same days with some of the drawn rows."""
        names = ("day", "keys", "chances", "odds", "is_labelled", "is_wrong")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

    @property
    def base(self) -> float:
        """The smallest odds, which limit the stakes."""
        return float(self.odds.min(initial=1.0))


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What the audit says about accepted rows and their certificate.

    Parameters
    ----------
    accuracy
        Of accepted rows; None with too few labels of the audit.
    promised
        Accuracy that the certificate states; None without such a certificate.
    log_evidence
        Highest evidence against the promise so far; 0 without one.
    labels_needed
        More labels with which the test would find an accuracy `MARGIN` below the promise with probability `POWER`, or
        without a promise, the interval of the accuracy would have the width `WIDTH`; None if no number of labels is
        enough, because too many drawn rows stay without one. 0 if a promise is settled.
    verdict
        `broken` if the evidence has reached ln(1 / LEVEL), `kept` if the whole interval of the accuracy is above the
        promise, else `open`; `none` without a promise.
    """

    accuracy: Accuracy | None
    promised: float | None
    log_evidence: float
    labels_needed: int | None
    verdict: CertificateVerdict

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        low, high = (None, None) if self.accuracy is None else self.accuracy.interval or (None, None)
        return {
            "accuracy": None if self.accuracy is None else self.accuracy.value,
            "low": low,
            "high": high,
            "labels": 0 if self.accuracy is None else self.accuracy.rows,
            "promised": self.promised,
            "log_evidence": self.log_evidence,
            "threshold": -math.log(LEVEL),
            "labels_needed": self.labels_needed,
            "verdict": self.verdict,
        }


def error_chances(curve: Isotonic | None, top: Floats) -> Floats:
    """f of rows with these largest probabilities (n,); 0 without a curve of the probability of being right."""
    if curve is None:
        return np.zeros(len(top))
    found: Floats = np.clip(1.0 - curve(np.asarray(top, dtype=np.float64)), 0.0, _MOST_CHANCE)
    return found


def audit_odds(chances: Floats, rate: float, mean_spread: float) -> Floats:
    """o of rows (n,) at a rate, 1 at the rate 1; `mean_spread` is the mean of √(f (1 - f)) over the traffic."""
    if rate >= 1.0 or mean_spread == 0.0:
        return np.full(len(chances), rate)
    spread = np.sqrt(chances * (1.0 - chances))
    return np.minimum(rate * (UNIFORM + (1.0 - UNIFORM) * spread / mean_spread), 1.0)


def report_audit(rows: AuditedRows, promised: float | None) -> AuditReport:
    """Accuracy of accepted rows, and whether the promise of their certificate holds."""
    accuracy = audited_accuracy(rows)
    if promised is None:
        return AuditReport(accuracy, None, 0.0, labels_to_measure(rows), "none")
    evidence = float(certificate_evidence(rows, promised).max(initial=0.0))
    if evidence >= -math.log(LEVEL):
        return AuditReport(accuracy, promised, evidence, 0, "broken")
    if accuracy is not None and accuracy.interval is not None and accuracy.interval[0] >= promised:
        return AuditReport(accuracy, promised, evidence, 0, "kept")
    return AuditReport(accuracy, promised, evidence, labels_to_find(rows, promised), "open")


def certificate_evidence(rows: AuditedRows, promised: float) -> Floats:
    """ln M against a promised accuracy at the end of each day, (days,).

    While the promise holds, the largest of them ever reaches ln(1/a) with probability at most a.

    Parameters
    ----------
    rows
        Of all days, or of the last ones: then the bets of the days before are lost, and the bound still holds.
    promised
        Accuracy that the certificate states.

    >>> rng, n = np.random.default_rng(0), 2_000
    >>> def found(errors):
    ...     drawn = rng.integers(0, 5, n), rng.random(n), np.zeros(n), np.ones(n), np.ones(n, bool)
    ...     return AuditedRows(0, np.full(5, n // 5), np.zeros(5), *drawn, rng.random(n) < errors)
    >>> good, poor = (certificate_evidence(found(errors), 0.95).max() for errors in (0.04, 0.1))
    >>> bool(good < math.log(100.0) < poor)
    True
    """
    error = 1.0 - checked_share("promised", promised)
    halvings = _halvings(rows)
    path = np.empty(len(rows.rows))
    capital = np.full((len(halvings), len(_TEST_STAKES)), -np.inf)
    growth = np.empty((len(path), *capital.shape))
    for number, j in enumerate(halvings):
        stakes = _TEST_STAKES * rows.base * 0.5**j
        won = _won(rows, j, stakes, _TEST_WITH_CHANCE, missing=False)
        growth[:, number] = won + _compensation(stakes, error, rows.rows[:, None], rows.chance_sums[:, None])
    weights = np.array([_weight(j) for j in halvings])[:, None] + np.log(_TEST_SHARES)
    for number in range(len(path)):
        opened = _waiting(rows.first_day + number) - _waiting(rows.first_day + number + 1)
        capital = np.logaddexp(capital, math.log(opened) + weights) + growth[number]
        kept = math.log(_waiting(rows.first_day + number + 1))
        path[number] = np.logaddexp.reduce(capital.ravel(), initial=kept)
    return path


def audited_accuracy(rows: AuditedRows) -> Accuracy | None:
    """Accuracy of all rows up to a day, with a 95% interval; None with fewer than 30 labels of a draw.

    Of all days and all halvings of the draw it is the one with the narrowest interval: labels of the last days, or of
    rows late in the order, may be missing. The interval holds at all times and for all of these at once.
    """
    found = _narrowest(rows)
    return None if found is None else _accuracy_at(rows, found[0], found[1])


def group_accuracies(rows: AuditedRows, groups: Mapping[Any, AuditedRows]) -> dict[Any, Accuracy]:
    """Accuracies of groups of rows, such as predicted classes, whose 95% intervals hold all at once.

    They are from the draw that the accuracy of all rows is from. Groups with too few labels are left out.

    Parameters
    ----------
    rows
        All rows.
    groups
        The rows of each group.
    """
    found = _narrowest(rows)
    if found is None:
        return {}
    share, accuracies = 1.0 / max(len(groups), 1), {}
    for name, group in groups.items():
        if _labels(group, found[0]) >= _LEAST_LABELS:
            ends = _intervals(group, found[0].halvings, rows.base, share)
            accuracies[name] = _accuracy_at(group, found[0], ends[found[0].days - 1])
    return accuracies


def labels_to_find(rows: AuditedRows, promised: float) -> int | None:
    """How many more labels would find an accuracy `MARGIN` below the promise, with probability `POWER`.

    The logarithm of the capital of a bet is a sum over rows, so it is nearly normal. Rows like those drawn so far have
    the same f and o, and are wrong as often as f says, some more all over. None if no bet grows: then too many drawn
    rows are without a label, each of which counts as right.
    """
    error = 1.0 - checked_share("promised", promised)
    plan, j = _plan(rows)
    base = rows.base * 0.5**j
    # Bets are opened on the first day with this share of the capital.
    stakes, limit = _TEST_STAKES * base, -math.log(LEVEL) - math.log1p(-_waiting(1)) - _weight(j)
    growth, spread = plan.growth(stakes, _TEST_WITH_CHANCE, min(error + MARGIN, 1.0), missing=0.0)
    growth = growth + _compensation(stakes, error, 1.0, plan.mean_chance)

    def is_found(traffic: float) -> bool:
        capital = traffic * growth - _Z_POWER * math.sqrt(traffic) * spread
        return float(np.logaddexp.reduce(capital + np.log(_TEST_SHARES))) >= limit

    return _least_labels(plan, is_found)


def labels_to_measure(rows: AuditedRows) -> int | None:
    """How many more labels would give an interval of the width `WIDTH`, with probability `POWER`; see `labels_to_find`.

    None if drawn rows without a label alone make it wider.
    """
    plan, j = _plan(rows)
    stakes = _STAKES * rows.base * 0.5**j

    def width(traffic: float) -> float:
        error = plan.error + _Z_POWER * math.sqrt(plan.error * (1.0 - plan.error) / max(traffic * plan.odds, 1.0))
        more, _ = plan.growth(stakes, _WITH_CHANCE, min(error, 1.0), missing=0.0)
        fewer, _ = plan.growth(-stakes, _WITH_CHANCE, min(error, 1.0), missing=1.0)
        sizes, chances = np.array([traffic]), np.array([traffic * plan.mean_chance])
        ((low, high),) = _ranges(stakes, traffic * more[None], traffic * fewer[None], sizes, chances, _limit(j, 1.0))
        return (high - low) / traffic

    return _least_labels(plan, lambda traffic: width(traffic) <= WIDTH)


class _Plan(NamedTuple):
    """Rows that labels are planned for: f, o and weights of a sample, mean odds and f, share without labels, error."""

    chances: Floats
    drawn_odds: Floats
    weights: Floats
    odds: float
    mean_chance: float
    missing: float
    error: float
    labels: int

    def growth(self, stakes: Floats, with_chance: Floats, error: float, missing: float) -> tuple[Floats, Floats]:
        """Mean and standard deviation of a row's ln of the product over drawn rows, (stakes,), at a rate of errors.

        `missing` is what a row without a label counts as: 0 as right, 1 as wrong.
        """
        mean = self.mean_chance
        more = (error - mean) / (1.0 - mean)
        wrong = self.chances + more * (1.0 - self.chances) if more >= 0.0 else self.chances * error / mean
        wrong = wrong * (1.0 - self.missing) + missing * self.missing
        offset = self.chances[:, None] * with_chance
        scale = stakes / self.drawn_odds[:, None]
        if_wrong, if_right = np.log1p(scale * (1.0 - offset)), np.log1p(-scale * offset)
        each = self.weights * self.drawn_odds
        first = each @ (wrong[:, None] * if_wrong + (1.0 - wrong[:, None]) * if_right)
        second = each @ (wrong[:, None] * if_wrong**2 + (1.0 - wrong[:, None]) * if_right**2)
        return first, np.sqrt(np.maximum(second - first**2, 0.0))


def _plan(rows: AuditedRows) -> tuple[_Plan, int]:
    """The plan, and the number of halvings that it is for: that of the accuracy, else none."""
    found = _narrowest(rows)
    choice = _Choice(len(rows.rows), 0) if found is None else found[0]
    drawn = _drawn(rows, choice)
    labels = int(drawn.is_labelled.sum())
    # Before there is an accuracy labels are on their way.
    missing = 0.0 if found is None else 1.0 - labels / len(drawn.day)
    sample = drawn if len(drawn.day) else replace(rows, chances=np.zeros(1), odds=np.array([rows.base]))
    chosen = np.linspace(0, len(sample.odds) - 1, min(len(sample.odds), _SAMPLE)).astype(np.int64)
    odds, chances = sample.odds[chosen] * 0.5**choice.halvings, sample.chances[chosen]
    weights = 1.0 / odds
    weights /= weights.sum()
    mean = float(weights @ chances)
    error = mean if found is None else 1.0 - (_accuracy_at(rows, *found).value or 0.0)
    plan = _Plan(chances, odds, weights, float(weights @ odds), mean, missing, error, labels)
    return plan, choice.halvings


def _least_labels(plan: _Plan, is_enough: Callable[[float], bool]) -> int | None:
    """More labels than are known until so much traffic is enough; None for a number that nobody collects."""
    low, high = 1.0, _MOST_LABELS / plan.odds
    if not is_enough(high):
        return None
    while high - low > 0.01 * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return max(math.ceil(high * plan.odds) - plan.labels, 0)


def _compensation(stakes: Floats, error: float, rows: Any, chance_sums: Any) -> Any:
    """The exponent of the test for rows and the sum of their f."""
    rate = np.where(_TEST_WITH_CHANCE > 0.0, np.expm1(stakes), stakes)
    return stakes * _TEST_WITH_CHANCE * chance_sums - rate * error * rows


def _narrowest(rows: AuditedRows) -> tuple[_Choice, tuple[float, float]] | None:
    """The draw with enough labels and the narrowest interval, and the range of the sum of errors."""
    best = None
    sizes = np.cumsum(rows.rows)
    for j in _halvings(rows):
        labelled = np.bincount(rows.day[rows.is_labelled & (rows.keys < 0.5**j)], minlength=len(sizes))
        enough = np.flatnonzero((np.cumsum(labelled) >= _LEAST_LABELS) & (labelled > 0))
        ends = _intervals(rows, j, rows.base, 1.0) if len(enough) else []
        for day in enough.tolist():
            low, high = ends[day]
            width = (high - low) / sizes[day]
            # A later day says more about the same width.
            if best is None or width <= best[0]:
                best = width, _Choice(day + 1, j), (low, high)
    return None if best is None else best[1:]


def _intervals(rows: AuditedRows, j: int, base: float, share: float) -> list[tuple[float, float]]:
    """Range of the number of wrong rows up to each day, by the draw with j halvings and a share of its level."""
    stakes = _STAKES * base * 0.5**j
    more = np.cumsum(_won(rows, j, stakes, _WITH_CHANCE, missing=False), axis=0)
    fewer = np.cumsum(_won(rows, j, -stakes, _WITH_CHANCE, missing=True), axis=0)
    sizes, chances = np.cumsum(rows.rows).astype(np.float64), np.cumsum(rows.chance_sums)
    return _ranges(stakes, more, fewer, sizes, chances, _limit(j, share))


def _limit(j: int, share: float) -> float:
    """ln of the capital at which a number is excluded: the bets of either sign have half of it."""
    return math.log(2.0 / (share * (1.0 - _COVERAGE))) - _weight(j)


def _ranges(
    stakes: Floats, more: Floats, fewer: Floats, sizes: Floats, chances: Floats, limit: float
) -> list[tuple[float, float]]:
    """Numbers of wrong rows among all that are not excluded, given what bets have won (days, stakes) and sums of f."""
    signed, won = np.concatenate((stakes, -stakes)), np.concatenate((more, fewer), axis=1)
    won = won + np.log(np.tile(_SHARES, 2)) + signed * np.tile(_WITH_CHANCE, 2) * chances[:, None]

    def rises(errors: Floats) -> NDArray[np.bool_]:
        capital = won - signed * errors[:, None]
        slope = -(np.exp(capital - capital.max(axis=1, keepdims=True)) * signed).sum(axis=1)
        rising: NDArray[np.bool_] = slope > 0.0
        return rising

    def is_outside(errors: Floats) -> NDArray[np.bool_]:
        outside: NDArray[np.bool_] = np.logaddexp.reduce(won - signed * errors[:, None], axis=1) >= limit
        return outside

    # The capital is convex in the number of errors: it falls to its lowest value, and rises after it.
    lowest = _bisect(np.zeros(len(sizes)), sizes, rises)
    low = _bisect(lowest, np.zeros(len(sizes)), is_outside)
    high = _bisect(lowest, sizes, is_outside)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _bisect(start: Floats, end: Floats, is_beyond: Callable[[Floats], NDArray[np.bool_]]) -> Floats:
    """The first numbers on the way from `start` to `end` that are beyond, or `end`."""
    for _ in range(40):
        middle = 0.5 * (start + end)
        beyond = is_beyond(middle)
        start, end = np.where(beyond, start, middle), np.where(beyond, middle, end)
    return end


def _accuracy_at(rows: AuditedRows, choice: _Choice, errors: tuple[float, float]) -> Accuracy:
    """The accuracy from a draw, given the range of the number of errors."""
    drawn = _drawn(rows, choice)
    size, chances = int(rows.rows[: choice.days].sum()), float(rows.chance_sums[: choice.days].sum())
    known = drawn.is_labelled
    odds = drawn.odds[known] * 0.5**choice.halvings
    missed = float(((drawn.is_wrong[known] - drawn.chances[known]) / odds).sum())
    # Rows without a label are taken to be like the others.
    missed *= len(drawn.day) / max(int(known.sum()), 1)
    low, high = (1.0 - min(max(each / max(size, 1), 0.0), 1.0) for each in reversed(errors))
    value = min(max(1.0 - (chances + missed) / max(size, 1), low), high)
    return Accuracy("audit", value, (low, high), int(known.sum()), is_estimate=False)


def _drawn(rows: AuditedRows, choice: _Choice) -> AuditedRows:
    return rows.take((rows.keys < 0.5**choice.halvings) & (rows.day < choice.days))


def _labels(rows: AuditedRows, choice: _Choice) -> int:
    return int(_drawn(rows, choice).is_labelled.sum())


def _halvings(rows: AuditedRows) -> list[int]:
    """The halvings j whose draw is known."""
    return [j for j in range(_HALVINGS) if 0.5**j <= rows.depth]


def _weight(j: int) -> float:
    """ln of the share of the level for the draw with j halvings."""
    return math.log(_WHOLE if j == 0 else (1.0 - _WHOLE) / (_HALVINGS - 1))


def _won(rows: AuditedRows, j: int, stakes: Floats, with_chance: Floats, *, missing: bool) -> Floats:
    """ln of the product over the drawn rows of each day, (days, stakes); a missing label counts as `missing`."""
    drawn = _drawn(rows, _Choice(len(rows.rows), j))
    is_wrong = np.where(drawn.is_labelled, drawn.is_wrong, missing)
    offset = is_wrong[:, None] - drawn.chances[:, None] * with_chance
    factors = np.log1p(stakes * offset / (drawn.odds[:, None] * 0.5**j))
    won = np.zeros((len(rows.rows), len(stakes)))
    for day in np.unique(drawn.day).tolist():
        won[day] = factors[drawn.day == day].sum(axis=0)
    return won


def _waiting(days: int) -> float:
    """Share of the capital whose bets are not opened in the first so many days."""
    return 1.0 / (1.0 + math.log1p(days))
