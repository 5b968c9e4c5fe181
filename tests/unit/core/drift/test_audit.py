"""Accuracy of accepted rows from the labels of a random audit, and the evidence against a certificate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darksight_core.drift.audit import (
    DRAWN_RATE,
    RATES,
    AuditedRows,
    audit_gains,
    audit_keys,
    audited_accuracy,
    certificate_evidence,
    labels_to_settle,
    report_audit,
)
from darksight_core.errors import ConfigError

ALARM = math.log(20.0)
"""An alarm at level 5%."""


def audited(
    rng: np.random.Generator,
    errors: list[float],
    *,
    rows: int = 2_000,
    depth: float = 1.0,
    concentration: float = 0.8,
    labels_errors_alone: bool = False,
) -> AuditedRows:
    """Rows of days with these error rates, labelled in the order of the audit down to a depth.

    A share `concentration` of the errors is among the quarter of rows with the lowest p-values.
    """
    day = np.repeat(np.arange(len(errors)), rows)
    p_values = rng.random(len(day))
    rate = np.array(errors)[day]
    odds = np.where(p_values <= 0.25, concentration * rate / 0.25, (1.0 - concentration) * rate / 0.75)
    gains = audit_gains(p_values)
    is_wrong, numbers = rng.random(len(day)) < odds, rng.random(len(day))
    known = is_wrong if labels_errors_alone else numbers / gains < depth
    accepted = np.full(len(errors), rows)
    return AuditedRows(0, accepted, day[known], numbers[known], gains[known], is_wrong[known])


@pytest.mark.parametrize("concentration", [0.25, 0.95], ids=["anywhere", "in_unusual_rows"])
@pytest.mark.parametrize(
    "labels", [{"depth": 1.0}, {"depth": 0.1}, {"labels_errors_alone": True}], ids=["all", "some", "complaints"]
)
def test_a_certificate_that_holds_raises_an_alarm_at_most_at_its_level(concentration, labels):
    """200 streams exactly at the promise: 5% may alarm, so 22 or more have a probability below 1 in 1,000."""
    rng = np.random.default_rng(7)

    alarms = [
        certificate_evidence(audited(rng, [0.02] * 5, concentration=concentration, **labels), 0.98).max() >= ALARM
        for _ in range(200)
    ]

    assert sum(alarms) < 22


def test_an_error_twice_the_promise_may_be_in_labels_of_any_order():
    """Labels arrive late and in any order: the evidence is that of the labels, not of their order."""
    rows = audited(np.random.default_rng(1), [0.04] * 3)
    order = np.random.default_rng(2).permutation(len(rows.day))
    columns = (rows.day, rows.numbers, rows.gains, rows.is_wrong)
    shuffled = AuditedRows(0, rows.accepted, *(each[order] for each in columns))

    assert certificate_evidence(shuffled, 0.98) == pytest.approx(certificate_evidence(rows, 0.98))


@pytest.mark.parametrize("quiet_days", [0, 20])
def test_a_broken_certificate_is_found_also_after_a_long_time_in_which_it_held(quiet_days):
    """Four times as many errors as promised are found in most streams from 600 labels, on any day."""
    rng = np.random.default_rng(3)
    errors = [0.005] * quiet_days + [0.04] * 5

    found = [
        certificate_evidence(audited(rng, errors, depth=0.04), 0.99)[quiet_days:].max() >= math.log(100.0)
        for _ in range(20)
    ]

    assert sum(found) >= 15


def test_a_missing_label_counts_as_right():
    """Labels of wrong rows raise the evidence, and labels of right rows leave it as it is."""
    rows = audited(np.random.default_rng(4), [0.05])
    wrong = rows.is_wrong
    wrong_alone = AuditedRows(
        0, rows.accepted, rows.day[wrong], rows.numbers[wrong], rows.gains[wrong], rows.is_wrong[wrong]
    )
    half = np.arange(len(rows.day)) % 2 == 0
    fewer = AuditedRows(0, rows.accepted, rows.day[half], rows.numbers[half], rows.gains[half], rows.is_wrong[half])

    evidence = certificate_evidence(rows, 0.98)[0]

    assert certificate_evidence(wrong_alone, 0.98)[0] == evidence
    assert certificate_evidence(fewer, 0.98)[0] < evidence


def test_days_that_are_no_longer_kept_only_lower_the_evidence():
    """Bets of days before the first one that is kept are lost; their capital is not given to later ones."""
    rows = audited(np.random.default_rng(5), [0.05] * 6)
    late = rows.day >= 3
    columns = (rows.numbers, rows.gains, rows.is_wrong)
    kept = AuditedRows(3, rows.accepted[3:], rows.day[late] - 3, *(each[late] for each in columns))

    assert (certificate_evidence(kept, 0.98) <= certificate_evidence(rows, 0.98)[3:]).all()


def test_the_interval_of_the_accuracy_covers_it_at_every_time():
    """In 95% of audits all intervals of all days have the accuracy: 100 audits, 12 misses are 1 in 500 by chance."""
    rng = np.random.default_rng(6)
    missed = 0
    for _ in range(100):
        rows = audited(rng, [0.08] * 4, rows=1_000, depth=0.3)
        missed += any(not low <= 0.92 <= high for low, high in _intervals(rows))

    assert missed < 12


def _intervals(rows: AuditedRows) -> list[tuple[float, float]]:
    found = []
    for days in range(1, len(rows.accepted) + 1):
        early = rows.day < days
        columns = (rows.day, rows.numbers, rows.gains, rows.is_wrong)
        accuracy = audited_accuracy(AuditedRows(0, rows.accepted[:days], *(each[early] for each in columns)))
        assert accuracy is not None
        assert accuracy.interval is not None
        found.append(accuracy.interval)
    return found


def test_labels_of_complaints_alone_give_no_accuracy():
    """Drawn rows without labels are most of them, so nothing is known about the accepted rows."""
    rows = audited(np.random.default_rng(8), [0.05], labels_errors_alone=True)

    assert audited_accuracy(rows) is None


def test_labels_that_callers_selected_do_not_hide_the_errors():
    """Of 40 accepted rows the 24 right ones are labelled; of 1,000 with 100 errors, all but 60 of the errors."""
    few = _labelled(40, np.arange(40) < 16, np.arange(40) >= 16)
    many = _labelled(1_000, np.arange(1_000) < 100, np.arange(1_000) >= 60)

    assert audited_accuracy(few) is None
    found = audited_accuracy(many)
    assert found is not None
    assert found.interval is not None
    assert found.interval[0] < 0.9 < found.interval[1]


def _labelled(rows: int, is_wrong: np.ndarray, known: np.ndarray) -> AuditedRows:
    numbers = np.random.default_rng(11).random(rows)[known]
    return AuditedRows(
        0, np.array([rows]), np.zeros(len(numbers), int), numbers, np.ones(len(numbers)), is_wrong[known]
    )


def test_more_labels_are_asked_for_while_drawn_rows_lack_them():
    """1,500 right labels settle a promise of 0.97, but not if 100 of the accepted rows have none."""
    rows = _labelled(1_600, np.zeros(1_600, dtype=bool), np.arange(1_600) >= 100)

    report = report_audit(rows, rows, 0.97)

    assert (report.verdict, report.labels_needed) == ("open", 100)


def test_the_labels_that_settle_a_promise_are_fewer_the_farther_it_is():
    """None where the interval excludes the promise, and thousands where half of the allowed errors are found."""
    assert labels_to_settle(500, 1_000, 0.9) == 0
    assert 0 < labels_to_settle(188, 200, 0.9) < labels_to_settle(185, 200, 0.9) < labels_to_settle(182, 200, 0.9)
    assert 2_000 < labels_to_settle(0, 0, 0.99) < 20_000


def test_a_promise_must_be_a_share():
    """A certificate of an accuracy of one cannot be tested by bets, and is refused."""
    with pytest.raises(ConfigError, match="promised must be between 0 and 1"):
        certificate_evidence(audited(np.random.default_rng(9), [0.0]), 1.0)


def test_rows_are_drawn_with_the_odds_that_are_stated() -> None:
    """Of 200,000 rows in neighbouring ids, within 4 standard errors; weights 1 / odds recover a rate of errors."""
    rng = np.random.default_rng(3)
    ids = np.stack([np.full(200_000, 7 << 40), np.arange(200_000)], axis=1).astype(np.uint64)
    p_values = rng.random(200_000)
    is_wrong = rng.random(200_000) < np.where(p_values <= 0.25, 0.3, 0.02)

    drawn = audit_keys(ids, p_values) < DRAWN_RATE

    odds = np.minimum(DRAWN_RATE * audit_gains(p_values), 1.0)
    assert DRAWN_RATE in RATES
    for group in (p_values <= 0.25, p_values > 0.25):
        assert abs(drawn[group].sum() - odds[group].sum()) < 4.0 * math.sqrt(odds[group].sum())
    weighted = (is_wrong / odds)[drawn].sum() / 200_000
    spread = math.sqrt((is_wrong / odds * (1.0 - odds)).sum()) / 200_000
    assert abs(weighted - is_wrong.mean()) < 4.0 * spread
