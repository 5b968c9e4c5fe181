"""Records: the rows of one call as bytes in the spool.

A record of scored rows holds them as columns, so that it is one join of pieces of a result block, and decoding copies
nothing.

    points     header | float32 probabilities | stored part of the result block | model | version | prediction ids
               | section for tags and the trace id, if there are any (`tag_section`)
    outcomes   header | int64 observed | int32 labels | model | prediction ids

All numbers are little endian and every column starts at a multiple of its item size. The first byte is the version of
the format, the second the kind. Texts are UTF-8 without NUL, which PostgreSQL could not store either, so NUL separates
the prediction ids of rows.

A busy worker leaves thousands of small records. `decode_all` reads those with the same layout as one matrix, so that
neither a record nor a row needs a Python object of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.runtime.result_block import RESPONSE_BYTES, STORED_BYTES, ResultBlock, stored_pieces
from darksight_service.errors import RecordError
from darksight_service.ingest.tag_section import NO_TRACE, SECTION, decode_tag_sets
from darksight_service.store.ids import MAX_ROWS, is_batch_id, point_ids
from darksight_service.store.points import OutcomeBatch, PointTable
from darksight_service.store.texts import Texts

__all__ = ["FORMAT_VERSION", "count_rows", "decode", "decode_all", "encode_outcomes", "encode_points"]

FORMAT_VERSION = 4
"""First byte of every record."""

Bytes: TypeAlias = bytes | bytearray | memoryview
Record: TypeAlias = PointTable | OutcomeBatch

_POINTS, _OUTCOMES = 1, 2
_IS_SHADOW, _HAS_NAMES, _HAS_TAGS = 1, 2, 4

# version, kind, flags, 0 | batch id | event ms | rows, classes | bytes of model, of version, of names | delay ms
_POINT_HEADER = struct.Struct("<4B16sqIIHHIi")
# version, kind, 0, 0 | rows | received ms | bytes of model, 0, of names
_OUTCOME_HEADER = struct.Struct("<4BIqHHI")

_POINT_FIELDS = np.dtype(
    [
        ("format", "u1"), ("kind", "u1"), ("flags", "u1"), ("zero", "u1"), ("batch_id", ">u8", 2), ("event_ms", "<i8"),
        ("rows", "<u4"), ("classes", "<u4"), ("model", "<u2"), ("version", "<u2"), ("names", "<u4"),
        ("delay_ms", "<i4"),
    ]
)  # fmt: skip
# The bytes of a header from `rows` on, which say where the parts of a record are.
_LAYOUT = slice(28, 44)
_START = _POINT_HEADER.size
_PIECES = stored_pieces()


def encode_points(
    batch_id: bytes,
    model: str,
    version: str,
    is_shadow: bool,
    event_ms: int,
    prediction_ids: Sequence[str],
    block: ResultBlock,
    probs: bytes,
    delay_ms: int = 0,
    tags: tuple[bytes, bytes] = (b"", b""),
    trace: bytes = b"",
) -> bytes:
    """The record of a call; RecordError if it cannot be stored.

    Parameters
    ----------
    batch_id
        16 bytes; see `ids.make_batch_id`.
    model, version
        Name of the watched classifier, and sha256 of the bundle that scored the rows.
    is_shadow
        Whether the bundle only watched while another one answered.
    event_ms
        When the predictions were made, in Unix milliseconds; 0 if not given.
    prediction_ids
        Of the n rows, or none.
    block
        The results.
    probs
        Little-endian float32, (n, K).
    delay_ms
        How long after the time of the batch id the call was received, by the clock of the server.
    tags
        Tags and references of the rows, as `tag_section` encodes them.
    trace
        Trace id of the call, 16 bytes, or empty.
    """
    rows = block.rows
    classes = len(probs) // (4 * rows) if rows else 0
    if not 0 < rows <= MAX_ROWS or len(probs) != 4 * rows * classes or not is_batch_id(batch_id):
        raise RecordError(f"{rows} rows with {len(probs)} bytes of probabilities cannot be stored", rows=rows)
    flags = (_IS_SHADOW if is_shadow else 0) | (_HAS_NAMES if prediction_ids else 0)
    section: tuple[bytes, ...] = ()
    if trace or tags[0] or tags[1]:
        flags |= _HAS_TAGS
        section = SECTION.pack(len(tags[0]), len(tags[1]), trace or NO_TRACE), *tags
    try:
        texts = (*_encode_texts(model, version), _join(prediction_ids, rows) if prediction_ids else b"")
        header = _POINT_HEADER.pack(
            FORMAT_VERSION, _POINTS, flags, 0, batch_id, event_ms, rows, classes, *map(len, texts), delay_ms
        )  # fmt: skip
    except (struct.error, UnicodeEncodeError) as error:
        raise RecordError(f"a batch of {rows} rows cannot be stored: {error}", rows=rows) from None
    return b"".join((header, probs, block.data[RESPONSE_BYTES * rows :], *texts, *section))


def encode_outcomes(batch: OutcomeBatch) -> bytes:
    """The record of outcomes; RecordError if it cannot be stored."""
    rows = len(batch.labels)
    try:
        model, names = batch.model.encode(), _join(batch.prediction_ids, rows)
        header = _OUTCOME_HEADER.pack(
            FORMAT_VERSION, _OUTCOMES, 0, 0, rows, batch.received_ms, len(model), 0, len(names)
        )
    except (struct.error, UnicodeEncodeError) as error:
        raise RecordError(f"{rows} outcomes cannot be stored: {error}", rows=rows) from None
    if not 0 < rows <= MAX_ROWS or 0 in model or batch.observed_ms.shape != (rows,):
        raise RecordError(f"{rows} outcomes cannot be stored", rows=rows)
    observed, labels = batch.observed_ms.astype("<i8").tobytes(), batch.labels.astype("<i4").tobytes()
    return b"".join((header, observed, labels, model, names))


def decode(payload: Bytes) -> Record:
    """The rows of a record; RecordError for any other bytes."""
    return decode_all([payload])[0]


def decode_all(payloads: Iterable[Bytes]) -> list[Record]:
    """The rows of records, those of the same layout, model and version together; RecordError if one is not valid."""
    by_size: dict[int, list[Bytes]] = {}
    for payload in payloads:
        by_size.setdefault(len(payload), []).append(payload)
    found: list[Record] = []
    for size, group in by_size.items():
        # A single record, which may be large, is not copied.
        table = np.frombuffer(group[0] if len(group) == 1 else b"".join(group), np.uint8).reshape(len(group), size)
        if size < 2 or not ((table[:, 0] == FORMAT_VERSION) & (table[:, 1] - _POINTS < 2)).all():
            for payload in group:
                _check_start(payload)
        is_points = table[:, 1] == _POINTS
        if is_points.any():
            found += _decode_points(table if is_points.all() else table[is_points])
        found += [_decode_outcomes(group[row]) for row in np.flatnonzero(~is_points).tolist()]
    return found


def count_rows(payload: Bytes) -> int:
    """The number of rows in the header of a record, whose other bytes are not read; RecordError without a header."""
    _check_start(payload)
    start = 28 if payload[1] == _POINTS else 4
    if len(payload) < start + 4:
        raise RecordError("a record ends within its header", size=len(payload))
    return int.from_bytes(payload[start : start + 4], "little")


def _check_start(payload: Bytes) -> None:
    if len(payload) < 2 or payload[0] != FORMAT_VERSION:
        version = payload[0] if len(payload) else "none"
        raise RecordError(f"a record has format version {version}, not {FORMAT_VERSION}", size=len(payload))
    if payload[1] not in (_POINTS, _OUTCOMES):
        raise RecordError(f"a record has the unknown kind {payload[1]}", size=len(payload))


def _decode_points(table: NDArray[np.uint8]) -> Iterator[PointTable]:
    """Records of points of one size, (m, size)."""
    if table.shape[1] < _START:
        raise RecordError("a record ends within its header", size=table.shape[1])
    for alike in _grouped(table, np.column_stack((table[:, _LAYOUT], table[:, 2] & (_HAS_NAMES | _HAS_TAGS)))):
        first = alike[0, :_START].view(_POINT_FIELDS)[0]
        rows, classes, model, version, names = (
            int(first[name]) for name in ("rows", "classes", "model", "version", "names")
        )
        texts = _START + rows * (4 * classes + STORED_BYTES)
        end = texts + model + version + names
        has_names, has_tags = bool(first["flags"] & _HAS_NAMES), bool(first["flags"] & _HAS_TAGS)
        size = end + SECTION.size if has_tags else end
        is_whole = table.shape[1] >= size if has_tags else table.shape[1] == size
        if not is_whole or not 0 < rows <= MAX_ROWS or (names and not has_names):
            raise RecordError(f"a record of {table.shape[1]} bytes has a header for {size}", size=table.shape[1])
        keys = alike[:, texts : end - names]
        if has_tags:
            # The sizes of tags and references come first in their section.
            keys = np.concatenate((keys, alike[:, end : end + 8]), axis=1)
        for part in _grouped(alike, keys):
            served = _text(part[0, texts : texts + model]), _text(part[0, texts + model : texts + model + version])
            columns = _decode_section(part[:, end:], rows) if has_tags else {}
            columns["names"] = _split(part[:, end - names : end], rows) if has_names else Texts.none(len(part) * rows)
            yield _decode_group(part, rows, classes, *served, columns)


def _decode_section(section: NDArray[np.uint8], rows: int) -> dict[str, Any]:
    """Tags, references and traces of records (m, size) whose sections have the same sizes."""
    size, start = section.shape[1], SECTION.size
    tags, references, _ = SECTION.unpack(section[0, :start].tobytes())
    if size != start + tags + references:
        raise RecordError("the tags of a record have another size than its section", size=size)
    sets, index = decode_tag_sets(section[:, start : start + tags], rows)
    traces = np.ascontiguousarray(section[:, start - 16 : start]).view(">u8")
    found: dict[str, Any] = {"tag_sets": sets, "tags": index, "traces": np.repeat(traces, rows, axis=0)}
    if references:
        texts = _split(section[:, start + tags :], rows)
        found["references"] = Texts(texts.data, np.where(texts.sizes > 0, texts.sizes, -1))
    return found


def _decode_group(
    table: NDArray[np.uint8], rows: int, classes: int, model: str, version: str, columns: dict[str, Any]
) -> PointTable:
    """Records (m, size) of one layout, model and version, with columns from their texts."""
    count = len(table)
    header = np.ascontiguousarray(table[:, :_START]).view(_POINT_FIELDS)[:, 0]
    if (header["zero"] | (header["flags"] > 7) | (header["batch_id"][:, 1] & (MAX_ROWS - 1))).any():
        raise RecordError("the header of a record is not valid", size=table.shape[1])

    def column(start: int, dtype: Any, width: int) -> NDArray[Any]:
        values: NDArray[Any] = table[:, start : start + rows * width * np.dtype(dtype).itemsize].view(dtype)
        return values.reshape(count * rows, width)

    results = _START + 4 * rows * classes
    for piece in _PIECES:
        values = column(results + piece.start * rows, piece.dtype, piece.column.width)
        columns[piece.column.name] = values if piece.column.width > 1 else values[:, 0]
    return PointTable.of(
        point_ids(header["batch_id"], rows),
        model,
        (version,),
        event_ms=np.repeat(header["event_ms"], rows),
        delay_ms=np.repeat(header["delay_ms"].astype(np.int64), rows),
        is_shadow=np.repeat((header["flags"] & _IS_SHADOW).astype(bool), rows),
        probs=column(_START, "<f4", classes),
        **columns,
    )


def _grouped(table: NDArray[np.uint8], keys: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """The rows of a table in groups that have the same bytes in keys (n, width)."""
    if not keys.shape[1] or (keys == keys[0]).all():
        return [table]
    groups: dict[bytes, list[int]] = {}
    for row, key in enumerate(np.ascontiguousarray(keys).view(f"V{keys.shape[1]}")[:, 0].tolist()):
        groups.setdefault(key, []).append(row)
    return [table[chosen] for chosen in groups.values()]


def _decode_outcomes(payload: Bytes) -> OutcomeBatch:
    view = memoryview(payload)
    if len(view) < _OUTCOME_HEADER.size:
        raise RecordError("a record ends within its header", size=len(view))
    _, _, zero, zeros, rows, received, model, more, names = _OUTCOME_HEADER.unpack_from(view)
    start = _OUTCOME_HEADER.size
    size = start + 12 * rows + model + names
    if size != len(view) or zero or zeros or more or not 0 < rows <= MAX_ROWS:
        raise RecordError(f"a record of {len(view)} bytes has a header for {size}", size=len(view))
    texts = np.frombuffer(view[start + 12 * rows :], np.uint8)
    return OutcomeBatch(
        model=_text(texts[:model]),
        received_ms=received,
        prediction_ids=tuple(name or "" for name in _split(texts[None, model:], rows).tolist()),
        labels=np.frombuffer(view, "<i4", rows, start + 8 * rows),
        observed_ms=np.frombuffer(view, "<i8", rows, start),
    )


@lru_cache(maxsize=256)
def _encode_texts(model: str, version: str) -> tuple[bytes, bytes]:
    """Name and version, which are the same for many calls."""
    texts = model.encode(), version.encode()
    if 0 in texts[0] or 0 in texts[1]:
        raise RecordError("the name of a model or version contains NUL")
    return texts


def _join(names: Sequence[str], rows: int) -> bytes:
    joined = "\0".join(names).encode()
    if len(names) != rows or joined.count(0) != rows - 1:
        raise RecordError(f"{rows} rows have {len(names)} prediction ids, or one of them contains NUL", rows=rows)
    return joined


def _split(joined: NDArray[np.uint8], rows: int) -> Texts:
    """The names of records with `rows` rows each, (m, bytes)."""
    ended = np.concatenate((joined, np.zeros((len(joined), 1), dtype=np.uint8)), axis=1)
    is_end = ended == 0
    if not (is_end.sum(axis=1) == rows).all():
        raise RecordError(f"a record of {rows} rows has another number of prediction ids or references", rows=rows)
    try:
        ended.tobytes().decode()
    except UnicodeDecodeError:
        raise RecordError("a prediction id or reference is not UTF-8") from None
    return Texts(ended[~is_end], np.diff(np.flatnonzero(is_end), prepend=-1) - 1)


def _text(data: NDArray[np.uint8]) -> str:
    try:
        found = data.tobytes().decode()
    except UnicodeDecodeError:
        raise RecordError("the name of a model or version is not UTF-8") from None
    if "\0" in found:
        raise RecordError("the name of a model or version contains NUL")
    return found
