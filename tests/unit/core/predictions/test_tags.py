"""Tags of predictions in files and arrays."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from darksight_core.predictions import Predictions, from_arrays, iter_predictions, read_predictions
from tests.support.errors import raises_code

PROBS = np.array([[0.5, 0.5], [0.25, 0.75], [0.125, 0.875]])
CAMERA, CITY = ["7", "", "8"], ["Lyon", "Lyon", "Köln"]


def write(folder: Path, suffix: str, camera: list[str] = CAMERA) -> Path:
    """Three rows with two tags."""
    path = folder / f"rows.{suffix}"
    columns = {"prob_a": PROBS[:, 0], "prob_b": PROBS[:, 1], "tag_camera": camera, "tag_city": CITY}
    if suffix == "npz":
        np.savez(path, probs=PROBS, tag_camera=np.array(camera), tag_city=np.array(CITY))
    elif suffix == "parquet":
        pq.write_table(pa.table({**columns, "tag_camera": [each or None for each in camera]}), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_every_format_with_columns_has_tags(tmp_path: Path, suffix: str) -> None:
    """A column tag_<key> holds the values of a key; an empty cell is a row without it."""
    path = write(tmp_path, suffix)

    rows = read_predictions(path)

    assert rows.tags == {"camera": tuple(CAMERA), "city": tuple(CITY)}
    assert rows.tag_dicts() == [{"camera": "7", "city": "Lyon"}, {"city": "Lyon"}, {"camera": "8", "city": "Köln"}]
    assert [part.tags["city"] for part in iter_predictions(path, chunk_rows=2)] == [("Lyon", "Lyon"), ("Köln",)]


def test_rows_keep_their_tags_when_they_are_taken() -> None:
    """Also in another order."""
    rows: Predictions = from_arrays(PROBS, tags={"camera": CAMERA, "number": np.array([1, 2, 3])})

    assert rows.take([2, 0]).tags == {"camera": ("8", "7"), "number": ("3", "1")}
    assert from_arrays(PROBS).tag_dicts() == []


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_a_bad_tag_is_refused_with_its_row(tmp_path: Path, suffix: str) -> None:
    """A control character could fake a line of a log."""
    path = write(tmp_path, suffix, ["7", "a\u2028b", "8"])

    with raises_code("predictions_tag_value", match=r"row 1.*tag_camera: the value of camera has a control character"):
        read_predictions(path)


def test_tags_have_one_value_for_each_row() -> None:
    """And numbers or texts."""
    with raises_code("predictions_tag_value", match="2 tag_camera for 3 rows"):
        from_arrays(PROBS, tags={"camera": ["7", "8"]})
    with raises_code("predictions_tag_value", match="must be integers or text"):
        from_arrays(PROBS, tags={"camera": np.array([1.5, 2.5, 3.5])})
