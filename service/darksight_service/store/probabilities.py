"""What is kept of probabilities in SQL, and how it is read back: `float16`, the largest ones of each row, or none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError

__all__ = ["ProbabilityCodec", "decode_probs", "parse_probability_codec"]

# Numbers of a size that stays in cache.
_AT_ONCE = 1 << 14
_HALF = np.float32(0.5)
_NORMAL, _ONE = (np.float32(number).view(np.uint32) for number in (2.0**-14, 1.0))
_ROUNDED = np.uint32((0xFFF - (112 << 23)) % (1 << 32))

ProbabilityCodec = Callable[[NDArray[np.float32], NDArray[np.integer]], NDArray[np.uint8]]
"""Bytes to keep of probabilities (n, K), of which so many (n,) came with the row, 0 for all: (n, bytes)."""


def parse_probability_codec(text: str) -> ProbabilityCodec:
    """How to keep probabilities: `float16`, `topK:5` for the five largest that came with each row, or `none`."""
    if text == "float16":
        return lambda probs, known: _all_float16(probs)
    if text == "none":
        return lambda probs, known: np.empty((len(probs), 0), dtype=np.uint8)
    found = re.fullmatch(r"topK:([1-9][0-9]{0,3})", text)
    if found is None:
        raise ConfigError(f"probabilities are kept as float16, topK:<k> or none, not {text!r}")
    k = int(found[1])
    return lambda probs, known: _top(_given(probs, known), k)


def _given(probs: NDArray[np.float32], known: NDArray[np.integer]) -> NDArray[np.float32]:
    """The probabilities that came with the rows: those that were completed, which are the smallest, are zero."""
    if not known.any():
        return probs
    ranks = np.argsort(np.argsort(-probs, axis=1, kind="stable"), axis=1, kind="stable")
    return np.where((known[:, None] > 0) & (ranks >= known[:, None]), np.float32(0.0), probs)


def _all_float16(probs: NDArray[np.float32]) -> NDArray[np.uint8]:
    n, classes = probs.shape
    kept = np.empty((n, classes), dtype="<u2")
    step = _AT_ONCE // max(classes, 1) + 1
    for start in range(0, n, step):
        part = slice(start, start + step)
        kept[part] = _halves(probs[part])
    return kept.view(np.uint8).reshape(n, 2 * classes)


def _halves(probs: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Bits of float16, rounded as numpy does.

    numpy raises a flag of the processor for each number below 2^-14, which are most of those of many classes, and takes
    20 times as long.
    """
    bits = probs.view("<u4")
    # From 2^-14 on: 10 bits of the fraction are left and 112 is taken off the exponent, ties to even.
    halves: NDArray[np.uint32] = np.maximum(bits, _NORMAL)
    halves += (halves >> np.uint32(13)) & np.uint32(1)
    halves += _ROUNDED
    halves >>= np.uint32(13)
    with np.errstate(over="ignore", invalid="ignore"):
        # Below it the last bit is worth 2^-24, as in a float32 from one half on: adding one half rounds to it.
        small = (probs + _HALF).view("<u4")
        small -= _HALF.view(np.uint32)
        np.minimum(halves, small, out=halves)
        # The bits of what is above one, negative or no number are above those of one.
        if (bits > _ONE).any():
            odd = (bits > _ONE).any(axis=1)
            halves[odd] = probs[odd].astype("<f2").view("<u2")
    return halves


def _top(probs: NDArray[np.float32], k: int) -> NDArray[np.uint8]:
    n, classes = probs.shape
    # Pairs take twice the room; and a class must fit into two bytes.
    if 2 * k >= classes or classes > 0xFFFF:
        return _all_float16(probs)
    chosen = np.argpartition(-probs, k - 1, axis=1)[:, :k]
    # One byte for nothing: an odd length tells pairs from a plain row.
    kept = np.zeros(n, dtype=[("odd", "u1"), ("classes", "<u2"), ("pairs", [("class", "<u2"), ("prob", "<f2")], k)])
    kept["classes"] = classes
    with np.errstate(over="ignore", invalid="ignore"):
        kept["pairs"]["class"], kept["pairs"]["prob"] = chosen, np.take_along_axis(probs, chosen, axis=1)
    return kept.view(np.uint8).reshape(n, -1)


def decode_probs(kept: Sequence[bytes | None]) -> NDArray[np.float32]:
    """Probabilities of n rows, (n, K): zero where they were not kept, NaN in rows of which nothing is known."""
    lengths = {len(each) for each in kept if each}
    size = next(iter(lengths), 0)
    if len(lengths) == 1 and size % 2 == 0:
        missing = np.full(size // 2, math.nan, dtype="<f2").tobytes()
        joined = b"".join([each or missing for each in kept])
        return np.frombuffer(joined, dtype="<f2").reshape(len(kept), size // 2).astype(np.float32)
    rows = [_decode_row(each) for each in kept]
    matrix = np.full((len(rows), max(map(len, rows), default=0)), np.nan, dtype=np.float32)
    for number, row in enumerate(rows):
        if len(row):
            matrix[number, : len(row)] = row
    return matrix


def _decode_row(kept: bytes | None) -> NDArray[np.float32]:
    if not kept:
        return np.empty(0, dtype=np.float32)
    if len(kept) % 2 == 0:
        return np.frombuffer(kept, dtype="<f2").astype(np.float32)
    pairs = np.frombuffer(kept, dtype=[("class", "<u2"), ("prob", "<f2")], offset=3)
    probs = np.zeros(int.from_bytes(kept[1:3], "little"), dtype=np.float32)
    probs[pairs["class"]] = pairs["prob"]
    return probs
