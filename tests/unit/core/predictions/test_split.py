"""Splits by seed, and sketches that prove which rows were in which set."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.predictions import from_arrays
from darksight_core.predictions.sketch import MAX_LEAK, SKETCH_SIZE, RowSketch, leak, overlap
from darksight_core.predictions.split import make_split


def hashes_of(contents: NDArray[np.int64]) -> NDArray[np.bytes_]:
    """Hash of rows that are told apart by a number alone, (n,) of 16 bytes; quick stand-in for `row_hashes`."""
    words = contents.astype(np.uint64) + np.uint64(1)
    mixed = np.empty((len(words), 2), dtype="<u8")
    for column, salt in enumerate((0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)):
        # The finaliser of SplitMix64: neighbours in, unrelated numbers out.
        z = words * np.uint64(salt)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
        mixed[:, column] = z
    return mixed.view("S16")[:, 0]


def sketch(contents: NDArray[np.int64], size: int = SKETCH_SIZE) -> RowSketch:
    """Sketch of rows that are told apart by a number."""
    return RowSketch.of(hashes_of(np.asarray(contents, dtype=np.int64)), size)


def split_sketches(contents: NDArray[np.int64], seed: int = 0) -> tuple[RowSketch, RowSketch]:
    """Sketches of the fit and the calibration rows of an honest split."""
    split = make_split(len(contents), seed)
    return sketch(contents[split.fit]), sketch(contents[split.calibrate])


@given(n=st.integers(20, 5_000), seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_split_takes_every_row_once(n: int, seed: int) -> None:
    """The three sets are sorted, have no row in common and leave none out."""
    split = make_split(n, seed)

    assert np.array_equal(np.sort(np.concatenate([split.fit, split.calibrate, split.test])), np.arange(n))
    for part in (split.fit, split.calibrate, split.test):
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()


def test_split_follows_its_seed() -> None:
    """The same seed gives the same rows, another gives others."""
    first, again, other = make_split(1000, 7), make_split(1000, 7), make_split(1000, 8)

    assert np.array_equal(first.fit, again.fit)
    assert np.array_equal(first.calibrate, again.calibrate)
    assert not np.array_equal(first.calibrate, other.calibrate)


@pytest.mark.parametrize(
    ("n", "shares", "sizes"),
    [
        (20, (0.6, 0.3, 0.1), (12, 6, 2)),
        (660, (0.6, 0.3, 0.1), (396, 198, 66)),
        (667, (0.6, 0.3, 0.1), (402, 199, 66)),
        (33_333, (0.6, 0.3, 0.1), (20_001, 9_999, 3_333)),
        (33_300, (0.6, 0.3, 0.1), (20_071, 9_899, 3_330)),
        (100, (0.61, 0.29, 0.1), (61, 29, 10)),
        (50, (1.0, 0.0, 0.0), (50, 0, 0)),
        (1000, (0.5, 0.5, 0.0), (501, 499, 0)),
    ],
)
def test_split_sizes(n: int, shares: tuple[float, float, float], sizes: tuple[int, int, int]) -> None:
    """From 199 on, calibration rows and one more are a multiple of 100; the rest goes to the fit."""
    split = make_split(n, 0, shares)

    assert (len(split.fit), len(split.calibrate), len(split.test)) == sizes


@pytest.mark.parametrize(
    ("n", "shares", "words"),
    [
        (19, (0.6, 0.3, 0.1), "19 rows"),
        (100, (0.6, 0.3, 0.2), "sum one"),
        (100, (1.2, -0.2, 0.0), "from 0 to 1"),
        (100, (float("nan"), 0.5, 0.5), "from 0 to 1"),
        (100, (0.5, 0.5), "three numbers"),
        (100, (0.0, 0.9, 0.1), "the fit"),
        (100, (0.695, 0.3, 0.005), "no row to test"),
    ],
)
def test_split_is_refused(n: int, shares: tuple[float, float, float], words: str) -> None:
    """Too few rows and shares that cannot work are named."""
    with pytest.raises(ConfigError, match=words):
        make_split(n, 0, shares)


def test_sketch_counts_contents() -> None:
    """A sketch knows rows, contents, and contents that occur once."""
    found = sketch(np.array([1, 2, 2, 3, 3, 3, 4, 4, 4, 4]))

    assert (found.n, found.n_distinct, found.n_unique) == (10, 4, 1)
    assert sorted(found.counts.tolist()) == [1, 2, 3, 3]
    assert found.is_exact


def test_sketch_of_predictions() -> None:
    """The hash of a set covers its rows in their order; the sketch does not see the order."""
    rng = np.random.default_rng(0)
    rows = from_arrays(rng.dirichlet(np.ones(3), 50).astype(np.float32))
    turned = rows.take(np.arange(49, -1, -1))

    found, other = RowSketch.of(rows.row_hashes()), RowSketch.of(turned.row_hashes())

    assert found.sha256 == hashlib.sha256(rows.row_hashes().tobytes()).hexdigest()
    assert found.sha256 != other.sha256
    assert np.array_equal(found.hashes, other.hashes)
    assert overlap(found, other) == 1.0


def test_sketch_keeps_the_smallest_hashes() -> None:
    """A large set costs no more than the sketch size."""
    found = sketch(np.arange(50_000))

    assert len(found.hashes) == len(found.counts) == SKETCH_SIZE
    assert (found.n_distinct, found.n_unique) == (50_000, 50_000)
    assert not found.is_exact
    assert np.array_equal(found.hashes, np.sort(hashes_of(np.arange(50_000)).view("<u8")[::2])[:SKETCH_SIZE])


@pytest.mark.parametrize("n", [0, 5, 20_000])
def test_sketch_survives_tensors(n: int) -> None:
    """Arrays and settings give the same sketch back."""
    found = sketch(np.arange(n) // 2)

    again = RowSketch.from_tensors(found.tensors(), found.settings())

    assert again.settings() == found.settings()
    assert np.array_equal(again.hashes, found.hashes)
    assert np.array_equal(again.counts, found.counts)


@pytest.mark.parametrize(
    "change",
    [
        {"n": 2},
        {"n": 10.0},
        {"n": True},
        {"n_unique": 2},
        {"n_distinct": 3},
        {"n_distinct": "4"},
        {"sha256": None},
        {"hashes": np.array([4, 3, 2, 1], dtype=np.uint64)},
        {"hashes": np.array([1, 2, 3], dtype=np.uint64)},
        {"hashes": np.array([1, 2, 3, 4], dtype=np.int64)},
        {"counts": np.array([0, 1, 2, 3], dtype=np.uint8)},
        {"counts": np.array([1, 9, 2, 3], dtype=np.uint8)},
        {"counts": np.array([1, 2, 3, 3], dtype=np.int64)},
    ],
    ids=str,
)
def test_sketch_refuses_what_does_not_belong_together(change: dict[str, object]) -> None:
    """Arrays and numbers of a sketch are checked against each other."""
    found = sketch(np.array([1, 2, 2, 3, 3, 3, 4, 4, 4, 4]))
    tensors = {name: change.get(name, array) for name, array in found.tensors().items()}
    numbers = {name: change.get(name, number) for name, number in found.settings().items()}

    with pytest.raises(ConfigError):
        RowSketch.from_tensors(tensors, numbers)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("name", ["hashes", "counts", "n", "sha256"])
def test_sketch_names_what_is_missing(name: str) -> None:
    """A missing array or number is named."""
    found = sketch(np.arange(4))
    tensors = {key: value for key, value in found.tensors().items() if key != name}
    numbers = {key: value for key, value in found.settings().items() if key != name}

    with pytest.raises(ConfigError, match=name):
        RowSketch.from_tensors(tensors, numbers)


@given(
    a=st.lists(st.integers(0, 60), max_size=80),
    b=st.lists(st.integers(0, 60), max_size=80),
)
@settings(max_examples=150)
def test_overlap_is_exact_on_small_sets(a: list[int], b: list[int]) -> None:
    """Under the sketch size the overlap is the share of b's unique rows among a's unique rows."""
    unique_a = {x for x in a if a.count(x) == 1}
    unique_b = {x for x in b if b.count(x) == 1}
    expected = len(unique_a & unique_b) / len(unique_b) if unique_b else 0.0

    assert overlap(sketch(np.array(a)), sketch(np.array(b))) == expected


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_overlap_of_large_sets_is_close(share: float) -> None:
    """Above the sketch size the estimate is within four of its standard errors."""
    n_a, n_b = 60_000, 30_000
    common = int(share * n_b)
    estimates = []
    for seed in range(5):
        base = 10_000_000 * seed
        b = np.concatenate([np.arange(common), 5_000_000 + np.arange(n_b - common)]) + base
        estimates.append(overlap(sketch(np.arange(n_a) + base), sketch(b)))
    rows = SKETCH_SIZE * n_b / (n_a + n_b - common)
    error = np.sqrt(share * (1.0 - share) / rows)

    assert np.abs(np.array(estimates) - share).max() <= 4.0 * error + 1e-12
    assert abs(np.mean(estimates) - share) <= 4.0 * error / np.sqrt(5.0) + 1e-12


def test_overlap_of_a_small_set_with_a_large_one() -> None:
    """A complete sketch against an incomplete one uses the contents that both know."""
    large, small = sketch(np.arange(100_000)), sketch(np.arange(1_000))

    assert overlap(large, small) == 1.0
    assert overlap(large, sketch(np.arange(200_000, 201_000))) == 0.0


def test_repeated_rows_are_no_evidence() -> None:
    """The same saturated row many times in both sets is no overlap."""
    saturated = np.zeros(500, dtype=np.int64)
    a = np.concatenate([saturated, np.arange(1, 400)])
    b = np.concatenate([saturated, np.arange(1_000, 1_200)])

    assert overlap(sketch(a), sketch(b)) == 0.0
    assert leak(sketch(a), sketch(b)) == 0.0


def test_empty_sets_do_not_leak() -> None:
    """A bundle without calibration rows has nothing to refuse."""
    empty = sketch(np.array([]))

    assert overlap(sketch(np.arange(5)), empty) == 0.0
    assert leak(sketch(np.arange(5)), empty) == 0.0
    assert leak(empty, empty) == 0.0


@pytest.mark.parametrize("decimals", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("seed", range(3))
def test_rounded_predictions_split_honestly_do_not_leak(classes: int, decimals: int, seed: int) -> None:
    """Rows that agree by chance, because a file was rounded, are not taken for the same rows."""
    rng = np.random.default_rng(seed)
    rows = np.round(rng.dirichlet(np.full(classes, 0.2), 6_000), decimals)
    contents = np.unique(rows, axis=0, return_inverse=True)[1].ravel()

    assert leak(*split_sketches(contents, seed)) <= MAX_LEAK


def test_twins_split_honestly_do_not_leak() -> None:
    """A source that has every row twice leaks nothing, although two rows in five have a twin on the other side."""
    a, b = split_sketches(np.arange(20_000) // 2)

    assert overlap(a, b) > 0.4
    assert leak(a, b) == 0.0


@pytest.mark.parametrize("decimals", [3, 4, 9])
@pytest.mark.parametrize("share", [0.03, 0.2, 1.0])
def test_fit_rows_in_the_calibration_leak(share: float, decimals: int) -> None:
    """Calibrating on fit rows shows, also when few of them are used and when the file was rounded."""
    rng = np.random.default_rng(1)
    rows = np.round(rng.dirichlet(np.full(10, 0.5), 20_000), decimals)
    contents = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    split = make_split(len(contents), 0)
    mixed = contents[split.calibrate].copy()
    stolen = int(share * len(mixed))
    mixed[:stolen] = rng.permutation(contents[split.fit])[:stolen]

    found = leak(sketch(contents[split.fit]), sketch(mixed))

    assert MAX_LEAK < found <= share + 0.02


def test_the_same_rows_leak_even_if_none_is_unique() -> None:
    """Calibrating on the very file of the fit is seen by the hash of all rows."""
    rows = sketch(np.arange(1000) % 10)

    assert overlap(rows, rows) == 0.0
    assert leak(rows, rows) == 1.0


def test_honest_splits_are_rarely_refused() -> None:
    """On contents that mostly occur once or twice, no honest split of many is refused."""
    rng = np.random.default_rng(3)
    refused = sum(leak(*split_sketches(rng.integers(0, 4_000, 1_500), seed)) > MAX_LEAK for seed in range(200))

    assert refused == 0


def test_calibration_rows_are_capped() -> None:
    """However many rows there are, at most 9,999 calibrate, and the rest goes to the fit."""
    split = make_split(100_000, seed=0)

    assert (len(split.fit), len(split.calibrate), len(split.test)) == (80_001, 9_999, 10_000)
