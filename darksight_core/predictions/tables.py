"""Rows of `.csv` and `.parquet` files: columns `prob_<class>` or `logit_<class>`, optional `label`, `id`, `tag_<key>`.

Class names are the ends of the column names, in the order of the file; other columns are ignored. If both kinds of
columns exist, logits are read, because probabilities follow from them. A `.parquet` file may have tokens (`tokens`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import accumulate, chain, islice
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.predictions.defects import damage, defect
from darksight_core.predictions.raw_rows import Kind, Layout, RawRows, plain_text
from darksight_core.predictions.sizes import check_expansion, rows_of_chunk
from darksight_core.predictions.tokens import TOKENS_BYTES, TokenClasses, token_layout
from darksight_core.rows.tags import COLUMN_PREFIX

__all__ = ["csv_rows", "parquet_layout", "parquet_rows", "table_layout", "tag_columns"]

# A cell as a Python object.
_CELL_BYTES = 64

_TOKENS = "top_logprobs"
_PREFIXES: dict[Kind, str] = {"logits": "logit_", "probs": "prob_"}


def _columns(header: Sequence[str], kind: Kind | None, source: str) -> tuple[list[str], bool]:
    """Names of the columns with predictions, and whether they are logits."""
    for wanted in (kind,) if kind else _PREFIXES:
        columns = [name for name in header if name.startswith(_PREFIXES[wanted])]
        if columns:
            return columns, wanted == "logits"
    names = f"{_PREFIXES[kind]}<class>" if kind else "prob_<class> or logit_<class>"
    found = ", ".join(header[:12]) + (", …" if len(header) > 12 else "")
    text = f"no columns {names}; found {found or 'nothing'}. Name the columns of predictions {names}."
    raise defect("predictions_missing_data", source, text)


def table_layout(header: Sequence[str], kind: Kind | None, source: str, n_rows: int | None = None) -> Layout:
    """The layout of a table with these columns; refused if none of them has predictions."""
    columns, is_logits = _columns(header, kind, source)
    for name in ("label", "id", *tag_columns(header)):
        if list(header).count(name) > 1:
            raise defect(
                "predictions_class_names", source, "the column occurs twice; remove one.", column=f"column {name}"
            )
    return Layout(
        source=source,
        is_logits=is_logits,
        class_names=tuple(name.split("_", 1)[1] for name in columns),
        columns=tuple(f"column {name}" for name in columns),
        label_column="column label",
        id_column="column id",
        logits_hint="If these are logits, name the columns logit_<class>.",
        n_rows=n_rows,
    )


def tag_columns(header: Sequence[str]) -> dict[str, str]:
    """Keys of tags by column."""
    return {name: name.removeprefix(COLUMN_PREFIX) for name in header if name.startswith(COLUMN_PREFIX)}


def csv_rows(file: IO[bytes], *, source: str, kind: Kind | None, chunk_rows: int) -> Iterator[RawRows]:
    """Rows of a csv file in UTF-8 with a header and commas; blank lines are skipped.

    If the header has semicolons or tabs and no commas, these separate cells, and a number may have a decimal comma.
    """
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        with damage(source):
            first = text.readline()
            delimiter = next((each for each in ",;\t" if each in first), ",")
            reader = csv.reader(chain([first], text), delimiter=delimiter)
            header = [name.strip() for name in next(reader, [])]
        number = float if delimiter == "," else _decimal_comma
        layout = table_layout(header, kind, source, None)
        chunk_rows = rows_of_chunk(chunk_rows, _CELL_BYTES * len(header))
        records = ((reader.line_num, cells) for cells in reader if cells)
        first_row = 0
        while True:
            with damage(source):
                chunk = list(islice(records, chunk_rows))
            if not chunk:
                return
            yield _csv_chunk(layout, header, first_row, chunk, number)
            first_row += len(chunk)


def _csv_chunk(
    layout: Layout,
    header: list[str],
    first_row: int,
    chunk: list[tuple[int, list[str]]],
    number: Callable[[str], float],
) -> RawRows:
    for row, (line, cells) in enumerate(chunk):
        if len(cells) != len(header):
            text = f"{len(cells)} cells where the header has {len(header)}; quote separators and write every cell."
            raise defect("predictions_ragged_row", layout.source, text, row=first_row + row, line=line)
    lines = [line for line, _ in chunk]
    by_name = dict(zip(header, zip(*(cells for _, cells in chunk), strict=True), strict=True))
    values = np.empty((len(chunk), len(layout.columns)))
    for index, column in enumerate(layout.columns):
        cells_of = by_name[column.removeprefix("column ")]
        try:
            values[:, index] = np.fromiter(map(number, cells_of), dtype=np.float64, count=len(chunk))
        except ValueError:
            row, cell = next((row, cell) for row, cell in enumerate(cells_of) if not _is_number(cell, number))
            text = f"cell is {repr(cell) if cell else 'empty'}; predictions must be numbers such as 0.25."
            location = {"row": first_row + row, "line": lines[row]}
            raise defect("predictions_not_numeric", layout.source, text, column=column, **location) from None
    tags = {key: by_name[name] for name, key in tag_columns(header).items()}
    return RawRows(layout, first_row, values, by_name.get("label"), by_name.get("id"), lines, tags)


def _decimal_comma(cell: str) -> float:
    return float(cell.replace(",", "."))


def _is_number(cell: str, number: Callable[[str], float]) -> bool:
    try:
        number(cell)
    except ValueError:
        return False
    return True


def parquet_layout(
    file: IO[bytes], *, source: str, kind: Kind | None, classes: TokenClasses = ()
) -> tuple[Layout, Any]:
    """The layout of a parquet file, read from its footer, and the open file; `classes` are those of tokens."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        text = "parquet files need pyarrow, which is not installed. Run: pip install 'darksight[parquet]'"
        raise defect("predictions_missing_extra", source, text) from error
    with damage(source):
        # pre_buffer would hold all compressed columns of the file in memory.
        table = parquet.ParquetFile(file, pre_buffer=False)
        header, n_rows = list(table.schema_arrow.names), table.metadata.num_rows
        lists = [name for name in header if "list" in str(table.schema_arrow.field(name).type)]
        declared = sum(table.metadata.row_group(group).total_byte_size for group in range(table.num_row_groups))
        n_bytes = file.seek(0, 2)
    if kind is None and _TOKENS in lists:
        check_expansion(declared, n_bytes, source)
        return token_layout(classes, source, n_rows), table
    lists = [name for name in lists if name.startswith((*_PREFIXES, *_PREFIXES.values()))]
    if lists:
        text = (
            "the column holds lists; write one column prob_<class> or logit_<class> for each class, or a .jsonl file."
        )
        raise defect("predictions_missing_data", source, text, column=f"column {lists[0]}")
    layout = table_layout(header, kind, source, n_rows)
    check_expansion(max(declared, 4 * n_rows * len(layout.columns)), n_bytes, source)
    return layout, table


def parquet_rows(
    file: IO[bytes],
    *,
    source: str,
    kind: Kind | None,
    chunk_rows: int,
    rows: range | None = None,
    classes: TokenClasses = (),
) -> Iterator[RawRows]:
    """Rows of a parquet file in batches; with `rows`, only the row groups that hold some of them."""
    layout, table = parquet_layout(file, source=source, kind=kind, classes=classes)
    header = list(table.schema_arrow.names)
    chunk_rows = rows_of_chunk(chunk_rows, TOKENS_BYTES if layout.has_tokens else 8 * len(layout.columns))
    sizes = [table.metadata.row_group(group).num_rows for group in range(table.metadata.num_row_groups)]
    ends = list(accumulate(sizes))
    wanted = range(ends[-1] if ends else 0) if rows is None else rows
    groups = [
        group
        for group, (end, size) in enumerate(zip(ends, sizes, strict=True))
        if end > wanted.start and end - size < wanted.stop
    ]
    first_row = ends[groups[0]] - sizes[groups[0]] if groups else 0
    n_rows = first_row + sum(sizes[group] for group in groups)
    columns = [_TOKENS] if layout.has_tokens else [column.removeprefix("column ") for column in layout.columns]
    of_tags = tag_columns(header)
    extra = [*(name for name in ("label", "id") if name in header), *of_tags]
    with damage(source):
        batches = table.iter_batches(batch_size=chunk_rows, row_groups=groups, columns=columns + extra)
    while True:
        with damage(source):
            batch = next(batches, None)
            if batch is None:
                if first_row != n_rows:
                    raise EOFError(f"{first_row} rows instead of {n_rows}")
                return
            if layout.has_tokens:
                vectors = [np.fromiter(batch.column(_TOKENS).to_pylist(), dtype=object, count=len(batch))]
            else:
                vectors = [batch.column(name).to_numpy(zero_copy_only=False) for name in columns]
            texts = {name: list(map(plain_text, batch.column(name).to_pylist())) for name in extra}
        if len(batch):
            values = vectors[0]
            if not layout.has_tokens:
                pairs = zip(vectors, columns, strict=True)
                values = np.stack([_numbers(vector, name, source) for vector, name in pairs], 1)
            tags = {key: texts[name] for name, key in of_tags.items()}
            yield RawRows(layout, first_row, values, texts.get("label"), texts.get("id"), tags=tags)
        first_row += len(batch)


def _numbers(vector: NDArray[Any], name: str, source: str) -> NDArray[Any]:
    if vector.dtype.kind not in "biuf":
        text = f"the column has dtype {vector.dtype}; predictions must be real numbers."
        raise defect("predictions_not_numeric", source, text, column=f"column {name}")
    return vector
