"""Ids of batches and points, and default prediction ids."""

from __future__ import annotations

import os
import uuid

import numpy as np
import pytest
from darksight_service.store import ids
from darksight_service.store.ids import (
    MAX_ROWS,
    default_prediction_id,
    id_ms,
    make_batch_id,
    point_id,
    point_ids,
    prediction_id,
)
from hypothesis import given
from hypothesis import strategies as st

MS = 1_790_000_000_123


def test_ids_of_rows_count_up_from_the_batch() -> None:
    """Row r has the id batch + r, up to the last possible row."""
    batch_id = make_batch_id(MS, b"\xff" * 7)

    ids = point_ids(np.frombuffer(batch_id * 2, ">u8").reshape(2, 2), MAX_ROWS)

    first = int.from_bytes(batch_id, "big")
    for row in (0, 1, 65_535, 65_536, MAX_ROWS - 1, MAX_ROWS):
        assert int.from_bytes(ids[row].tobytes(), "big") - first == row % MAX_ROWS


@given(st.integers(0, (1 << 48) - 1), st.binary(min_size=7, max_size=7), st.integers(0, MAX_ROWS - 1))
def test_batch_id_is_a_uuid_of_its_time(ms: int, random: bytes, row: int) -> None:
    """A batch id is a UUIDv7 with its time, and the default prediction id of a row names its point."""
    batch_id = make_batch_id(ms, random)
    made = uuid.UUID(bytes=batch_id)
    name = prediction_id(batch_id, row)

    found = point_id(name)

    assert (made.version, made.variant, len(batch_id)) == (7, uuid.RFC_4122, 16)
    assert id_ms(batch_id) == ms
    assert found == (made.int + row).to_bytes(16, "big")
    assert default_prediction_id(found) == name


def test_batch_ids_differ_within_a_millisecond() -> None:
    """Batches of the same time have different ids."""
    assert len({make_batch_id(MS) for _ in range(10_000)}) == 10_000


@given(st.text() | st.from_regex(r"[0-9a-fA-F-]{36}-[0-9]{1,8}"))
def test_only_default_prediction_ids_are_parsed(text: str) -> None:
    """A text is either a default prediction id or the caller's own."""
    found = point_id(text)

    assert found is None or default_prediction_id(found) == text


@pytest.mark.parametrize("change", ["{}\n", " {}", "{}0000000", "{}-1", "{}٣"])
def test_texts_that_are_nearly_default_ids_are_not_parsed(change: str) -> None:
    """A default id with anything more is the caller's own."""
    ours = prediction_id(make_batch_id(MS), 7)

    assert point_id(change.format(ours)) is None
    assert point_id(ours.upper()) is None
    assert point_id(ours[:-1] + str(MAX_ROWS)) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_ids_that_the_server_makes_are_random_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can compute the next one, and a child does not repeat those of its parent."""
    drawn = [bytes(range(7)) * 256, b"\xff" * 7 * 256]
    ids._drawn.clear()
    monkeypatch.setattr(ids.secrets, "token_bytes", lambda size: drawn.pop())
    first = make_batch_id(MS)
    pid = os.fork()
    if pid == 0:
        os._exit(make_batch_id(MS) != make_batch_id(MS, bytes(range(7))))

    assert first == make_batch_id(MS) == make_batch_id(MS, b"\xff" * 7)
    assert os.waitpid(pid, 0)[1] == 0
    ids._drawn.clear()
