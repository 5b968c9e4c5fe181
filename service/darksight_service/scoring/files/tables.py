"""Score files, written a chunk at a time: .npz, .csv, .parquet.

A file gets its name when it is complete. Until then its content is in a temporary file beside it, which is deleted if
anything fails.
"""

from __future__ import annotations

import csv
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
    with atomic(path) as partial, sinks[path.suffix](partial, partial.parent, first_row) as sink:
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
def _csv(path: Path, folder: Path, first: int) -> Iterator[ScoreSink]:
    with path.open("w", newline="", encoding="utf-8") as file:
        yield _CsvSink(file, first)


class _NpzSink(_Sink):
    """Writes each column to a file of its own, since the number of rows and the longest text are known at the end."""

    def __init__(self, folder: Path, stack: ExitStack, first: int) -> None:
        super().__init__(first)
        self._folder = folder
        self._stack = stack
        self._files: dict[str, IO[bytes]] = {}
        self._longest: dict[str, int] = {}
        self._kinds: dict[str, str] = {}

    def write(self, ids: Sequence[str] | None, columns: Mapping[str, NDArray[Any]]) -> None:
        names = self._names(ids, columns)
        for name, column in {**columns, "ids": np.array(names, dtype=str)}.items():
            if name not in self._files:
                self._files[name] = self._stack.enter_context((self._folder / f"{name}.raw").open("w+b"))
            if column.dtype.kind == "U":
                texts = [text.encode() for text in column.tolist()]
                self._longest[name] = max(self._longest.get(name, 1), column.dtype.itemsize // 4)
                self._files[name].write(b"".join(len(text).to_bytes(4, "little") + text for text in texts))
            else:
                self._kinds[name] = "<i8" if column.dtype.kind == "i" else "<f8"
                self._files[name].write(np.ascontiguousarray(column, dtype=self._kinds[name]).tobytes())

    def finish(self, path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, file in self._files.items():
                file.seek(0)
                dtype = f"<U{self._longest[name]}" if name in self._longest else self._kinds[name]
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    _write_header(member, dtype, self._rows)
                    for block in _texts(file, self._rows, dtype) if name in self._longest else _blocks(file):
                        member.write(block)


@contextmanager
def _npz(path: Path, folder: Path, first: int) -> Iterator[ScoreSink]:
    with ExitStack() as stack:
        sink = _NpzSink(folder, stack, first)
        yield sink
        sink.finish(path)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(1 << 20):
        yield block


def _texts(file: IO[bytes], rows: int, dtype: str) -> Iterator[bytes]:
    for start in range(0, rows, 10_000):
        count = min(10_000, rows - start)
        texts = [file.read(int.from_bytes(file.read(4), "little")).decode() for _ in range(count)]
        yield np.array(texts, dtype=dtype).tobytes()


def _write_header(member: IO[bytes], dtype: str, rows: int) -> None:
    header = {"descr": dtype, "fortran_order": False, "shape": (rows,)}
    np.lib.format.write_array_header_2_0(member, header)


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
def _parquet(path: Path, folder: Path, first: int) -> Iterator[ScoreSink]:
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
