"""Tags, references and traces in records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from darksight_service.errors import RecordError
from darksight_service.ingest.records import decode, decode_all
from darksight_service.ingest.tag_section import decode_tag_sets
from darksight_service.store.points import PointTable

from tests.support.points import encode, make_points

TRACE = bytes(range(16))
LYON, PARIS = {"camera": "7", "site": "Lyon"}, {"camera": "8", "site": "Paris=é"}


def tags_of(records: list[Any]) -> dict[bytes, tuple[dict[str, str], bytes]]:
    """Tags and trace of each point by its id."""
    found = {}
    for table in records:
        assert isinstance(table, PointTable)
        found |= dict(zip(table.id_bytes(), zip(table.tag_dicts(), table.trace_bytes(), strict=True), strict=True))
    return found


@pytest.mark.parametrize(
    "tags",
    [LYON, [LYON, PARIS, {}], [{"reference": "a/é.png"}, {}, PARIS], {"reference": "b.png"}, [{}, {}, {"camera": "7"}]],
    ids=["of all rows", "of each row", "references", "one reference", "of one row"],
)
@pytest.mark.parametrize("named", [False, True], ids=["no names", "names"])
@pytest.mark.parametrize("trace", [b"", TRACE], ids=["no trace", "trace"])
def test_tags_come_back(tags: Any, named: bool, trace: bytes) -> None:
    """With the names and columns of the record."""
    points = make_points(3, tags=tags, names=None if named else (), trace=trace)

    found = decode(encode(points))

    assert isinstance(found, PointTable)
    assert found.tag_dicts() == ([tags] * 3 if isinstance(tags, dict) else tags)
    assert found.trace_bytes() == [trace or bytes(16)] * 3
    assert found.names.tolist() == points.names.tolist()
    np.testing.assert_array_equal(found.probs, points.probs)


def test_a_record_without_tags_is_as_it_was() -> None:
    """Neither a flag nor a byte more."""
    points = make_points(3)

    assert encode(points) == encode(make_points(3, tags=[{}, {}, {}]))
    assert encode(points)[2] == 0
    tagged = bytearray(encode(make_points(3, tags=LYON))[: len(encode(points))])
    assert tagged[2] == 4
    tagged[2] = 0
    assert encode(points) == tagged


def test_records_with_the_same_sizes_are_one_table() -> None:
    """Whatever their tags are, so that thousands of calls of one row need no table each."""
    cameras = [{"camera": str(number % 10)} for number in range(300)]
    batches = [make_points(1, seed=seed, tags=each, trace=TRACE) for seed, each in enumerate(cameras)]
    others = [make_points(2, seed=seed, tags=[LYON, PARIS]) for seed in range(5)] + [make_points(1, seed=99)]

    found = decode_all([encode(batch) for batch in batches + others])

    assert sorted(map(len, found)) == [1, 10, 300]
    assert max(found, key=len).tag_sets == tuple((("camera", str(number)),) for number in range(10))
    assert tags_of(found) == tags_of(batches + others)
    joined = PointTable.join([each for each in found if isinstance(each, PointTable)][:1] * 2)
    assert len(joined.tag_sets) == len(max(found, key=len).tag_sets)


def test_damaged_sections_are_refused() -> None:
    """Whatever byte of the section changed, the record is refused or decodes."""
    data = encode(make_points(2, tags=[LYON, PARIS | {"reference": "x"}], trace=TRACE))
    start = data.rindex(b"a" * 64) + 64
    for place in range(start, len(data)):
        for value in (0, 0x1E, 0x1F, 0x3D, 0xFF):
            damaged = bytearray(data)
            damaged[place] = value
            try:
                found = decode(bytes(damaged))
            except RecordError:
                continue
            assert isinstance(found, PointTable)
            assert len(found.tag_dicts()) == 2
    for size in range(start, len(data)):
        with pytest.raises(RecordError):
            decode(data[:size])


@pytest.mark.parametrize("size", [5, 6, 11, 15])
def test_tags_that_end_within_their_index_are_refused(size: int) -> None:
    """Two sets, and fewer numbers than three rows need."""
    data = np.frombuffer((b"\2" + bytes(15))[:size], np.uint8)

    with pytest.raises(RecordError):
        decode_tag_sets(data[None], 3)
