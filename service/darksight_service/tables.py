"""Score columns to files, a chunk at a time: .npz, .csv, .parquet.

A file appears under its name when it is complete. Until then its content is in a temporary file beside it, which is
gone if anything fails.
"""

from __future__ import annotations

import csv
import os
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.scorer import Scores

__all__ = ["SCORE_COLUMNS", "ScoreSink", "atomic", "open_scores"]

SCORE_COLUMNS = ("x", "y", "log_density", "log_kde", "fidelity", "p_value")


class ScoreSink(Protocol):
    """Where chunks of scores go."""

    def write(self, ids: Sequence[str] | None, scores: Scores) -> None:
        """Add one chunk."""


@contextmanager
def open_scores(path: Path, *, overwrite: bool = False) -> Iterator[ScoreSink]:
    """A sink for scores in the format that `path` ends in; complete at the end of the block, or not there at all."""
    sinks = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in sinks:
        raise ConfigError(f"{path}: scores can be written to .npz, .csv or .parquet, not {path.suffix or 'no ending'}")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} is there already; use --overwrite or another name")
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent} is no folder; make it first")
    with atomic(path) as partial, sinks[path.suffix](partial, partial.parent) as sink:
        yield sink


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A place to write to, in a folder of its own; what is there at the end of the block becomes `path`."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        partial = Path(folder, path.name)
        yield partial
        os.replace(partial, path)


def _columns(scores: Scores) -> list[NDArray[Any]]:
    return [*scores.points.T, scores.log_density, scores.log_kde, scores.fidelity, scores.p_value]


class _CsvSink:
    def __init__(self, file: IO[str]) -> None:
        self._writer = csv.writer(file)
        self._rows = 0

    def write(self, ids: Sequence[str] | None, scores: Scores) -> None:
        if self._rows == 0:
            self._writer.writerow(("id", *SCORE_COLUMNS))
        names = ids if ids is not None else [str(self._rows + i) for i in range(len(scores))]
        self._writer.writerows(zip(names, *(column.tolist() for column in _columns(scores)), strict=True))
        self._rows += len(scores)


@contextmanager
def _csv(path: Path, folder: Path) -> Iterator[ScoreSink]:
    with path.open("w", newline="", encoding="utf-8") as file:
        yield _CsvSink(file)


class _NpzSink:
    """Each column goes to a file of raw values; their number is known at the end, when the headers are written."""

    def __init__(self, files: Sequence[IO[bytes]], ids: IO[bytes]) -> None:
        self._files = files
        self._ids = ids
        self.rows = 0
        self.id_length = 0

    def write(self, ids: Sequence[str] | None, scores: Scores) -> None:
        for file, column in zip(self._files, _columns(scores), strict=True):
            file.write(np.ascontiguousarray(column, dtype="<f8").tobytes())
        names = ids if ids is not None else [str(self.rows + i) for i in range(len(scores))]
        encoded = [name.encode() for name in names]
        self._ids.write(b"".join(len(name).to_bytes(4, "little") + name for name in encoded))
        self.id_length = max([self.id_length, *(len(name) for name in names)])
        self.rows += len(scores)


@contextmanager
def _npz(path: Path, folder: Path) -> Iterator[ScoreSink]:
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("w+b")) for name in SCORE_COLUMNS]
        ids = stack.enter_context((folder / "id").open("w+b"))
        sink = _NpzSink(files, ids)
        yield sink
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, file in zip(SCORE_COLUMNS, files, strict=True):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    _write_header(member, "<f8", sink.rows)
                    file.seek(0)
                    while block := file.read(1 << 20):
                        member.write(block)
            with archive.open("ids.npy", "w", force_zip64=True) as member:
                _write_header(member, f"<U{max(1, sink.id_length)}", sink.rows)
                for block in _id_blocks(ids, sink):
                    member.write(block)


def _id_blocks(ids: IO[bytes], sink: _NpzSink) -> Iterator[bytes]:
    ids.seek(0)
    kind = np.dtype(f"<U{max(1, sink.id_length)}")
    for start in range(0, sink.rows, 10_000):
        names = [
            ids.read(int.from_bytes(ids.read(4), "little")).decode() for _ in range(min(10_000, sink.rows - start))
        ]
        yield np.array(names, dtype=kind).tobytes()


def _write_header(member: IO[bytes], dtype: str, rows: int) -> None:
    header = {"descr": dtype, "fortran_order": False, "shape": (rows,)}
    np.lib.format.write_array_header_2_0(member, header)


class _ParquetSink:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None
        self._rows = 0

    def write(self, ids: Sequence[str] | None, scores: Scores) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = list(ids) if ids is not None else [str(self._rows + i) for i in range(len(scores))]
        block = pa.table(
            [pa.array(names, pa.string()), *(pa.array(column) for column in _columns(scores))],
            names=["id", *SCORE_COLUMNS],
        )
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, block.schema)
        self._writer.write_table(block)
        self._rows += len(scores)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@contextmanager
def _parquet(path: Path, folder: Path) -> Iterator[ScoreSink]:
    try:
        import pyarrow  # noqa: F401 - whether it is there
    except ImportError as error:
        raise ConfigError(
            f"{path.name}: writing parquet needs pyarrow, which is not installed; run: pip install 'darksight[parquet]'"
        ) from error
    sink = _ParquetSink(path)
    try:
        yield sink
    finally:
        sink.close()
