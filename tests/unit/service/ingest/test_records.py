"""Records and their bytes."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from darksight_service.errors import RecordError
from darksight_service.ingest.records import (
    FORMAT_VERSION,
    count_rows,
    decode,
    decode_all,
    encode_outcomes,
    encode_points,
)
from darksight_service.store.ids import make_batch_id
from darksight_service.store.points import OutcomeBatch, PointTable
from hypothesis import given, settings
from hypothesis import strategies as st

from darksight_core.rows.schema import SCHEMA, ScoredBatch
from darksight_core.runtime.result_block import ResultBlock
from tests.support.points import encode, make_points

MS = 1_790_000_000_123
COLUMNS = ("event_ms", "delay_ms", "is_shadow", "probs", *(column.name for column in SCHEMA if column.stored))


def make_outcomes(n: int = 3, *, seed: int = 0) -> OutcomeBatch:
    """Labels of rows with unusual names."""
    rng = np.random.default_rng(seed)
    return OutcomeBatch(
        model="digits ☃",
        received_ms=MS,
        prediction_ids=tuple("é" * (row % 3) for row in range(n)),
        labels=rng.integers(0, 10, n, dtype=np.int32),
        observed_ms=rng.integers(-1, 1 << 60, n, dtype=np.int64),
    )


def rows_of(batch: PointTable | OutcomeBatch) -> list[tuple[Any, ...]]:
    """Everything about each row, NaN as its bytes."""
    if isinstance(batch, OutcomeBatch):
        values = [getattr(batch, field.name) for field in fields(batch)]
        return [tuple(value.tobytes() if isinstance(value, np.ndarray) else value for value in values)]
    columns = [getattr(batch, name) for name in COLUMNS]
    return [
        (each, batch.model, batch.versions, name, *[(column.dtype.str, column[row].tobytes()) for column in columns])
        for row, (each, name) in enumerate(zip(batch.id_bytes(), batch.names.tolist(), strict=True))
    ]


@pytest.mark.parametrize("n", [1, 2, 1000])
@pytest.mark.parametrize("classes", [0, 2, 1000])
@pytest.mark.parametrize("named", [False, True], ids=["no names", "names"])
def test_points_are_decoded_as_they_were(n: int, classes: int, named: bool) -> None:
    """A batch of any size equals its decoded bytes, NaN included."""
    names = tuple(f"row {row} é" for row in range(n)) if named else ()
    batch = make_points(n, classes=classes, seed=n, names=names, event_ms=-5, delay_ms=-7, is_shadow=named)

    decoded = decode(encode(batch))

    assert rows_of(decoded) == rows_of(batch)


@pytest.mark.parametrize("n", [1, 1000])
def test_outcomes_are_decoded_as_they_were(n: int) -> None:
    """Labels, times and prediction ids equal the decoded ones, empty ids included."""
    batch = make_outcomes(n)

    assert rows_of(decode(encode_outcomes(batch))) == rows_of(batch)


def test_scores_are_stored_in_the_types_of_the_schema() -> None:
    """Columns in float64 are rounded, and those too large for a float32 become infinite."""
    wide = np.array([1e300, -np.inf, 0.1, np.nan])
    block = ResultBlock.of(replace(ScoredBatch.unscored(4), log_density=wide))

    decoded = decode(encode_points(make_batch_id(MS), "m", "v", False, 0, (), block, bytes(4 * 4 * 3)))

    assert isinstance(decoded, PointTable)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(decoded.log_density, wide.astype(np.float32))


def test_decoded_columns_are_views() -> None:
    """Decoding a record copies no column of scores."""
    decoded = decode(encode(make_points(1000, classes=100)))

    assert isinstance(decoded, PointTable)
    assert not any(getattr(decoded, column.name).flags.owndata for column in SCHEMA)
    assert not decoded.probs.flags.owndata


@pytest.mark.parametrize(
    "change",
    [
        {"probs": bytes(47)},
        {"prediction_ids": ("a", "b")},
        {"prediction_ids": ("a", "b", "c\0d")},
        {"prediction_ids": ("a", "b\0c")},
        {"prediction_ids": ("a", "b", "\ud800")},
        {"model": "a\0b"},
        {"model": "\ud800"},
        {"model": "m" * 70_000},
        {"event_ms": 1 << 63},
        {"delay_ms": 1 << 31},
        {"batch_id": bytes(15)},
        {"batch_id": bytes(15) + b"\1"},
        {"block": ResultBlock(b"", 0, True)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_cannot_be_stored_is_refused(change: dict[str, Any]) -> None:
    """A batch that contradicts itself, or has a text that no database accepts, is a RecordError."""
    block = ResultBlock.of(ScoredBatch.unscored(3))
    arguments: dict[str, Any] = {
        "batch_id": make_batch_id(MS), "model": "m", "version": "v", "is_shadow": False, "event_ms": MS,
        "prediction_ids": (), "block": block, "probs": bytes(48),
    }  # fmt: skip
    encode_points(**arguments)

    with pytest.raises(RecordError):
        encode_points(**(arguments | change))


def test_every_shorter_or_longer_record_is_refused() -> None:
    """No proper prefix of a record is a record, nor one with a byte more."""
    for payload in (encode(make_points(2, classes=3, names=("a", "bc"))), encode_outcomes(make_outcomes(2))):
        for size in range(len(payload)):
            with pytest.raises(RecordError):
                decode(payload[:size])
        with pytest.raises(RecordError):
            decode(payload + b"\0")


def test_a_later_format_is_refused_by_its_version() -> None:
    """The error names the version of the record."""
    payload = bytes([FORMAT_VERSION + 1]) + encode(make_points())[1:]

    with pytest.raises(RecordError, match=f"version {FORMAT_VERSION + 1}"):
        decode(payload)


def decode_or_refuse(payload: bytes) -> None:
    """Decode within the memory that the input justifies; nothing but a RecordError may be raised."""
    tracemalloc.start()
    try:
        decode(payload)
    except RecordError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 64 * len(payload) + 100_000


@given(st.binary(max_size=200), st.sampled_from([b"", b"\1", b"\1\1", b"\1\2"]))
def test_random_bytes_are_refused(data: bytes, start: bytes) -> None:
    """Any bytes are decoded or refused with a RecordError."""
    decode_or_refuse(start + data)


@settings(max_examples=300)
@given(st.data())
def test_altered_records_are_decoded_or_refused(data: st.DataObject) -> None:
    """A record with bytes replaced, cut out or inserted raises nothing but a RecordError."""
    whole = [encode(make_points(3, classes=2)), encode(make_points(2, classes=5, names=("x", "y")))]
    payload = bytearray(data.draw(st.sampled_from([*whole, encode_outcomes(make_outcomes(4))])))
    for _ in range(data.draw(st.integers(1, 4))):
        # Half of the changes are in the header, where lengths are.
        place = data.draw(st.integers(0, 47) | st.integers(0, len(payload) - 1))
        size = data.draw(st.integers(0, 8))
        payload[place : place + size] = data.draw(st.binary(max_size=8))

    decode_or_refuse(bytes(payload))


def make_traffic(seed: int) -> list[bytes]:
    """Records as a worker leaves them: small, of several models and bundles, with outcomes in between."""
    rng = np.random.default_rng(seed)
    payloads = []
    for number in range(int(rng.integers(1, 80))):
        n, classes = int(rng.choice([1, 1, 1, 2, 3])), int(rng.choice([0, 3, 4]))
        names = tuple("é" * int(rng.integers(3)) + "abc"[: int(rng.integers(4))] for _ in range(n))
        model = str(rng.choice(["cat", "dog", "x"]))
        batch = make_points(n, classes=classes, seed=number, model=model, names=names if rng.random() < 0.5 else ())
        payloads.append(encode(batch))
        if rng.random() < 0.1:
            payloads.append(encode_outcomes(make_outcomes(int(rng.integers(1, 3)), seed=number)))
    return payloads


@given(st.integers(0, 10**6))
def test_many_records_together_are_the_records_one_by_one(seed: int) -> None:
    """Decoding many records at once gives the same rows as decoding each."""
    payloads = make_traffic(seed)

    merged = decode_all(map(memoryview, payloads))

    expected = Counter(row for payload in payloads for row in rows_of(decode(payload)))
    assert Counter(row for batch in merged for row in rows_of(batch)) == expected
    assert [count_rows(payload) for payload in payloads] == [len(decode(payload)) for payload in payloads]


@pytest.mark.parametrize("n", [1, 3])
def test_records_of_one_layout_become_one_table(n: int) -> None:
    """A thousand calls to one bundle are one table, whose rows keep their order."""
    batches = [make_points(n, seed=seed) for seed in range(1000)]

    merged = decode_all(map(encode, batches))

    assert [len(batch) for batch in merged] == [1000 * n]
    assert isinstance(merged[0], PointTable)
    assert merged[0].id_bytes() == [each for batch in batches for each in batch.id_bytes()]


@settings(max_examples=300)
@given(st.data())
def test_altered_record_among_many_is_refused_as_it_is_alone(data: st.DataObject) -> None:
    """Many records are refused together exactly if one of them is refused alone."""
    names = ("name",) if data.draw(st.booleans()) else ()
    payloads = [encode(make_points(1, classes=2, seed=seed, names=names)) for seed in range(10)]
    altered = bytearray(payloads[3])
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.integers(0, 47) | st.integers(0, len(altered) - 1))
        altered[place] = data.draw(st.integers(0, 255))
    payloads[data.draw(st.integers(0, 9))] = bytes(altered)

    try:
        decode(bytes(altered))
    except RecordError:
        with pytest.raises(RecordError):
            decode_all(payloads)
    else:
        assert sum(map(len, decode_all(payloads))) == sum(map(count_rows, payloads))
