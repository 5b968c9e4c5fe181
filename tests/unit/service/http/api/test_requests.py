"""The slots in which tags of requests wait for their responses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from darksight_service.http.api import requests
from darksight_service.http.api.requests import RequestTags

from darksight_core.rows.tags import MAX_TAGS, REFERENCE

KEY = ("iris", "http://localhost:9081/", "7")
TAGS = {"camera": "7", "site": "Zürich"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file."""
    return tmp_path / "requests.slots"


def slots_of(path: Path) -> list[int]:
    """Where slots that are not empty start."""
    content, size = path.read_bytes(), requests._SLOT_BYTES
    return [start for start in range(0, len(content), size) if any(content[start : start + size])]


def test_every_worker_finds_what_one_has_put(path: Path) -> None:
    """Also one that starts later, and without tags: that a request has none is known."""
    first, second = RequestTags(path), RequestTags(path)
    first.put(*KEY, TAGS)
    second.put("iris", "a", "8", {})

    for each in (first, second, RequestTags(path)):
        assert each.find(*KEY) == TAGS
        assert each.find("iris", "a", "8") == {}
    assert path.stat().st_size == 1 << 24
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("key", [("v2", *KEY[1:]), ("iris", "b", "7"), (*KEY[:2], "8"), ("iris", "", KEY[1] + "\0007")])
def test_model_source_and_id_must_be_the_same(path: Path, key: tuple[str, str, str]) -> None:
    """An id alone is chosen by the caller of the model."""
    tags = RequestTags(path)
    tags.put(*KEY, TAGS)

    assert tags.find(*key) is None


def test_a_request_that_is_delivered_again_takes_the_same_slot(path: Path) -> None:
    """And the last delivery counts."""
    tags = RequestTags(path)
    for camera in "12":
        tags.put(*KEY, {"camera": camera})

    assert tags.find(*KEY) == {"camera": "2"}
    assert len(slots_of(path)) == 1


def test_old_requests_are_ignored(path: Path) -> None:
    """After ten minutes, and if the clock was set back."""
    now = 1000.0
    tags = RequestTags(path, clock=lambda: now)
    tags.put(*KEY, TAGS)

    found = []
    for now in (1600.0, 1600.1, 400.0, 399.0):  # noqa: B007 # the clock reads it
        found.append(tags.find(*KEY) == TAGS)

    assert found == [True, False, True, False]


def test_a_full_group_loses_its_oldest_request(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one group, all requests share its four slots; a time that cannot be right is overwritten first."""
    monkeypatch.setattr(requests, "_GROUPS", 1)
    now = 1e6
    tags = RequestTags(path, clock=lambda: now)
    tags.put("iris", "a", "ahead", TAGS)
    for number in range(6):
        now = 1000.0 + number
        tags.put("iris", "a", str(number), {"camera": str(number)})

    found = [tags.find("iris", "a", str(number)) for number in range(6)]
    assert found == [None, None, *({"camera": str(number)} for number in range(2, 6))]
    assert tags.find("iris", "a", "ahead") is None


def test_a_torn_slot_is_absent(path: Path) -> None:
    """Whichever byte of it another worker has written; the next request can have the slot."""
    tags = RequestTags(path)
    tags.put(*KEY, TAGS)
    (start,) = slots_of(path)
    size = len(path.read_bytes()[start:].rstrip(b"\0"))
    descriptor = os.open(path, os.O_RDWR)
    for position in range(start, start + size):
        (byte,) = os.pread(descriptor, 1, position)
        for changed in (byte ^ 1, byte ^ 0x80, 255 - byte):
            os.pwrite(descriptor, bytes([changed]), position)
            assert tags.find(*KEY) is None
        os.pwrite(descriptor, bytes([byte]), position)
    os.close(descriptor)

    assert tags.find(*KEY) == TAGS


def test_all_tags_in_ascii_fit_and_longer_ones_are_left_out(path: Path) -> None:
    """The rules of tags count characters, and a slot has bytes."""
    tags = RequestTags(path)
    keys = [f"{number}".rjust(32, "k") for number in range(MAX_TAGS - 1)]
    given = {REFERENCE: "r=" * 256, **dict.fromkeys(keys, '"=' * 64)}
    tags.put(*KEY, given)
    assert tags.find(*KEY) == given

    given = {key: "\U0001f600" * len(value) for key, value in given.items()}
    tags.put(*KEY, given)
    assert tags.find(*KEY) == {key: given[key] for key in keys[-3:]}


def test_ids_of_any_characters_are_keys(path: Path) -> None:
    """JSON can have half of a surrogate pair."""
    tags = RequestTags(path)
    tags.put("iris", "\ud800", "7", TAGS)

    assert tags.find("iris", "\ud800", "7") == TAGS


def test_without_a_file_one_worker_joins_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A full or read-only disk must not stop scoring."""
    tags = RequestTags(tmp_path / "missing" / "requests.slots")
    tags.put(*KEY, TAGS)

    assert tags.find(*KEY) == TAGS
    assert [record.message for record in caplog.records] == ["requests_not_shared"]


def test_thousand_requests_wait_at_a_time(path: Path) -> None:
    """Of 1,000 keys, 5 or more share one of 2,048 groups about 0.3 times: 2048 * P(Poisson(0.49) > 4)."""
    tags = RequestTags(path)
    for number in range(1000):
        tags.put("iris", "a", str(number), {"camera": str(number)})

    found = [tags.find("iris", "a", str(number)) for number in range(1000)]
    assert all(each in (None, {"camera": str(number)}) for number, each in enumerate(found))
    assert found.count(None) <= 2
