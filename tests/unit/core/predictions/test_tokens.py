"""Files with tokens of language models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from darksight_core.errors import PredictionsError
from darksight_core.predictions import Dataset, iter_predictions, read_predictions

CLASSES = ("cat", "dog", "owl")
ROWS = [
    [{"token": "cat", "logprob": -0.2}, {"token": " Cat", "logprob": -2.5}, {"token": "The", "logprob": -3.0}],
    [{"token": "dog", "logprob": -0.1}, {"token": "cat", "logprob": -2.6}, {"token": "owl", "logprob": -5.0}],
    [{"token": "owl", "logprob": -0.7}, {"token": "dog", "logprob": -0.9}],
]
LABELS = ["cat", "dog", "dog"]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def lines_file(folder: Path) -> Path:
    """Log-probabilities of tokens, an object per line."""
    pairs = zip(ROWS, LABELS, strict=True)
    lines = [{"top_logprobs": row, "label": label, "id": f"row {n}"} for n, (row, label) in enumerate(pairs)]
    return write_lines(folder / "rows.jsonl", lines)


def responses_file(folder: Path) -> Path:
    """Whole responses of a server."""
    pairs = zip(ROWS, LABELS, strict=True)
    return write_lines(
        folder / "responses.jsonl",
        [
            {"id": f"row {n}", "choices": [{"logprobs": {"content": [{"top_logprobs": row}]}}], "label": label}
            for n, (row, label) in enumerate(pairs)
        ],
    )


def structs_file(folder: Path) -> Path:
    """One column of lists."""
    path = folder / "structs.parquet"
    columns = {"top_logprobs": ROWS, "label": LABELS, "id": ["row 0", "row 1", "row 2"]}
    parquet.write_table(arrow.table(columns), path)
    return path


@pytest.mark.parametrize("make", [lines_file, responses_file, structs_file])
def test_all_forms_give_the_same_rows(make: Any, tmp_path: Path) -> None:
    """Tokens of a class are added, and those of none are other."""
    found = read_predictions(make(tmp_path), class_names=CLASSES)

    assert found.top is not None
    assert found.top.classes.tolist() == [[0, -1, -1], [1, 0, 2], [2, 1, -1]]
    np.testing.assert_allclose(found.top.other, [np.exp(-3.0), 0.0, 0.0])
    np.testing.assert_allclose(found.probs.sum(axis=1), 1.0, rtol=1e-6)
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 1]
    assert found.ids == ("row 0", "row 1", "row 2")
    assert found.class_names == CLASSES


@pytest.mark.parametrize("make", [lines_file, structs_file])
def test_chunks_are_the_rows_of_the_file(make: Any, tmp_path: Path) -> None:
    """One after the other."""
    chunks = list(iter_predictions(make(tmp_path), class_names=CLASSES, chunk_rows=1))

    assert [chunk.top.classes[0, 0] for chunk in chunks if chunk.top is not None] == [0, 1, 2]


def test_classes_of_the_first_line(tmp_path: Path) -> None:
    """A file may name its classes, whose order the caller chooses."""
    path = write_lines(tmp_path / "a.jsonl", [{"class_names": ["dog", "cat"], "top_logprobs": ROWS[0]}])

    assert read_predictions(path).class_names == ("dog", "cat")
    assert read_predictions(path, class_names=["cat", "dog"]).top.classes[0, 0] == 0  # type: ignore[union-attr]  # has top


def test_several_parquet_files(tmp_path: Path) -> None:
    """They are one dataset."""
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths.append(structs_file(tmp_path / name))
    dataset = Dataset.open(paths, token_classes=CLASSES)

    found = dataset.read(range(2, 5))

    assert found is not None
    assert found.top is not None
    assert found.top.classes[:, 0].tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("lines", "code", "text"),
    [
        ([{"top_logprobs": ROWS[0]}], "predictions_class_names", "--classes"),
        ([{"class_names": "ab", "top_logprobs": ROWS[0]}], "predictions_class_names", "list class_names of texts"),
        ([{"class_names": ["a", 5], "top_logprobs": ROWS[0]}], "predictions_class_names", "list class_names of texts"),
        ([{"class_names": ["a"], "top_logprobs": ROWS[0]}], "predictions_few_classes", "at least 2"),
        ([{"class_names": CLASSES, "top_logprobs": ROWS[0]}, {}], "predictions_top_logprobs", r"row 1 \(line 2\)"),
        (
            [{"class_names": CLASSES, "top_logprobs": [{"token": "cat", "logprob": 1.0}]}],
            "predictions_top_logprobs",
            "logarithm",
        ),
        (
            [{"class_names": CLASSES, "top_logprobs": [{"token": "Sorry", "logprob": -0.1}]}],
            "predictions_top_logprobs",
            "no class is known",
        ),
    ],
)
def test_defects(lines: list[dict[str, Any]], code: str, text: str, tmp_path: Path) -> None:
    """Each is named with its row and line."""
    with pytest.raises(PredictionsError, match=text) as caught:
        read_predictions(write_lines(tmp_path / "a.jsonl", lines))

    assert caught.value.code == code
