"""Hostile prediction files and hostile texts in the files that we write."""

from __future__ import annotations

import csv
import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from darksight_service.scoring.files.arrays import read_array
from darksight_service.scoring.files.tables import open_scores

from darksight_core.errors import DarkSightError, PredictionsError
from darksight_core.predictions import iter_predictions, read_predictions
from tests.support.errors import raises_code

ROWS = np.full((4, 3), 1 / 3, dtype=np.float32)


def npy(shape: tuple[int, ...], dtype: str = "<f4", data: bytes = b"") -> bytes:
    """An npy file with any header."""
    file = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(file, header)
    return file.getvalue() + data


def peak_of(path: Path) -> int:
    """Most bytes that reading a file takes until it is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(PredictionsError):
            read_predictions(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("classes", [2**20, 2**40])
def test_an_empty_array_of_endless_rows_is_refused(tmp_path: Path, classes: int) -> None:
    """The number of classes is checked before there is a name for each."""
    path = tmp_path / "wide.npy"
    path.write_bytes(npy((0, classes)))

    with raises_code("predictions_many_classes", match="number of classes"):
        read_predictions(path)


def test_an_array_that_expands_without_end_is_refused(tmp_path: Path) -> None:
    """The size that an archive declares for its members is compared with its own."""
    path = tmp_path / "bomb.npz"
    member = npy((2**28, 3))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("probs.npy", member)
    declared, real = len(member) + 2**28 * 12, len(member)
    data = bytearray(path.read_bytes())
    start = data.index(b"PK\x01\x02")
    assert int.from_bytes(data[start + 24 : start + 28], "little") == real
    data[start + 24 : start + 28] = declared.to_bytes(4, "little")
    path.write_bytes(data)

    with raises_code("predictions_expansion", match="declares arrays of"):
        read_predictions(path)
    with pytest.raises(DarkSightError, match="declares arrays of"):
        read_array(path, "probs")


def test_long_class_names_are_not_read(tmp_path: Path) -> None:
    """Names are counted and measured before they are read."""
    path = tmp_path / "names.npz"
    np.savez_compressed(path, probs=ROWS, class_names=np.zeros(50_000, dtype="U256"))

    assert peak_of(path) < 5_000_000


def test_a_chunk_of_wide_rows_is_small(tmp_path: Path) -> None:
    """A chunk holds at most 64 MB, however many rows are asked for."""
    path = tmp_path / "wide.npy"
    rows = np.zeros((300, 32_768))
    rows[:, 0] = 1.0
    np.save(path, rows)

    assert [len(chunk) for chunk in iter_predictions(path)] == [256, 44]


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_text_that_cannot_be_stored_is_refused(tmp_path: Path, text: str) -> None:
    """NUL and lone surrogates end neither in a bundle nor in a database."""
    names, ids = tmp_path / "names.npz", tmp_path / "ids.npz"
    np.savez(names, probs=ROWS, class_names=np.array(["a", "b", text]))
    np.savez(ids, probs=ROWS, ids=np.array(["a", "b", "c", text]))

    with raises_code("predictions_class_names", match="NUL or a lone surrogate"):
        read_predictions(names)
    with raises_code("predictions_id_value", match="NUL or a lone surrogate"):
        read_predictions(ids)


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_inputs_of_explain_are_not_allocated_unseen(tmp_path: Path, name: str) -> None:
    """A header that promises more than the file has is refused before memory is taken."""
    path, data = tmp_path / name, npy((2**40,))
    if name.endswith(".npz"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("inputs.npy", data)
    else:
        path.write_bytes(data)

    with pytest.raises(DarkSightError):
        read_array(path, "inputs")


FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\n=1", "\t=1", "\r=1", " =1", "\uff1d1+1", "\uff0b1", "\uff0d1+1",
            "\uff201", "\ufeff=1", "\u200b=1", "\0=1"]  # fmt: skip
PLAIN = ["-5", "+1.5e-3", "id=1", "a", "", "7", "'=1"]


def test_scores_in_csv_are_no_formulas(tmp_path: Path) -> None:
    """Ids and texts that a spreadsheet would run get an apostrophe; numbers and other texts stay."""
    path = tmp_path / "scores.csv"
    texts: list[Any] = FORMULAS + PLAIN

    with open_scores(path) as sink:
        sink.write(texts, {"decision": np.array(texts), "p_value": np.full(len(texts), -0.5)})

    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(line.replace("\0", "<nul>") for line in file))
    expected = [f"'{text}".replace("\0", "<nul>") for text in FORMULAS] + PLAIN
    assert [row["id"] for row in rows] == expected
    assert [row["decision"].rstrip("<nul>") for row in rows] == [text.rstrip("<nul>") for text in expected]
    assert {row["p_value"] for row in rows} == {"-0.5"}
