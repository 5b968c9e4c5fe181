"""Tables of points and the texts in them."""

from __future__ import annotations

import numpy as np
import pytest
from darksight_service.store.points import PointTable
from darksight_service.store.texts import Texts
from hypothesis import given
from hypothesis import strategies as st

from tests.support.points import make_points

texts = st.lists(st.none() | st.text(max_size=5), max_size=12)


@given(texts, texts, st.data())
def test_texts_are_a_list_of_texts(first: list[str | None], second: list[str | None], data: st.DataObject) -> None:
    """Joined and selected as Python lists are."""
    whole = Texts.join([Texts.of(first), Texts.of(second)])
    rows = np.array(data.draw(st.lists(st.sampled_from(range(len(whole))))) if len(whole) else [], dtype=np.intp)

    assert whole.tolist() == first + second
    assert whole[rows].tolist() == [(first + second)[row] for row in rows]
    assert whole[1:3].tolist() == (first + second)[1:3]


def test_a_table_is_cut_and_joined_by_rows() -> None:
    """The parts of a table, of several bundles and numbers of classes, make the whole again."""
    one, two = make_points(9, names=None), make_points(5, seed=1, version="b" * 64, classes=4)

    whole = PointTable.join([one.take(np.arange(9) < 4), one.take(slice(4, None)), two])

    assert whole.id_bytes() == one.id_bytes() + two.id_bytes()
    assert whole.prediction_ids() == one.prediction_ids() + two.prediction_ids()
    assert [whole.versions[number] for number in whole.bundle] == ["a" * 64] * 9 + ["b" * 64] * 5
    np.testing.assert_array_equal(whole.probs[:9], one.probs)
    assert np.isnan(whole.probs[9:]).all()
    np.testing.assert_array_equal(whole.p_value, np.concatenate([one.p_value, two.p_value]))


def test_columns_left_out_hold_no_value() -> None:
    """Scores are NaN, labels and classes -1, names missing."""
    table = PointTable.of(np.zeros((3, 2), ">u8"), "digits", ("v",), p_value=np.ones(3))

    assert np.isnan(table.points).all()
    assert table.points.shape == (3, 2)
    assert (table.label == -1).all()
    assert (table.predicted == -1).all()
    assert table.names.tolist() == [None] * 3
    assert table.probs.shape == (3, 0)


def test_rows_have_plain_values() -> None:
    """Each point as a dictionary, with default prediction ids and only known probabilities."""
    table = make_points(7, seed=3)

    rows = list(table.rows())

    assert [row["prediction_id"] for row in rows] == table.prediction_ids()
    assert rows[0]["x"] == pytest.approx(float(table.points[0, 0]))
    assert [row["is_accepted"] for row in rows] == table.accepted.tolist()
    assert [len(row["probs"]) for row in rows] == [10] * 6 + [0]
