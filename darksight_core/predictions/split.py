"""Which rows fit the map, which calibrate it, which test it, and the proof that they were not the same rows.

A calibration score is an honest rank only if nothing that was fitted has seen its row: calibrating on the points of the
KDE itself turns a false-alarm rate of 1% into 13% to 57%. So a bundle carries a `RowSketch` of each of its sets, and
the loader refuses a bundle whose calibration rows were fit rows.

Rows are told apart by content, because ids are optional and positions change from file to file. Content is a weak name:
a saturated classifier gives thousands of rows that are exactly 1, 0, ..., 0, and a file rounded to three decimals gives
few different rows at all. Contents that occur twice within one set are therefore no evidence. Those that occur once on
each side may still be two rows that agree by chance. How many do is known without any assumption on the classifier: of
the contents that occur exactly twice in both sets together, an honest split of n = a + b rows puts

    one on each side : both on one side   =   2 a b : a (a - 1) + b (b - 1),

and rows that are in both sets add to the left alone. `overlap` is the plain share, `leak` what this ratio leaves of it.
Rows are compared to the bit as float32; the same rows once in full and once rounded to text are different rows here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError

__all__ = ["MAX_LEAK", "SKETCH_SIZE", "RowSketch", "Split", "leak", "make_split", "overlap"]

Ints: TypeAlias = NDArray[np.int64]

SKETCH_SIZE = 4096
"""Contents that a sketch keeps: an exact answer up to here, and 36 kB in a bundle."""

MAX_LEAK = 0.01
"""Share of calibration rows that may also be fit rows beyond chance; a true mix-up is far above, noise far below."""

MAX_CALIBRATION = 9_999
"""Calibration rows that a split takes at most: with them a rate of 1% is known to within 0.2 points, and every further
row would only make bundles larger."""

_MANY = 3
"""Counts of a content end here: once, twice, more often."""

_NOISE = 3.0
"""Standard deviations that chance may add before it counts as evidence."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Places of the rows of each set, (m,) int64, sorted, without a common one."""

    fit: Ints
    calibrate: Ints
    test: Ints


def make_split(n: int, seed: int, shares: tuple[float, float, float] = (0.6, 0.3, 0.1)) -> Split:
    """Draw which of n rows fit, calibrate and test.

    From 199 calibration rows on, their number m is rounded down such that m + 1 is a multiple of 100: then alpha = 1%
    and ten bins of p-values are hit exactly. There are at most `MAX_CALIBRATION`. What is left over goes to the fit.

    Parameters
    ----------
    n
        Number of rows, at least 20.
    seed
        The same n, seed and shares give the same split.
    shares
        Share of rows to fit, calibrate and test, with sum one. The last two may be zero.

    >>> split = make_split(1000, seed=0)
    >>> len(split.fit), len(split.calibrate), len(split.test)
    (601, 299, 100)
    """
    if n < 20:
        raise ConfigError(f"there are {n} rows; a split needs at least 20", rows=n)
    if len(shares) != 3 or not all(0.0 <= share <= 1.0 for share in shares) or abs(sum(shares) - 1.0) > 1e-9:
        raise ConfigError(f"shares are {shares}; they must be three numbers from 0 to 1 with sum one")
    if shares[0] == 0.0:
        raise ConfigError(f"shares are {shares}; the first, for the fit, must not be zero")
    # Without the small addition 0.29 * 100 would be 28 rows.
    calibrate, test = (math.floor(share * n + 1e-6) for share in shares[1:])
    calibrate = min(calibrate, MAX_CALIBRATION)
    if calibrate >= 199:
        calibrate -= (calibrate + 1) % 100
    fit = n - calibrate - test
    for name, rows, share in zip(("fit", "calibrate", "test"), (fit, calibrate, test), shares, strict=True):
        if share > 0.0 and rows == 0:
            raise ConfigError(f"a share of {share} of {n} rows is no row to {name}; use 0 or a larger share")
    order = np.random.default_rng(seed).permutation(n)
    parts = np.split(order, [fit, fit + calibrate])
    return Split(*(np.sort(part).astype(np.int64) for part in parts))


@dataclass(frozen=True, slots=True, eq=False)
class RowSketch:
    """A fingerprint of a set of rows: the k smallest hashes of its contents, and how often each occurs.

    Hashes are uniform, so the k smallest are a random sample of the contents, and the same one in every set: what is
    below the last hash of two sketches is known completely in both.

    Parameters
    ----------
    n
        Number of rows.
    n_distinct, n_unique
        Number of different contents, and of those that occur once.
    sha256
        SHA-256 over the hashes of all rows in their order, in hexadecimal.
    hashes
        The smallest 64-bit hashes of contents, ascending, (min(n_distinct, k),) uint64.
    counts
        How often each occurs: 1, 2, or 3 for more, uint8.
    """

    n: int
    n_distinct: int
    n_unique: int
    sha256: str
    hashes: NDArray[np.uint64]
    counts: NDArray[np.uint8]

    def __post_init__(self) -> None:
        if (
            self.hashes.dtype != np.uint64
            or self.counts.dtype != np.uint8
            or self.hashes.ndim != 1
            or self.hashes.shape != self.counts.shape
            or len(self.hashes) > self.n_distinct
            or not 0 <= self.n_unique <= self.n_distinct <= self.n
            or (self.n_distinct == 0) != (self.n == 0)
            or (self.hashes[1:] <= self.hashes[:-1]).any()
            or ((self.counts < 1) | (self.counts > _MANY)).any()
            or (self.is_exact and np.count_nonzero(self.counts == 1) != self.n_unique)
        ):
            raise ConfigError("the arrays and sizes of a row sketch do not belong together")

    @classmethod
    def of(cls, row_hashes: NDArray[np.bytes_], size: int = SKETCH_SIZE) -> RowSketch:
        """Sketch of rows.

        Parameters
        ----------
        row_hashes
            `Predictions.row_hashes()`, (n,) of 16 bytes.
        size
            How many contents to keep, k.
        """
        digests = np.ascontiguousarray(row_hashes, dtype="S16")
        words = np.frombuffer(digests.tobytes(), dtype="<u8")[::2]
        hashes, counts = np.unique(words, return_counts=True)
        return cls(
            n=len(digests),
            n_distinct=len(hashes),
            n_unique=int(np.count_nonzero(counts == 1)),
            sha256=hashlib.sha256(digests.tobytes()).hexdigest(),
            hashes=hashes[:size].astype(np.uint64),
            counts=np.minimum(counts[:size], _MANY).astype(np.uint8),
        )

    @property
    def is_exact(self) -> bool:
        """Whether all contents are kept."""
        return len(self.hashes) == self.n_distinct

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name; the numbers are in `settings`."""
        return {"hashes": self.hashes, "counts": self.counts}

    def settings(self) -> dict[str, int | str]:
        """The numbers and the hash of all rows, as plain values."""
        return {"n": self.n, "n_distinct": self.n_distinct, "n_unique": self.n_unique, "sha256": self.sha256}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> RowSketch:
        """Inverse of `tensors` and `settings`; ConfigError if they do not belong together."""
        try:
            numbers = {name: settings[name] for name in ("n", "n_distinct", "n_unique")}
            digest, hashes, counts = settings["sha256"], tensors["hashes"], tensors["counts"]
        except KeyError as missing:
            raise ConfigError(f"a row sketch lacks {missing}") from None
        if not all(type(number) is int for number in numbers.values()) or not isinstance(digest, str):
            raise ConfigError("the sizes of a row sketch must be whole numbers, and its sha256 a text")
        return cls(**numbers, sha256=digest, hashes=hashes, counts=counts)


def overlap(a: RowSketch, b: RowSketch) -> float:
    """Share of the unique rows of b that are unique rows of a too.

    Exact while neither has more than `SKETCH_SIZE` contents; else an unbiased estimate from the m rows of b that are
    below the last hash of both, with a standard error of √(q (1 - q) / m). 0 when b has no unique row.
    """
    counts_a, counts_b = _common_sample(a, b)
    unique = int(np.count_nonzero(counts_b == 1))
    return np.count_nonzero((counts_a == 1) & (counts_b == 1)) / unique if unique else 0.0


def leak(a: RowSketch, b: RowSketch) -> float:
    """Share of the unique rows of b that are rows of a beyond what chance explains, at least; see the module.

    One and the same set of rows in the same order leaks wholly, however few unique rows it has.
    """
    if a.n and a.sha256 == b.sha256:
        return 1.0
    counts_a, counts_b = _common_sample(a, b)
    unique = int(np.count_nonzero(counts_b == 1))
    if unique == 0:
        return 0.0
    apart = int(np.count_nonzero((counts_a == 1) & (counts_b == 1)))
    together = int(np.count_nonzero(((counts_a == 2) & (counts_b == 0)) | ((counts_a == 0) & (counts_b == 2))))
    # With one row on each side no pair can be on one side.
    ratio = 2.0 * a.n * b.n / max(a.n * (a.n - 1) + b.n * (b.n - 1), 1)
    share = ratio / (1.0 + ratio)
    noise = (1.0 + ratio) * math.sqrt((apart + together) * share * (1.0 - share))
    return max(apart - ratio * together - _NOISE * noise, 0.0) / unique


def _common_sample(a: RowSketch, b: RowSketch) -> tuple[Ints, Ints]:
    """How often the contents that both sketches know completely occur in a and in b, (m,) each."""
    last = min((sketch.hashes[-1] for sketch in (a, b) if not sketch.is_exact), default=np.uint64(2**64 - 1))
    contents = np.union1d(a.hashes, b.hashes)
    contents = contents[contents <= last]
    counts = []
    for sketch in (a, b):
        known = sketch.hashes <= last
        count = np.zeros(len(contents), dtype=np.int64)
        count[np.searchsorted(contents, sketch.hashes[known])] = sketch.counts[known]
        counts.append(count)
    return counts[0], counts[1]
