"""Predictions files and arrays: what is read, what is repaired, and what is refused with which words."""

from __future__ import annotations

import builtins
import copy
import csv
import gzip
import io
import json
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from darksight_core import predictions
from darksight_core.errors import ConfigError, PredictionsError
from darksight_core.predictions import Predictions, defects, from_arrays, iter_predictions, read_predictions
from tests.support.errors import raises_code

ROOT = Path(__file__).resolve().parents[4]
NAMES = ("cat", "dog", "emu")
FORMATS = ("npz", "npy", "csv", "parquet", "jsonl")
GOOD = [[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.0, 0.0, 1.0], [0.25, 0.5, 0.25], [1.0, 0.0, 0.0]]


def with_value(row: int, column: int, value: object, rows: list[list[Any]] = GOOD) -> list[list[Any]]:
    """GOOD with one cell changed."""
    return [[value if (i, j) == (row, column) else cell for j, cell in enumerate(line)] for i, line in enumerate(rows)]


def write(
    folder: Path,
    suffix: str,
    values: Any,
    *,
    kind: str = "probs",
    labels: Any = None,
    ids: Any = None,
    names: tuple[str, ...] | None = NAMES,
    fortran: bool = False,
    compressed: bool = True,
    dtype: Any = None,
    stem: str = "predictions",
) -> Path:
    """Write values (n, K), and what else the format can hold, to a file."""
    path = folder / f"{stem}.{suffix}"
    if suffix in ("npz", "npy"):
        array = np.array(values, dtype=dtype, order="F" if fortran else "C")
        if suffix == "npy":
            np.save(path, array)
            return path
        extra = {"labels": labels, "ids": ids, "class_names": names}
        arrays = {kind: array, **{name: np.array(value) for name, value in extra.items() if value is not None}}
        (np.savez_compressed if compressed else np.savez)(path, **arrays)
        return path
    prefix = {"probs": "prob", "logits": "logit"}[kind]
    columns: dict[str, list[Any]] = {}
    for index, column in enumerate(zip(*np.array(values, dtype=object).tolist(), strict=True)):
        columns[f"{prefix}_{names[index] if names else index}"] = list(column)
    columns |= {name: list(value) for name, value in (("label", labels), ("id", ids)) if value is not None}
    if suffix == "csv":
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    elif suffix == "jsonl":
        lines = (dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table(columns), path, row_group_size=2)
    return path


def load(folder: Path, suffix: str, **extra: Any) -> Predictions:
    """GOOD with labels or ids, by way of a file or from memory."""
    if suffix == "memory":
        return from_arrays(GOOD, class_names=NAMES, **extra)
    return read_predictions(write(folder, suffix, GOOD, **extra))


def softmax(logits: np.ndarray) -> np.ndarray:
    """π of logits by the formula."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def join(chunks: list[Predictions]) -> np.ndarray:
    """Rows of all chunks."""
    return np.concatenate([chunk.probs for chunk in chunks])


@pytest.fixture
def random_probs() -> np.ndarray:
    """Probabilities (50, 3) float32 that sum to one within float32 rounding."""
    logits = 4.0 * np.random.default_rng(0).normal(size=(50, 3))
    return softmax(logits).astype(np.float32)


def test_exports_are_complete() -> None:
    """Every exported name exists."""
    assert all(hasattr(predictions, name) for name in predictions.__all__)


def test_defects_survive_a_process_boundary() -> None:
    """An error rebuilt from its reduced form, as in another process, has its code, message and details."""
    error = defects.defect("predictions_row_sum", "a.csv", "the sum is 2.", row=3, line=5)

    rebuilt = copy.copy(error)

    assert rebuilt.code == "predictions_row_sum"
    assert (str(rebuilt), rebuilt.details) == ("a.csv, row 3 (line 5): the sum is 2.", error.details)


@pytest.mark.parametrize("suffix", FORMATS)
def test_formats_agree(tmp_path: Path, suffix: str, random_probs: np.ndarray) -> None:
    """The same probabilities, labels, ids and names come out of every format that can hold them."""
    labels = [index % 3 for index in range(50)]
    ids = [f"row-{index}" for index in range(50)]
    path = write(tmp_path, suffix, random_probs, labels=labels, ids=ids)

    result = read_predictions(path)

    has_more = suffix != "npy"
    assert result.probs.dtype == np.float32
    assert result.probs.flags.c_contiguous
    np.testing.assert_array_equal(result.probs, random_probs)
    assert result.class_names == (NAMES if has_more else ("0", "1", "2"))
    assert result.ids == (tuple(ids) if has_more else None)
    assert (result.labels is not None) == has_more
    assert result.labels is None or (result.labels.dtype == np.int64 and result.labels.tolist() == labels)
    assert (len(result), result.n_classes, result.n_renormalised, result.logits) == (50, 3, 0, None)
    assert result.source == str(path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_logits_become_softmax(tmp_path: Path, suffix: str) -> None:
    """Logits give their softmax, and are kept only on request."""
    logits = (5.0 * np.random.default_rng(1).normal(size=(20, 3))).astype(np.float32)
    path = write(tmp_path, suffix, logits, kind="logits")
    kind = "logits" if suffix == "npy" else None

    kept = read_predictions(path, kind=kind, keep_logits=True)
    dropped = read_predictions(path, kind=kind)

    np.testing.assert_allclose(kept.probs, softmax(logits), rtol=1e-6)
    np.testing.assert_array_equal(kept.probs, dropped.probs)
    np.testing.assert_array_equal(kept.logits, logits)
    assert dropped.logits is None


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("chunk_rows", [1, 3, 5, 100])
def test_chunks_join_to_the_whole(tmp_path: Path, suffix: str, chunk_rows: int) -> None:
    """Chunks of any size hold the rows of the whole file in order."""
    labels, ids = [0, 1, 2, 1, 0], list("abcde")
    path = write(tmp_path, suffix, GOOD, labels=labels, ids=ids)
    whole = read_predictions(path)

    chunks = list(iter_predictions(path, chunk_rows=chunk_rows))

    assert max(map(len, chunks)) <= chunk_rows
    np.testing.assert_array_equal(join(chunks), whole.probs)
    if suffix != "npy":
        assert np.concatenate([chunk.labels for chunk in chunks]).tolist() == labels
        assert [name for chunk in chunks for name in chunk.ids] == ids


@pytest.mark.parametrize("suffix", ["npz", "npy"])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8", ">f8"])
@pytest.mark.parametrize("fortran", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("compressed", [False, True], ids=["stored", "deflated"])
def test_array_layouts_agree(tmp_path: Path, suffix: str, dtype: str, fortran: bool, compressed: bool) -> None:
    """Width, byte order, memory order and compression of an array make no difference."""
    path = write(tmp_path, suffix, GOOD, dtype=dtype, fortran=fortran, compressed=compressed)

    chunks = list(iter_predictions(path, chunk_rows=3))

    np.testing.assert_array_equal(join(chunks), np.array(GOOD, dtype=np.float32))
    np.testing.assert_array_equal(read_predictions(path).probs, join(chunks))


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.bool_], ids=str)
def test_integer_rows_are_numbers(tmp_path: Path, dtype: Any) -> None:
    """One-hot rows may be integers or booleans."""
    result = read_predictions(write(tmp_path, "npz", np.eye(3, dtype=dtype)))

    np.testing.assert_array_equal(result.probs, np.eye(3))


def test_large_file_spans_many_chunks(tmp_path: Path) -> None:
    """Rows, labels and ids stay together over the chunks of a whole read, and progress is told of each."""
    calls: list[tuple[int, int | None]] = []
    logits = np.random.default_rng(2).normal(size=(20_000, 3)).astype(np.float32)
    labels = np.arange(20_000) % 3
    path = write(tmp_path, "npz", logits, kind="logits", labels=labels, ids=np.arange(20_000))

    result = read_predictions(path, keep_logits=True, progress=lambda done, total: calls.append((done, total)))

    np.testing.assert_array_equal(result.logits, logits)
    np.testing.assert_array_equal(result.labels, labels)
    assert result.ids == tuple(map(str, range(20_000)))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert (len(calls) > 1, calls[-1]) == (True, (20_000, 20_000))


@pytest.mark.parametrize("suffix", FORMATS)
def test_small_errors_are_repaired_and_counted(tmp_path: Path, suffix: str) -> None:
    """A sum within 1e-3 is rescaled, a negative within 1e-6 clipped, a subnormal flushed; only rescaled rows count."""
    rows = [[0.5, 0.25, 0.2505], [0.5, 0.5, -1e-9], [1.0, 1e-42, -0.0], [0.25, 0.5, 0.25]]
    path = write(tmp_path, suffix, rows)

    result = read_predictions(path)

    expected = np.array([[0.5, 0.25, 0.2505], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.25, 0.5, 0.25]])
    expected[0] /= expected[0].sum()
    np.testing.assert_allclose(result.probs, expected, rtol=1e-6)
    assert not np.signbit(result.probs).any()
    assert (result.probs[2] == [1.0, 0.0, 0.0]).all()
    assert result.n_renormalised == 1


def test_half_precision_rows_are_repaired(random_probs: np.ndarray) -> None:
    """Rows rounded to float16 are within reach of the repair and sum to one after it."""
    result = from_arrays(random_probs.astype(np.float16))

    np.testing.assert_allclose(result.probs.sum(axis=1, dtype=np.float64), 1.0, atol=1e-6)
    assert result.n_renormalised > 0


@pytest.mark.parametrize("n_classes", [2, 1000])
def test_extreme_logits_stay_on_the_simplex(n_classes: int) -> None:
    """Huge gaps between logits give exact zeros and ones, and no warning."""
    logits = np.zeros((2, n_classes))
    logits[0, 0], logits[1, 1] = 1e30, -1e30

    result = from_arrays(logits, kind="logits")

    assert result.probs[0, 0] == 1.0
    assert result.probs[1, 1] == 0.0
    np.testing.assert_allclose(result.probs.sum(axis=1), 1.0, atol=1e-6)


def test_arrays_are_copied_and_left_alone(random_probs: np.ndarray) -> None:
    """The result shares no memory with arrays in memory, which keep their values."""
    labels = np.zeros(50, dtype=np.int64)
    before = random_probs.copy()

    result = from_arrays(random_probs, labels=labels, source="memory", class_names=NAMES)
    result.probs[:] = 0.0
    result.labels[:] = 2

    np.testing.assert_array_equal(random_probs, before)
    assert not labels.any()
    assert (result.source, result.class_names) == ("memory", NAMES)


@pytest.mark.parametrize(
    "labels",
    [[2, 0, 1, 1, 0], ["emu", "cat", "dog", "dog", "cat"], ["2", "0", "1", "dog", " cat "], [2.0, 0.0, 1.0, 1.0, 0.0]],
    ids=["indices", "names", "mixed", "whole floats"],
)
@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet", "memory"])
def test_labels_are_indices_or_names(tmp_path: Path, suffix: str, labels: list[Any]) -> None:
    """Labels are understood as class indices and as class names."""
    result = load(tmp_path, suffix, labels=labels)

    assert result.labels.tolist() == [2, 0, 1, 1, 0]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_integer_class_names_are_names(tmp_path: Path, suffix: str) -> None:
    """Where classes are named 1, 2, 3 a label of a table is such a name, and 0 is refused rather than guessed."""
    names = ("1", "2", "3")
    good = write(tmp_path, suffix, GOOD, labels=[1, 2, 3, 2, 1], names=names)
    bad = write(tmp_path, suffix, GOOD, labels=[1, 2, 0, 2, 1], names=names, stem="bad")

    assert read_predictions(good).labels.tolist() == [0, 1, 2, 1, 0]
    with raises_code("predictions_label_value", match=r"row 2.*column label: label is 0; .*class names"):
        read_predictions(bad)


def test_other_columns_are_ignored_and_order_is_the_files(tmp_path: Path) -> None:
    """Columns may stand anywhere, with spaces, blank lines and a byte order mark around them."""
    path = tmp_path / "p.CSV"
    path.write_bytes("\ufeffwhen,prob_b,id,prob_a, label \n\nx,0.25,r1,0.75,a\n\ny,1,r2,0,b\n".encode())

    result = read_predictions(path)

    assert result.class_names == ("b", "a")
    assert result.probs.tolist() == [[0.25, 0.75], [1.0, 0.0]]
    assert (result.labels.tolist(), result.ids) == ([1, 0], ("r1", "r2"))


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_logits_win_unless_probs_are_asked_for(tmp_path: Path, suffix: str) -> None:
    """With both in a file, logits are read by default and `kind` chooses."""
    path = tmp_path / f"both.{suffix}"
    if suffix == "npz":
        np.savez(path, probs=[[0.25, 0.75]], logits=[[0.0, 0.0]])
    elif suffix == "csv":
        path.write_text("prob_a,prob_b,logit_a,logit_b\n0.25,0.75,0,0\n")
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"prob_a": [0.25], "prob_b": [0.75], "logit_a": [0.0], "logit_b": [0.0]}), path)

    assert read_predictions(path).probs.tolist() == [[0.5, 0.5]]
    assert read_predictions(path, kind="logits").probs.tolist() == [[0.5, 0.5]]
    assert read_predictions(path, kind="probs").probs.tolist() == [[0.25, 0.75]]


@pytest.mark.parametrize(
    "indices",
    [[4, 0, 0], np.array([], dtype=int), [], [True, False, False, False, True]],
    ids=["numbers", "no numbers", "empty list", "mask"],
)
def test_take_picks_rows(indices: Any) -> None:
    """`take` picks the same rows of every array by number or mask."""
    labels, ids = [0, 1, 2, 1, 0], list("abcde")
    rows = from_arrays(np.log(np.array(GOOD) + 1e-3), kind="logits", labels=labels, ids=ids, keep_logits=True)
    places = np.arange(5)[np.array(indices, dtype=None if len(indices) else int)]

    taken = rows.take(indices)

    np.testing.assert_array_equal(taken.probs, rows.probs[places])
    np.testing.assert_array_equal(taken.logits, rows.logits[places])
    assert taken.labels.tolist() == [labels[place] for place in places]
    assert taken.ids == tuple(ids[place] for place in places)
    assert not np.shares_memory(taken.probs, rows.probs)


def test_row_hashes_tell_rows_apart(random_probs: np.ndarray) -> None:
    """Equal rows, and only they, have equal hashes, which do not depend on other rows; zeros have one sign."""
    rows = from_arrays(random_probs)
    signed = from_arrays([[1.0, -0.0], [1.0, 0.0]]).row_hashes()

    hashes = rows.row_hashes()

    assert hashes.shape == (50,)
    assert len(np.unique(hashes)) == 50
    np.testing.assert_array_equal(rows.take([7, 3]).row_hashes(), hashes[[7, 3]])
    assert signed[0] == signed[1]


def place_pattern(suffix: str, row: int, column: int | None = None) -> str:
    """How a message starts: file, row, for csv its line, and column or class."""
    line = {"csv": row + 2, "jsonl": row + 1}.get(suffix)
    place = rf"predictions\.{suffix}, row {row}" + (rf" \(line {line}\)" if line else "")
    if column is None:
        return place + ": "
    titles = {"npz": f"class {NAMES[column]}", "npy": f"class {column}"}
    return f"{place}, {titles.get(suffix, f'column prob_{NAMES[column]}')}: "


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    "reader", [read_predictions, lambda path: list(iter_predictions(path, chunk_rows=3))], ids=["whole", "chunks"]
)
@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        (float("nan"), "predictions_not_finite", "value is nan; predictions must be finite"),
        (float("inf"), "predictions_not_finite", "value is inf"),
        (1e300, "predictions_not_finite", r"value is 1e\+300"),
        (-0.25, "predictions_negative", r"probability is -0.25; probabilities must be >= 0.*logits"),
        (-1.1e-6, "predictions_negative", "probability is -1.1e-06"),
    ],
    ids=["nan", "inf", "huge", "negative", "barely negative"],
)
def test_bad_cells_are_named(
    tmp_path: Path, suffix: str, reader: Callable[[Path], object], value: float, code: str, text: str
) -> None:
    """A bad number is reported with its file, row, line and column, also beyond the first chunk."""
    path = write(tmp_path, suffix, with_value(4, 1, value))

    with raises_code(code, match=place_pattern(suffix, 4, 1) + text) as caught:
        reader(path)

    assert (caught.value.details["source"], caught.value.details["row"]) == (str(path), 4)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    ("value", "total"), [(0.5, "1.25"), (0.252, "1.002"), (0.0, "0.75")], ids=["high", "just off", "low"]
)
def test_bad_sums_are_named(tmp_path: Path, suffix: str, value: float, total: str) -> None:
    """A row whose sum is off by more than 1e-3 is refused with the sum and a way out."""
    path = write(tmp_path, suffix, with_value(3, 0, value))

    with raises_code("predictions_row_sum", match=place_pattern(suffix, 3) + f"probabilities sum to {total}; .*logits"):
        read_predictions(path)


def test_multi_label_rows_are_not_supported() -> None:
    """Separate probabilities of several labels are named as such; they are not rows to normalise."""
    sigmoids = 1.0 / (1.0 + np.exp(-np.random.default_rng(0).normal(size=(50, 6))))

    with raises_code("predictions_not_supported", match=r"row 0: .*Multi-label predictions are not supported"):
        from_arrays(sigmoids)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"values": [[31.5, 12.0, 0.5]] * 20}, "predictions_row_sum"),
        ({"values": np.random.default_rng(0).normal(size=(20, 3))}, "predictions_negative"),
        ({"values": np.random.default_rng(0).random((20, 1))}, "predictions_few_classes"),
        ({"values": GOOD, "labels": [0.5, 1.25, 2.0, 0.0, 1.0]}, "predictions_label_value"),
        ({"values": GOOD, "labels": np.eye(5, 3)}, "predictions_shape"),
    ],
    ids=["large", "negative", "one column", "fractions", "several labels"],
)
def test_regression_and_several_labels_are_not_supported(arguments: dict[str, Any], code: str) -> None:
    """The message of each defect says so."""
    with raises_code(code, match="not supported"):
        from_arrays(**arguments)


@pytest.mark.parametrize("suffix", FORMATS)
def test_minus_infinity_among_logits_has_advice(tmp_path: Path, suffix: str) -> None:
    """An infinite logit is refused with what to write instead."""
    path = write(tmp_path, suffix, with_value(1, 2, float("-inf")), kind="logits")

    with raises_code("predictions_not_finite", match=r"row 1.*value is -inf; .*-10000"):
        read_predictions(path, kind="logits")


@pytest.mark.parametrize(
    ("suffix", "advice"),
    [("npz", "name the array logits"), ("npy", 'kind="logits" .--logits'), ("csv", "name the columns logit_<class>")],
    ids=["npz", "npy", "csv"],
)
def test_logits_taken_for_probs_have_advice(tmp_path: Path, suffix: str, advice: str) -> None:
    """Logits given as probabilities are refused with the way this format says logits."""
    path = write(tmp_path, suffix, [[3.0, -1.0, 0.5]])

    with raises_code("predictions_negative", match=advice):
        read_predictions(path)


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet", "memory"])
@pytest.mark.parametrize(
    ("label", "code", "text"),
    [
        (3, "predictions_label_range", "label is 3; labels must be class indices 0..2"),
        (-1, "predictions_label_range", "label is -1"),
        (10**18, "predictions_label_range", f"label is {10**18}"),
        (1.5, "predictions_label_value", "label is 1.5"),
        (float("nan"), "predictions_label_value", "label is nan"),
        (
            "cow",
            "predictions_label_value",
            r"label is cow; labels must be class indices 0..2 or class names \(cat, dog, emu\)",
        ),
        ("Dgo", "predictions_label_value", r"label is Dgo; .* did you mean dog\?$"),
        ("", "predictions_label_value", "label is empty; .*Omit all labels"),
    ],
    ids=["high", "negative", "huge", "fraction", "nan", "unknown", "misspelt", "empty"],
)
def test_bad_labels_are_named(tmp_path: Path, suffix: str, label: Any, code: str, text: str) -> None:
    """A label that is no class is reported with its row."""
    labels = ["dog"] * 3 + [label, "cat"] if isinstance(label, str) else [1, 1, 1, label, 0]
    where = r"row 3( \(line 5\))?, (column label|array labels): "

    with raises_code(code, match=where + text):
        load(tmp_path, suffix, labels=labels)


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet", "memory"])
@pytest.mark.parametrize(
    ("ids", "code", "text"),
    [
        (["a", "b", "c", "d", "b"], "predictions_id_duplicate", "row 4.*: id 'b' is also the id of row 1"),
        (["a", "b", "c", "", "e"], "predictions_id_value", "row 3.*: the id is empty"),
    ],
    ids=["duplicate", "empty"],
)
def test_bad_ids_are_named(tmp_path: Path, suffix: str, ids: list[str], code: str, text: str) -> None:
    """An empty id is reported with its row, a duplicate with both rows."""
    with raises_code(code, match=text):
        load(tmp_path, suffix, ids=ids)


def test_duplicate_ids_are_found_across_chunks() -> None:
    """A whole read compares all ids, however far apart."""
    ids = [str(index) for index in range(20_000)]
    ids[19_999] = "5"

    with raises_code(
        "predictions_id_duplicate", match="row 19999, array ids: id '5' is also the id of row 5;"
    ) as caught:
        from_arrays(np.full((20_000, 2), 0.5), ids=ids)

    assert caught.value.details["first_row"] == 5


def test_iteration_compares_ids_within_a_chunk(tmp_path: Path) -> None:
    """Chunked reading finds a duplicate inside a chunk, with the right rows, and lets one across chunks pass."""
    path = write(tmp_path, "csv", GOOD, ids=["a", "b", "c", "a", "a"])

    first = next(iter_predictions(path, chunk_rows=2))

    assert first.ids == ("a", "b")
    assert len(list(iter_predictions(path, chunk_rows=1))) == 5
    with raises_code("predictions_id_duplicate", match=r"row 4 \(line 6\), column id: id 'a' is also the id of row 3;"):
        list(iter_predictions(path, chunk_rows=3))


@pytest.mark.parametrize(
    ("arrays", "code", "text"),
    [
        ({"y": GOOD}, "predictions_missing_data", "no array probs or logits; found y"),
        ({}, "predictions_missing_data", "found nothing"),
        ({"probs": GOOD[0]}, "predictions_shape", r"array probs: the array has shape \(3,\)"),
        ({"logits": [GOOD]}, "predictions_shape", r"array logits: the array has shape \(1, 5, 3\)"),
        ({"probs": 1.0}, "predictions_shape", r"shape \(\)"),
        ({"probs": [[1.0]]}, "predictions_few_classes", "classes is 1; predictions need at least 2"),
        ({"probs": np.ones((0, 3))}, "predictions_empty", "no rows"),
        ({"probs": [["a", "b"]]}, "predictions_not_numeric", "dtype <U1"),
        ({"probs": [[1j, 0]]}, "predictions_not_numeric", "dtype complex128"),
        ({"probs": GOOD, "labels": [0, 1]}, "predictions_label_length", "array labels: 2 labels for 5 rows"),
        ({"probs": GOOD, "labels": [[0]] * 5}, "predictions_shape", r"array labels: the array has shape \(5, 1\)"),
        (
            {"probs": GOOD, "labels": [1j] * 5},
            "predictions_label_value",
            "array labels: the array has dtype complex128",
        ),
        ({"probs": GOOD, "ids": ["a"]}, "predictions_id_length", "array ids: 1 ids for 5 rows"),
        ({"probs": GOOD, "ids": [0.5] * 5}, "predictions_id_value", "array ids: the array has dtype float64"),
        ({"probs": GOOD, "ids": ["a" * 2000] * 5}, "predictions_id_value", "8000 bytes each"),
        ({"probs": GOOD, "class_names": ["a", "b"]}, "predictions_class_names", "2 class_names for 3 classes"),
        ({"probs": GOOD, "class_names": ["a", "b", "a"]}, "predictions_class_names", "'a' is repeated"),
        ({"probs": GOOD, "class_names": ["a", "b", ""]}, "predictions_class_names", "'' is empty"),
        ({"probs": GOOD, "class_names": [[1], [2], [3]]}, "predictions_shape", r"array class_names.*\(3, 1\)"),
        ({"probs": GOOD, "class_names": [1.5, 2.5, 3.5]}, "predictions_class_names", "dtype float64"),
    ],
    ids=[
        "other array",
        "no array",
        "vector",
        "cube",
        "scalar",
        "one class",
        "no rows",
        "text",
        "complex",
        "few labels",
        "column of labels",
        "complex labels",
        "few ids",
        "float ids",
        "long ids",
        "few names",
        "repeated name",
        "empty name",
        "column of names",
        "float names",
    ],
)
def test_bad_archives_are_refused(tmp_path: Path, arrays: dict[str, Any], code: str, text: str) -> None:
    """Missing, misshapen and mistyped arrays of a .npz file are reported by name."""
    path = tmp_path / "predictions.npz"
    np.savez(path, **arrays)

    with raises_code(code, match=r"predictions\.npz.*" + text):
        read_predictions(path)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ({"values": GOOD[0]}, "predictions_shape", r"array probs: .*\(3,\)"),
        ({"values": [[1.0], [0.5, 0.5]]}, "predictions_shape", "the rows differ in length"),
        ({"values": [[1.0]]}, "predictions_few_classes", "number of classes is 1"),
        ({"values": np.ones((0, 3))}, "predictions_empty", "no rows"),
        ({"values": [[None, 1.0]]}, "predictions_not_numeric", "dtype object"),
        ({"values": GOOD, "labels": [0]}, "predictions_label_length", "1 labels for 5 rows"),
        (
            {"values": GOOD, "labels": ["cat", None, "cat", "dog", "emu"]},
            "predictions_label_value",
            "row 1.*label is empty",
        ),
        ({"values": GOOD, "ids": ["a"]}, "predictions_id_length", "1 ids for 5 rows"),
        ({"values": GOOD, "class_names": ["a"]}, "predictions_class_names", "1 class_names for 3 classes"),
        ({"values": with_value(4, 2, -1.0)}, "predictions_negative", 'row 4, class 2: .*kind="logits"'),
    ],
    ids=[
        "vector",
        "ragged",
        "one class",
        "no rows",
        "objects",
        "few labels",
        "missing label",
        "few ids",
        "few names",
        "negative",
    ],
)
def test_bad_arrays_are_refused(arguments: dict[str, Any], code: str, text: str) -> None:
    """Arrays in memory are checked by the rules for files, under the name given to them."""
    names = arguments.get("class_names", NAMES if "labels" in arguments else None)

    with raises_code(code, match="^memory.*" + text):
        from_arrays(**{**arguments, "class_names": names}, source="memory")


@pytest.mark.parametrize(
    ("array", "code", "text"),
    [
        (GOOD[0], "predictions_shape", r"shape \(3,\)"),
        ([[1.0]], "predictions_few_classes", "number of classes is 1"),
        (np.ones((0, 3)), "predictions_empty", "no rows"),
        (np.ones((3, 0)), "predictions_few_classes", "number of classes is 0"),
        ([["a", "b"]], "predictions_not_numeric", "dtype <U1"),
        (np.zeros(2, dtype=[("a", "f4")]), "predictions_shape", r"shape \(2,\)"),
        (np.zeros((2, 2), dtype=[("a", "f4")]), "predictions_not_numeric", "real numbers"),
    ],
    ids=["vector", "one class", "no rows", "no classes", "text", "records", "matrix of records"],
)
def test_bad_npy_files_are_refused(tmp_path: Path, array: Any, code: str, text: str) -> None:
    """A .npy file that is no matrix of numbers is refused."""
    path = tmp_path / "predictions.npy"
    np.save(path, np.array(array))

    with raises_code(code, match=r"predictions\.npy.*" + text):
        read_predictions(path)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("a,b\n1,2\n", "predictions_missing_data", "no columns prob_<class> or logit_<class>; found a, b"),
        ("prob_a;prob_b\n1;x\n", "predictions_not_numeric", r"row 0 \(line 2\), column prob_b: cell is 'x'"),
        ("\n", "predictions_missing_data", "found nothing"),
        ("prob_a,prob_b\n", "predictions_empty", "no rows"),
        ("prob_a,prob_b\n\n\n", "predictions_empty", "no rows"),
        ("prob_a\n1\n", "predictions_few_classes", "number of classes is 1"),
        ("prob_a,prob_a\n1,0\n", "predictions_class_names", "column prob_a: class name 'a' is repeated"),
        ("prob_,prob_a\n1,0\n", "predictions_class_names", "column prob_: class name '' is empty"),
        ("prob_a,prob_b,id,id\n1,0,x,y\n", "predictions_class_names", "column id: the column occurs twice"),
        ("prob_a,prob_b\n1,0\n\n1\n", "predictions_ragged_row", r"row 1 \(line 4\): 1 cells where the header has 2"),
        ("prob_a,prob_b\n1,0\n1,0,0\n", "predictions_ragged_row", r"row 1 \(line 3\): 3 cells"),
        ("prob_a,prob_b\n1,0\n1,x\n", "predictions_not_numeric", r"row 1 \(line 3\), column prob_b: cell is 'x'"),
        ("prob_a,prob_b\n1,0\n,1\n", "predictions_not_numeric", r"row 1 \(line 3\), column prob_a: cell is empty"),
        ('prob_a,prob_b,n\n1,0,"two\nlines"\n1,x,n\n', "predictions_not_numeric", r"row 1 \(line 4\), column prob_b"),
        ("prob_a,prob_b\n1,0\n1,\udcff\n", "predictions_damaged", "UnicodeDecodeError"),
        ("prob_a,prob_b\n1,0\n1," + "0" * 200_000, "predictions_damaged", "field larger"),
    ],
    ids=[
        "other columns",
        "semicolons",
        "blank header",
        "no rows",
        "blank rows",
        "one class",
        "repeated class",
        "unnamed class",
        "two ids",
        "short row",
        "long row",
        "text cell",
        "empty cell",
        "after line break",
        "not utf-8",
        "huge cell",
    ],
)
def test_bad_csv_files_are_refused(tmp_path: Path, text: str, code: str, message: str) -> None:
    """Header and cells of a csv file are checked, and lines counted past blanks and quoted line breaks."""
    path = tmp_path / "predictions.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))

    with raises_code(code, match=r"predictions\.csv.*" + message):
        read_predictions(path)


@pytest.mark.parametrize(
    ("columns", "code", "message"),
    [
        ({"a": [1.0]}, "predictions_missing_data", "no columns prob_<class> or logit_<class>; found a"),
        ({"prob_a": [1.0]}, "predictions_few_classes", "number of classes is 1"),
        ({"prob_a": [], "prob_b": []}, "predictions_empty", "no rows"),
        (
            {"prob_a": ["x"], "prob_b": [0.0]},
            "predictions_not_numeric",
            "column prob_a: the column has dtype object",
        ),
        ({"prob_a": [1.0, None], "prob_b": [0.0, 1.0]}, "predictions_not_finite", "row 1, column prob_a: value is nan"),
        (
            {"prob_a": [1.0], "prob_b": [0.0], "label": [None]},
            "predictions_label_value",
            "row 0, column label: label is empty",
        ),
        ({"prob_a": [1.0], "prob_b": [0.0], "id": [None]}, "predictions_id_value", "row 0, column id: the id is empty"),
        ({"prob_a": [1.0], "prob_b": [0.0], "label": [b"\xff"]}, "predictions_damaged", "UnicodeDecodeError"),
    ],
    ids=["other columns", "one class", "no rows", "text", "null", "null label", "null id", "undecodable label"],
)
def test_bad_parquet_files_are_refused(tmp_path: Path, columns: dict[str, Any], code: str, message: str) -> None:
    """Columns and nulls of a parquet file are checked."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "predictions.parquet"
    parquet.write_table(arrow.table(columns), path)

    with raises_code(code, match=r"predictions\.parquet.*" + message):
        read_predictions(path)


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_kind_must_be_in_the_file(tmp_path: Path, suffix: str) -> None:
    """Asking for logits of a file that names only probabilities is refused."""
    path = write(tmp_path, suffix, GOOD)

    with raises_code("predictions_missing_data", match=r"no (array logits|columns logit_<class>); found"):
        read_predictions(path, kind="logits")


def test_parquet_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow a parquet file is refused with the command that helps."""
    path = tmp_path / "predictions.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    with raises_code("predictions_missing_extra", match=r"pip install 'darksight\[parquet\]'"):
        read_predictions(path)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("reader", [read_predictions, iter_predictions], ids=["whole", "chunks"])
def test_wrong_paths_are_refused_at_once(tmp_path: Path, suffix: str, reader: Callable[[Path], object]) -> None:
    """A missing file, a directory and an unknown extension are refused before anything is read."""
    folder = tmp_path / f"folder.{suffix}"
    folder.mkdir()

    with raises_code("predictions_file_missing", match=rf"nowhere\.{suffix}: the file does not exist"):
        reader(tmp_path / f"nowhere.{suffix}")
    with raises_code("predictions_directory", match=rf"folder\.{suffix}: this is a directory"):
        reader(folder)
    with raises_code(
        "predictions_unknown_format", match=r"extension '.*\.bz2'; predictions files end in \.npz, \.npy, \.csv"
    ):
        reader(tmp_path / f"p.{suffix}.bz2")
    with raises_code("predictions_unknown_format", match="p: no extension"):
        reader(tmp_path / "p")


@pytest.mark.parametrize("separator", [";", "\t"], ids=["semicolon", "tab"])
def test_other_separators_bring_a_decimal_comma(tmp_path: Path, separator: str) -> None:
    """Cells may be separated by semicolons or tabs, as spreadsheets write them where numbers have a comma."""
    path = tmp_path / "p.csv"
    lines = (["prob_a", "prob_b", "label"], ["0,25", "0.75", "b"])
    path.write_text("".join(separator.join(line) + "\n" for line in lines))

    result = read_predictions(path)

    assert (result.probs.tolist(), result.labels.tolist()) == ([[0.25, 0.75]], [1])


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_compressed_text_is_read(tmp_path: Path, suffix: str) -> None:
    """A .csv.gz or .jsonl.gz file has the rows of the file in it; one that is not gzip or is cut off is damaged."""
    plain = write(tmp_path, suffix, GOOD, labels=[*NAMES, "cat", "dog"])
    packed = tmp_path / f"p.{suffix}.GZ"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    bad = {name: tmp_path / f"{name}.{suffix}.gz" for name in ("plain", "short")}
    bad["plain"].write_bytes(plain.read_bytes())
    bad["short"].write_bytes(packed.read_bytes()[:-20])

    result = read_predictions(packed)

    assert result.probs.tolist() == read_predictions(plain).probs.tolist()
    for path in bad.values():
        with raises_code("predictions_damaged", match=path.name):
            read_predictions(path)


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet", "jsonl"])
def test_probabilities_named_logits_are_refused(tmp_path: Path, suffix: str) -> None:
    """Logits that are non-negative and sum to one in every row are probabilities, unless kind says otherwise."""
    path = write(tmp_path, suffix, GOOD, kind="logits")

    with raises_code("predictions_logits_sum", match=r"predictions\..*so these are probabilities.*--logits"):
        read_predictions(path)
    assert len(read_predictions(path, kind="logits")) == len(GOOD)
    assert len(read_predictions(write(tmp_path, suffix, with_value(0, 0, 9.0), kind="logits"))) == len(GOOD)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_that_is_no_class_is_named(tmp_path: Path, suffix: str) -> None:
    """If all rows sum to one without one column, such as prob_sum, the message names that column."""
    path = write(tmp_path, suffix, [[*row, 1.0] for row in GOOD], names=(*NAMES, "sum"))

    with raises_code("predictions_row_sum", match="column prob_sum: .*Without this column every row sums to 1"):
        read_predictions(path)


@pytest.mark.parametrize("name", ["probs", "prob_all", "logits"])
def test_list_columns_of_parquet_are_named(tmp_path: Path, name: str) -> None:
    """A column of lists is refused for what it is."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"id": ["a", "b"], name: GOOD[:2]}), tmp_path / "p.parquet")

    with raises_code("predictions_missing_data", match=f"column {name}: the column holds lists; write one column"):
        read_predictions(tmp_path / "p.parquet")


@pytest.mark.parametrize("reader", [read_predictions, lambda path, **extra: next(iter_predictions(path, **extra))])
@pytest.mark.parametrize("labels", [[2, 0, 1, 1, 0], ["emu", "cat", "dog", "dog", "cat"]], ids=["indices", "names"])
@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet", "jsonl"])
def test_classes_come_in_the_wanted_order(
    tmp_path: Path, suffix: str, labels: list[Any], reader: Callable[..., Predictions]
) -> None:
    """Named columns, and labels with them, are reordered; a missing class is named."""
    path = write(tmp_path, suffix, GOOD, labels=labels)

    result = reader(path, class_names=("emu", "cat", "dog"))

    assert result.class_names == ("emu", "cat", "dog")
    assert result.probs.tolist() == [[c, a, b] for a, b, c in GOOD]
    assert result.labels.tolist() == [0, 1, 2, 2, 1]
    with raises_code("predictions_class_names", match="'cat' is not a class of the bundle"):
        reader(path, class_names=("emu", "dog", "fox"))


@pytest.mark.parametrize("labels", [[2, 0, 1, 1, 0], ["emu", "cat", "dog", "dog", "cat"]], ids=["indices", "names"])
def test_a_file_without_names_takes_the_wanted_ones(tmp_path: Path, labels: list[Any]) -> None:
    """Labels by name need no class_names in the archive if the classes are known."""
    path = write(tmp_path, "npz", GOOD, labels=labels, names=None)

    result = read_predictions(path, class_names=NAMES)

    assert (result.class_names, result.labels.tolist()) == (NAMES, [2, 0, 1, 1, 0])


def test_unreadable_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may not be opened is refused with the system's reason."""
    path = write(tmp_path, "npz", GOOD)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", refuse)

    with raises_code("predictions_file_unreadable", match=r"predictions\.npz: .*Permission denied"):
        read_predictions(path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_empty_files_are_refused(tmp_path: Path, suffix: str) -> None:
    """A file without a byte is called empty, not damaged."""
    path = tmp_path / f"predictions.{suffix}"
    path.touch()

    with raises_code("predictions_empty", match=rf"predictions\.{suffix}: the file has no content"):
        read_predictions(path)


@pytest.mark.parametrize("suffix", ["npz", "npy", "parquet"])
def test_other_content_is_called_damaged(tmp_path: Path, suffix: str) -> None:
    """A file of another format under our extension is refused."""
    path = tmp_path / f"predictions.{suffix}"
    path.write_text("prob_a,prob_b\n1,0\n")

    with raises_code(
        "predictions_damaged", match=rf"predictions\.{suffix}: the file is damaged, truncated or of another"
    ):
        read_predictions(path)


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    """An unknown kind and an impossible chunk are configuration errors."""
    path = write(tmp_path, "npz", GOOD)

    with pytest.raises(ConfigError, match="kind must be"):
        read_predictions(path, kind="scores")  # type: ignore[arg-type]  # the wrong value is the point
    with pytest.raises(ConfigError, match="chunk_rows must be at least 1"):
        iter_predictions(path, chunk_rows=0)


class Bomb:
    """Unpickling this leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["probs", "logits", "labels", "ids", "class_names", "npy"])
def test_pickles_are_refused_and_never_run(tmp_path: Path, name: str) -> None:
    """An object array, which numpy would unpickle, is refused by name and its code does not run."""
    trap = tmp_path / "trap"
    bombs = np.array([[Bomb(trap), Bomb(trap)]] * 2, dtype=object)
    path = tmp_path / ("predictions.npy" if name == "npy" else "predictions.npz")
    if name == "npy":
        np.save(path, bombs, allow_pickle=True)
    else:
        np.savez(path, **{"probs": [[0.5, 0.5]] * 2, name: bombs})

    with raises_code("predictions_pickled", match="array (probs|" + name + "): .*not unpickled"):
        read_predictions(path)

    assert not trap.exists()


def test_changed_data_fails_its_checksum(tmp_path: Path) -> None:
    """A stored archive whose numbers were changed to other good numbers is refused before the last chunk is given."""
    path = write(tmp_path, "npz", [[0.25, 0.75]] * 10, names=None, compressed=False)
    data = path.read_bytes()
    row = np.array([0.25, 0.75]).tobytes()
    path.write_bytes(data.replace(row, np.array([0.75, 0.25]).tobytes(), 1))

    with raises_code("predictions_damaged", match="Bad CRC-32"):
        list(iter_predictions(path, chunk_rows=10))


def test_header_may_not_promise_more_than_there_is(tmp_path: Path) -> None:
    """A header with an absurd shape is refused without allocating it."""
    path = tmp_path / "predictions.npz"
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": (10**15, 10)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("probs.npy", member.getvalue() + bytes(40))

    with raises_code("predictions_damaged", match="array probs: 40 bytes of data where shape"):
        read_predictions(path)


def damaged(data: bytes, rng: np.random.Generator, how: str) -> bytes:
    """The bytes cut somewhere, or with one to four of them changed."""
    if how == "cut":
        return data[: rng.integers(1, len(data))]
    changed = bytearray(data)
    for place in rng.integers(0, len(data), size=rng.integers(1, 5)):
        changed[place] ^= int(rng.integers(1, 256))
    return bytes(changed)


@pytest.mark.parametrize("how", ["cut", "flip"])
@pytest.mark.parametrize("suffix", FORMATS)
def test_damage_raises_nothing_unforeseen(tmp_path: Path, suffix: str, how: str) -> None:
    """Whatever bytes are lost or changed, the file loads as valid rows or is refused with a PredictionsError."""
    rng = np.random.default_rng(len(suffix) + len(how))
    path = write(tmp_path, suffix, GOOD, labels=[0, 1, 2, 1, 0], ids=list("abcde"))
    whole = path.read_bytes()
    refused = loaded = 0

    for _ in range(200):
        path.write_bytes(damaged(whole, rng, how))
        try:
            sums = read_predictions(path).probs.sum(axis=1)
        except PredictionsError as error:
            refused += str(path) in str(error)
        else:
            loaded += 1
            np.testing.assert_allclose(sums, 1.0, atol=1e-5)

    assert refused + loaded == 200
    assert loaded == 0 or how == "flip" or suffix in ("csv", "jsonl")


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("npz", {}),
        ("npz", {"fortran": True}),
        ("npz", {"kind": "logits"}),
        ("npy", {}),
        ("npy", {"fortran": True, "dtype": np.float64}),
        ("memory", {}),
    ],
    ids=["npz", "npz by columns", "npz logits", "npy", "npy by columns in float64", "memory"],
)
def test_reading_holds_one_copy(tmp_path: Path, suffix: str, options: dict[str, Any]) -> None:
    """The peak of memory while reading 400,000 rows of ten is the result, a little growth and a chunk."""
    values = np.eye(10, dtype=np.float32)[np.arange(400_000) % 10]
    path = None if suffix == "memory" else write(tmp_path, suffix, values, names=None, **options)
    tracemalloc.start()

    result = from_arrays(values) if path is None else read_predictions(path, kind=options.get("kind"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1.7 * result.probs.nbytes


def test_csv_holds_one_copy(tmp_path: Path) -> None:
    """The text of a csv file is not held as a whole either."""
    path = tmp_path / "predictions.csv"
    with path.open("w") as file:
        file.write(",".join(f"prob_{index}" for index in range(10)) + "\n")
        file.writelines([",".join(["0.1"] * 10) + "\n"] * 50_000)
    tracemalloc.start()

    result = read_predictions(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(result) == 50_000
    assert peak < 1.2 * result.probs.nbytes + 16e6


def test_iteration_holds_one_chunk(tmp_path: Path) -> None:
    """Memory of chunked reading depends on the chunk, not on the file."""
    path = write(tmp_path, "npz", np.full((200_000, 10), 0.1, dtype=np.float32), names=None)
    tracemalloc.start()

    n_rows = sum(len(chunk) for chunk in iter_predictions(path, chunk_rows=2_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert n_rows == 200_000
    assert peak < 2e6
