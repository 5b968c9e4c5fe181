from __future__ import annotations

import sys
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from darksight_core import DarkSight, Scorer
from darksight_core.rows.frames import FrameError, column_order, read_frame
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle

KINDS = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}
NAMES = ("class 0", "class 1", "class 2", "class 3")
PROBS = make_probs(6, 4, seed=1).astype(np.float64)


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    """Of a bundle with the classes `NAMES`."""
    return Scorer.of(make_bundle(classes=4), compiled=False)


class Stream:
    """Only the Arrow PyCapsule interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The stream of the table."""
        return self._table.__arrow_c_stream__(requested_schema)


class Interchange:
    """Only the dataframe interchange protocol."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __dataframe__(self, *arguments: Any, **options: Any) -> Any:
        """That of the table."""
        return self._table.__dataframe__(*arguments, **options)


def columns_of(*order: int, prefix: str = "prob_") -> dict[str, Any]:
    """Columns of `PROBS` in an order of classes."""
    return {prefix + NAMES[k]: PROBS[:, k] for k in order}


@pytest.mark.parametrize("prefix", ["prob_", ""], ids=["prefixed", "bare"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_scores_of_a_table_are_a_table_of_the_same_kind(kind: Any, prefix: str, scorer: Scorer) -> None:
    """With columns in another order than the classes of the bundle, and the scores of the array."""
    expected = scorer.score(PROBS)

    found = scorer.score(kind(columns_of(2, 0, 3, 1, prefix=prefix)))

    assert type(found) is type(kind({}))
    table = nw.from_native(found, eager_only=True)
    assert list(table.columns) == [*expected.file_columns()]
    for name, column in expected.file_columns().items():
        if name != "predicted":
            assert table[name].to_numpy().tobytes() == column.tobytes(), name
    assert table["predicted"].to_list() == [NAMES[k] for k in expected.predicted]


@pytest.mark.parametrize(
    "kind",
    [pa.RecordBatch.from_pydict, lambda columns: Stream(pa.table(columns)), lambda c: Interchange(pa.table(c))],
    ids=["record batch", "capsule", "interchange"],
)
def test_an_unknown_kind_of_table_becomes_an_arrow_table(kind: Any, scorer: Scorer) -> None:
    """Objects that have no more than one of the two interfaces."""
    found = scorer.score(kind(columns_of(3, 2, 1, 0)))

    assert isinstance(found, pa.Table)
    assert found["p_value"].to_numpy().tobytes() == scorer.score(PROBS).p_value.tobytes()


def test_pandas_keeps_its_index_and_other_columns_are_ignored(scorer: Scorer) -> None:
    """Beside columns with a prefix."""
    frame = pd.DataFrame({"label": list("abcdef"), **columns_of(0, 1, 2, 3)}, index=list("uvwxyz"))

    assert scorer.score(frame).index.tolist() == list("uvwxyz")


def test_missing_values_are_bad_rows(scorer: Scorer) -> None:
    """A row with a null is not scored and has no class; the others are."""
    columns = columns_of(0, 1, 2, 3)
    columns["prob_class 1"] = [None, *PROBS[1:, 1]]

    found = scorer.score(pa.table(columns)).to_pydict()

    assert np.isnan(found["p_value"]).tolist() == [True] + [False] * 5
    assert found["predicted"][0] is None


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c | {"prob_class 9": PROBS[:, 0]}, "'class 9' is not a class of the bundle; did you mean class"),
        (lambda c: dict(list(c.items())[:3]), "class 'class 3' of the bundle is missing"),
        (lambda c: c | {"prob_class 1": ["a"] * 6}, "column prob_class 1: has type String"),
        (lambda c: {name.replace("prob", "logit"): values for name, values in c.items()}, "are logits"),
    ],
    ids=["unknown", "missing", "text", "logits"],
)
def test_a_table_of_other_classes_is_refused(kind: Any, change: Any, message: str, scorer: Scorer) -> None:
    """With a message that names the column."""
    with pytest.raises(FrameError, match=message):
        scorer.score(kind(change(columns_of(0, 1, 2, 3))))


def test_a_class_given_twice_is_refused() -> None:
    """By the names of columns, which a message can repeat."""
    with pytest.raises(FrameError, match="'a' is given twice"):
        column_order(["a", "a"], ["a", "b"])


@pytest.mark.parametrize(
    "values",
    [PROBS, PROBS.tolist(), pd.Series(PROBS[0]), pl.Series(PROBS[0]), pa.chunked_array([PROBS[0]]), 1.0, None],
    ids=["array", "lists", "pandas series", "polars series", "chunked array", "number", "none"],
)
def test_what_is_not_a_table_stays_an_array(values: Any) -> None:
    """Also one column of a table."""
    assert read_frame(values) is None


def test_arrays_do_not_need_narwhals(scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table without it has an error that names the extra."""
    monkeypatch.setitem(sys.modules, "narwhals", None)

    assert len(scorer.score(PROBS)) == 6
    with pytest.raises(FrameError, match=r"darksight\[frames\]"):
        scorer.score(pd.DataFrame(columns_of(0, 1, 2, 3)))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_estimator_takes_and_returns_tables(kind: Any) -> None:
    """The bundle has the classes of the columns; points and probabilities are a table of the same kind."""
    probs = make_probs(60, 3, seed=2)
    table = kind({f"prob_{name}": probs[:, k] for k, name in enumerate(("cat", "dog", "eel"))})
    darksight = DarkSight(method="svd")

    points = nw.from_native(darksight.fit_transform(table), eager_only=True)
    again = nw.from_native(darksight.transform(table), eager_only=True)
    told = nw.from_native(darksight.predict_proba(table), eager_only=True)

    assert type(points.to_native()) is type(table)
    assert list(points.columns) == ["darksight0", "darksight1"]
    np.testing.assert_allclose(again.to_numpy(), darksight.embedding_, atol=1e-9)
    assert list(told.columns) == ["prob_cat", "prob_dog", "prob_eel"]
    assert darksight.feature_names_in_.tolist() == ["prob_cat", "prob_dog", "prob_eel"]
    assert darksight.set_output(transform="pandas").transform(table).columns.tolist() == list(points.columns)
