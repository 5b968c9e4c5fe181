"""The numbers by which points are drawn, and the uniform sample from an audit."""

from __future__ import annotations

import math

import numpy as np
from darksight_service.http.explorer.analysis.audit import uniform_sample
from darksight_service.store.ids import make_batch_id

from darksight_core.drift.urn import audit_numbers
from tests.support.point_tables import make_table


def ids_of(rows: int, seed: int = 0) -> np.ndarray:
    """Ids as the service makes them: one batch, so that they differ in their last bits alone."""
    start = int.from_bytes(make_batch_id(1_800_000_000_000, np.random.default_rng(seed).bytes(7)), "big")
    numbers = [start + row for row in range(rows)]
    return np.array([[each >> 64, each & (1 << 64) - 1] for each in numbers], dtype=np.uint64)


def test_the_numbers_are_uniform_although_ids_are_consecutive():
    """20,000 neighbours fall into 20 bins as chance would: χ² with 19 degrees of freedom, 99.9% quantile 43.8."""
    numbers = audit_numbers(ids_of(20_000))

    counts = np.histogram(numbers, bins=20, range=(0.0, 1.0))[0]

    assert ((counts - 1_000) ** 2 / 1_000).sum() < 43.8
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 4.0 / math.sqrt(20_000)


def test_the_numbers_are_the_same_tomorrow():
    """They hang on the id alone: not on the table, the order or the process."""
    ids = ids_of(5)

    assert audit_numbers(ids)[::-1].tolist() == audit_numbers(ids[::-1]).tolist()
    # SplitMix64 from state 0 gives 0xE220A8397B1DCDAF, published with the generator; the first half undoes it.
    first = 0xE220A8397B1DCDAF
    assert audit_numbers(np.array([[first, 0]], dtype=np.uint64))[0] == (first >> 11) * 2.0**-53


def test_a_uniform_sample_is_taken_from_rows_with_different_odds():
    """Rows that are drawn four times as often are as many in the sample as among all rows; it ends where labels do."""
    ids, rare = ids_of(20_000), np.arange(20_000) % 2 == 0
    odds, numbers = np.where(rare, 0.05, 0.2), audit_numbers(ids)
    drawn = numbers < odds
    label = np.where(numbers < 0.04, 1, -1)
    table = make_table(20_000, ids=ids, audit_odds=odds, label=label).take(drawn)

    found, half = uniform_sample(table, 1.0), uniform_sample(table, 0.5)

    assert (numbers < 0.04).sum() == len(found)
    assert (audit_numbers(half.ids) < 0.025).all()
    assert abs((found.audit_odds == 0.05).mean() - 0.5) < 2.0 / math.sqrt(len(found))


def test_labels_past_a_gap_do_not_count():
    """Of the sample only the part in which nearly all have a label counts, whoever labelled the others."""
    ids = ids_of(4_000)
    order = np.argsort(np.argsort(audit_numbers(ids)))
    picked = np.where((order < 200) | (order % 3 == 0), 1, -1)

    found = uniform_sample(make_table(4_000, ids=ids, audit_odds=np.ones(4_000), label=picked), 1.0)

    assert 200 <= len(found) < 230
    assert len(uniform_sample(make_table(0), 1.0)) == 0
