"""Rows of JSON lines: an object per line, as logs and `pandas.DataFrame.to_json(lines=True)` have them.

An object has `probs` or `logits`, a list of numbers, or the columns of a table, `prob_<class>` or `logit_<class>`, or
it is a response of a language model (`tokens`); and optionally `label`, `id` and `tag_<key>`. Other members are
ignored, and so are blank lines. All lines have the form of the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import IO, Any

import numpy as np

from darksight_core.errors import PredictionsError
from darksight_core.predictions.defects import defect
from darksight_core.predictions.raw_rows import Kind, Layout, RawRows, plain_text
from darksight_core.predictions.sizes import rows_of_chunk
from darksight_core.predictions.tables import table_layout, tag_columns
from darksight_core.predictions.tokens import TOKENS_BYTES, TokenClasses, token_layout
from darksight_core.rows.tokens import answer_positions

__all__ = ["line_rows"]

_MAX_LINE = 1 << 24
# A number as a Python object, with its place in a list.
_NUMBER_BYTES = 40
_LISTS: tuple[Kind, ...] = ("logits", "probs")

_Line = tuple[int, dict[str, Any]]


def line_rows(
    file: IO[bytes], *, source: str, kind: Kind | None, chunk_rows: int, classes: TokenClasses = ()
) -> Iterator[RawRows]:
    """Rows of a file of JSON lines in UTF-8; `classes` are those of tokens, if the first line has none."""
    lines = _objects(file, source)
    first = next(lines, None)
    if first is None:
        return
    layout, member = _layout(first, kind, source, classes)
    tags = tag_columns(list(first[1]))
    chunk_rows = rows_of_chunk(chunk_rows, TOKENS_BYTES if layout.has_tokens else _NUMBER_BYTES * len(layout.columns))
    first_row, chunk = 0, [first, *islice(lines, chunk_rows - 1)]
    while chunk:
        yield _rows(layout, member, tags, first_row, chunk)
        first_row += len(chunk)
        chunk = list(islice(lines, chunk_rows))


def _objects(file: IO[bytes], source: str) -> Iterator[_Line]:
    row = number = 0
    while text := file.readline(_MAX_LINE):
        number += 1
        if not text.strip():
            continue
        where: dict[str, Any] = {"row": row, "line": number}
        if len(text) == _MAX_LINE:
            raise defect("predictions_damaged", source, f"the line has more than {_MAX_LINE} bytes.", **where)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise defect(
                "predictions_damaged", source, f"the line is not JSON ({str(error)[:100]}).", **where
            ) from None
        if not isinstance(found, dict):
            raise defect("predictions_damaged", source, "the line is not a JSON object; write one per line.", **where)
        yield number, found
        row += 1


def _layout(first: _Line, kind: Kind | None, source: str, classes: TokenClasses) -> tuple[Layout, str]:
    """The layout, and the member with the list of numbers; empty if each class has a member of its own."""
    number, found = first
    if kind is None and answer_positions(found):
        return token_layout(found.get("class_names") or classes, source), ""
    for wanted in (kind,) if kind else _LISTS:
        values = found.get(wanted)
        if isinstance(values, list):
            names = tuple(map(str, range(len(values))))
            layout = Layout(
                source=source,
                is_logits=wanted == "logits",
                class_names=names,
                columns=tuple(f"class {name}" for name in names),
                label_column="label",
                id_column="id",
                logits_hint="If these are logits, name the member logits.",
            )
            return layout, wanted
    try:
        return table_layout(list(found), kind, source), ""
    except PredictionsError as error:
        if error.code != "predictions_missing_data":
            raise
        names_of = kind or "probs or logits"
        text = f"no list {names_of} and no members prob_<class> or logit_<class>; found {', '.join(list(found)[:12])}."
        raise defect("predictions_missing_data", source, text, row=0, line=number) from None


def _rows(layout: Layout, member: str, tags: Mapping[str, str], first_row: int, chunk: list[_Line]) -> RawRows:
    columns = [column.removeprefix("column ") for column in layout.columns]
    values = np.empty((len(chunk), len(columns)))
    if layout.has_tokens:
        positions = ((*answer_positions(found), None)[0] for _, found in chunk)
        values = np.fromiter(positions, dtype=object, count=len(chunk))
    for row, (line, found) in enumerate(() if layout.has_tokens else chunk):
        where: dict[str, Any] = {"row": first_row + row, "line": line}
        cells = found.get(member) if member else [found.get(name) for name in columns]
        if not isinstance(cells, list) or len(cells) != len(columns):
            count = len(cells) if isinstance(cells, list) else "no"
            text = f"{count} values of {member} where the first line has {len(columns)}; write every value."
            raise defect("predictions_ragged_row", layout.source, text, **where)
        try:
            if any(type(cell) not in (int, float) for cell in cells):
                raise ValueError
            values[row] = cells
        except (ValueError, OverflowError):
            index = next((k for k, cell in enumerate(cells) if not _is_number(cell)), 0)
            text = f"value is {str(cells[index])[:40]!r}; predictions must be numbers such as 0.25."
            raise defect(
                "predictions_not_numeric", layout.source, text, column=layout.columns[index], **where
            ) from None
    return RawRows(
        layout,
        first_row,
        values,
        _texts("label", chunk),
        _texts("id", chunk),
        [line for line, _ in chunk],
        {key: [plain_text(found.get(name)) for _, found in chunk] for name, key in tags.items()},
    )


def _is_number(cell: Any) -> bool:
    try:
        return type(cell) in (int, float) and float(cell) is not None
    except OverflowError:
        return False


def _texts(name: str, chunk: list[_Line]) -> list[str] | None:
    if not any(name in found for _, found in chunk):
        return None
    return [plain_text(found.get(name)) for _, found in chunk]
