"""A sample of a store: who is drawn how often, what each row stands for, and that nothing else decides it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.fit.sample import Sample, draw_sample
from darksight_core.predictions import Predictions, from_arrays
from darksight_core.rows.simplex import entropy, log_probs
from tests.support.builders import make_probs

ROWS = make_probs(1_000, 3)
ENTROPY = entropy(log_probs(ROWS))


def draw(seed: int, *, chunk: int = 1_000, size: int = 200) -> tuple[Predictions, Sample]:
    """A sample of the rows, whose labels are lost: rows are told apart by content."""
    whole = from_arrays(ROWS)

    def chunks() -> Iterator[tuple[int, Predictions]]:
        for start in range(0, len(whole), chunk):
            yield start, whole.take(np.arange(start, min(start + chunk, len(whole))))

    nothing = whole.take(np.empty(0, dtype=np.int64))
    return draw_sample(chunks(), size, len(whole), seed, (0.6, 0.3, 0.1), like=nothing)


def numbers(rows: np.ndarray) -> np.ndarray:
    """Numbers of rows by their content."""
    known = {row.tobytes(): number for number, row in enumerate(ROWS)}
    return np.array([known[row.tobytes()] for row in np.ascontiguousarray(rows)])


def test_rows_are_drawn_as_often_as_theory_says() -> None:
    """Held-out rows and the first half are drawn alike whatever their entropy; sums with the counts are unbiased."""
    held, even, totals = np.zeros(len(ROWS)), np.zeros(len(ROWS)), []
    times = 400
    for seed in range(times):
        rows, sample = draw(seed)
        held[numbers(rows.probs[np.concatenate([sample.split.calibrate, sample.split.test])])] += 1
        even[numbers(rows.probs[sample.even])] += 1
        fit = numbers(rows.probs[sample.split.fit])
        totals.append((sample.counts.sum(), (sample.counts * ENTROPY[fit]).sum(), (sample.counts * (fit < 500)).sum()))

    unsure = np.median(ENTROPY) < ENTROPY
    for drawn, expected in ((held, 79 / 1_000), (even, 61 / 1_000)):
        share = drawn.reshape(1, -1) / times
        for some in (unsure, ~unsure):
            assert share[0, some].mean() == pytest.approx(expected, abs=4.0 * np.sqrt(expected / (times * some.sum())))
    # The rows that are not held out are a random share of 921 in 1000, so sums over them are known too.
    left = 0.921 * np.array([1_000.0, ENTROPY.sum(), 500.0])
    mean, error = np.mean(totals, axis=0), np.std(totals, axis=0) / np.sqrt(times)
    assert (np.abs(mean - left) < 4.0 * error + 1e-9).all()


def test_rows_of_high_entropy_are_drawn_more_often() -> None:
    """The second half prefers rows that are not one-hot."""
    rows, sample = draw(0, size=400)
    extra = np.setdiff1d(sample.split.fit, sample.even)

    assert len(extra) > 60
    assert ENTROPY[numbers(rows.probs[extra])].mean() > 1.3 * ENTROPY.mean()


def test_a_sample_depends_on_the_seed_alone() -> None:
    """Chunks of any size give the same sample, another seed another; sets are disjoint."""
    (rows, sample), (again, same), (other, _) = draw(3), draw(3, chunk=77), draw(4)

    np.testing.assert_array_equal(rows.probs, again.probs)
    np.testing.assert_array_equal(sample.counts, same.counts)
    assert not np.array_equal(rows.probs[:50], other.probs[:50])
    places = np.concatenate([sample.split.fit, sample.split.calibrate, sample.split.test])
    assert len(np.unique(places)) == len(places) == len(rows)


def test_a_sample_of_everything_is_refused() -> None:
    """There is nothing to draw."""
    with pytest.raises(ConfigError, match="is all of them"):
        draw(0, size=1_000)


def test_labels_in_some_chunks_only_are_refused() -> None:
    """Files with and without labels make no sample, whichever comes first."""
    plain, labelled = from_arrays(ROWS), from_arrays(ROWS, labels=np.zeros(len(ROWS), dtype=np.int64))
    for first, second in ((plain, labelled), (labelled, plain)):
        nothing = first.take(np.empty(0, dtype=np.int64))
        with pytest.raises(ConfigError, match="some files have labels"):
            draw_sample([(0, first), (len(first), second)], 200, 2_000, 0, (0.6, 0.3, 0.1), like=nothing)
