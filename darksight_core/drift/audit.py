"""Is the certificate still true: the accuracy of accepted rows from labels of a random audit.

Labels that callers happen to report say little about the rows without one. An audit draws rows by a number u of their
id, uniform in [0, 1) and independent of everything else, and has them labelled in the order of u / g:

    row i is drawn at rate r  iff  u_i / g_i < r,      with the odds  o_i = min(1, r g_i)

g_i is 4 for the quarter of rows with the lowest p-values, where most errors are, else 1. It depends on nothing that can
change after the row was received. How many rows will get labels is not known in advance, so every rate 1, 1/2, ...,
1/4096 is tested. Rows that are drawn at `DRAWN_RATE` are listed when they are stored.

With Z_i = 1 for a wrong row and ε the error that the certificate allows, the bets with a stake λ have the capital

    M = Π_{drawn and wrong} (1 + λ / o_i) · exp(-λ ε N)                            over N accepted rows

While each accepted row is wrong with probability at most ε, given the rows before it, E[M] <= (1 + λ ε) e^(-λ ε) <= 1
for every row, so that the capital of any mixture ever reaches 1/a with probability at most a (Ville). A drawn row whose
label is missing counts as right. That lowers M, so the bound holds whichever rows get labels, and whenever. New bets
are opened every day, such that errors that begin late are found too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.accuracy import Accuracy, accuracy_sequence
from darksight_core.drift.checks import checked_share
from darksight_core.drift.urn import audit_numbers
from darksight_core.rows.simplex import Floats

__all__ = [
    "DRAWN_RATE",
    "AuditReport",
    "AuditedRows",
    "CertificateVerdict",
    "audit_gains",
    "audit_keys",
    "audited_accuracy",
    "certificate_evidence",
    "labels_to_settle",
    "report_audit",
]

CertificateVerdict: TypeAlias = Literal["none", "open", "kept", "broken"]

LEVEL = 0.01
"""Probability that a certificate that holds is ever called broken."""

RATES = 2.0 ** -np.arange(13)
"""Rates of the audit that are tested."""

DRAWN_RATE = 2.0**-6
"""Rate at which stored rows are drawn to be listed: 2.7% of rows, if p-values are uniform."""

_UNUSUAL, _GAIN = 0.25, 4.0
# Bets win most if rows are wrong 1.5, 2.5 and 6 times as often as the certificate allows.
_STAKES = np.array([0.5, 1.5, 5.0])
# Share of the drawn rows that must have labels for a rate to be used for the accuracy, and the fewest labels.
_COMPLETE, _LEAST_LABELS = 0.9, 100
_MOST_LABELS = 1_000_000
# Of the interval at each rate, such that those at all rates together hold with 95%.
_LEVEL_OF_RATE = 1.0 - 0.05 / len(RATES)


@dataclass(frozen=True, slots=True, eq=False)
class AuditedRows:
    """Accepted rows by day, and those of them that have a label.

    Parameters
    ----------
    first_day
        Number of the first day, counted from the day when the evidence started.
    accepted
        Accepted rows of each day since then, (days,).
    day
        Day of each labelled row, as an index of `accepted`, (n,).
    numbers
        u of each labelled row, (n,).
    gains
        g of each labelled row, (n,); see `audit_gains`.
    is_wrong
        Whether its prediction was wrong, (n,).
    """

    first_day: int
    accepted: NDArray[np.int64]
    day: NDArray[np.int64]
    numbers: Floats
    gains: Floats
    is_wrong: NDArray[np.bool_]


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
        More labels that would settle whether the promise holds; 0 if it is settled, or without one.
    verdict
        `broken` if the evidence has reached ln(1 / LEVEL), `kept` if the whole interval of the accuracy is above the
        promise, else `open`; `none` without a promise.
    """

    accuracy: Accuracy | None
    promised: float | None
    log_evidence: float
    labels_needed: int
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


def report_audit(rows: AuditedRows, wrong: AuditedRows, promised: float | None) -> AuditReport:
    """Accuracy of accepted rows, and whether the promise of their certificate holds.

    The accuracy is that of `rows`. The evidence needs wrong rows alone, and `wrong` may have more days of them.
    """
    accuracy = audited_accuracy(rows)
    if promised is None:
        return AuditReport(accuracy, None, 0.0, 0, "none")
    evidence = float(certificate_evidence(wrong, promised).max(initial=0.0))
    if evidence >= -math.log(LEVEL):
        return AuditReport(accuracy, promised, evidence, 0, "broken")
    if accuracy is not None and accuracy.interval is not None and accuracy.interval[0] >= promised:
        return AuditReport(accuracy, promised, evidence, 0, "kept")
    right, labelled, missing = _drawn(rows) or (0, 0, 0)
    more = labels_to_settle(right, labelled, promised, level=_LEVEL_OF_RATE)
    return AuditReport(accuracy, promised, evidence, max(more, missing, 1), "open")


def audit_gains(p_values: Floats) -> Floats:
    """g of rows: 4 up to a p-value (n,) of 1/4, else 1."""
    return np.where(p_values <= _UNUSUAL, _GAIN, 1.0)


def audit_keys(ids: NDArray[np.uint64], p_values: Floats) -> Floats:
    """u / g of rows with these ids (n, 2) and p-values (n,): a row is drawn at rate r iff this is below r."""
    keys: Floats = audit_numbers(ids) / audit_gains(p_values)
    return keys


def certificate_evidence(rows: AuditedRows, promised: float) -> Floats:
    """ln M against a promised accuracy of accepted rows at the end of each day, (days,).

    While the promise holds, the largest of them ever reaches ln(1/a) with probability at most a.

    Parameters
    ----------
    rows
        Of all days, or of the last ones: then the bets of the days before are lost, and the bound still holds.
    promised
        Accuracy of accepted rows that the certificate states.

    >>> rng, rows = np.random.default_rng(0), 2_000
    >>> labelled = rng.integers(0, 5, rows), rng.random(rows), np.ones(rows), rng.random(rows) < 0.1
    >>> good = certificate_evidence(AuditedRows(0, np.full(5, rows // 5), *labelled), 0.85)
    >>> poor = certificate_evidence(AuditedRows(0, np.full(5, rows // 5), *labelled), 0.95)
    >>> bool(good.max() < math.log(100.0) < poor.max())
    True
    """
    error = 1.0 - checked_share("promised", promised)
    wrong = rows.is_wrong
    day, gains = rows.day[wrong], rows.gains[wrong]
    keys = rows.numbers[wrong] / gains
    path = np.empty(len(rows.accepted))
    # Capital of the bets (rates, stakes), as logarithms.
    capital = np.full((len(RATES), len(_STAKES)), -np.inf)
    weight = -math.log(capital.size)
    stakes = RATES[:, None] * _STAKES
    won = np.zeros((len(path), *capital.shape))
    odds = np.minimum(RATES * gains[:, None], 1.0)
    gained = np.log1p(stakes / odds[:, :, None]) * (keys[:, None] < RATES)[:, :, None]
    np.add.at(won, day, gained)
    for number, accepted in enumerate(rows.accepted.tolist()):
        opened = _waiting(rows.first_day + number) - _waiting(rows.first_day + number + 1)
        capital = np.logaddexp(capital, math.log(opened) + weight) + won[number] - stakes * error * accepted
        kept = math.log(_waiting(rows.first_day + number + 1))
        path[number] = np.logaddexp.reduce(capital.ravel(), initial=kept)
    return path


def audited_accuracy(rows: AuditedRows) -> Accuracy | None:
    """Accuracy of accepted rows with a 95% interval, from rows that were drawn with equal odds.

    The rate is the largest at which nearly all drawn rows up to the last day with labels have one. The lower end counts
    those without as wrong, the upper end as right. How many were drawn is not known, so they are taken to be as many as
    expected: exact at rate 1, else known up to a few √(e (1 - r)) of e expected rows at rate r. The interval
    is time-uniform while rows are only added, and allows for the choice among the rates. None if there is no such rate
    with at least 100 labels.
    """
    found = _drawn(rows)
    if found is None:
        return None
    right, labelled, missing = found
    worst = accuracy_sequence(right, labelled + missing, level=_LEVEL_OF_RATE).interval
    best = accuracy_sequence(right + missing, labelled + missing, level=_LEVEL_OF_RATE).interval
    assert worst is not None
    assert best is not None
    return replace(accuracy_sequence(right, labelled), interval=(worst[0], best[1]))


def _drawn(rows: AuditedRows) -> tuple[int, int, int] | None:
    """Right, labelled and missing rows at the rate that the accuracy uses, or None."""
    if not len(rows.day):
        return None
    accepted = int(rows.accepted[: rows.day.max() + 1].sum())
    for rate in RATES.tolist():
        drawn = rows.numbers < rate
        labelled, expected = int(drawn.sum()), rate * accepted
        slack = 2.0 * math.sqrt(expected * (1.0 - rate))
        if labelled >= max(_COMPLETE * expected - slack, _LEAST_LABELS):
            right = labelled - int(rows.is_wrong[drawn].sum())
            return right, labelled, max(math.ceil(expected) - labelled, 0)
    return None


def labels_to_settle(right: int, rows: int, promised: float, *, level: float = 0.95) -> int:
    """How many more labels would decide whether a promised accuracy holds, if rows stay as right as they were.

    That is until the promise is outside of the interval of `accuracy_sequence`; 0 if it is now. Where the rows so far
    are close to the promise, or there are none, they are taken to be wrong half or twice as often as promised.

    Parameters
    ----------
    right, rows
        Right rows among those labelled so far.
    promised
        The accuracy.
    level
        Of the interval.

    >>> labels_to_settle(0, 0, 0.95) > labels_to_settle(99, 100, 0.95) > 0
    True
    """
    error = 1.0 - checked_share("promised", promised)
    rate = (rows - right) / rows if rows else 0.5 * error
    rate = min(rate, 0.5 * error) if rate <= error else max(rate, min(2.0 * error, 1.0))

    def is_settled(more: int) -> bool:
        if not rows + more:
            return False
        found = accuracy_sequence(right + more - round(rate * more), rows + more, level=level).interval
        return found is not None and not found[0] <= promised <= found[1]

    enough = 1
    while enough < _MOST_LABELS and not is_settled(enough):
        enough *= 2
    less = enough // 2
    while enough - less > max(less // 50, 1):
        middle = (less + enough) // 2
        less, enough = (less, middle) if is_settled(middle) else (middle, enough)
    return 0 if is_settled(0) else enough


def _waiting(days: int) -> float:
    """Share of the capital whose bets are not opened in the first so many days."""
    return 1.0 / (1.0 + math.log1p(days))
