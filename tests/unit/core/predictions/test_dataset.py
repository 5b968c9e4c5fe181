"""Stores: rows of many files by their number, and no more read than is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from darksight_core.errors import PredictionsError
from darksight_core.predictions import Dataset, find_files, read_predictions
from tests.support.builders import make_probs
from tests.support.errors import raises_code

PROBS = make_probs(1_000, 3)


def write(path: Path, rows: slice, **columns: object) -> None:
    """A file of these rows in groups of 100."""
    table = {f"prob_{k}": PROBS[rows, k] for k in range(3)} | {"label": PROBS[rows].argmax(axis=1)}
    pq.write_table(pa.table(table | columns), path, row_group_size=100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files."""
    write(tmp_path / "a.parquet", slice(0, 350))
    write(tmp_path / "b.parquet", slice(350, 1_000))
    return tmp_path


@pytest.mark.parametrize(
    "rows", [range(0, 1_000), range(120, 130), range(340, 360), range(349, 350), range(990, 1_000)]
)
def test_rows_are_found_by_their_number(folder: Path, rows: range) -> None:
    """Ranges within a file and across the seam, whole and in chunks."""
    dataset = Dataset.open(find_files([folder / "*.parquet"]))
    expected = read_predictions(folder / "a.parquet").probs, read_predictions(folder / "b.parquet").probs
    whole = np.concatenate(expected)

    found = dataset.read(rows)
    chunks = list(dataset.chunks(rows, 64))

    assert len(dataset) == 1_000
    assert found is not None
    np.testing.assert_array_equal(found.probs, whole[rows.start : rows.stop])
    assert found.labels is not None
    np.testing.assert_array_equal(found.labels, whole[rows.start : rows.stop].argmax(axis=1))
    np.testing.assert_array_equal(np.concatenate([chunk.probs for _, chunk in chunks]), found.probs)
    assert [start for start, _ in chunks] == np.cumsum([rows.start, *(len(chunk) for _, chunk in chunks[:-1])]).tolist()
    assert dataset.read(range(5, 5)) is None


def test_other_row_groups_are_not_read(folder: Path) -> None:
    """A file whose first row group is destroyed still gives the rows of the others, and not its own."""
    path = folder / "a.parquet"
    group = pq.ParquetFile(path).metadata.row_group(0)
    data = bytearray(path.read_bytes())
    start, size = group.column(0).dictionary_page_offset or group.column(0).data_page_offset, group.total_byte_size
    data[start : start + min(size, 200)] = bytes(min(size, 200))
    path.write_bytes(bytes(data))

    good = read_predictions(path, rows=range(100, 350))

    assert len(good) == 250
    with pytest.raises(PredictionsError):
        read_predictions(path, rows=range(50, 60))


def test_files_that_do_not_belong_together_are_refused(folder: Path) -> None:
    """Other classes, other formats and patterns of nothing are named."""
    pq.write_table(pa.table({"prob_x": [0.5], "prob_y": [0.5]}), folder / "c.parquet")

    with raises_code("predictions_class_names", match=r"c\.parquet.*differ from those of"):
        Dataset.open(find_files([folder / "*.parquet"]))
    with raises_code("predictions_unknown_format", match="must all be"):
        Dataset.open([folder / "a.parquet", folder / "d.csv"])
    with raises_code("predictions_file_missing", match="no file matches"):
        find_files([folder / "z*.parquet"])


def test_a_changed_file_has_another_fingerprint(folder: Path) -> None:
    """One value suffices; the same content does not change it."""
    (before,) = Dataset.open([folder / "a.parquet"]).files
    write(folder / "a.parquet", slice(0, 350))
    (same,) = Dataset.open([folder / "a.parquet"]).files
    write(folder / "a.parquet", slice(0, 350), label=np.r_[PROBS[:349].argmax(axis=1), 7])
    (after,) = Dataset.open([folder / "a.parquet"]).files

    assert same == before
    assert after.fingerprint != before.fingerprint


def test_tags_of_several_files_are_joined(folder: Path) -> None:
    """Rows of a file without a tag have none."""
    write(folder / "b.parquet", slice(350, 1_000), tag_camera=["7"] * 650)

    found = Dataset.open(find_files([folder / "*.parquet"])).read(range(345, 355))

    assert found is not None
    assert found.tags == {"camera": ("",) * 5 + ("7",) * 5}
