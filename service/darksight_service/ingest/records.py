"""What is stored about one call, and its bytes in the spool.

A record holds the n rows of one call as columns, so that writing it down is one join of the arrays and reading it back
copies nothing: decoded columns are read-only views of the bytes.

    points     header | float32 columns | int32 | probabilities | decisions, reasons | texts      (kind 1)
    outcomes   header | int64 observed | int32 labels | texts                                     (kind 2)

All numbers are little endian and every column starts at a multiple of its item size. The first byte is the version of
the format, the second the kind. Texts are UTF-8 and never contain NUL, which PostgreSQL could not store either; so NUL
separates the names of rows.

Row r of a batch has the id `batch_id + r`, read as a big-endian number: the 20 lowest bits of the UUIDv7 are left for
the row. Ids sort by the time at which the batch was received, and no row needs random bytes of its own. A row without a
name of the caller's is called "<batch id as uuid>-<row>".

A busy worker leaves thousands of records of one row. `decode_all` reads those that have the same layout as one matrix,
which takes a tenth of the time that one object for each of them would.
"""

from __future__ import annotations

import random as random_numbers
import re
import struct
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.runtime.result_block import RESPONSE_BYTES, ROW_BYTES, ResultBlock
from darksight_service.errors import RecordError

__all__ = [
    "FORMAT_VERSION",
    "MAX_ROWS",
    "OutcomeBatch",
    "PointBatch",
    "PointRows",
    "count_rows",
    "decode",
    "decode_all",
    "encode",
    "encode_sheet",
    "make_batch_id",
    "parse_prediction_id",
    "prediction_id",
    "received_ms",
    "record_ids",
    "to_singles",
]

FORMAT_VERSION = 1
"""First byte of every record."""

MAX_ROWS = 1 << 20
"""Rows that one batch can have: its id leaves 20 bits for them."""

_POINTS, _OUTCOMES = 1, 2
_IS_SHADOW, _HAS_NAMES = 1, 2

# version, kind, flags, 0 | batch id | event ms | rows, classes | bytes of model, of version, of names | 0
_POINT_HEADER = struct.Struct("<4B16sqIIHHII")
# version, kind, 0, 0 | rows | received ms | bytes of model, 0, of names
_OUTCOME_HEADER = struct.Struct("<4BIqHHI")

_POINT_FIELDS = np.dtype(
    [
        ("format", "u1"), ("kind", "u1"), ("flags", "u1"), ("zero", "u1"), ("batch_id", ">u8", 2), ("event_ms", "<i8"),
        ("n", "<u4"), ("classes", "<u4"), ("model", "<u2"), ("version", "<u2"), ("names", "<u4"), ("zeros", "<u4"),
    ]
)  # fmt: skip
# Below this many records of a size, a matrix is not worth its making.
_FEW = 8

_F4, _I4, _I8, _U1 = np.dtype("<f4"), np.dtype("<i4"), np.dtype("<i8"), np.dtype("u1")

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{7}00000"
_DEFAULT_NAME = re.compile(rf"({_UUID})-(0|[1-9][0-9]{{0,6}})", re.ASCII)

# One per process, seeded by the system.
_random = random_numbers.Random()

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, eq=False)
class PointBatch:
    """The rows of one Score call as they were judged; any float may be NaN in a row that is not valid.

    Parameters
    ----------
    batch_id
        16 bytes, see `make_batch_id`.
    model
        Name of the watched classifier.
    version
        Bundle that judged the rows, its sha256 in hex.
    is_shadow
        Whether the bundle only watched and another one answered.
    event_ms
        When the caller says it happened, in unix milliseconds; 0 if not given.
    prediction_ids
        The caller's names of the n rows, or none of them.
    points
        Places on the map, (n, 2) float32.
    log_density, log_kde, outlier_score, p_value
        As in `darksight_core.runtime.scorer.Scores`, (n,) float32.
    confidence
        The reject score of the gate, (n,) float32; NaN if the gate has none.
    top
        Largest probability, (n,) float32.
    decision, reason
        Outcome of the gate, (n,) uint8.
    predicted
        Class with the largest probability, (n,) int32; -1 in a row that is not valid.
    probs
        (n, K) float32, or (n, 0) if they are not kept.
    """

    batch_id: bytes
    model: str
    version: str
    is_shadow: bool
    event_ms: int
    prediction_ids: tuple[str, ...]
    points: NDArray[np.float32]
    log_density: NDArray[np.float32]
    log_kde: NDArray[np.float32]
    outlier_score: NDArray[np.float32]
    p_value: NDArray[np.float32]
    confidence: NDArray[np.float32]
    top: NDArray[np.float32]
    decision: NDArray[np.uint8]
    reason: NDArray[np.uint8]
    predicted: NDArray[np.int32]
    probs: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.decision)

    def names(self) -> tuple[str, ...]:
        """Name of each row: the caller's, or the one made from the id of the batch."""
        if self.prediction_ids:
            return self.prediction_ids
        text = str(uuid.UUID(bytes=self.batch_id))
        return tuple([f"{text}-{row}" for row in range(len(self))])


@dataclass(frozen=True, slots=True, eq=False)
class OutcomeBatch:
    """True labels that a caller reported.

    Parameters
    ----------
    model
        Name of the watched classifier.
    received_ms
        When the report came, in unix milliseconds.
    prediction_ids
        Names of the n rows the labels belong to.
    labels
        True classes, (n,) int32.
    observed_ms
        When each label became known, (n,) int64 unix milliseconds; 0 if not given.
    """

    model: str
    received_ms: int
    prediction_ids: tuple[str, ...]
    labels: NDArray[np.int32]
    observed_ms: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True, eq=False)
class PointRows:
    """Rows of many calls of one row each, judged by the same bundle; the other columns are as in `PointBatch`.

    Parameters
    ----------
    ids
        Record ids, (n, 2) big-endian uint64.
    event_ms
        (n,) int64.
    is_shadow
        (n,).
    prediction_ids
        The callers' names of the n rows, or none of them.
    """

    ids: NDArray[np.uint64]
    model: str
    version: str
    is_shadow: NDArray[np.bool_]
    event_ms: NDArray[np.int64]
    prediction_ids: tuple[str, ...]
    points: NDArray[np.float32]
    log_density: NDArray[np.float32]
    log_kde: NDArray[np.float32]
    outlier_score: NDArray[np.float32]
    p_value: NDArray[np.float32]
    confidence: NDArray[np.float32]
    top: NDArray[np.float32]
    decision: NDArray[np.uint8]
    reason: NDArray[np.uint8]
    predicted: NDArray[np.int32]
    probs: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.decision)


def make_batch_id(ms: int, random: bytes | None = None) -> bytes:
    """A UUIDv7 of the unix time `ms` whose 20 lowest bits are zero; 54 bits are random, taken from 7 bytes."""
    # Not os.urandom: it lets go of the interpreter, and in a busy server a switch of threads costs more than the rest.
    bits = _random.getrandbits(56) if random is None else int.from_bytes(random[:7], "big")
    high, low = (bits >> 42) & 0xFFF, bits & 0x3FF_FFFF_FFFF
    return (ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low << 20).to_bytes(16, "big")


def received_ms(batch_id: bytes) -> int:
    """Unix milliseconds of a batch id or record id."""
    return int.from_bytes(batch_id[:6], "big")


def record_ids(batch_id: bytes, n: int) -> NDArray[np.void]:
    """Ids of rows 0 to n - 1, (n,): `tolist()` gives bytes, `view(np.uint8).reshape(n, 16)` a matrix."""
    if not 0 <= n <= MAX_ROWS:
        raise RecordError(f"a batch has up to {MAX_ROWS} rows, not {n}", rows=n)
    ids = np.empty((n, 2), dtype=">u8")
    ids[:, 0] = int.from_bytes(batch_id[:8], "big")
    ids[:, 1] = int.from_bytes(batch_id[8:], "big") + np.arange(n, dtype=np.uint64)
    return ids.view("V16").reshape(n)


def prediction_id(batch_id: bytes, row: int) -> str:
    """The name of a row to which the caller gave none."""
    return f"{uuid.UUID(bytes=batch_id)}-{row}"


def parse_prediction_id(text: str) -> tuple[bytes, int] | None:
    """Inverse of `prediction_id`: batch id and row, or None for any text that it does not make."""
    found = _DEFAULT_NAME.fullmatch(text)
    if found is None or int(found[2]) >= MAX_ROWS:
        return None
    return uuid.UUID(found[1]).bytes, int(found[2])


def encode(batch: PointBatch | OutcomeBatch) -> bytes:
    """The bytes of a record; RecordError if columns disagree in length or a text cannot be stored.

    Columns of another type, such as float64, are converted.
    """
    try:
        if not isinstance(batch, PointBatch):
            return _encode_outcomes(batch)
        if batch.log_density.dtype is _F4:
            return _encode_points(batch)
        # Scores as the core has them. What is too large for a float32 becomes infinite, which says the same.
        with np.errstate(over="ignore"):
            return _encode_points(batch)
    except struct.error as error:
        raise RecordError(f"a number of the record is out of range: {error}") from None
    except UnicodeEncodeError:
        raise RecordError("a text of the record is not valid Unicode") from None


def encode_sheet(
    batch_id: bytes,
    model: str,
    version: str,
    is_shadow: bool,
    event_ms: int,
    prediction_ids: tuple[str, ...],
    sheet: ResultBlock,
    probs: bytes,
) -> bytes:
    """What `encode` gives for the `PointBatch` of a sheet: its pieces, and nothing is made twice.

    Parameters
    ----------
    batch_id, model, version, is_shadow, event_ms, prediction_ids
        As in `PointBatch`.
    sheet
        The results.
    probs
        Little-endian float32, (n, K).
    """
    n, data = sheet.rows, sheet.data
    classes = len(probs) // (4 * n) if n else 0
    if len(probs) != 4 * n * classes:
        raise RecordError(f"{len(probs)} bytes are no probabilities of {n} rows", rows=n)
    try:
        start, texts = _frame(batch_id, model, version, is_shadow, event_ms, prediction_ids, n, classes)
    except (struct.error, UnicodeEncodeError) as error:
        raise RecordError(f"a batch of {n} rows cannot be stored: {error}", rows=n) from None
    decisions = (ROW_BYTES - 2) * n
    return b"".join((start, data[RESPONSE_BYTES * n : decisions], probs, data[decisions:], *texts))


def to_singles(probs: NDArray[Any]) -> bytes:
    """Rows (n, K) as `encode_sheet` wants them; what is too large for a float32 becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return probs.astype(_F4).tobytes()


def decode(payload: Bytes) -> PointBatch | OutcomeBatch:
    """Inverse of `encode`; RecordError for any other bytes. The columns are views of them, or of a copy if small."""
    # Arrays over bytes are made in half the time of those over a memoryview.
    view = bytes(payload) if len(payload) <= 1 << 16 else memoryview(payload)
    _check_format(view)
    try:
        if view[1] == _POINTS:
            return _decode_points(view)
        if view[1] == _OUTCOMES:
            return _decode_outcomes(view)
    except struct.error:
        raise RecordError("a record ends within its header", size=len(view)) from None
    except UnicodeDecodeError:
        raise RecordError("a text of a record is not UTF-8", size=len(view)) from None
    raise RecordError(f"a record of unknown kind {view[1]}", size=len(view))


def decode_all(payloads: Iterable[Bytes]) -> list[PointBatch | PointRows | OutcomeBatch]:
    """What `decode` gives for each, with records of one row merged where possible; RecordError if one is not good."""
    sizes: dict[int, list[Bytes]] = {}
    for payload in payloads:
        sizes.setdefault(len(payload), []).append(payload)
    found: list[PointBatch | PointRows | OutcomeBatch] = []
    for size, group in sizes.items():
        if len(group) < _FEW or size < _POINT_HEADER.size:
            found += map(decode, group)
            continue
        table = np.frombuffer(b"".join(group), _U1).reshape(-1, size)
        header = np.ascontiguousarray(table[:, : _POINT_HEADER.size]).view(_POINT_FIELDS)[:, 0]
        is_single = (header["format"] == FORMAT_VERSION) & (header["kind"] == _POINTS) & (header["n"] == 1)
        found += [decode(group[row]) for row in np.flatnonzero(~is_single).tolist()]
        # Sizes of the parts, from n on, and whether there is a name.
        layout = np.column_stack((table[:, 28:44], table[:, 2] & _HAS_NAMES))
        for alike in _alike(layout, np.flatnonzero(is_single)):
            found += _merge(table, header, alike)
    return found


def count_rows(payload: Bytes) -> int:
    """Rows that the header of a record tells of, without a look at the rest; RecordError if there is no header."""
    _check_format(payload)
    at = 28 if payload[1] == _POINTS else 4
    if len(payload) < at + 4:
        raise RecordError("a record ends within its header", size=len(payload))
    return int.from_bytes(payload[at : at + 4], "little")


def _check_format(payload: Bytes) -> None:
    if len(payload) < 2 or payload[0] != FORMAT_VERSION:
        version = payload[0] if len(payload) else "none"
        raise RecordError(f"format version {version} of a record is not {FORMAT_VERSION}", size=len(payload))


def _alike(keys: NDArray[np.uint8], rows: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """The rows in groups that have the same bytes, keys (n, width)."""
    if not len(rows) or not keys.shape[1] or (keys[rows] == keys[rows[0]]).all():
        return [rows] if len(rows) else []
    texts = np.ascontiguousarray(keys[rows]).view(f"V{keys.shape[1]}")[:, 0].tolist()
    groups: dict[bytes, list[int]] = {}
    for row, text in zip(rows.tolist(), texts, strict=True):
        groups.setdefault(text, []).append(row)
    return [np.array(group) for group in groups.values()]


def _merge(table: NDArray[np.uint8], header: NDArray[Any], rows: NDArray[np.intp]) -> list[PointRows]:
    """Records of one row and one layout, grouped by their model and version."""
    first = header[rows[0]]
    classes, model, version, names = (int(first[name]) for name in ("classes", "model", "version", "names"))
    has_names = bool(first["flags"] & _HAS_NAMES)
    start = _POINT_HEADER.size
    texts = start + 38 + 4 * classes
    size = texts + model + version + names
    header = header[rows]
    if size != table.shape[1] or (names and not has_names):
        raise RecordError(f"a record of {table.shape[1]} bytes says that it has {size}", size=table.shape[1])
    if (header["zero"] | header["zeros"] | (header["flags"] > 3) | (header["batch_id"][:, 1] & (MAX_ROWS - 1))).any():
        raise RecordError("the header of a record contradicts itself", size=size)
    found = []
    try:
        for alike in _alike(table[:, texts : texts + model + version], rows):
            part = header if len(alike) == len(rows) else table[alike, :start].view(_POINT_FIELDS)[:, 0]
            floats = table[alike, start : texts - 2].view(_F4)
            name = table[alike[0], texts:].tobytes()
            found.append(
                PointRows(
                    ids=part["batch_id"],
                    model=_text(name[:model]),
                    version=_text(name[model : model + version]),
                    is_shadow=(part["flags"] & _IS_SHADOW).astype(bool),
                    event_ms=part["event_ms"],
                    prediction_ids=_names(table[alike, texts + model + version :]) if has_names else (),
                    points=floats[:, :2],
                    log_density=floats[:, 2],
                    log_kde=floats[:, 3],
                    outlier_score=floats[:, 4],
                    p_value=floats[:, 5],
                    confidence=floats[:, 6],
                    top=floats[:, 7],
                    decision=table[alike, texts - 2],
                    reason=table[alike, texts - 1],
                    predicted=floats[:, 8].view(_I4),
                    probs=floats[:, 9:],
                )
            )
    except UnicodeDecodeError:
        raise RecordError("a text of a record is not UTF-8", size=size) from None
    return found


def _names(names: NDArray[np.uint8]) -> tuple[str, ...]:
    """Texts of the same number of bytes, (n, bytes)."""
    if not names.all():
        raise RecordError("a name of a row contains NUL")
    if not names.shape[1]:
        return ("",) * len(names)
    texts = np.ascontiguousarray(names).view(f"V{names.shape[1]}")[:, 0].tolist()
    return tuple([str(text, "utf-8") for text in texts])


def _encode_points(batch: PointBatch) -> bytes:
    n = len(batch.decision)
    one = (n,)
    probs = batch.probs
    classes = probs.shape[1] if probs.ndim == 2 else 0
    start, texts = _frame(
        batch.batch_id, batch.model, batch.version, batch.is_shadow, batch.event_ms, batch.prediction_ids, n, classes
    )
    return b"".join(
        (
            start,
            _column("points", batch.points, _F4, (n, 2)),
            _column("log_density", batch.log_density, _F4, one),
            _column("log_kde", batch.log_kde, _F4, one),
            _column("outlier_score", batch.outlier_score, _F4, one),
            _column("p_value", batch.p_value, _F4, one),
            _column("confidence", batch.confidence, _F4, one),
            _column("top", batch.top, _F4, one),
            _column("predicted", batch.predicted, _I4, one),
            _column("probs", probs, _F4, (n, classes)),
            _column("decision", batch.decision, _U1, one),
            _column("reason", batch.reason, _U1, one),
            *texts,
        )
    )


def _frame(
    batch_id: bytes,
    model: str,
    version: str,
    is_shadow: bool,
    event_ms: int,
    prediction_ids: tuple[str, ...],
    n: int,
    classes: int,
) -> tuple[bytes, tuple[bytes, bytes, bytes]]:
    """What stands before the columns of a record of points, and behind them."""
    flags = (_IS_SHADOW if is_shadow else 0) | (_HAS_NAMES if prediction_ids else 0)
    texts = (*_served(model, version), _join(prediction_ids, n) if prediction_ids else b"")
    if n > MAX_ROWS or len(batch_id) != 16 or not _is_batch_id(batch_id):
        raise RecordError(f"{n} rows do not fit behind the batch id {batch_id.hex()}", rows=n)
    header = _POINT_HEADER.pack(
        FORMAT_VERSION, _POINTS, flags, 0, batch_id, event_ms, n, classes, *map(len, texts), 0
    )  # fmt: skip
    return header, texts


@lru_cache(maxsize=256)
def _served(model: str, version: str) -> tuple[bytes, bytes]:
    """Name and version as they are written, the same for many calls."""
    texts = model.encode(), version.encode()
    if 0 in texts[0] or 0 in texts[1]:
        raise RecordError("a name of a model or version contains NUL")
    return texts


def _decode_points(view: bytes | memoryview) -> PointBatch:
    _, _, flags, zero, batch_id, event_ms, n, classes, model, version, names, zeros = _POINT_HEADER.unpack_from(view)
    start = _POINT_HEADER.size
    size = start + n * (38 + 4 * classes) + model + version + names
    if size != len(view):
        raise RecordError(f"a record of {len(view)} bytes says that it has {size}", size=len(view))
    if zero or zeros or flags > (_IS_SHADOW | _HAS_NAMES) or n > MAX_ROWS or not _is_batch_id(batch_id):
        raise RecordError("the header of a record contradicts itself", size=len(view))
    points = np.ndarray((n, 2), _F4, view, start)
    # Unpacking a matrix is the quickest way to its rows.
    log_density, log_kde, outlier_score, p_value, confidence, top = np.ndarray((6, n), _F4, view, start + 8 * n)
    predicted = np.ndarray((n,), _I4, view, start + 32 * n)
    probs = np.ndarray((n, classes), _F4, view, start + 36 * n)
    start += (36 + 4 * classes) * n
    decision, reason = np.ndarray((2, n), _U1, view, start)
    start += 2 * n
    texts = view[start:]
    return PointBatch(
        batch_id=batch_id,
        model=_text(texts[:model]),
        version=_text(texts[model : model + version]),
        is_shadow=bool(flags & _IS_SHADOW),
        event_ms=event_ms,
        prediction_ids=_split(texts[model + version :], n if flags & _HAS_NAMES else 0),
        points=points,
        log_density=log_density,
        log_kde=log_kde,
        outlier_score=outlier_score,
        p_value=p_value,
        confidence=confidence,
        top=top,
        decision=decision,
        reason=reason,
        predicted=predicted,
        probs=probs,
    )


def _encode_outcomes(batch: OutcomeBatch) -> bytes:
    n = len(batch.labels)
    model = batch.model.encode()
    names = _join(batch.prediction_ids, n)
    if n > MAX_ROWS or 0 in model:
        raise RecordError("a batch of outcomes has too many rows, or NUL in the name of its model", rows=n)
    header = _OUTCOME_HEADER.pack(FORMAT_VERSION, _OUTCOMES, 0, 0, n, batch.received_ms, len(model), 0, len(names))
    observed = _column("observed_ms", batch.observed_ms, _I8, (n,))
    return b"".join((header, observed, _column("labels", batch.labels, _I4, (n,)), model, names))


def _decode_outcomes(view: bytes | memoryview) -> OutcomeBatch:
    _, _, zero, zeros, n, received, model, more, names = _OUTCOME_HEADER.unpack_from(view)
    start = _OUTCOME_HEADER.size
    size = start + 12 * n + model + names
    if size != len(view) or zero or zeros or more or n > MAX_ROWS:
        raise RecordError(f"a record of {len(view)} bytes says that it has {size}", size=len(view))
    texts = view[start + 12 * n :]
    return OutcomeBatch(
        model=_text(texts[:model]),
        received_ms=received,
        prediction_ids=_split(texts[model:], n),
        labels=np.ndarray((n,), _I4, view, start + 8 * n),
        observed_ms=np.ndarray((n,), _I8, view, start),
    )


def _is_batch_id(batch_id: bytes) -> bool:
    """Whether rows can be counted up from it."""
    return not (batch_id[15] or batch_id[14] or batch_id[13] & 0x0F)


def _column(name: str, column: NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """A column as it is written: itself, or a copy if it has another type or order.

    The result is a buffer, which the types of numpy say from Python 3.12 on.
    """
    if column.shape != shape:
        raise RecordError(f"{name} has the shape {column.shape}, not {shape}", column=name)
    if column.dtype is dtype and column.flags.c_contiguous:
        return column
    return column.astype(dtype, order="C")


def _join(names: tuple[str, ...], n: int) -> bytes:
    joined = "\0".join(names).encode()
    if len(names) != n or joined.count(0) != max(n - 1, 0):
        raise RecordError(f"{n} rows have {len(names)} prediction ids, or one of them contains NUL", rows=n)
    return joined


def _split(joined: bytes | memoryview, n: int) -> tuple[str, ...]:
    names = str(joined, "utf-8").split("\0") if n else []
    if len(names) != n or (not n and len(joined)):
        raise RecordError(f"a record of {n} rows has {len(names)} prediction ids", rows=n)
    return tuple(names)


def _text(text: bytes | memoryview) -> str:
    found = str(text, "utf-8")
    if "\0" in found:
        raise RecordError("a name of a model or version contains NUL")
    return found
