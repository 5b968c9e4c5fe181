"""Batches of many calls as long columns, which is what is fast to write.

A drain brings thousands of batches of one row each. They are grouped by bundle and number of classes, and each group
becomes one array per column; from there on nothing is done row by row in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.scored import Decision
from darksight_service.ingest.records import PointBatch, PointRows

__all__ = [
    "DAY_MS",
    "FLOATS",
    "LAST_CLASS",
    "MINUTE_MS",
    "ProbabilityCodec",
    "Rows",
    "decode_probs",
    "gather",
    "parse_probability_codec",
]

MINUTE_MS = 60_000
DAY_MS = 86_400_000

FLOATS = ("x", "y", "log_density", "log_kde", "outlier_score", "p_value", "confidence", "top")
"""Columns of real numbers, in the order of the table."""

# What psycopg and Python can read back: the years 1 to 9999.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999

LAST_CLASS = 0x7FFF
"""Two bytes of a row are for its class; this one stands for itself and all above."""

_ACCEPT = int(Decision.ACCEPT)

# Numbers of a size that stays in cache.
_AT_ONCE = 1 << 14
_HALF = np.float32(0.5)
_NORMAL, _ONE = (np.float32(number).view(np.uint32) for number in (2.0**-14, 1.0))
_ROUNDED = np.uint32((0xFFF - (112 << 23)) % (1 << 32))

ProbabilityCodec = Callable[[NDArray[np.float32]], NDArray[np.uint8]]
"""Bytes to keep of probabilities (n, K): (n, bytes), of no bytes if none are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """n points of one bundle as columns.

    Parameters
    ----------
    bundle_id, model_id
        Numbers of the bundle and its model in the database.
    ids
        (n, 2) big-endian uint64.
    received_ms
        (n,) int64, from the ids.
    event_ms
        (n,) int64; 0 if not given.
    is_shadow
        (n,).
    floats
        (8, n) in the order of `FLOATS`; NaN for none.
    predicted, reason, is_accepted
        (n,).
    names
        The callers' names, None where there is none.
    probs
        (n, bytes) as they are kept, of no bytes if none are.
    has_probs
        (n,), false for rows whose probabilities are no numbers.
    """

    bundle_id: int
    model_id: int
    ids: NDArray[Any]
    received_ms: NDArray[np.int64]
    event_ms: NDArray[np.int64]
    is_shadow: NDArray[np.bool_]
    floats: NDArray[np.float32]
    predicted: NDArray[np.int32]
    reason: NDArray[np.uint8]
    is_accepted: NDArray[np.bool_]
    names: list[str | None]
    probs: NDArray[np.uint8]
    has_probs: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.reason)

    def id_bytes(self) -> list[bytes]:
        """The ids, 16 bytes each."""
        found: list[bytes] = self.ids.view("V16").reshape(-1).tolist()
        return found

    def take(self, chosen: NDArray[Any]) -> Rows:
        """The rows with these numbers, or those a mask allows."""
        numbers = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        return Rows(
            self.bundle_id,
            self.model_id,
            self.ids[numbers],
            self.received_ms[numbers],
            self.event_ms[numbers],
            self.is_shadow[numbers],
            self.floats[:, numbers],
            self.predicted[numbers],
            self.reason[numbers],
            self.is_accepted[numbers],
            [self.names[number] for number in numbers.tolist()],
            self.probs[numbers],
            self.has_probs[numbers],
        )


def gather(
    batches: Iterable[PointBatch | PointRows],
    bundle_of: Callable[[str, str], tuple[int, int]],
    codec: ProbabilityCodec,
) -> list[Rows]:
    """Group batches by bundle and number of classes; rows that come merged are a group of their own.

    Parameters
    ----------
    batches
        As they come.
    bundle_of
        Numbers of bundle and model for a model's name and a version.
    codec
        See `parse_probability_codec`.
    """
    groups: dict[tuple[str, str, int], list[PointBatch]] = {}
    found = []
    for batch in batches:
        if isinstance(batch, PointRows):
            if len(batch):
                found.append(_columns([batch], batch.ids, batch.event_ms, batch.is_shadow, bundle_of, codec))
        elif len(batch.decision):
            groups.setdefault((batch.model, batch.version, batch.probs.shape[1]), []).append(batch)
    for group in groups.values():
        lengths = np.fromiter((len(batch.decision) for batch in group), np.int64, len(group))
        starts = np.cumsum(lengths) - lengths
        ids = np.frombuffer(b"".join([batch.batch_id for batch in group]), dtype=">u8").reshape(-1, 2)
        ids = np.repeat(ids, lengths, axis=0)
        ids[:, 1] += (np.arange(len(ids)) - np.repeat(starts, lengths)).astype(np.uint64)
        events = np.fromiter((batch.event_ms for batch in group), np.int64, len(group))
        shadows = np.fromiter((batch.is_shadow for batch in group), np.bool_, len(group))
        found.append(_columns(group, ids, np.repeat(events, lengths), np.repeat(shadows, lengths), bundle_of, codec))
    return found


def _columns(
    group: Sequence[PointBatch | PointRows],
    ids: NDArray[Any],
    event_ms: NDArray[np.int64],
    is_shadow: NDArray[np.bool_],
    bundle_of: Callable[[str, str], tuple[int, int]],
    codec: ProbabilityCodec,
) -> Rows:
    floats = np.empty((len(FLOATS), len(ids)), dtype=np.float32)
    floats[:2] = np.concatenate([batch.points for batch in group]).T
    for number, name in enumerate(FLOATS[2:], 2):
        np.concatenate([getattr(batch, name) for batch in group], out=floats[number])
    names: list[str | None] = []
    for batch in group:
        names.extend(batch.prediction_ids or [None] * len(batch.decision))
    probs = np.concatenate([batch.probs for batch in group])
    bundle_id, model_id = bundle_of(group[0].model, group[0].version)
    return Rows(
        bundle_id,
        model_id,
        ids,
        (ids[:, 0] >> np.uint64(16)).astype(np.int64),
        np.clip(event_ms, _FIRST_MS, _LAST_MS),
        is_shadow,
        floats,
        np.minimum(np.concatenate([batch.predicted for batch in group]), LAST_CLASS),
        np.concatenate([batch.reason for batch in group]),
        np.concatenate([batch.decision for batch in group]) == _ACCEPT,
        names,
        codec(probs),
        np.isfinite(probs).all(axis=1),
    )


def parse_probability_codec(text: str) -> ProbabilityCodec:
    """How to keep probabilities: `float16`, `topK:5` for the five largest of each row, or `none`."""
    if text == "float16":
        return _all_float16
    if text == "none":
        return lambda probs: np.empty((len(probs), 0), dtype=np.uint8)
    found = re.fullmatch(r"topK:([1-9][0-9]{0,3})", text)
    if found is None:
        raise ConfigError(f"probabilities are kept as float16, topK:<k> or none, not {text!r}")
    k = int(found[1])
    return lambda probs: _top(probs, k)


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


def decode_probs(kept: bytes | None) -> NDArray[np.float32]:
    """What is known of a row's probabilities, (K,), zero where it was not kept; of no classes if nothing is."""
    if not kept:
        return np.empty(0, dtype=np.float32)
    if len(kept) % 2 == 0:
        return np.frombuffer(kept, dtype="<f2").astype(np.float32)
    pairs = np.frombuffer(kept, dtype=[("class", "<u2"), ("prob", "<f2")], offset=3)
    probs = np.zeros(int.from_bytes(kept[1:3], "little"), dtype=np.float32)
    probs[pairs["class"]] = pairs["prob"]
    return probs
