from __future__ import annotations

import uuid
from datetime import UTC, datetime

import numpy as np
import pytest
from darksight_client.errors import InvalidRequest
from darksight_client.requests import as_rows, as_timestamp, make_batch_id, outcome_requests, score_parts
from darksight_service.store.ids import id_ms
from hypothesis import given
from hypothesis import strategies as st

from darksight_core.rows.partial import TopRows

LIMIT = 4 << 20


def test_batch_ids_are_uuid7_and_leave_room_for_rows() -> None:
    """As the server's own: time first, version 7, and 20 bits for the row."""
    ids = [uuid.UUID(bytes=make_batch_id()) for _ in range(1000)]

    assert {each.version for each in ids} == {7}
    assert {each.variant for each in ids} == {uuid.RFC_4122}
    assert {each.int & 0xFFFFF for each in ids} == {0}
    assert len(set(ids)) == 1000
    assert abs(id_ms(ids[0].bytes) / 1000 - datetime.now(UTC).timestamp()) < 60


@pytest.mark.parametrize(
    "values",
    [[[0.25, 0.75]], np.array([[0.25, 0.75]]), np.array([[0.25, 0.75]], ">f4"), np.array([[0.25, 9, 0.75]])[:, ::2]],
    ids=["list", "float64", "big endian", "strided"],
)
def test_rows_travel_as_little_endian_float32(values: object) -> None:
    """Whatever array it is."""
    (part,) = score_parts("m", values, max_message_bytes=LIMIT)  # type: ignore[arg-type]  # lists too

    assert list(part.request.tensor.shape) == [1, 2]
    assert part.request.tensor.data == np.array([0.25, 0.75], "<f4").tobytes()


def test_one_row_is_a_batch_of_one() -> None:
    """(K,) is (1, K)."""
    assert as_rows([0.5, 0.5]).shape == (1, 2)


def test_an_empty_batch_is_one_call() -> None:
    """The server answers it with empty columns."""
    (part,) = score_parts("m", np.empty((0, 10)), max_message_bytes=LIMIT)

    assert list(part.request.tensor.shape) == [0, 10]
    assert part.rows == 0


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([["a", "b"]], "numbers"),
        ([[1.0], [1.0, 2.0]], "different lengths"),
        (np.zeros((2, 2, 2)), "shape"),
        (0.5, "shape"),
        (np.array([[True, False]]), "bool"),
    ],
)
def test_what_is_no_array_of_rows_is_refused(values: object, text: str) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidRequest, match=text):
        as_rows(values)  # type: ignore[arg-type]  # that is the point


def test_values_too_large_for_float32_become_infinite() -> None:
    """So that the server refuses the row, without a warning here."""
    assert np.isinf(as_rows([1e300, 0.0])[0, 0])


@given(st.integers(0, 500), st.integers(1, 300), st.booleans(), st.integers(3000, 20_000))
def test_parts_hold_all_rows_in_order_and_fit(rows: int, classes: int, has_names: bool, limit: int) -> None:
    """Requests and answers stay below the limit, unless a single row does not."""
    values = np.arange(rows * classes, dtype=np.float32).reshape(rows, classes)
    names = [f"prediction é {row}" for row in range(rows)] if has_names else None

    parts = score_parts("model", values, max_message_bytes=limit, prediction_ids=names)

    assert b"".join(part.request.tensor.data for part in parts) == values.tobytes()
    assert [part.start for part in parts] == np.cumsum([0, *(part.rows for part in parts)])[:-1].tolist()
    assert [name for part in parts for name in part.request.prediction_ids] == (names or [])
    assert len({part.request.batch_id for part in parts}) == len(parts)
    for part in parts:
        # The largest prediction set has a number of one or two bytes for each class.
        assert part.rows * (42 + 1 + classes * (1 if classes <= 128 else 2)) <= limit
        assert len(part.request.SerializeToString()) <= limit or part.rows == 1


def test_rows_of_the_most_probable_classes_travel_without_empty_places() -> None:
    """In parts that the server can complete, each with the resolution of all."""
    rows = TopRows(np.array([[2, 0, -1]] * 1_500), np.log([[0.9, 0.05, 1.0]] * 1_500), np.full(1_500, 0.01))

    parts = score_parts("m", rows, LIMIT)

    assert [part.rows for part in parts] == [1024, 476]
    assert {part.request.resolution for part in parts} == {"top3"}
    row = parts[1].request.top.rows[0]
    assert (list(row.classes), row.other) == ([2, 0], 0.01)
    assert list(row.log_probabilities) == np.log([0.9, 0.05]).tolist()


def test_ids_must_be_as_many_as_rows() -> None:
    """One for each."""
    with pytest.raises(InvalidRequest, match="2 prediction_ids for 1 rows"):
        score_parts("m", [[0.5, 0.5]], max_message_bytes=LIMIT, prediction_ids=["a", "b"])


def test_an_id_that_is_there_twice_in_different_parts_is_found() -> None:
    """The server sees each part alone."""
    names = [str(row) for row in range(500)]
    names[400] = "7"

    with pytest.raises(InvalidRequest, match=r"prediction_ids\[7\]") as caught:
        score_parts("m", np.zeros((500, 10)), max_message_bytes=4096, prediction_ids=names)

    assert (caught.value.row, caught.value.field) == (400, "prediction_ids[400]")


def test_times() -> None:
    """A datetime in any zone, or seconds since 1970."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 250_000, tzinfo=UTC)

    for given_ in (moment, moment.timestamp()):
        stamp = as_timestamp(given_)
        assert stamp is not None
        assert stamp.ToDatetime(UTC) == moment
    assert as_timestamp(None) is None


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), float("nan"), -1.0, 1e12])  # noqa: DTZ001  # refused
def test_times_that_mean_nothing_are_refused(moment: datetime | float) -> None:
    """A time without a zone is a guess."""
    with pytest.raises(InvalidRequest):
        as_timestamp(moment)


def test_outcomes_by_number_and_by_name() -> None:
    """Numbers of numpy too."""
    (request,) = outcome_requests("m", ["a", "b", "c"], [3, np.int64(4), "seven"], None)

    assert [(each.prediction_id, each.label, each.label_name) for each in request.outcomes] == [
        ("a", 3, ""),
        ("b", 4, ""),
        ("c", 0, "seven"),
    ]


def test_many_outcomes_go_in_several_requests() -> None:
    """None of them gets lost."""
    requests = list(outcome_requests("m", [str(n) for n in range(25_000)], range(25_000), 1.0))

    assert [len(request.outcomes) for request in requests] == [10_000, 10_000, 5_000]
    assert requests[-1].outcomes[-1].label == 24_999


@pytest.mark.parametrize("label", [1.5, None, 1 << 40])
def test_a_label_that_is_no_class_is_refused(label: object) -> None:
    """And named."""
    with pytest.raises(InvalidRequest, match=r"labels\[1\]") as caught:
        list(outcome_requests("m", ["a", "b"], [0, label], None))

    assert caught.value.row == 1


def test_labels_must_be_as_many_as_ids() -> None:
    """One for each."""
    with pytest.raises(InvalidRequest, match="1 labels for 2"):
        list(outcome_requests("m", ["a", "b"], [1], None))
