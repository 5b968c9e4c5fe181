"""The schema of a scored row and batches of them."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from darksight_core.rows.schema import SCHEMA, Decision, ScoredBatch
from darksight_core.runtime.result_block import RESPONSE_BYTES, ROW_BYTES, ResultBlock, byte_range, stored_pieces


def make_batch(n: int, seed: int = 0) -> ScoredBatch:
    """Random values in every column."""
    rng = np.random.default_rng(seed)
    batch = ScoredBatch.unscored(n)
    for column in SCHEMA:
        values = getattr(batch, column.name)
        values[...] = (
            rng.integers(0, 3, size=values.shape) if values.dtype.kind in "ib" else rng.normal(size=values.shape)
        )
    return batch


def test_the_schema_has_the_fields_of_a_batch() -> None:
    """In their order, with the type that each array has."""
    batch = ScoredBatch.unscored(3)

    assert [column.name for column in SCHEMA] == [field.name for field in fields(ScoredBatch)]
    for column in SCHEMA:
        values = getattr(batch, column.name)
        assert values.dtype == np.dtype(column.dtype)
        assert values.shape == ((3, column.width) if column.width > 1 else (3,))


def test_rows_of_which_nothing_is_known_are_valid_and_undecided() -> None:
    """Scores are NaN, the class is -1, and no decision is made."""
    batch = ScoredBatch.unscored(2)

    assert np.isnan(batch.points).all()
    assert np.isnan(batch.p_value).all()
    assert batch.predicted.tolist() == [-1, -1]
    assert batch.decision.tolist() == batch.reason.tolist() == [0, 0]
    assert batch.valid.all()
    assert not batch.accepted.any()


def test_batches_are_cut_and_joined_by_rows() -> None:
    """The parts of a batch make the whole again, and a mask selects rows."""
    batch = make_batch(9)
    batch.decision[:] = np.where(np.arange(9) < 4, Decision.ACCEPT, Decision.REJECT)

    whole = ScoredBatch.join([batch.take(slice(0, 4)), batch.take(np.arange(4, 9))])

    for column in SCHEMA:
        np.testing.assert_array_equal(getattr(whole, column.name), getattr(batch, column.name))
    assert len(batch.take(batch.accepted)) == 4


@pytest.mark.parametrize("rows", [0, 1, 2, 50])
def test_a_block_has_the_columns_that_are_sent_or_stored(rows: int) -> None:
    """In the type of the response where they are in it, and all stored ones in theirs behind."""
    batch = make_batch(rows)

    block = ResultBlock.of(batch)

    assert len(block.data) == ROW_BYTES * rows
    for column in SCHEMA:
        if column.response or column.stored:
            kind = column.dtype if column.response else column.stored
            expected = getattr(batch, column.name).astype(kind)
            np.testing.assert_array_equal(block.column(column.name), expected)
            assert block.data[byte_range(column.name, rows)] == expected.tobytes()
    stored = block.data[RESPONSE_BYTES * rows :]
    for piece in stored_pieces():
        expected = getattr(batch, piece.column.name).astype(piece.column.stored)
        assert stored[piece.start * rows : piece.end * rows] == expected.tobytes()


def test_values_too_large_for_a_float32_are_stored_as_infinite() -> None:
    """In a block of one row as in one of many."""
    for rows in (1, 2):
        batch = ScoredBatch.unscored(rows)
        batch.outlier_score[:] = -1e300

        assert (ResultBlock.of(batch).column("outlier_score") == -np.inf).all()
