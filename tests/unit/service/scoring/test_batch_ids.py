"""Ids under which batches are stored, from the keys of callers."""

from __future__ import annotations

import pytest
from darksight_service.errors import RequestError
from darksight_service.scoring.service import ScoringService
from darksight_service.store.ids import DAY_MS, id_ms, is_batch_id, make_batch_id

NOW_MS = 1_794_960_000_000
OWN = make_batch_id(NOW_MS - 5_000)


def stored_id(key: bytes, model: str = "a", event_ms: int = 0, now_ms: int = NOW_MS, secret: bytes = b"s") -> bytes:
    """The id of a batch."""
    service = ScoringService(None, None, clock=lambda: now_ms / 1000.0, secret=secret)  # type: ignore[arg-type]
    return service._stored_id(model, key, event_ms)[0]


@pytest.mark.parametrize("key", [OWN, bytes(range(100, 116)), b"order-1", "größe".encode() * 12], ids=range(4))
def test_a_key_gives_one_id_for_each_model_and_secret(key: bytes) -> None:
    """So a call for one model cannot have the ids of another, and nobody can compute them."""
    event_ms = NOW_MS - DAY_MS
    ids = {stored_id(key, model, event_ms, secret=secret) for model in "ab" for secret in (b"s", b"t")}

    assert len(ids) == 4
    assert all(is_batch_id(each) for each in ids)
    assert stored_id(key, event_ms=event_ms) == stored_id(key, event_ms=event_ms, now_ms=NOW_MS + 5 * DAY_MS)


def test_the_time_is_that_of_the_id_or_of_the_event() -> None:
    """Of an own id first; the time of a foreign UUIDv7 counts too, if a batch may have it."""
    foreign = bytes([*OWN[:15], OWN[15] | 1])
    late = bytes([0xFF, *foreign[1:]])
    event_ms = NOW_MS - DAY_MS

    assert [id_ms(stored_id(key, event_ms=event_ms)) for key in (OWN, foreign, late, b"text")] == [
        *(NOW_MS - 5_000, NOW_MS - 5_000),
        *(event_ms, event_ms),
    ]
    with pytest.raises(RequestError, match="seven days"):
        stored_id(make_batch_id(NOW_MS - 8 * DAY_MS), event_ms=event_ms)


@pytest.mark.parametrize("event_ms", [0, NOW_MS - 8 * DAY_MS, NOW_MS + DAY_MS])
def test_without_a_usable_time_attempts_of_a_day_have_one_id(event_ms: int) -> None:
    """The day starts at another time for each key, and the id has a time that a batch id may have."""
    changed = 0
    for number in range(300):
        key = f"order-{number}".encode()
        first = stored_id(key, event_ms=event_ms)
        assert NOW_MS - DAY_MS < id_ms(first) <= NOW_MS
        changed += first != stored_id(key, event_ms=event_ms, now_ms=NOW_MS + DAY_MS // 10)

    # Binomial(300, 0.1): its standard deviation is 5.2.
    assert 5 <= changed <= 56
