"""Records and their bytes."""

from __future__ import annotations

import math
import tracemalloc
import uuid
from collections import Counter
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from darksight_service.errors import RecordError
from darksight_service.ingest.records import (
    FORMAT_VERSION,
    MAX_ROWS,
    OutcomeBatch,
    PointBatch,
    PointRows,
    count_rows,
    decode,
    decode_all,
    encode,
    make_batch_id,
    parse_prediction_id,
    prediction_id,
    received_ms,
    record_ids,
)
from hypothesis import given, settings
from hypothesis import strategies as st

MS = 1_790_000_000_123


def make_points(n: int = 3, classes: int = 4, *, seed: int = 0, names: tuple[str, ...] = ()) -> PointBatch:
    """A batch in which some rows are not valid, so that their floats are NaN."""
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> Any:
        column = rng.normal(size=(n, *shape)).astype(np.float32)
        column[::3] = math.nan
        return column

    return PointBatch(
        batch_id=make_batch_id(MS, rng.bytes(7)),
        model="digits",
        version="ab" * 32,
        is_shadow=bool(seed % 2),
        event_ms=-5 if seed % 3 else MS,
        prediction_ids=names,
        points=floats(2),
        log_density=floats(),
        log_kde=floats(),
        outlier_score=floats(),
        p_value=floats(),
        confidence=floats(),
        top=floats(),
        decision=rng.integers(1, 3, n, dtype=np.uint8),
        reason=rng.integers(1, 7, n, dtype=np.uint8),
        predicted=rng.integers(-1, max(classes, 1), n, dtype=np.int32),
        probs=floats(classes),
    )


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


def values(batch: PointBatch | OutcomeBatch) -> dict[str, Any]:
    """Every field; arrays as their type, shape and bytes, so that NaN equals NaN."""
    found = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {
        name: (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
        for name, value in found.items()
    }


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
@pytest.mark.parametrize("classes", [0, 2, 1000])
@pytest.mark.parametrize("named", [False, True], ids=["no names", "names"])
def test_points_come_back_as_they_were(n: int, classes: int, named: bool) -> None:
    """A batch of any size equals its decoded bytes, NaN included."""
    batch = make_points(n, classes, seed=n, names=tuple(f"row {row} é" for row in range(n)) if named else ())

    decoded = decode(encode(batch))

    assert values(decoded) == values(batch)


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_outcomes_come_back_as_they_were(n: int) -> None:
    """Labels, times and names equal the decoded ones, empty names included."""
    batch = make_outcomes(n)

    decoded = decode(encode(batch))

    assert values(decoded) == values(batch)


def test_columns_of_the_core_are_converted() -> None:
    """Columns in float64, in int8, not contiguous or too large for a float32 are stored in the types of the format."""
    batch = make_points(4, 3)
    wide = np.array([1e300, -math.inf, 0.1, math.nan])
    given_ = replace(
        batch,
        log_density=wide,  # type: ignore[arg-type]  # that it is float64 is what is tested
        decision=batch.decision.astype(np.int8),  # type: ignore[arg-type]  # likewise
        probs=np.asfortranarray(batch.probs),
        points=np.repeat(batch.points, 2, axis=0)[::2],
    )

    decoded = decode(encode(given_))

    with np.errstate(over="ignore"):
        expected = replace(batch, log_density=wide.astype(np.float32))
    assert values(decoded) == values(expected)


def test_decoded_columns_are_views() -> None:
    """Decoding copies no column."""
    payload = encode(make_points(1000, 100))

    decoded = decode(payload)

    assert isinstance(decoded, PointBatch)
    assert all(
        not getattr(decoded, field.name).flags.owndata
        for field in fields(decoded)
        if isinstance(getattr(decoded, field.name), np.ndarray)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"top": np.zeros(2, np.float32)},
        {"points": np.zeros((3, 3), np.float32)},
        {"probs": np.zeros((2, 4), np.float32)},
        {"probs": np.zeros(3, np.float32)},
        {"prediction_ids": ("a", "b")},
        {"prediction_ids": ("a", "b", "c\0d")},
        {"prediction_ids": ("a", "b\0c")},
        {"prediction_ids": ("a", "b", "\ud800")},
        {"model": "a\0b"},
        {"model": "m" * 70_000},
        {"event_ms": 1 << 63},
        {"batch_id": bytes(15)},
        {"batch_id": bytes(15) + b"\1"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_cannot_be_stored_is_refused(change: dict[str, Any]) -> None:
    """A batch that contradicts itself or has a text that no database takes is a RecordError."""
    batch = replace(make_points(3, 4), **change)

    with pytest.raises(RecordError):
        encode(batch)


def test_every_shorter_or_longer_record_is_refused() -> None:
    """No proper prefix of a record is a record, nor one with a byte more."""
    for payload in (encode(make_points(2, 3, names=("a", "bc"))), encode(make_outcomes(2))):
        for size in range(len(payload)):
            with pytest.raises(RecordError):
                decode(payload[:size])
        with pytest.raises(RecordError):
            decode(payload + b"\0")


def test_a_later_format_is_refused_by_its_version() -> None:
    """A record of a version to come is named as such."""
    payload = bytes([FORMAT_VERSION + 1]) + encode(make_points())[1:]

    with pytest.raises(RecordError, match=f"version {FORMAT_VERSION + 1}"):
        decode(payload)


def decode_or_refuse(payload: bytes) -> None:
    """Decode within the memory that the input justifies; nothing but a RecordError may come out."""
    tracemalloc.start()
    try:
        encode(decode(payload))
    except RecordError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 64 * len(payload) + 100_000


@given(st.binary(max_size=200), st.sampled_from([b"", b"\1", b"\1\1", b"\1\2"]))
def test_random_bytes_are_refused(data: bytes, start: bytes) -> None:
    """Whatever bytes come, they are decoded or refused with a RecordError."""
    decode_or_refuse(start + data)


@settings(max_examples=300)
@given(st.data())
def test_altered_records_are_decoded_or_refused(data: st.DataObject) -> None:
    """A record with bytes replaced, cut out or inserted never does harm."""
    whole = st.sampled_from([make_points(3, 2), make_points(2, 5, names=("x", "y")), make_outcomes(4)])
    payload = bytearray(encode(data.draw(whole)))
    for _ in range(data.draw(st.integers(1, 4))):
        # Half of the changes hit the header, where lengths are.
        place = data.draw(st.integers(0, 47) | st.integers(0, len(payload) - 1))
        size = data.draw(st.integers(0, 8))
        payload[place : place + size] = data.draw(st.binary(max_size=8))

    decode_or_refuse(bytes(payload))


COLUMNS = (
    "points", "log_density", "log_kde", "outlier_score", "p_value", "confidence", "top", "decision", "reason",
    "predicted", "probs",
)  # fmt: skip


def rows_of(batch: PointBatch | OutcomeBatch | PointRows) -> list[tuple[Any, ...]]:
    """Everything about each row, so that merged and single records can be compared."""
    n = len(batch)
    if isinstance(batch, OutcomeBatch):
        return [tuple(values(batch).values())]
    if isinstance(batch, PointRows):
        ids = np.ascontiguousarray(batch.ids).view("V16").reshape(n).tolist()
        events, shadows = batch.event_ms.tolist(), batch.is_shadow.tolist()
    else:
        ids = record_ids(batch.batch_id, n).tolist()
        events, shadows = [batch.event_ms] * n, [batch.is_shadow] * n
    names = batch.prediction_ids or [None] * n
    columns = [getattr(batch, name) for name in COLUMNS]
    return [
        (
            ids[row],
            batch.model,
            batch.version,
            events[row],
            shadows[row],
            names[row],
            *[(column.dtype.str, column[row].tobytes()) for column in columns],
        )
        for row in range(n)
    ]


def make_traffic(seed: int) -> list[bytes]:
    """Records as a worker leaves them: mostly of one row, of several models and bundles, with outcomes in between."""
    rng = np.random.default_rng(seed)
    payloads = []
    for number in range(int(rng.integers(1, 80))):
        n, classes = int(rng.choice([0, 1, 1, 1, 1, 2])), int(rng.choice([0, 3, 4]))
        names = tuple("é" * int(rng.integers(3)) + "abc"[: int(rng.integers(4))] for _ in range(n))
        batch = make_points(n, classes, seed=number, names=names if rng.random() < 0.5 else ())
        payloads.append(encode(replace(batch, model=str(rng.choice(["cat", "dog", "x"])))))
        if rng.random() < 0.1:
            payloads.append(encode(make_outcomes(int(rng.integers(3)), seed=number)))
    return payloads


@given(st.integers(0, 10**6))
def test_many_records_together_are_the_records_one_by_one(seed: int) -> None:
    """Decoding many records at once gives the same rows as decoding each, and merges records of one row."""
    payloads = make_traffic(seed)

    merged = decode_all(map(memoryview, payloads))

    expected = Counter(row for payload in payloads for row in rows_of(decode(payload)))
    assert Counter(row for batch in merged for row in rows_of(batch)) == expected
    assert [count_rows(payload) for payload in payloads] == [len(decode(payload)) for payload in payloads]


def test_records_of_one_row_become_one_batch() -> None:
    """A thousand calls to one bundle are one batch, whose rows keep their order."""
    batches = [make_points(1, 10, seed=seed) for seed in range(1000)]

    merged = decode_all(map(encode, batches))

    assert [len(batch) for batch in merged] == [1000]
    assert isinstance(merged[0], PointRows)
    assert merged[0].ids.tobytes() == b"".join(batch.batch_id for batch in batches)


@settings(max_examples=300)
@given(st.data())
def test_altered_record_among_many_is_refused_as_it_is_alone(data: st.DataObject) -> None:
    """Many records are refused together exactly if one of them is refused alone."""
    names = ("name",) if data.draw(st.booleans()) else ()
    payloads = [encode(make_points(1, 2, seed=seed, names=names)) for seed in range(10)]
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


def test_ids_of_rows_count_up_from_the_batch() -> None:
    """Row r has the id batch + r, for the last possible row too, and all sort as the rows do."""
    batch_id = make_batch_id(MS, b"\xff" * 7)

    ids = record_ids(batch_id, MAX_ROWS)

    rows = [0, 1, 65_535, 65_536, MAX_ROWS - 1]
    first = int.from_bytes(batch_id, "big")
    assert [int.from_bytes(found, "big") - first for found in ids[rows].tolist()] == rows
    assert ids[rows].tolist() == sorted(ids[rows].tolist())
    with pytest.raises(RecordError):
        record_ids(batch_id, MAX_ROWS + 1)


@given(st.integers(0, (1 << 48) - 1), st.binary(min_size=7, max_size=7), st.integers(0, MAX_ROWS - 1))
def test_batch_id_is_a_uuid_of_its_time(ms: int, random: bytes, row: int) -> None:
    """A batch id is a UUIDv7 that tells its time, and the name made of it and a row can be read back."""
    batch_id = make_batch_id(ms, random)
    made = uuid.UUID(bytes=batch_id)

    assert (made.version, made.variant, len(batch_id)) == (7, uuid.RFC_4122, 16)
    assert received_ms(batch_id) == ms
    assert int.from_bytes(batch_id, "big") % MAX_ROWS == 0
    assert parse_prediction_id(prediction_id(batch_id, row)) == (batch_id, row)


def test_batch_ids_differ_within_a_millisecond() -> None:
    """Batches of the same time have ids of their own."""
    assert len({make_batch_id(MS) for _ in range(10_000)}) == 10_000


@given(st.text() | st.from_regex(r"[0-9a-fA-F-]{36}-[0-9]{1,8}"))
def test_only_names_that_we_make_are_parsed(text: str) -> None:
    """A text is either the name of a row that we made, or none at all."""
    found = parse_prediction_id(text)

    assert found is None or prediction_id(*found) == text


@pytest.mark.parametrize("change", ["{}\n", " {}", "{}0000000", "{}-1", "{}٣"])
def test_names_that_are_almost_ours_are_not_parsed(change: str) -> None:
    """A name with anything more is the caller's own."""
    ours = prediction_id(make_batch_id(MS), 7)

    assert parse_prediction_id(change.format(ours)) is None
    assert parse_prediction_id(ours.upper()) is None
    assert parse_prediction_id(ours[:-1] + str(MAX_ROWS)) is None


def test_rows_without_names_are_named_by_their_batch() -> None:
    """The caller's names are kept; rows without one get the name that `prediction_id` makes."""
    plain, named = make_points(3), make_points(2, names=("a", "b"))

    assert plain.names() == tuple(prediction_id(plain.batch_id, row) for row in range(3))
    assert named.names() == ("a", "b")
