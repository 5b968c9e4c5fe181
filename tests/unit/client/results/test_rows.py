from __future__ import annotations

import uuid
from dataclasses import replace

import numpy as np
import pytest
from darksight_client.results.rows import Batch, Decision, Reason, Scored, joined

from darksight_core.gate import gate


def make_scored(rows: int, *, number: int = 0, names: tuple[str, ...] = (), recorded: bool = True) -> Scored:
    """A result whose p-values are 0, 1, …."""
    return Scored(
        model="m",
        version="v",
        batches=(Batch(uuid.UUID(int=number), rows),),
        decision=np.resize(np.array([1, 2], np.int8), rows),
        reason=np.resize(np.array([1, 2], np.int8), rows),
        p_value=np.arange(rows, dtype=np.float64),
        log_density=np.zeros(rows),
        log_kde=np.zeros(rows),
        points=np.arange(2.0 * rows).reshape(rows, 2),
        recorded=recorded,
        names=names,
    )


def test_enums_are_those_of_the_core() -> None:
    """The client does not import it, but means the same."""
    for mine, core in ((Decision, gate.Decision), (Reason, gate.Reason)):
        assert {each.name: int(each) for each in mine if each} == {each.name: int(each) for each in core}


def test_a_row_of_a_batch() -> None:
    """The same numbers as Python objects."""
    row = make_scored(3)[1]

    assert (row.accepted, row.decision, row.reason) == (False, Decision.REJECT, Reason.OUTLIER)
    assert (row.p_value, row.point) == (1.0, (2.0, 3.0))
    assert row.prediction_id == f"{uuid.UUID(int=0)}-1"
    assert make_scored(3)[-1].p_value == 2.0
    with pytest.raises(IndexError):
        make_scored(3)[3]


def test_ids_of_rows_without_names() -> None:
    """As the server calls them: batch and row, also when a batch went in parts."""
    whole = joined([make_scored(2, number=1), make_scored(1, number=2)])

    first, second = uuid.UUID(int=1), uuid.UUID(int=2)
    assert whole.prediction_ids == (f"{first}-0", f"{first}-1", f"{second}-0")
    assert tuple(row.prediction_id for row in whole) == whole.prediction_ids
    assert whole.batch_id == first


def test_names_of_the_caller_come_first() -> None:
    """Then those are the ids."""
    whole = joined([make_scored(2, names=("a", "b")), make_scored(1, names=("c",))])

    assert whole.prediction_ids == ("a", "b", "c")
    assert whole[2].prediction_id == "c"


def test_parts_are_joined_in_order() -> None:
    """Columns one after the other, read-only; recorded if all were."""
    whole = joined([make_scored(2), make_scored(1, recorded=False)])

    assert whole.p_value.tolist() == [0.0, 1.0, 0.0]
    assert whole.points.shape == (3, 2)
    assert whole.accepted.tolist() == [True, False, True]
    assert not whole.recorded
    assert not whole.p_value.flags.writeable


def test_prediction_sets_of_parts_are_joined() -> None:
    """Each row keeps its classes; without sets every row has an empty one."""
    sets = {"set_size": np.array([2, 0], np.int32), "set_classes": np.array([3, 8], np.int32)}
    other = {"set_size": np.array([1], np.int32), "set_classes": np.array([5], np.int32)}

    whole = joined([replace(make_scored(2), **sets), replace(make_scored(1), **other)])

    assert whole.prediction_sets == ((3, 8), (), (5,))
    assert [row.prediction_set for row in whole] == [(3, 8), (), (5,)]
    assert make_scored(2).prediction_sets == ((), ())


def test_a_reason_of_a_newer_server_is_unspecified() -> None:
    """No error in the caller's request path."""
    assert Reason(100) is Reason.UNSPECIFIED
    assert Decision(100) is Decision.UNSPECIFIED
