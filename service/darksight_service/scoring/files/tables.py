"""Score files, written a chunk at a time: .npz, .csv, .parquet.

A file gets its name when it is complete. Until then its content is in a temporary file beside it, which is deleted if
anything fails.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_service.scoring.files.csv_text import csv_text

__all__ = ["ScoreSink", "atomic", "check_output", "open_scores", "read_columns"]


class ScoreSink(Protocol):
    """Where chunks of scores go."""

    def write(self, ids: Sequence[str] | None, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add one chunk: columns (n,) of numbers or texts, the same in every chunk; without ids rows are numbered."""


@contextmanager
def open_scores(path: Path, *, overwrite: bool = False, first_row: int = 0) -> Iterator[ScoreSink]:
    """A sink for scores in the format of the suffix of `path`. The file is complete after the block, or does not exist.

    Rows without ids are numbered from `first_row`.
    """
    sinks = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in sinks:
        raise ConfigError(f"{path}: scores can be written to .npz, .csv or .parquet, not {path.suffix or 'no suffix'}")
    check_output(path, overwrite=overwrite)
    with atomic(path) as partial, sinks[path.suffix](partial, first_row) as sink:
        yield sink


def check_output(path: Path, *, overwrite: bool = False) -> None:
    """ConfigError if a file cannot be written, before the work is done."""
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; name a file")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} already exists; use --overwrite or another name")
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent}: directory does not exist")


def read_columns(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The columns of a parquet file among these names."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        known = [name for name in names if name in file.schema_arrow.names]
        table = file.read(known)
    return {name: table.column(name).to_numpy() for name in known}


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A path to write to, in a directory of its own; after the block the file is renamed to `path`."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        partial = Path(folder, path.name)
        yield partial
        os.replace(partial, path)


class _Sink:
    """Counts the rows that were written, and names those without ids by their numbers."""

    def __init__(self, first: int) -> None:
        self._first, self._rows = first, 0

    def _names(self, ids: Sequence[str] | None, columns: Mapping[str, NDArray[Any]]) -> list[str]:
        start, count = self._first + self._rows, len(next(iter(columns.values())))
        self._rows += count
        return list(map(str, range(start, start + count))) if ids is None else list(ids)


class _CsvSink(_Sink):
    def __init__(self, file: IO[str], first: int) -> None:
        super().__init__(first)
        self._writer = csv.writer(file)

    def write(self, ids: Sequence[str] | None, columns: Mapping[str, NDArray[Any]]) -> None:
        if self._rows == 0:
            self._writer.writerow(("id", *columns))
        names = self._names(ids, columns)
        cells = (
            map(csv_text, column.tolist()) if column.dtype.kind == "U" else column.tolist()
            for column in columns.values()
        )
        self._writer.writerows(zip(map(csv_text, names), *cells, strict=True))


@contextmanager
def _csv(path: Path, first: int) -> Iterator[ScoreSink]:
    with path.open("w", newline="", encoding="utf-8") as file:
        yield _CsvSink(file, first)


class _NpzSink(_Sink):
    """Keeps all columns in memory: an array begins with its length and the size of its longest text."""

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self._columns: dict[str, list[NDArray[Any]]] = {}

    def write(self, ids: Sequence[str] | None, columns: Mapping[str, NDArray[Any]]) -> None:
        names = self._names(ids, columns)
        for name, column in {**columns, "ids": np.array(names, dtype=str)}.items():
            if column.dtype.kind != "U":
                column = column.astype("<i8" if column.dtype.kind == "i" else "<f8")
            self._columns.setdefault(name, []).append(column)

    def finish(self, path: Path) -> None:
        np.savez(path, allow_pickle=False, **{name: np.concatenate(parts) for name, parts in self._columns.items()})


@contextmanager
def _npz(path: Path, first: int) -> Iterator[ScoreSink]:
    sink = _NpzSink(first)
    yield sink
    sink.finish(path)


class _ParquetSink(_Sink):
    def __init__(self, path: Path, first: int) -> None:
        super().__init__(first)
        self._path = path
        self._writer: Any = None

    def write(self, ids: Sequence[str] | None, columns: Mapping[str, NDArray[Any]]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = self._names(ids, columns)
        block = pa.table({"id": pa.array(names, pa.string()), **{name: pa.array(c) for name, c in columns.items()}})
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, block.schema)
        self._writer.write_table(block)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@contextmanager
def _parquet(path: Path, first: int) -> Iterator[ScoreSink]:
    try:
        import pyarrow  # noqa: F401 - whether it is installed
    except ImportError as error:
        raise ConfigError(
            f"{path.name}: writing parquet needs pyarrow, which is not installed; run: pip install 'darksight[parquet]'"
        ) from error
    sink = _ParquetSink(path, first)
    try:
        yield sink
    finally:
        sink.close()
