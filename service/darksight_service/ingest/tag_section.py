"""The section of a record for tags, references and the trace id, which a record without them does not have.

    section     bytes of tags, of references | trace id | tags | references
    tags        sets, little-endian uint32 | which of them each row has, uint32, if there are several | text of the sets
    references  UTF-8, separated by NUL; an empty one is missing

The text of a set is `key=value` for each pair, separated by 0x1f, and sets are separated by 0x1e: keys have no `=`, and
neither keys nor values have control characters.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.tags import MAX_TAGS, TagSet
from darksight_service.errors import RecordError
from darksight_service.store.points import TagColumn, join_tags

__all__ = ["NO_TRACE", "SECTION", "decode_tag_sets", "encode_references", "encode_tag_sets"]

SECTION = struct.Struct("<II16s")
"""Start of a section: bytes of tags and of references, and the trace id."""

NO_TRACE = bytes(16)
"""The trace id of a call without one."""

_PAIRS, _SETS = "\x1f", "\x1e"
# Longer ones, of many rows, are not repeated from record to record.
_CACHED_BYTES = 1 << 12


def encode_tag_sets(sets: Sequence[TagSet], index: Sequence[int] = ()) -> bytes:
    """The tags of a record; none if no row has any."""
    if len(sets) == 1 and not sets[0]:
        return b""
    text = _SETS.join(_PAIRS.join(f"{key}={value}" for key, value in each) for each in sets)
    return struct.pack(f"<I{len(index)}I", len(sets), *index) + text.encode()


def encode_references(references: Sequence[str]) -> bytes:
    """The references of the rows of a record; none if no row has one."""
    return "\0".join(references).encode() if any(references) else b""


def decode_tag_sets(encoded: NDArray[np.uint8], rows: int) -> TagColumn:
    """The column of records with `rows` rows each, (m, bytes); RecordError if one is not valid."""
    if not encoded.shape[1]:
        return ((),), np.zeros(len(encoded) * rows, dtype=np.intp)
    different: dict[bytes, int] = {}
    order = [
        different.setdefault(each, len(different))
        for each in np.ascontiguousarray(encoded).view(f"V{encoded.shape[1]}")[:, 0].tolist()
    ]
    decode = _decode_cached if encoded.shape[1] <= _CACHED_BYTES else _decode
    columns = [decode(each, rows) for each in different]
    sets, joined = join_tags(columns)
    return sets, joined.reshape(len(columns), rows)[order].reshape(-1)


def _decode(encoded: bytes, rows: int) -> TagColumn:
    """The column of one record."""
    count = int.from_bytes(encoded[:4], "little")
    start = 4 * (1 + rows) if count > 1 else 4
    if len(encoded) < start:
        raise RecordError(f"the tags of a record of {rows} rows end before their text", rows=rows)
    index = np.frombuffer(encoded[4:start], "<u4").astype(np.intp) if count > 1 else np.zeros(rows, dtype=np.intp)
    try:
        texts = encoded[start:].decode().split(_SETS)
    except UnicodeDecodeError:
        raise RecordError("a tag is not UTF-8") from None
    sets = tuple(_decode_set(text) for text in texts)
    if len(sets) != count or (index >= count).any():
        raise RecordError(f"the tags of a record of {rows} rows are not valid", rows=rows)
    return sets, index


_decode_cached = lru_cache(maxsize=256)(_decode)


def _decode_set(text: str) -> TagSet:
    if not text:
        return ()
    pairs = tuple(tuple(pair.split("=", 1)) for pair in text.split(_PAIRS))
    if len(pairs) > MAX_TAGS or any(len(pair) != 2 or "\0" in pair[0] + pair[1] for pair in pairs):
        raise RecordError("the tags of a record are not pairs of key and value")
    return tuple((key, value) for key, value in pairs)
