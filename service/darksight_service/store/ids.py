"""Ids of batches and points, and the default prediction ids that are made from them.

A batch id is a UUIDv7 whose 20 lowest bits are zero. Row r of the batch has the id `batch_id + r`, read as a big-endian
number, so ids sort by the time at which the batch was received, and no row needs random bytes of its own. A row to
which the caller gave no prediction id has "<batch id as uuid>-<row>".
"""

from __future__ import annotations

import os
import re
import secrets
import uuid

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DAY_MS",
    "LATEST_MS",
    "MAX_ROWS",
    "MINUTE_MS",
    "default_prediction_id",
    "first_id",
    "id_ms",
    "is_batch_id",
    "is_uuid7",
    "make_batch_id",
    "point_id",
    "point_ids",
    "prediction_id",
]

MINUTE_MS = 60_000
DAY_MS = 86_400_000

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: protobuf, psycopg and Python have no later times."""

MAX_ROWS = 1 << 20
"""Rows of a batch: its id leaves 20 bits for them."""

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{7}00000"
_DEFAULT = re.compile(rf"({_UUID})-(0|[1-9][0-9]{{0,6}})", re.ASCII)

# Random bytes of the system, drawn for many ids at a time: a draw releases the interpreter lock, and to get it back in
# a busy server costs more than the rest. A child must not use those of its parent.
_drawn: list[bytes] = []
os.register_at_fork(after_in_child=_drawn.clear)


def make_batch_id(ms: int, random: bytes | None = None) -> bytes:
    """A batch id of the Unix time `ms`; 54 of its bits are random, taken from 7 bytes if they are given."""
    bits = int.from_bytes(_draw() if random is None else random[:7], "big")
    high, low = (bits >> 42) & 0xFFF, bits & 0x3FF_FFFF_FFFF
    return (ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low << 20).to_bytes(16, "big")


def _draw() -> bytes:
    while True:
        try:
            return _drawn.pop()
        except IndexError:
            many = secrets.token_bytes(7 * 256)
            _drawn.extend(many[start : start + 7] for start in range(0, len(many), 7))


def is_batch_id(batch_id: bytes) -> bool:
    """Whether 16 bytes leave the 20 lowest bits for the row."""
    return len(batch_id) == 16 and not (batch_id[15] or batch_id[14] or batch_id[13] & 0x0F)


def is_uuid7(identifier: bytes) -> bool:
    """Whether 16 bytes are a UUIDv7, which starts with its time."""
    return len(identifier) == 16 and identifier[6] >> 4 == 7 and identifier[8] >> 6 == 2


def id_ms(identifier: bytes) -> int:
    """Unix milliseconds of a batch id or point id."""
    return int.from_bytes(identifier[:6], "big")


def first_id(ms: int) -> bytes:
    """The lowest id of points received at `ms` or later."""
    return (min(max(ms, 0), (1 << 48) - 1) << 80).to_bytes(16, "big")


def point_ids(batch_ids: NDArray[np.uint64], rows: int) -> NDArray[np.uint64]:
    """Ids of the rows of batches (m, 2) that have `rows` rows each, (m * rows, 2) big-endian."""
    ids = np.repeat(batch_ids, rows, axis=0)
    if rows > 1:
        ids[:, 1] += np.tile(np.arange(rows, dtype=np.uint64), len(batch_ids))
    return ids


def prediction_id(batch_id: bytes, row: int) -> str:
    """The prediction id of a row to which the caller gave none."""
    return f"{uuid.UUID(bytes=batch_id)}-{row}"


def default_prediction_id(identifier: bytes) -> str:
    """The same from the id of the point."""
    number = int.from_bytes(identifier, "big")
    row = number % MAX_ROWS
    return f"{uuid.UUID(int=number - row)}-{row}"


def point_id(text: str) -> bytes | None:
    """Inverse of `default_prediction_id`: the id of the point, or None for any text that it does not make."""
    found = _DEFAULT.fullmatch(text)
    if found is None or int(found[2]) >= MAX_ROWS:
        return None
    return (uuid.UUID(found[1]).int + int(found[2])).to_bytes(16, "big")
