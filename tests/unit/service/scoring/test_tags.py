"""Tags of a call are bounded before they are copied to its rows."""

from __future__ import annotations

import pytest
from darksight_client.requests import score_parts
from darksight_client.stubs.darksight.v1 import monitor_pb2
from darksight_service.errors import RequestError
from darksight_service.operations.scoring import _tags
from darksight_service.scoring.tags import read_tags

from tests.support.builders import make_probs


def test_tags_of_all_rows_are_counted_before_they_are_copied() -> None:
    """A thousand of them for each of many rows would take all memory."""
    many = {f"k{number}": "x" for number in range(1000)}
    request = monitor_pb2.ScoreRequest(tags=many, row_tags=[monitor_pb2.Tags()] * 60_000)

    with pytest.raises(RequestError, match="tags: has 1,000 values; the limit is 8"):
        _tags(request, 60_000)


def test_rows_with_tags_of_their_own_are_bounded() -> None:
    """Each is a message; the client makes several calls of more."""
    request = monitor_pb2.ScoreRequest(row_tags=[monitor_pb2.Tags()] * 65_537)
    parts = score_parts("digits", make_probs(65_537, 2), 4 << 20, tags=[{}] * 65_537)

    with pytest.raises(RequestError, match="row_tags: has 65,537 values; the limit is 65,536"):
        _tags(request, 65_537)
    assert [part.rows for part in parts] == [65_536, 1]


def test_a_reference_of_very_many_rows_is_refused() -> None:
    """It is stored with each of them, so that a small request would become a very large record."""
    with pytest.raises(RequestError, match="a reference of 100,000 rows"):
        read_tags({"reference": "x" * 512}, 100_000)

    assert len(read_tags({"reference": "x" * 512}, 1000).references) == 513 * 1000 - 1
