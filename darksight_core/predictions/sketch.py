"""Sketches of sets of rows, and how many rows two sets have in common.

A conformal p-value is valid only if nothing that was fitted has seen the calibration rows: calibrating on the fit
points themselves turns a false-alarm rate of 1% into 13% to 57%. So a bundle carries a `RowSketch` of each of its sets,
and the loader refuses a bundle whose calibration rows were fit rows.

Rows are compared by content, because ids are optional and positions change between files. Content does not identify a
row: a saturated classifier gives thousands of rows that are exactly 1, 0, ..., 0, and a file rounded to three decimals
has few different rows. So contents that occur twice within one set are ignored. Contents that occur once in each set
may still be two rows that are equal by chance. The number of such pairs is known without assumptions on the classifier:
of the contents that occur exactly twice in both sets together, a disjoint split of n = a + b rows puts

    one on each side : both on one side   =   2 a b : a (a - 1) + b (b - 1),

and rows that are in both sets add only to the left. `overlap` is the plain share of common rows, `leak` the share
beyond this ratio. Rows are compared bit by bit as float32, so the same rows in full and rounded to text differ.
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

__all__ = ["MAX_LEAK", "SKETCH_SIZE", "RowSketch", "leak", "overlap"]

Ints: TypeAlias = NDArray[np.int64]

SKETCH_SIZE = 4096
"""Contents that a sketch keeps: exact up to this number, and 36 kB in a bundle."""

MAX_LEAK = 0.01
"""Largest share of calibration rows that may be fit rows beyond chance; a mix-up is far above, noise far below."""

# Counts of a content end here: once, twice, more often.
_MANY = 3

# Standard deviations by which chance may exceed its mean.
_NOISE = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class RowSketch:
    """The k smallest hashes of the contents of a set of rows, and how often each occurs.

    Hashes are uniform, so the k smallest are a random sample of the contents, the same in every set: contents below the
    last hash of two sketches are known completely in both.

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
            raise ConfigError("the arrays and sizes of a row sketch do not match")

    @classmethod
    def of(cls, row_hashes: NDArray[np.bytes_], size: int = SKETCH_SIZE) -> RowSketch:
        """Sketch of rows.

        Parameters
        ----------
        row_hashes
            `Predictions.row_hashes()`, (n,) of 16 bytes.
        size
            Number of contents to keep, k.
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
        """Inverse of `tensors` and `settings`; ConfigError if they do not match."""
        try:
            numbers = {name: settings[name] for name in ("n", "n_distinct", "n_unique")}
            digest, hashes, counts = settings["sha256"], tensors["hashes"], tensors["counts"]
        except KeyError as missing:
            raise ConfigError(f"a row sketch has no {missing}") from None
        if not all(type(number) is int for number in numbers.values()) or not isinstance(digest, str):
            raise ConfigError("the sizes of a row sketch must be integers, and its sha256 a string")
        return cls(**numbers, sha256=digest, hashes=hashes, counts=counts)


def overlap(a: RowSketch, b: RowSketch) -> float:
    """Share of the unique rows of b that are also unique rows of a.

    Exact if neither has more than `SKETCH_SIZE` contents; otherwise an unbiased estimate from the m rows of b below the
    last hash of both, with a standard error of √(q (1 - q) / m). 0 if b has no unique row.
    """
    counts_a, counts_b = _common_sample(a, b)
    unique = int(np.count_nonzero(counts_b == 1))
    return np.count_nonzero((counts_a == 1) & (counts_b == 1)) / unique if unique else 0.0


def leak(a: RowSketch, b: RowSketch) -> float:
    """Lower bound of the share of the unique rows of b that are rows of a beyond chance; see the module.

    It is 1 for the same rows in the same order, even without unique rows.
    """
    if a.n and a.sha256 == b.sha256:
        return 1.0
    counts_a, counts_b = _common_sample(a, b)
    unique = int(np.count_nonzero(counts_b == 1))
    if unique == 0:
        return 0.0
    apart = int(np.count_nonzero((counts_a == 1) & (counts_b == 1)))
    together = int(np.count_nonzero(((counts_a == 2) & (counts_b == 0)) | ((counts_a == 0) & (counts_b == 2))))
    # With one row in each set no pair is on one side; the ratio must still be finite.
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
