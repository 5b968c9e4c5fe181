"""JSON lines: lists of numbers, what is ignored, and how defects name the line."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from darksight_core.predictions import iter_lines, read_predictions
from darksight_core.predictions.lines import _MAX_LINE
from tests.support.errors import raises_code


def read(text: str, tmp_path: Path, **options: object) -> object:
    """The predictions of a file with this text."""
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    return read_predictions(path, **options)  # type: ignore[arg-type]


def test_lists_of_numbers_with_ids_and_labels(tmp_path: Path) -> None:
    """Other members and blank lines are ignored."""
    text = '{"probs": [0.25, 0.75], "id": 7, "label": 1, "model": "a"}\n\n{"id": "b", "probs": [1, 0], "label": "0"}\n'

    found = read(text, tmp_path)

    assert found.probs.tolist() == [[0.25, 0.75], [1.0, 0.0]]  # type: ignore[attr-defined]
    assert (found.ids, found.labels.tolist()) == (("7", "b"), [1, 0])  # type: ignore[attr-defined]


def test_logits_are_preferred_unless_probs_are_asked_for(tmp_path: Path) -> None:
    """As in tables."""
    text = '{"probs": [0.5, 0.5], "logits": [1.0, 0.0]}\n'

    assert read(text, tmp_path).probs[0, 0] > 0.7  # type: ignore[attr-defined]
    assert read(text, tmp_path, kind="probs").probs[0, 0] == 0.5  # type: ignore[attr-defined]


def test_a_stream_is_read_in_chunks() -> None:
    """As a file is; nothing is read twice."""
    stream = io.BytesIO(b'{"probs": [0.5, 0.5]}\n' * 5)

    chunks = list(iter_lines(stream, source="stdin", chunk_rows=2))

    assert [len(chunk) for chunk in chunks] == [2, 2, 1]
    assert np.concatenate([chunk.probs for chunk in chunks]).shape == (5, 2)


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("{", "predictions_damaged", "is not JSON"),
        ("[0.5, 0.5]", "predictions_damaged", "not a JSON object"),
        ('"' + "x" * _MAX_LINE + '"', "predictions_damaged", "more than"),
        ('{"probs": [0.5]}', "predictions_ragged_row", "1 values of probs where the first line has 2"),
        ('{"prob_a": 1}', "predictions_ragged_row", "no values of probs"),
        ('{"probs": [0.5, "a"]}', "predictions_not_numeric", "class 1: value is 'a'"),
        ('{"probs": [null, 1]}', "predictions_not_numeric", "class 0: value is 'None'"),
        ('{"probs": [true, false]}', "predictions_not_numeric", "class 0: value is 'True'"),
        ('{"probs": [1, ' + "9" * 400 + "]}", "predictions_not_numeric", "class 1: value is '999"),
        ('{"probs": [0.5, 0.9]}', "predictions_row_sum", "sum to 1.4"),
    ],
)
def test_defects_name_file_row_and_line(tmp_path: Path, line: str, code: str, text: str) -> None:
    """Blank lines count as lines and not as rows."""
    with raises_code(code, match=rf"log\.jsonl, row 1 \(line 3\).*{text}"):
        read('{"probs": [0.5, 0.5]}\n\n' + line + "\n", tmp_path)


def test_a_first_line_without_predictions_names_what_is_needed(tmp_path: Path) -> None:
    """With what was found."""
    with raises_code("predictions_missing_data", match=r"\(line 1\): no list probs or logits .*; found score, id"):
        read('{"score": 1, "id": 2}\n', tmp_path)
