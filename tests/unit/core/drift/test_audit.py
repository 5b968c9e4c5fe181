"""Accuracy of accepted rows from the labels of a random audit, and the evidence against a certificate."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from darksight_core.drift.audit import (
    MARGIN,
    UNIFORM,
    WIDTH,
    AuditedRows,
    audit_odds,
    audited_accuracy,
    certificate_evidence,
    error_chances,
    group_accuracies,
    labels_to_find,
    labels_to_measure,
    report_audit,
)
from darksight_core.drift.isotonic import Isotonic
from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

ALARM = math.log(20.0)
"""An alarm at level 5%."""

BELIEFS = {"right": 1.0, "too_low": 0.2, "too_high": 6.0, "none": 0.0}
"""What is believed about rows: their probability of being wrong times this."""


def audited(
    rng: np.random.Generator,
    errors: list[float],
    *,
    rows: int = 2_000,
    rate: float = 0.1,
    belief: float = 1.0,
    missing: float = 0.0,
) -> tuple[AuditedRows, Floats]:
    """Rows of days with these error rates, and the share that was wrong up to each day.

    Rows are unbalanced: a tenth of them makes most of the errors. `missing` is the share of drawn rows without a label.
    """
    day = np.repeat(np.arange(len(errors)), rows)
    chance = np.array(errors)[day] * np.where(rng.random(len(day)) < 0.1, 6.0, 0.4444)
    believed = np.clip(belief * chance, 0.0, 0.5)
    odds = audit_odds(believed, rate, float(np.sqrt(believed * (1.0 - believed)).mean()))
    is_wrong, keys = rng.random(len(day)) < chance, rng.random(len(day)) / odds
    drawn = keys < 1.0
    known = rng.random(int(drawn.sum())) >= missing
    found = AuditedRows(
        0,
        np.full(len(errors), rows),
        np.bincount(day, weights=believed),
        day[drawn],
        keys[drawn],
        believed[drawn],
        odds[drawn],
        known,
        known & is_wrong[drawn],
    )
    return found, np.cumsum(np.bincount(day, weights=is_wrong)) / np.cumsum(found.rows)


def first_days(rows: AuditedRows, days: int) -> AuditedRows:
    """What was known at the end of a day."""
    early = rows.take(rows.day < days)
    return replace(early, rows=rows.rows[:days], chance_sums=rows.chance_sums[:days])


@pytest.mark.parametrize("belief", BELIEFS)
@pytest.mark.parametrize("missing", [0.0, 0.1, 0.7])
def test_a_certificate_that_holds_raises_an_alarm_at_most_at_its_level(belief, missing):
    """200 streams exactly at the promise: 5% may alarm, so 22 or more have a probability below 1 in 1,000."""
    rng = np.random.default_rng(7)

    alarms = [
        certificate_evidence(audited(rng, [0.02] * 5, belief=BELIEFS[belief], missing=missing)[0], 0.98).max() >= ALARM
        for _ in range(200)
    ]

    assert sum(alarms) < 22


@pytest.mark.parametrize("belief", BELIEFS)
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_the_interval_holds_the_accuracy_so_far_at_every_time_although_it_changes(belief, missing):
    """In 95% of audits all intervals hold it: 60 audits, 10 misses are 1 in 2,000 by chance."""
    rng = np.random.default_rng(6)
    missed = 0
    for _ in range(60):
        rows, wrong = audited(rng, [0.02, 0.2, 0.01], rows=1_500, belief=BELIEFS[belief], missing=missing)
        for days in (1, 2, 3):
            # Of the days up to the last alone, so that it is known which days the accuracy is of.
            last = first_days(rows, days)
            last = replace(last, day=np.zeros_like(last.day), rows=last.rows.sum(keepdims=True))
            found = audited_accuracy(replace(last, chance_sums=last.chance_sums.sum(keepdims=True)))
            if found is not None and not found.interval[0] <= 1.0 - wrong[days - 1] <= found.interval[1]:
                missed += 1
                break

    assert missed < 10


def test_what_is_believed_about_rows_saves_labels_and_never_costs_many():
    """Widths of the interval from the same number of labels, in the mean of 12 audits of rows that are wrong in 8%."""
    widths = {}
    for name, belief in BELIEFS.items():
        rng = np.random.default_rng(5)
        rate = 0.1
        found = [audited_accuracy(audited(rng, [0.08], rows=6_000, rate=rate, belief=belief)[0]) for _ in range(12)]
        widths[name] = np.mean([np.ptp(each.interval) * math.sqrt(each.rows) for each in found if each is not None])

    assert widths["right"] < 0.9 * widths["none"]
    assert widths["too_low"] < widths["none"]
    assert widths["too_high"] < 1.1 * widths["none"]


@pytest.mark.parametrize("quiet_days", [0, 20])
def test_a_broken_certificate_is_found_also_after_a_long_time_in_which_it_held(quiet_days):
    """Four times as many errors as promised are found in most streams from 1,000 labels, on any day."""
    rng = np.random.default_rng(3)
    errors = [0.005] * quiet_days + [0.04] * 5

    found = [
        certificate_evidence(audited(rng, errors)[0], 0.99)[quiet_days:].max() >= math.log(100.0) for _ in range(20)
    ]

    assert sum(found) >= 17


def test_labels_may_arrive_in_any_order():
    """Evidence and accuracy are those of the labels, not of their order."""
    rows, _ = audited(np.random.default_rng(1), [0.04] * 3)
    shuffled = rows.take(np.random.default_rng(2).permutation(len(rows.day)))

    assert certificate_evidence(shuffled, 0.98) == pytest.approx(certificate_evidence(rows, 0.98))
    assert audited_accuracy(shuffled).interval == pytest.approx(audited_accuracy(rows).interval)


def test_a_missing_label_counts_against_what_is_said():
    """As right in the evidence, and both ways in the interval."""
    rows, _ = audited(np.random.default_rng(4), [0.05], rows=20_000)
    known = np.random.default_rng(5).random(len(rows.day)) >= 0.02
    fewer = replace(rows, is_labelled=known, is_wrong=rows.is_wrong & known)
    complaints = replace(rows, is_labelled=rows.is_wrong)

    assert certificate_evidence(complaints, 0.98)[0] == pytest.approx(certificate_evidence(rows, 0.98)[0])
    assert certificate_evidence(fewer, 0.98)[0] < certificate_evidence(rows, 0.98)[0]
    (low, high), (inner_low, inner_high) = audited_accuracy(fewer).interval, audited_accuracy(rows).interval
    assert low < inner_low < inner_high < high
    assert np.ptp(audited_accuracy(complaints).interval) > 0.5


def test_labels_in_their_order_are_enough():
    """With the first quarter of the order labelled the accuracy is that of a quarter of the draw, and nothing lacks."""
    rows, wrong = audited(np.random.default_rng(12), [0.05], rows=8_000, rate=0.2)
    known = rows.keys < 0.25
    first = replace(rows, is_labelled=known, is_wrong=rows.is_wrong & known)

    found = audited_accuracy(first)

    assert found.rows == known.sum()
    assert found.interval[0] <= 1.0 - wrong[0] <= found.interval[1]
    assert np.ptp(found.interval) < 0.12


def test_days_that_are_no_longer_kept_only_lower_the_evidence():
    """Bets of days before the first one that is kept are lost; their capital is not given to later ones."""
    rows, _ = audited(np.random.default_rng(5), [0.05] * 6)
    late = rows.take(rows.day >= 3)
    kept = replace(late, first_day=3, rows=rows.rows[3:], chance_sums=rows.chance_sums[3:], day=late.day - 3)

    assert (certificate_evidence(kept, 0.98) <= certificate_evidence(rows, 0.98)[3:]).all()


def test_rows_of_an_earlier_rule_stay_usable_with_their_odds():
    """Days drawn at other odds and without beliefs: the interval of both together still holds, and is narrower."""
    rng = np.random.default_rng(13)
    old, old_wrong = audited(rng, [0.05], rows=4_000, rate=0.05, belief=0.0)
    new, new_wrong = audited(rng, [0.05], rows=4_000, rate=0.1)
    names = ("keys", "chances", "odds", "is_labelled", "is_wrong")
    both = AuditedRows(
        0,
        np.concatenate((old.rows, new.rows)),
        np.concatenate((old.chance_sums, new.chance_sums)),
        np.concatenate((old.day, new.day + 1)),
        *(np.concatenate((getattr(old, name), getattr(new, name))) for name in names),
    )

    found = audited_accuracy(both)

    assert found.interval[0] <= 1.0 - 0.5 * (old_wrong[0] + new_wrong[0]) <= found.interval[1]
    assert np.ptp(found.interval) < np.ptp(audited_accuracy(old).interval)


def test_too_few_labels_give_no_accuracy():
    """And without a promise there is no evidence."""
    rows, _ = audited(np.random.default_rng(8), [0.05], rows=200)

    report = report_audit(rows, None)

    assert (report.accuracy, report.verdict, report.log_evidence) == (None, "none", 0.0)
    assert 200 < report.labels_needed < 5_000


@pytest.mark.parametrize(("error", "verdict"), [(0.005, "kept"), (0.05, "open"), (0.15, "broken")])
def test_the_verdict_follows_interval_and_evidence(error, verdict):
    """Of a promise of 95% with 2,000 labels."""
    rows, _ = audited(np.random.default_rng(9), [error], rows=20_000)

    assert report_audit(rows, 0.95).verdict == verdict


@pytest.mark.parametrize(("promised", "belief"), [(0.95, 1.0), (0.98, 0.2), (0.9, 0.0)])
def test_the_labels_that_are_asked_for_find_a_broken_certificate_four_times_in_five(promised, belief):
    """60 streams with that many labels, wrong 3 points more often than promised: 36 to 58 are within 4 deviations."""
    rng = np.random.default_rng(10)
    usual, _ = audited(rng, [1.0 - promised], rows=4_000, belief=belief)
    needed = labels_to_find(replace(usual, is_labelled=np.zeros_like(usual.is_labelled)), promised)
    error = 1.0 - promised + MARGIN

    found = [
        certificate_evidence(audited(rng, [error], rows=round(needed / 0.1), belief=belief)[0], promised).max()
        >= math.log(100.0)
        for _ in range(60)
    ]

    assert 36 <= sum(found) <= 58


def test_the_labels_that_are_asked_for_give_a_narrow_interval():
    """30 audits with that many labels: most have the width, and with half of them hardly any has."""
    rng = np.random.default_rng(11)
    usual, _ = audited(rng, [0.04], rows=4_000)
    needed = labels_to_measure(usual) + int(usual.is_labelled.sum())

    def widths(labels: float) -> Floats:
        found = [audited_accuracy(audited(rng, [0.04], rows=round(labels / 0.1))[0]) for _ in range(30)]
        return np.array([np.ptp(each.interval) for each in found])

    assert (widths(needed) <= WIDTH).sum() >= 17
    assert (widths(0.5 * needed) <= WIDTH).sum() <= 6


def test_no_number_of_labels_is_enough_where_most_drawn_rows_stay_without_one():
    """Each counts as right, so that an error twice that of the promise looks like it."""
    rng = np.random.default_rng(14)
    some, _ = audited(rng, [0.03], rows=8_000, missing=0.1)
    few, _ = audited(rng, [0.03], rows=8_000, missing=0.7)

    assert labels_to_find(some, 0.97) > 0
    assert labels_to_find(few, 0.97) is None
    assert labels_to_measure(few) is None


def test_intervals_of_groups_hold_all_at_once():
    """Three groups in 40 audits: 8 audits with a miss are 1 in 2,000 by chance at 5%. A group of 3 labels has none."""
    rng = np.random.default_rng(15)
    missed, narrow = 0, []
    for _ in range(40):
        rows, _ = audited(rng, [0.04], rows=6_000)
        parts = [audited(rng, [error], rows=3_000) for error in (0.02, 0.1, 0.3)]
        tiny, _ = audited(rng, [0.1], rows=30)
        groups = dict(enumerate([*(part for part, _ in parts), tiny]))
        found = group_accuracies(rows, groups)
        narrow += [np.ptp(found[0].interval)]
        assert set(found) == {0, 1, 2}
        missed += any(
            not found[number].interval[0] <= 1.0 - wrong[0] <= found[number].interval[1]
            for number, (_, wrong) in enumerate(parts)
        )

    assert missed < 8
    assert np.mean(narrow) < 0.12


def test_a_promise_must_be_a_share():
    """A certificate of an accuracy of one cannot be tested by bets, and is refused."""
    with pytest.raises(ConfigError, match="promised must be between 0 and 1"):
        certificate_evidence(audited(np.random.default_rng(9), [0.0])[0], 1.0)


def test_odds_are_higher_where_errors_are_likely_and_never_much_lower():
    """Their mean is the rate, whatever the traffic; without a curve they are the rate."""
    curve = Isotonic(np.array([0.5, 1.0]), np.array([0.2, 1.0]))
    top = np.random.default_rng(16).uniform(0.5, 1.0, 10_000)

    chances = error_chances(curve, top)
    odds = audit_odds(chances, 0.05, float(np.sqrt(chances * (1.0 - chances)).mean()))

    assert (chances[top < 0.6] == 0.5).all()
    assert chances[top.argmax()] == pytest.approx(1.6 * (1.0 - top.max()))
    assert odds.mean() == pytest.approx(0.05)
    assert odds.min() >= UNIFORM * 0.05
    assert audit_odds(error_chances(None, top), 0.05, 0.0).tolist() == [0.05] * len(top)
    assert audit_odds(chances, 1.0, 0.3).tolist() == [1.0] * len(top)
